"""A small buffer and a table, and sessions: `spark` on `local[2]`, `cluster_spark` on processes of its own,
`connect_spark` on a server.

Each is started when first asked for and kept as long as possible. Use one of them per test: PySpark knows one at a
time, which is also why they are not for fixtures of a wider scope.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import tests
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.spark.session import session
from objbuf_dagster.store import LocalStore, Store
from tests.spark.clusters import ClassicSessions, connect_server
from tests.spark.landing import Filled, fill
from tests.spark.rows import batch
from tests.support.s3 import S3Location

cloudpickle.register_pickle_by_value(tests)  # type: ignore[no-untyped-call]  # executors can't import the functions that tests send them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the cluster come last, since each change between `spark` and `cluster_spark` costs a start."""
    items.sort(key=lambda item: "cluster_spark" in getattr(item, "fixturenames", ()))


@pytest.fixture
def cluster_spark(classic_sessions: ClassicSessions) -> SparkSession:
    """A prepared session on two executors, in processes of their own, that do not have this package."""
    return classic_sessions.cluster()


@pytest.fixture(scope="session")
def connect_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Spark Connect server runs, and what it logs is in `log`."""
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="session")
def connect_url(connect_directory: Path) -> Iterator[str]:
    """The address of a Spark Connect server whose workers do not have this package."""
    with connect_server(connect_directory) as url:
        yield url


@pytest.fixture
def connect_spark(connect_url: str) -> Iterator[SparkSession]:
    """A prepared session on the Spark Connect server, new for each test."""
    with session(remote=connect_url) as spark:
        yield spark


@pytest.fixture
def small(tmp_path: Path) -> Filled:
    """Three ranges of three batches."""
    made = [batch(n, [b"%d-%d" % (n, i) for i in range(n + 1)], [Metadata(0, n, b"m")]) for n in range(9)]
    return fill(LocalStore(tmp_path / "buffer"), made, per_range=3)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """One that is not there yet."""
    return LakeTable(f"file://{tmp_path}/lake/entries")


@pytest.fixture(params=["local", "s3"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, LakeTable]:
    """A store for the buffer and a table, both on a disk or both in a bucket."""
    if request.param == "local":
        return LocalStore(tmp_path / "buffer"), LakeTable(f"file://{tmp_path}/lake/entries")
    s3: S3Location = request.getfixturevalue("s3")
    lake = s3.below("lake/entries")
    return s3.below("buffer").open(), LakeTable(lake.url, options=lake.options)
