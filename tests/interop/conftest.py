"""The other implementations, built once. Without cargo or go tests are skipped, unless CI_REQUIRE_INTEROP=1."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from objbuf_dagster.lake import LakeTable
from tests.interop import go_producer
from tests.interop import rust_client as rust
from tests.interop.rust_client import RustClient
from tests.support.s3 import S3Location

_OUTSIDE = dict(os.environ)  # with the proxy that packages may have to come through, which tests do not see


def _need(tool: str) -> None:
    if shutil.which(tool, path=_OUTSIDE.get("PATH")) is None:
        why = f"there is no {tool} to build it with"
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
    """The Go producer, built. Skips, with what Go said, where its module cannot be fetched, and for nothing else."""
    try:
        return go_producer.build(tmp_path_factory.mktemp("go"), go_environment)
    except go_producer.Unavailable as error:
        pytest.skip(f"the Go producer cannot be built, what it wrote is tested as recorded: {error}")


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """One that is not there yet."""
    return LakeTable(f"file://{tmp_path}/lake/entries")
