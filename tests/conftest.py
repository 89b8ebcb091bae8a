"""Fixtures that every test may use: an S3 server, a fresh store of each kind, a Spark session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from objbuf_dagster.store import LocalStore, MemoryStore, Store
from tests.spark.clusters import ClassicSessions
from tests.support import jvm
from tests.support.s3 import S3Location, has_real_server, moto_server, real_s3_server, s3_server
from tests.support.versitygw import Unavailable

settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("suite")  # the same inputs in every run, and nothing left behind


def pytest_configure() -> None:
    """Tests that run in the background of a script ignore Ctrl-C, and whatever they start would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST_FIRST = ("tests/e2e", "tests/prove", "tests/soak", "tests/spark", "tests/orchestration")
_TOGETHER = "tests/e2e"
"""Share one deployment, which takes long to start."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal out whole modules to the processes that run tests, what takes long first, so that both end together."""
    for item in items:
        module = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(_TOGETHER if module.startswith(_TOGETHER) else module))
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in _LONGEST_FIRST])


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """What a person has set for their own cloud, Hadoop or proxy is nothing to the tests, nor to what they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "HADOOP_")) or name.upper().endswith("_PROXY"):
                patch.delenv(name)
        patch.delenv("PYTHONUNBUFFERED", raising=False)
        for name, value in jvm.variables().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def s3_root() -> Iterator[S3Location]:
    """A place in a bucket of an S3 server that lives as long as the session: see tests/support/s3.py."""
    with s3_server() as location:
        yield location


@pytest.fixture(scope="session")
def real_s3(request: pytest.FixtureRequest) -> Iterator[S3Location]:
    """The same, of a real server: where moto would do for others, one is built. Give such tests time for that.

    They are skipped where it cannot be had, unless CI_REQUIRE_S3=1.
    """
    if has_real_server():
        yield request.getfixturevalue("s3_root")
        return
    with ExitStack() as stack:
        try:
            location = stack.enter_context(real_s3_server())
        except Unavailable as error:
            pytest.skip(str(error))
        yield location


@pytest.fixture(scope="session")
def trusting_s3_root(request: pytest.FixtureRequest) -> Iterator[S3Location]:
    """The same, of a server that takes any credentials: moto's, for tests that make up their own."""
    if not has_real_server():
        yield request.getfixturevalue("s3_root")
        return
    with moto_server() as location:
        yield location


@pytest.fixture
def trusting_s3(trusting_s3_root: S3Location) -> S3Location:
    """A place in its bucket where nothing is yet, for this test alone."""
    return trusting_s3_root.fresh()


@pytest.fixture
def s3(s3_root: S3Location) -> S3Location:
    """A place in a bucket where nothing is yet, for this test alone."""
    return s3_root.fresh()


@pytest.fixture(params=["memory", "local", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, of each kind in turn."""
    return MemoryStore() if request.param == "memory" else _shared(request, tmp_path)


@pytest.fixture(params=["local", "s3"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store that other processes can open too (pickled), of each kind in turn."""
    return _shared(request, tmp_path)


def _shared(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    location: S3Location = request.getfixturevalue("s3")
    return location.open()


@pytest.fixture(scope="session")
def classic_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassicSessions]:
    """Keeps the classic session, whichever it is, until the end of the run."""
    sessions = ClassicSessions(tmp_path_factory.mktemp("cluster"))
    yield sessions
    sessions.close()


@pytest.fixture
def spark(classic_sessions: ClassicSessions) -> SparkSession:
    """A prepared session on `local[2]`, the same for all tests."""
    return classic_sessions.local()
