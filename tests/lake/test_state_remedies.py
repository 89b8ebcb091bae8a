"""A state that cannot go on says what helps, and that helps; what it reads is of one version."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from objbuf_dagster.errors import CorruptData, InvalidInput, UnsupportedVersion
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.files import Snapshot
from objbuf_dagster.lake.fold import BUCKET
from objbuf_dagster.lake.state import CURSOR, StateTable, cursor_at
from objbuf_dagster.lake.state_cursor import RebuildNeeded, StateCursor
from objbuf_dagster.lake.state_run import catch_up
from objbuf_dagster.lake.transfer import export_table
from tests.lake.states import Accounts, World
from tests.lake.test_state import More


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(str(tmp_path / "lake"))
    world.land(0, [["a1 put 1", "b1 put 2"]])
    world.apply()
    return world


def cursor_file(world: World) -> Path:
    path = world.state.load().cursor_path
    assert path is not None
    assert world.state.root is not None
    return world.state.root / path


def test_a_damaged_cursor_names_the_rebuild_that_helps(world: World, tmp_path: Path) -> None:
    cursor_file(world).write_bytes(b"garbage")
    says = r"state cursor is corrupt.*objbuf state rebuild .*/accounts --fold NAME --decoder NAME"

    with pytest.raises(CorruptData, match=says):
        world.apply()
    with pytest.raises(CorruptData, match=says):
        cursor_at(world.state)
    with pytest.raises(CorruptData, match=says):
        export_table(world.state, tmp_path / "export")
    world.rebuild()
    assert world.found() == world.expected()


def test_a_cursor_of_a_version_to_come_is_refused_and_can_be_rebuilt(world: World) -> None:
    path = cursor_file(world)
    schema = pa.schema([*Accounts.key, *Accounts.value])
    said = schema.with_metadata({"objbuf.cursor": '{"version": 2}'})
    pa.parquet.write_table(said.empty_table(), path)

    with pytest.raises(UnsupportedVersion, match="upgrade"):
        world.apply()
    world.rebuild()
    assert world.found() == world.expected()
    assert world.apply().ranges == 0


def test_several_cursors_are_refused_by_whoever_looks(world: World, tmp_path: Path) -> None:
    path = cursor_file(world)
    copy = path.with_name("part-copy.parquet")
    shutil.copy(path, copy)
    delta = DeltaTable(str(world.state.root))
    cursor = world.state.cursor()
    assert cursor is not None
    delta.create_write_transaction(
        [_add(f"{BUCKET}={CURSOR}/{copy.name}", copy.stat().st_size)], mode="append", schema=delta.schema()
    )

    for look in (world.apply, lambda: cursor_at(world.state), lambda: export_table(world.state, tmp_path / "export")):
        with pytest.raises(CorruptData, match=r"has 2 cursors.*another program.*objbuf state rebuild"):
            look()
    world.rebuild()
    assert world.found() == world.expected()


def _add(path: str, size: int) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(path, size, {BUCKET: CURSOR}, 0, True, '{"numRecords": 0}')


def test_what_cannot_go_on_names_the_command_with_what_it_needs(world: World) -> None:
    world.state = StateTable(world.state.url, More(), buckets=4)
    with pytest.raises(RebuildNeeded, match=r"`objbuf state rebuild .*/accounts --fold NAME --decoder NAME`"):
        world.apply()
    world.state = StateTable(world.state.url, Accounts(), buckets=4)
    world.buffer = "file:///one"
    world.rebuild()
    world.buffer = "file:///two"
    with pytest.raises(RebuildNeeded, match=r"`objbuf state rebuild .*/accounts`, with --fold and --decoder where"):
        world.apply()


class Vanishing(LakeTable):
    """Whose ranges are taken out right after somebody looked."""

    looked = False

    def snapshot(self) -> Snapshot | None:
        found = super().snapshot()
        if not self.looked:
            self.looked = True
            DeltaTable(str(self.root)).delete()
        return found


def test_a_range_has_the_files_of_the_version_that_it_was_seen_in(world: World) -> None:
    """Else it would be applied without its rows, and the cursor would say that they are in."""
    world.land(1, [["a1 put 3", "c1 put 4"]])
    typed = Vanishing(world.typed.url, world.typed.schema)

    report = catch_up(world.state, dataclasses.replace(world.sources, typed=typed))

    assert typed.looked
    assert (report.ranges, report.rows) == (1, 2)
    assert world.found() == world.expected()


class BadKey(Accounts):
    def key_of(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {"who": row["who"]} if row["amount"] < 7 else {"who": row["nobody"]}


class BadStep(Accounts):
    def step(self, value: Mapping[str, Any] | None, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return super().step(value, row) if row["amount"] < 7 else {"total": 1 // 0}


class BadKeyed(Accounts):
    def keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if 7 in rows.column("amount").to_pylist():
            raise RuntimeError("no seven")
        return super().keyed(rows)


@pytest.mark.parametrize(
    ("fold", "says"),
    [
        (BadKey(), "key_of at sequence 2, entry index 1, record index 1: KeyError: 'nobody'"),
        (BadStep(), "step at sequence 2, entry index 1, record index 1: ZeroDivisionError: integer division"),
        (BadKeyed(), "keyed at sequence .*: RuntimeError: no seven"),
    ],
)
def test_a_fold_that_fails_at_a_row_names_it_and_what_to_do(tmp_path: Path, fold: Accounts, says: str) -> None:
    world = World(str(tmp_path))
    world.land(0, [["a1 put 1"]])
    world.land(1, [["a1 put 2"], ["a1 put 3", "a1 put 4|a1 put 7"]])
    world.state = StateTable(world.state.url, fold, buckets=4)

    with pytest.raises(InvalidInput, match=f"range 000000000001-000000000002 .*fold accounts 1 failed in {says}") as it:
        world.apply(ranges_at_once=1)

    assert "Nothing was committed: mend the fold, or let it leave such rows out" in str(it.value)
    assert world.found() == world.expected(through=0), "what was before it is in"
    with pytest.raises(InvalidInput, match="range 000000000001-000000000002 cannot be applied"):
        world.rebuild()
    world.state = StateTable(world.state.url, Accounts(), buckets=4)
    assert world.apply().ranges == 1
    assert world.found() == world.expected()


def test_memory_that_runs_out_and_our_own_errors_are_not_the_folds(tmp_path: Path) -> None:
    class Large(Accounts):
        error: Exception = MemoryError("none left")

        def key_of(self, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
            raise self.error

    world = World(str(tmp_path))
    world.land(0, [["a1 put 1"]])
    world.state = StateTable(world.state.url, Large(), buckets=4)
    with pytest.raises(MemoryError, match="none left"):
        world.apply()
    Large.error = CorruptData("a row", "it says so")
    with pytest.raises(CorruptData, match="it says so"):
        world.apply()


def test_a_cursor_survives_its_file() -> None:
    cursor = StateCursor("000000000000-000000000000", 1, 0, 1, 1, 1, "accounts", 1, "x", 4)
    assert StateCursor.from_file(cursor.to_file(Accounts.key)) == cursor
