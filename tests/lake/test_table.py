"""Landing ranges: what is in the table afterwards, and what is refused."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from objbuf_dagster import __version__
from objbuf_dagster.errors import BufferReplaced, CorruptData, InvalidInput, NotFound, StorageError
from objbuf_dagster.lake import ENTRIES, Column, DataFile, LakeTable, TableSchema
from tests.lake.landings import key, land, read, sequences, tags, write


def test_nothing_has_landed_in_a_table_that_is_not_there(table: LakeTable) -> None:
    assert not table.exists()
    assert (table.version(), table.files(), table.ranges()) == (None, [], {})
    with pytest.raises(NotFound, match="nothing has landed"):
        table.delta()


def test_a_landed_range_can_be_read(table: LakeTable) -> None:
    files = write(table, key(0), b"one")

    commit = table.commit(key(0), files, epoch=3)

    assert (commit.version, commit.added, commit.removed, commit.attempts) == (1, 2, 0, 1)
    assert sequences(table) == list(range(10))
    assert read(table).column_names == [column.name for column in ENTRIES.columns]
    assert tags(table, key(0)) == {b"one": 10}
    live = table.files()
    assert {(file.path, file.size, file.rows) for file in live} == {(file.path, file.size, file.rows) for file in files}
    assert [file.range for file in live] == [key(0)] * 2
    assert sorted(file.stats["minValues"]["_odb_sequence"] for file in live) == [0, 5]


def test_landing_again_replaces_exactly_that_range(table: LakeTable) -> None:
    for number in range(3):
        land(table, key(number), b"old")

    commit = table.commit(key(1), write(table, key(1), b"new", files=1, rows=10), epoch=1)

    assert (commit.added, commit.removed) == (1, 2)
    assert sequences(table) == list(range(30))
    assert [dict(tags(table, key(number))) for number in range(3)] == [{b"old": 10}, {b"new": 10}, {b"old": 10}]
    assert {range_key: (one.rows, one.files) for range_key, one in table.ranges().items()} == {
        key(0): (10, 2),
        key(1): (10, 1),
        key(2): (10, 2),
    }
    assert [file.range for file in table.files([key(1), key(9)])] == [key(1)]


def test_the_same_files_again_change_nothing(table: LakeTable) -> None:
    files = write(table, key(0))
    first = table.commit(key(0), files, epoch=1)

    again = table.commit(key(0), files, epoch=1)

    assert (again.version, again.added, again.removed, again.attempts) == (first.version, 0, 0, 0)
    assert table.version() == first.version
    assert sequences(table) == list(range(10))


def test_a_landing_that_was_replaced_may_land_again(table: LakeTable) -> None:
    first = write(table, key(0), b"first")
    table.commit(key(0), first, epoch=1)
    land(table, key(0), b"second")

    table.commit(key(0), first, epoch=1)

    assert tags(table, key(0)) == {b"first": 10}


def test_a_range_without_rows_is_known_to_have_landed(table: LakeTable) -> None:
    land(table, key(0))

    commit = table.commit(key(0), [], epoch=1)

    assert (commit.added, commit.removed) == (1, 2)
    assert (table.ranges()[key(0)].rows, sequences(table)) == (0, [])
    assert table.commit(key(0), [], epoch=1).version == commit.version
    land(table, key(0))
    assert sequences(table) == list(range(10))


def test_a_commit_says_what_it_landed(table: LakeTable) -> None:
    table.commit(key(0), write(table, key(0)), epoch=7, run_id="run-1", metadata={"dead_letters": 2})

    newest = table.delta().history(1)[0]
    assert newest["objbuf"] == {
        "range": key(0),
        "rows": 10,
        "epoch": 7,
        "run_id": "run-1",
        "software": f"objbuf-dagster {__version__}",
        "dead_letters": 2,
    }


def test_commits_leave_the_table_s_schema_and_id_alone(table: LakeTable) -> None:
    land(table, key(0))
    before = table.delta()
    land(table, key(1))
    land(table, key(1))
    after = table.delta()

    assert after.metadata().id == before.metadata().id
    assert after.schema() == before.schema() == ENTRIES.to_delta()
    assert after.metadata().configuration == {"delta.checkpointInterval": "10"}


def test_checkpoints_come_by_themselves_and_are_read(local: LakeTable) -> None:
    assert local.root is not None
    for number in range(25):
        land(local, key(number), files=1, rows=1)

    checkpoints = sorted(path.name for path in (local.root / "_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 2
    for commit in sorted((local.root / "_delta_log").glob("*.json"))[:15]:
        commit.unlink()  # so that only the checkpoint can know
    assert sequences(local) == [number * 10 for number in range(25)]
    assert local.files([key(3)])[0].stats["minValues"] == {"_odb_sequence": 30}


def test_plain_deltalake_reads_it_without_us(local: LakeTable) -> None:
    land(local, key(0), b"entry")

    rows = deltalake.DeltaTable(str(local.root)).to_pyarrow_table().to_pylist()

    assert {row["_odb_range"] for row in rows} == {key(0)}
    assert [row["entry"] for row in rows] == [b"entry"] * 10


def test_a_typed_table_has_its_own_columns(tmp_path: Path) -> None:
    schema = TableSchema((Column("name", "string"), Column("ok", "boolean", nullable=False)))
    table = LakeTable(tmp_path / "typed", schema)

    table.commit(key(0), [], epoch=1)

    assert read(table).column_names == ["name", "ok", "_odb_range"]


def test_a_table_with_other_columns_is_refused_and_left_alone(table: LakeTable) -> None:
    land(table, key(0))
    other = LakeTable(table.url, TableSchema((*ENTRIES.data, Column("more", "long"))), options=table._settings[0])

    with pytest.raises(InvalidInput, match=r"lacks more long; move it away"):
        other.commit(key(1), [], epoch=1)

    assert (table.version(), sequences(table)) == (1, list(range(10)))


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"a": [1]}))

    with pytest.raises(InvalidInput, match=r"partitioned by \[\].*not one of ours"):
        LakeTable(tmp_path).commit(key(0), [], epoch=1)


def test_what_is_said_of_a_damaged_log_can_be_printed(local: LakeTable, tmp_path: Path) -> None:
    local.commit(key(0), [], epoch=1)
    (newest,) = tmp_path.rglob(f"{1:020d}.json")
    newest.write_bytes(b"\x1b[2J" + newest.read_bytes())

    with pytest.raises(StorageError) as raised:
        local.version()

    assert "\\x1b" in str(raised.value)
    assert str(raised.value).isprintable()


def test_a_range_that_shares_sequences_with_another_is_refused(table: LakeTable) -> None:
    land(table, key(1))

    for overlapping in ("000000000005-000000000014", "000000000000-000000000099", "000000000012-000000000012"):
        with pytest.raises(InvalidInput, match=f"shares sequences with {key(1)}"):
            table.commit(overlapping, [], epoch=1)

    assert list(table.ranges()) == [key(1)]


def from_batches(files: list[DataFile], first: str, last: str) -> list[DataFile]:
    """The same files, saying which batches their rows come from."""
    bounds = {"minValues": {"_odb_data_path": first}, "maxValues": {"_odb_data_path": last}}
    return [replace(file, stats={**file.stats, **bounds}) for file in files]


def test_the_rows_of_another_buffer_are_not_replaced(table: LakeTable) -> None:
    table.commit(key(0), from_batches(write(table, key(0), b"ours"), "ingest/A", "ingest/C"), epoch=1)
    table.commit(key(0), from_batches(write(table, key(0), b"again"), "ingest/A", "ingest/C"), epoch=2)

    with pytest.raises(BufferReplaced, match="came from ingest/A to ingest/C, and would be replaced by ingest/B"):
        table.commit(key(0), from_batches(write(table, key(0), b"theirs"), "ingest/B", "ingest/D"), epoch=1)

    assert set(tags(table, key(0))) == {b"again"}


def test_files_that_are_not_there_as_said_are_not_committed(table: LakeTable) -> None:
    file = write(table, key(0))[0]

    with pytest.raises(CorruptData, match="its writer said"):
        table.commit(key(0), [replace(file, size=file.size + 1)], epoch=1)
    with pytest.raises(NotFound, match="land the range again"):
        table.commit(key(0), [file, replace(file, path=table.new_path(key(0)))], epoch=1)

    assert table.ranges() == {}


@pytest.mark.parametrize(
    "path",
    [
        f"_odb_range={key(1)}/part.parquet",
        "part.parquet",
        f"_odb_range={key(0)}/../x.parquet",
        f"_odb_range={key(0)}/_hidden.parquet",
        f"_odb_range={key(0)}/a b.parquet",
    ],
)
def test_files_of_other_places_are_refused(local: LakeTable, path: str) -> None:
    with pytest.raises(InvalidInput, match="not a file of range"):
        local.commit(key(0), [DataFile(path, 1, 1)], epoch=1)


def test_what_makes_no_sense_is_refused_before_anything_happens(local: LakeTable) -> None:
    file = write(local, key(0))[0]
    for files in ([file, file], [replace(file, rows=-1)], [replace(file, stats={"other": {}})]):
        with pytest.raises(InvalidInput):
            local.commit(key(0), files, epoch=1)
    with pytest.raises(InvalidInput, match="not a range"):
        local.commit("0-9", [], epoch=1)
    with pytest.raises(InvalidInput, match="epoch cannot be set"):
        local.commit(key(0), [file], epoch=1, metadata={"epoch": 2})
    with pytest.raises(InvalidInput, match="must be JSON"):
        local.commit(key(0), [file], epoch=1, metadata={"x": float("nan")})
    with pytest.raises(InvalidInput, match="cannot be JSON"):
        local.commit(key(0), [replace(file, stats={"minValues": {"entry": b"x"}})], epoch=1)
    assert local.ranges() == {}


def test_names_of_a_landing_with_other_files_are_refused(local: LakeTable) -> None:
    first, second = write(local, key(0))
    local.commit(key(0), [first], epoch=1)

    with pytest.raises(InvalidInput, match="new names"):
        local.commit(key(0), [first, second], epoch=1)


def test_a_table_travels_and_does_not_show_its_secrets(table: LakeTable) -> None:
    there: LakeTable = pickle.loads(pickle.dumps(table))
    land(there, key(0))

    assert sequences(table) == list(range(10))
    assert "test-secret-key" not in repr(there)
    assert pickle.loads(pickle.dumps(write(table, key(0))[0])).rows == 5


def test_a_local_landing_is_on_the_disk_when_it_returns(local: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of data before the commit, then the commit's file, then the folder that names it."""
    assert local.root is not None
    log = local.root / "_delta_log"
    files = write(local, key(0))
    synced: list[tuple[int, bool]] = []
    real = os.fsync

    def recording(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (log / f"{1:020d}.json").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    local.commit(key(0), files, epoch=1)

    root, folder = local.root.stat().st_ino, log.stat().st_ino
    assert (root, False) in synced
    after = [inode for inode, committed in synced if committed]
    assert set(after[:-2]) == {(log / f"{version:020d}.json").stat().st_ino for version in (0, 1)}
    assert after[-2:] == [folder, root]


def test_places_that_cannot_hold_a_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="in memory"):
        LakeTable("memory://lake")
    with pytest.raises(InvalidInput, match="'%'"):
        LakeTable(tmp_path / "a%20b")
    odd = LakeTable(tmp_path / "a b#c?é")
    land(odd, key(0))
    assert sequences(odd) == list(range(10))


def test_what_a_commit_would_refuse_is_told_without_one(table: LakeTable) -> None:
    files = write(table, key(0))
    table.check(key(0), files)
    assert not table.exists()

    table.commit(key(0), files, epoch=1)
    table.check(key(0), files)
    table.check(key(0), write(table, key(0)))
    table.check(key(1), [])
    for range_key, wrong, kind in (
        ("000000000005-000000000014", [], InvalidInput),
        (key(1), [DataFile(table.new_path(key(1)), 1, 1)], NotFound),
        (key(0), [files[0]], InvalidInput),
        (key(0), [replace(files[0], path=table.new_path(key(1)))], InvalidInput),
    ):
        with pytest.raises(kind):
            table.check(range_key, wrong)
        with pytest.raises(kind):
            table.commit(range_key, wrong, epoch=1)
    assert (table.version(), list(table.ranges())) == (1, [key(0)])
