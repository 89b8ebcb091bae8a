"""Rows of a range in their order, however its files are: several, interleaved, unsorted, doubled."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.lake import DataFile, LakeTable, TableSchema
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.lake.fold import ORDER
from objbuf_dagster.lake.state_rows import ordered
from tests.lake.landings import key

SCHEMA = pa.schema(
    [*(pa.field(name, pa.int64(), nullable=False) for name in ORDER), pa.field("text", pa.string(), nullable=False)]
)
Row = tuple[int, int, int]


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "rows", TableSchema.from_arrow(SCHEMA))


def some_rows(count: int) -> list[Row]:
    return [(at // 12, at // 3 % 4, at % 3) for at in range(count)]


def write(table: LakeTable, groups: list[list[Row]]) -> list[DataFile]:
    """One file with these row groups."""
    writer = RowsWriter(table.store, SCHEMA, lambda: table.new_path(key(0)), group_bytes=1)
    for group in groups:
        rows = [dict(zip(SCHEMA.names, (*row, f"{row}"), strict=True)) for row in group]
        writer.add(pa.RecordBatch.from_pylist(rows, SCHEMA))
    return list(writer.finish())


def read(table: LakeTable, files: list[DataFile], block_bytes: int = 1 << 20) -> list[Row]:
    found: list[Row] = []
    for block in ordered(table, files, ["text"], block_bytes=block_bytes):
        rows = block.to_pylist()
        places = [(row[ORDER[0]], row[ORDER[1]], row[ORDER[2]]) for row in rows]
        assert [row["text"] for row in rows] == [f"{place}" for place in places]
        found += places
    return found


@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_rows_come_in_order_from_files_in_any(table: LakeTable, seed: int, block_bytes: int) -> None:
    rng = random.Random(seed)
    rows = some_rows(200)
    pieces = [rows[at : at + 7] for at in range(0, len(rows), 7)]
    rng.shuffle(pieces)
    files: list[DataFile] = []
    while pieces:
        count = rng.randint(1, len(pieces))
        groups = [list(chain.from_iterable(pieces[at : at + 2])) for at in range(0, count, 2)]
        pieces = pieces[len(groups) * 2 :]
        files += write(table, groups)

    assert read(table, files, block_bytes) == rows


def test_a_row_group_in_no_order_at_all_is_sorted(table: LakeTable) -> None:
    rows = some_rows(400)
    shuffled = random.Random(1).sample(rows, len(rows))
    files = [*write(table, [shuffled[:250]]), *write(table, [sorted(shuffled[250:])])]

    assert read(table, files) == rows


def test_runs_that_interleave_row_by_row_are_merged(table: LakeTable) -> None:
    rows = some_rows(300)
    files = [file for first in range(3) for file in write(table, [rows[first::3]])]

    assert read(table, files, 64) == rows


@pytest.mark.parametrize("together", [True, False])
def test_a_row_that_is_there_twice_is_refused(table: LakeTable, together: bool) -> None:
    rows = some_rows(30)
    groups = [[*rows, rows[20]]] if together else [rows]
    files = [*write(table, groups), *([] if together else write(table, [[rows[20]]]))]

    with pytest.raises(CorruptData, match=r"twice.*materialise that range again"):
        read(table, files)


def test_files_without_rows_give_none(table: LakeTable) -> None:
    table.commit(key(0), [], epoch=1)
    assert list(ordered(table, table.files(), ["text"])) == []
    assert list(ordered(table, [], ["text"])) == []
