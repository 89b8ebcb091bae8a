"""The other implementations, built once.

Without cargo, go or a network tests are skipped, unless CI_REQUIRE_INTEROP=1.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from objbuf_dagster.lake import LakeTable
from tests.interop import go_producer
from tests.interop import rust_client as rust
from tests.interop.rust_client import RustClient
from tests.support.s3 import S3Location

_OUTSIDE = dict(os.environ)  # with the proxy that packages may have to come through, which tests do not see


def _need(tool: str) -> None:
    if shutil.which(tool, path=_OUTSIDE.get("PATH")) is None:
        _skip_unless_required(f"there is no {tool} to build it with")


def _skip_unless_required(why: str) -> NoReturn:
    if os.environ.get("CI_REQUIRE_INTEROP") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def rust_program() -> Path:
    """The Rust client, built."""
    _need("cargo")
    return rust.build(_OUTSIDE)


@pytest.fixture
def rust_client(rust_program: Path, s3: S3Location) -> Iterator[RustClient]:
    """A process of the Rust client, at work where `s3` is."""
    with RustClient.at_s3(rust_program, s3) as client:
        yield client


@pytest.fixture
def other_rust_client(rust_program: Path, s3: S3Location) -> Iterator[RustClient]:
    """Another process at the same place."""
    with RustClient.at_s3(rust_program, s3) as client:
        yield client


@pytest.fixture(scope="session")
def go_environment() -> dict[str, str]:
    """What go runs in, where there is one."""
    _need("go")
    return _OUTSIDE


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory, go_environment: dict[str, str]) -> Path:
    """The Go producer, built. Skips, with what Go said, where its module is not to be had; see `built`."""
    return built(tmp_path_factory.mktemp("go"), go_environment)


def built(folder: Path, environment: Mapping[str, str]) -> Path:
    """The Go producer, or a skip if nobody has its module. That nobody could be asked is one only where none is asked
    for: in CI a fault of the network must not look like a module that is not there."""
    try:
        return go_producer.build(folder, environment)
    except go_producer.Unavailable as error:
        pytest.skip(f"the Go producer cannot be built, what it wrote is tested as recorded: {error}")
    except go_producer.Unreachable as error:
        _skip_unless_required(f"the Go producer cannot be built, since its module could not be asked for: {error}")


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """One that is not there yet."""
    return LakeTable(f"file://{tmp_path}/lake/entries")
