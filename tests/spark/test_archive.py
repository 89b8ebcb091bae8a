"""The archive of Spark's classes: used where it is there, and nothing depends on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from objbuf_dagster.spark.archive import archive_of, environment
from objbuf_dagster.spark.java import find_java


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment without an archive."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an environment"))
    return Path(sys.prefix)


def test_without_an_archive_nothing_is_asked_of_java(prefix: Path) -> None:
    assert environment(find_java()) == {}


def test_an_archive_is_in_the_environment_of_python_and_what_is_set_comes_behind_it(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    archive = archive_of(find_java())
    assert prefix in archive.parents
    archive.parent.mkdir(parents=True)
    archive.touch()
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss4m")
    # then
    told = environment(find_java())
    assert told == {"SPARK_SUBMIT_OPTS": f'-XX:SharedArchiveFile="{archive}" -Xshare:auto -Xss4m'}


def test_set_up_made_one_and_sessions_start_from_it(spark_pid: int) -> None:
    archive = archive_of(find_java())
    if not archive.exists():
        pytest.skip(f"{archive} is not there: `make setup` makes it where Java can")
    assert str(archive) in Path(f"/proc/{spark_pid}/maps").read_text()


@pytest.fixture
def spark_pid(spark: object) -> int:
    """The JVM of the session that tests share."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_java = (process / "comm").read_text().strip() == "java"
            if is_java and int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                return int(process.name)
        except OSError:
            continue
    pytest.skip("there is no /proc to look for it")
