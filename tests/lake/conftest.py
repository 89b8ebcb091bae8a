"""A table that is not there yet: in a directory, and in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from objbuf_dagster.lake import LakeTable
from tests.support.s3 import S3Location


@pytest.fixture
def local(tmp_path: Path) -> LakeTable:
    return LakeTable(f"file://{tmp_path}/lake/entries")


@pytest.fixture(params=["local", "s3"])
def table(request: pytest.FixtureRequest) -> LakeTable:
    if request.param == "local":
        found: LakeTable = request.getfixturevalue("local")
        return found
    place: S3Location = request.getfixturevalue("s3")
    return LakeTable(place.url, options=place.options)
