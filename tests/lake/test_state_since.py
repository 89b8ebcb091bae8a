"""A typed table that is not what was applied any more, and rebuilding from it where only Spark can decode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from objbuf_dagster.buffer.retention import Mark, Retention, retention_path
from objbuf_dagster.decode import JsonDecoder, decode_block, rows_schema
from objbuf_dagster.errors import CorruptData, InvalidInput
from objbuf_dagster.lake import LakeTable, TableSchema
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.lake.state_cursor import StateCursor, files_hash
from objbuf_dagster.lake.state_run import catch_up, rebuild
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import LocalStore
from tests.lake.states import Lines, World, ledger_with, rows_of

JSON = JsonDecoder("who STRING NOT NULL, what STRING NOT NULL, amount BIGINT NOT NULL", name="lines")


class Mended(Lines):
    """That makes something of a line that is none."""

    version = 2

    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        return super().records(b"m1 put 1" if entry == b"damaged" else entry)


def mended(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (rows for rows, _ in decode_block(Mended(), block))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path / "lake"))


def decode_again(world: World, start: int, rows: pa.RecordBatch) -> None:
    """What a redrive does with a range."""
    one = next(one for one in world.landed if one.start == start)
    table = pa.Table.from_batches(mended(rows), rows_schema(Lines())).combine_chunks()
    files = [file for block in table.to_batches() for file in world._written(world.typed, one, block, len(block))]
    world.typed.commit(one.key, files, epoch=1)


def test_ranges_that_are_decoded_anew_are_told_also_if_the_rows_are_as_many(world: World) -> None:
    world.land(0, [["a1 put 1", "b1 put 1"]])
    world.land(1, [["a1 put 4"]])
    assert world.apply(ranges_at_once=1).stale is None
    world.land(0, [["a1 put 9", "b1 put 1"]])

    report = world.apply()

    assert report.stale is not None
    assert "have other files in" in report.stale
    assert "with +0 rows" in report.stale
    assert "objbuf state rebuild" in report.stale
    assert report.changed == 0
    assert world.rebuild().stale is None
    assert world.apply().stale is None
    assert world.found() == world.expected()


def test_ranges_behind_a_gap_are_compared_too(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.land(2, [["a1 put 4"]])
    assert world.rebuild(over_gaps=True).stale is None
    world.land(2, [["a1 put 5"]])
    assert "have other files" in (world.apply().stale or "")


def test_a_rebuild_by_a_mended_decoder_asks_for_the_redrive_first(world: World) -> None:
    entries = [["a1 put 1", "damaged"]]
    world.land(0, entries)
    world.apply()

    report = rebuild(world.state, world.sources, mended)

    for told in (report, world.apply()):
        assert told.changed == -1
        assert told.stale is not None
        assert "makes +1 rows" in told.stale
        assert "redrive first" in told.stale
    decode_again(world, 0, rows_of(0, entries))
    assert "have other files" in (world.apply().stale or "")
    assert rebuild(world.state, world.sources, mended).stale is None
    assert (world.apply().stale, world.apply().changed) == (None, 0)


def test_what_the_typed_table_lacks_cannot_be_compared(world: World) -> None:
    world.land(0, [["a1 put 1"]], typed=False)
    report = world.rebuild()
    assert (report.stale, report.changed) == (None, 0)
    assert report.cursor is not None
    assert report.cursor.files is None
    world.land(0, [["a1 put 1"]], entries=False)
    assert world.apply().stale is None


def test_files_are_the_same_in_any_order_and_part_by_part() -> None:
    assert files_hash(["a", "b", "c"]) == files_hash(["c", "a"], files_hash(["b"])) != files_hash(["a", "b"])
    cursor = StateCursor("000000000000-000000000000", 1, 0, 1, 1, 1, "accounts", 1, "x", 4, files=files_hash(["a"]))
    assert StateCursor.from_json(cursor.to_json()) == cursor
    with pytest.raises(CorruptData, match="wrong kind"):
        StateCursor.from_json({**cursor.to_json(), "files": "no number"})


def land_json(world: World, start: int, batches: list[list[str]], *, typed: bool = True) -> None:
    """A range whose rows Spark has made of JSON, in the table `json` beside `entries`."""
    one = world.land(start, batches, typed=False)
    if typed:
        table = json_table(world)
        rest = pa.array([[]], JSON.schema.field("_rest").type)
        writer = RowsWriter(table.store, table.schema.to_arrow(), lambda: table.new_path(one.key))
        for block, _ in decode_block(Lines(), rows_of(start, batches)):
            found = block.append_column("_rest", pa.concat_arrays([rest] * len(block)))
            writer.add(found.select(table.schema.to_arrow().names).cast(table.schema.to_arrow()))
        table.commit(one.key, writer.finish(), epoch=1)


def json_table(world: World) -> LakeTable:
    return LakeTable(f"{world.url}/json", TableSchema.from_arrow(rows_schema(JSON)))


@pytest.fixture
def of_json(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(World, "typed", property(json_table))
    land_json(world, 0, [["a1 put 1", "b1 put 2"]])
    land_json(world, 1, [["a1 put 3"], ["b1 close 0"]])
    return world


def test_a_state_that_only_spark_can_decode_is_rebuilt_from_its_table(of_json: World) -> None:
    world = of_json
    report = rebuild(world.state, world.sources, None)

    assert (report.ranges, report.rows, report.waiting, report.stale) == (2, 4, None, None)
    assert world.found() == world.expected()
    land_json(world, 3, [["c1 put 1"]])
    assert catch_up(world.state, world.sources).ranges == 1
    assert world.found() == world.expected()


def test_such_a_rebuild_ends_where_a_range_is_still_to_be_decoded(of_json: World, tmp_path: Path) -> None:
    """Also where its batches have expired: `entries` has it, so it is no gap."""
    world = of_json
    land_json(world, 3, [["c1 put 1"]], typed=False)
    land_json(world, 4, [["c1 put 1"]])
    store = LocalStore(tmp_path / "buffer")
    world.ledger = ledger_with(
        store, SequenceRange(0, 0), SequenceRange(1, 2), SequenceRange(3, 3), SequenceRange(4, 4)
    )
    store.put(retention_path("ingest"), Retention(expired=(Mark(1, 4),)).to_bytes())

    report = rebuild(world.state, world.sources, None, over_gaps=True)

    assert report.ranges == 2
    assert report.waiting is not None
    assert "range 000000000003-000000000003 is not in" in report.waiting
    assert world.found() == world.expected(through=2)


def test_such_a_rebuild_without_its_table_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "typed", property(json_table))
    land_json(world, 0, [["a1 put 1"]], typed=False)
    with pytest.raises(InvalidInput, match=r"nothing in .*/json to rebuild .*: range .* is not in .*materialise it"):
        rebuild(world.state, world.sources, None)
    assert world.state.snapshot() is None
