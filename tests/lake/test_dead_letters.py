"""Dead letters: parts of a range that leave each other alone, and steps after each of which nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from objbuf_dagster.decode import failures_schema
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import DataFile, LakeTable, maintain, stat
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, RangeLetters, read_letters
from objbuf_dagster.lake.files import RowsWriter
from tests.lake.landings import key
from tests.support.s3 import S3Location

Found = list[tuple[int, str, int]]


@pytest.fixture(params=["local", "s3"])
def letters(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    """An empty table, on a disk and in a bucket."""
    if request.param == "local":
        return LakeTable(tmp_path / "lake/dead_letters", DEAD_LETTERS)
    place: S3Location = request.getfixturevalue("s3")
    return LakeTable(place.url, DEAD_LETTERS, options=place.options)


def write(table: LakeTable, sequences: Iterable[int], version: int = 1, decoder: str = "one") -> list[DataFile]:
    rows = [
        {
            "_odb_sequence": sequence,
            "_odb_entry_index": 0,
            "_odb_manifest_path": "ingest/manifest",
            "_odb_data_path": "ingest/1.batch",
            "entry": b"%d" % sequence,
            "reason": "because",
            "decoder_version": version,
        }
        for sequence in sequences
    ]
    writer = RowsWriter(table.store, DEAD_LETTERS.to_arrow(), lambda: table.new_path(key(0), decoder))
    writer.add(pa.RecordBatch.from_pylist(rows, DEAD_LETTERS.to_arrow()))
    return list(writer.finish())


def step(table: LakeTable, new: Iterable[int], version: int = 1, decoder: str = "one") -> RangeLetters:
    return RangeLetters(table, key(0), decoder, write(table, new, version, decoder), epoch=1)


def found(table: LakeTable) -> Found:
    """Sequence, decoder and its version of each letter."""
    return sorted(
        (row["_odb_sequence"], str(file.part), row["decoder_version"])
        for file, block in read_letters(table)
        for row in block.to_pylist()
    )


def replaced(table: LakeTable, new: Iterable[int], version: int = 1, decoder: str = "one") -> None:
    letters = step(table, new, version, decoder)
    letters.keep()
    letters.settle()


def test_the_columns_are_those_that_decoders_give() -> None:
    given = {field.name: (field.type, field.nullable) for field in failures_schema()}

    assert given.pop(str(DEAD_LETTERS.part)) == (pa.string(), False)
    assert {field.name: (field.type, field.nullable) for field in DEAD_LETTERS.to_arrow()} == given


def test_no_letters_before_and_after_make_no_table(letters: LakeTable) -> None:
    replaced(letters, [])

    assert not letters.exists()


def test_parts_of_a_range_leave_each_other_alone(letters: LakeTable) -> None:
    replaced(letters, [1, 2], decoder="one")
    replaced(letters, [2, 3], decoder="two")

    replaced(letters, [1], 2, decoder="one")

    assert found(letters) == [(1, "one", 2), (2, "two", 1), (3, "two", 1)]
    assert [file.path.rpartition("/")[0] for file in letters.files([key(0)], "two")] == [
        f"_odb_range={key(0)}/decoder=two"
    ]
    assert letters.ranges()[key(0)].rows == 3
    assert stat(letters).rows == 3
    assert sorted(letters.delta().to_pyarrow_table()["decoder"].to_pylist()) == ["one", "two", "two"]


@pytest.mark.parametrize(
    ("new", "kept", "commits"),
    [
        ([], [1, 2], 2),
        ([1], [1, 2], 2),
        ([1, 2], [1, 2], 1),
        ([1, 2, 3], [1, 2, 3], 1),
        ([2, 3], [1, 2, 3], 2),
        ([3], [1, 2, 3], 2),
    ],
    ids=["all mended", "one mended", "the same", "one more", "one mended and one more", "others"],
)
def test_until_rows_are_committed_all_letters_are_there_once(
    new: list[int], kept: list[int], commits: int, letters: LakeTable
) -> None:
    replaced(letters, [1, 2])
    version = letters.version()
    assert version == 1

    both = step(letters, new, 2)
    both.keep()
    assert [sequence for sequence, *_ in found(letters)] == kept
    both.settle()

    assert found(letters) == [(sequence, "one", 2) for sequence in new]
    assert letters.version() == version + commits
    both.settle()
    assert letters.version() == version + commits


def test_letters_that_are_gone_come_back(letters: LakeTable) -> None:
    replaced(letters, [1])
    replaced(letters, [])
    assert found(letters) == []
    version = letters.version()

    replaced(letters, [])
    assert letters.version() == version, "nothing to commit"
    replaced(letters, [1, 2], 3)

    assert found(letters) == [(1, "one", 3), (2, "one", 3)]


def test_a_part_is_needed_where_there_are_parts_and_nowhere_else(letters: LakeTable, local: LakeTable) -> None:
    with pytest.raises(InvalidInput, match="cannot have a part None"):
        letters.commit(key(0), [], epoch=1)
    with pytest.raises(InvalidInput, match="cannot have a part 'one'"):
        local.commit(key(0), [], epoch=1, part="one")
    with pytest.raises(InvalidInput, match="letters, digits"):
        letters.new_path(key(0), "../up")
    with pytest.raises(InvalidInput, match="not a file of range"):
        letters.commit(key(0), write(letters, [1], decoder="one"), epoch=1, part="two")


def test_a_table_with_other_parts_is_refused(local: LakeTable) -> None:
    local.commit(key(0), [], epoch=1)

    with pytest.raises(InvalidInput, match=r"is partitioned by .* not by _odb_range, decoder"):
        LakeTable(local.url, DEAD_LETTERS).ranges()


def test_upkeep_knows_parts(letters: LakeTable) -> None:
    replaced(letters, [1], decoder="one")
    replaced(letters, [2], decoder="two")

    assert maintain(letters).checkpoint_version == 2

    replaced(letters, [3], decoder="one")
    assert found(letters) == [(2, "two", 1), (3, "one", 1)]


def test_rows_are_written_to_files_that_say_what_they_hold(letters: LakeTable) -> None:
    writer = RowsWriter(
        letters.store, DEAD_LETTERS.to_arrow(), lambda: letters.new_path(key(0), "one"), group_bytes=1, file_bytes=4000
    )
    source = write(letters, range(10))
    letters.commit(key(0), source, epoch=1, part="one")
    (block,) = [block for _, block in read_letters(letters)]
    for at in range(10):
        writer.add(block.slice(at, 1))

    files = writer.finish()

    assert 1 < len(files) < 10
    assert sum(file.rows for file in files) == 10
    bounds = [(file.stats["minValues"]["_odb_sequence"], file.stats["maxValues"]["_odb_sequence"]) for file in files]
    assert bounds == sorted(bounds)
    letters.commit(key(0), files, epoch=1, part="one")
    assert [sequence for sequence, *_ in found(letters)] == list(range(10))
