"""`objbuf lake`: what a table has, and keeping it small. No Spark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from objbuf_dagster.lake import LakeTable
from tests.cli.commands import error, files_in, ok, one_line, run
from tests.lake.landings import key, land, sequences
from tests.spark.here import OLDER, RANGE, decoded_by, lake_there, land_texts


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Two ranges, the first of which landed twice."""
    table = LakeTable(tmp_path / "lake" / "entries")
    for number in (0, 0, 1):
        land(table, key(number))
    return table


def lake_of(table: LakeTable) -> Path:
    assert table.root is not None
    return table.root.parent


def orphan(table: LakeTable) -> Path:
    """What a killed landing leaves, two hours old."""
    assert table.root is not None
    path = table.new_path(key(5))
    table.store.put(path, b"12345")
    file = table.root / path
    os.utime(file, (file.stat().st_atime - 7200, file.stat().st_mtime - 7200))
    return file


def test_stat_shows_what_the_table_has(table: LakeTable) -> None:
    lines = ok("lake", "stat", lake_of(table)).splitlines()

    shown = {line[:15].strip(): line[15:] for line in lines}
    assert shown["table"] == str(table.root)
    assert shown["version"] == "3"
    assert shown["ranges"] == "2"
    assert shown["sequences"].startswith("0 to ")
    assert int(shown["rows"]) == len(sequences(table))
    assert shown["files"].startswith("4 (")
    assert shown["last landing"].startswith(f"{key(1)} at 20")
    assert shown["last landing"].endswith("Z, version 3")


def test_stat_json_has_stable_keys(table: LakeTable) -> None:
    document = json.loads(ok("lake", "stat", lake_of(table), "--json"))

    assert list(document) == [
        "table",
        "version",
        "ranges",
        "files",
        "rows",
        "bytes",
        "first_sequence",
        "last_sequence",
        "last_landing",
        "outdated",
    ]
    assert document["outdated"] == []
    assert document["last_landing"]["range"] == key(1)
    assert document["last_landing"]["time_ms"] > 1_600_000_000_000


def test_stat_tells_ranges_that_landed_with_other_rows_since_they_were_decoded(tmp_path: Path) -> None:
    decoded_by(OLDER, tmp_path)
    lake, typed = tmp_path / "lake", ("--table", "words")
    assert run("lake", "stat", lake, *typed).stderr == ""
    land_texts(lake_there(tmp_path).entries, ["one"])

    shown = run("lake", "stat", lake, *typed)

    assert "landed in entries with other rows since they were decoded" in shown.stderr
    assert f"{RANGE} (4 entries then, 1 now); decode them again" in shown.stderr
    assert json.loads(run("lake", "stat", lake, *typed, "--json").stdout)["outdated"] == [RANGE.key]
    assert run("lake", "stat", lake, *typed, "--entries", "elsewhere").stderr == ""
    assert run("lake", "stat", lake).stderr == ""


def test_table_that_is_not_there_is_noted_and_not_made(tmp_path: Path) -> None:
    for command in (["stat"], ["stat", "--json"], ["maintain", "--yes"]):
        result = run("lake", *command, tmp_path / "lake", "--table", "entreis")

        assert result.exit_code == 0
        assert one_line(result.stderr) == (
            f"note: there is no table at {tmp_path}/lake/entreis: nothing has landed there yet, or the URL or "
            "--table is not right"
        )
    assert list(tmp_path.iterdir()) == []


def test_maintain_dry_run_tells_and_changes_nothing(table: LakeTable) -> None:
    orphan(table)
    before = files_in(lake_of(table))

    assert ok("lake", "maintain", lake_of(table), "--retention", "1h", "--dry-run") == (
        "would delete 1 file (5 bytes)\n"
    )
    assert ok("lake", "maintain", lake_of(table), "--dry-run") == "would delete nothing\n"
    assert files_in(lake_of(table)) == before


def test_maintain_deletes_what_is_needless_and_keeps_the_rows(table: LakeTable) -> None:
    garbage = orphan(table)
    rows = sequences(table)

    assert error("lake", "maintain", lake_of(table), "--retention", "3600").endswith("pass --yes if you are sure")
    assert garbage.exists()
    deleted, checkpoint = ok("lake", "maintain", lake_of(table), "--retention", "3600", "--yes").splitlines()

    assert deleted == "deleted 1 file (5 bytes)"
    assert checkpoint.startswith("checkpoint of version 3 in ")
    assert not garbage.exists()
    assert sequences(table) == rows


def test_maintain_leaves_a_buffer_below_the_table_alone_and_says_so(table: LakeTable) -> None:
    assert table.root is not None
    table.store.put("ingest/manifest", b"12345")
    os.utime(table.root / "ingest/manifest", (0, 0))

    result = run("lake", "maintain", lake_of(table), "--yes")

    assert result.stdout.startswith("deleted nothing\n")
    assert one_line(result.stderr) == (
        "note: left 1 old file alone that no landing in this table wrote, the first is ingest/manifest: if it is of a "
        "buffer or of another table, move that to a place of its own"
    )
    assert (table.root / "ingest/manifest").exists()


def test_maintain_without_garbage_asks_nothing(table: LakeTable) -> None:
    assert ok("lake", "maintain", lake_of(table)).startswith("deleted nothing\ncheckpoint of version 3 in ")


@pytest.mark.parametrize("given", ["soon", "-1", "7 days", "nan", "inf", "1e9", "99999d"])
def test_retention_that_is_no_time_is_wrong_usage(tmp_path: Path, given: str) -> None:
    assert error("lake", "maintain", tmp_path, "--retention", given, code=2).startswith(
        "lake maintain: Invalid value for '--retention': give seconds, or a number with s, min, h or d, for example 7d"
    )


def test_retention_shorter_than_a_landing_is_refused_before_anything_is_asked(table: LakeTable) -> None:
    orphan(table)

    message = error("lake", "maintain", lake_of(table), "--retention", "59min", code=2)

    assert message.startswith(
        "lake maintain: a --retention of 59 min could delete the files of a landing that is still"
    )


def test_settings_of_a_directory_are_wrong_usage(tmp_path: Path) -> None:
    assert error("lake", "stat", tmp_path, "--option", "region=x", code=2).startswith(
        "lake stat: options are for buckets: a lake in a directory has no settings"
    )


def test_a_state_is_not_taken_for_a_foreign_table(tmp_path: Path) -> None:
    DeltaTable.create(
        tmp_path / "service_latest",
        pa.schema([pa.field("key", pa.string()), pa.field("_odb_bucket", pa.string())]),
        partition_by=["_odb_bucket"],
    )

    assert "is a state, without ranges: `objbuf state` looks after it" in error(
        "lake", "stat", tmp_path, "--table", "service_latest"
    )


def test_a_lake_on_hdfs_without_its_library_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)  # as if it were not installed
    lake = "hdfs://127.0.0.1:1/lake"

    for command in (["lake", "stat", lake], ["land", "all", "--buffer", str(tmp_path), "--lake", lake]):
        said = error(*command)
        assert said == "a lake on hdfs needs hdfs-native: pip install 'objbuf-dagster[hdfs]', on executors too"
