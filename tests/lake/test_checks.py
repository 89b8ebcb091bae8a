"""Checks of a range: rows that are not exactly the range's are found and named, whatever is wrong with them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from objbuf_dagster.errors import CorruptData, NotFound, ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.lake import CHECKS, DataFile, LakeTable, RangeCheck, check_range
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, RangeObject
from objbuf_dagster.ranges import range_of
from objbuf_dagster.store import RetryPolicy
from tests.lake.landings import REPOSITORY, failed
from tests.support.proxy import Proxy, Request, proxied
from tests.support.s3 import S3Location

Rows = Sequence[tuple[int | None, int | None]]


def planned(start: int, end: int) -> RangeObject:
    batches = (PlannedBatch(BatchDescriptor(n, f"ingest/{n}.batch"), 1) for n in range(start, end + 1))
    return RangeObject(start, end, 1, 0, tuple(batches))


def batch(sequence: int, rows: int) -> list[tuple[int | None, int | None]]:
    return [(sequence, index) for index in range(rows)]


def put(table: LakeTable, of: RangeObject, rows: Rows, *, group: int = 1000, stats: bool = True) -> DataFile:
    """A data file with these sequences and indices, and row groups of so many rows."""
    names = ("_odb_sequence", "_odb_entry_index", "entry")
    columns = [[row[0] for row in rows], [row[1] for row in rows], [b"entry"] * len(rows)]
    data = pa.table([pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.int64()), columns[2]], names=names)
    return put_table(table, of, data, group=group, stats=stats)


def put_table(table: LakeTable, of: RangeObject, data: pa.Table, *, group: int = 1000, stats: bool = True) -> DataFile:
    sink = io.BytesIO()
    pq.write_table(data, sink, row_group_size=group)
    path = table.new_path(range_of(of).key)
    table.store.put(path, sink.getvalue())
    told = [value for value in data["_odb_sequence"].to_pylist() if value is not None] if stats else []
    bounds = {"minValues": {"_odb_sequence": min(told)}, "maxValues": {"_odb_sequence": max(told)}} if told else {}
    return DataFile(path, len(sink.getvalue()), data.num_rows, bounds)


def by_name(checks: Sequence[RangeCheck]) -> dict[str, RangeCheck]:
    assert tuple(check.name for check in checks) == CHECKS
    return {check.name: check for check in checks}


RIGHT = [*batch(10, 3), *batch(11, 1), *batch(13, 4)]
RECORDS = {10: 3, 11: 1, 12: 0, 13: 4}


def test_rows_as_the_batches_say_pass(table: LakeTable) -> None:
    of = planned(10, 13)
    files = [put(table, of, RIGHT)]

    checks = by_name(check_range(table, of, files, RECORDS))

    assert failed(list(checks.values())) == []
    assert checks["rows_match_footers"].metadata["rows"] == checks["rows_match_footers"].metadata["records"] == 8
    assert checks["contiguous_sequences"].metadata["batches_without_records"] == 1
    assert not table.exists()


def test_rows_in_many_files_and_row_groups_pass_in_any_order_of_files(local: LakeTable) -> None:
    of = planned(10, 13)
    files = [put(local, of, RIGHT[at : at + 3], group=2) for at in (6, 0, 3)]

    assert failed(check_range(local, of, files, RECORDS)) == []


def test_files_that_do_not_tell_their_sequences_are_taken_by_name(local: LakeTable) -> None:
    of = planned(10, 13)
    files = []
    for number, rows in enumerate((RIGHT[:2], [], RIGHT[2:])):
        written = put(local, of, rows, stats=False)
        path = f"_odb_range={range_of(of).key}/{number:04d}.parquet"
        local.store.put(path, local.store.read(written.path))
        files.append(replace(written, path=path))

    assert failed(check_range(local, of, files[::-1], RECORDS)) == []


@pytest.mark.parametrize("empty_file", [True, False])
def test_a_range_without_rows_passes(local: LakeTable, empty_file: bool) -> None:
    of = planned(0, 2)
    files = [put(local, of, [])] if empty_file else []

    assert failed(check_range(local, of, files, {0: 0, 1: 0, 2: 0})) == []


@pytest.mark.parametrize(
    ("rows", "fails", "says"),
    [
        pytest.param(
            [*batch(10, 3), (10, 2), *RIGHT[3:]],
            {"rows_match_footers", "no_duplicates"},
            "sequence 10, index 2 in {file} comes right after sequence 10, index 2",
            id="a row twice",
        ),
        pytest.param(
            [*RIGHT, *batch(13, 4)],
            {"rows_match_footers", "no_duplicates"},
            "sequence 13, index 0 in {file} comes right after sequence 13, index 3",
            id="a batch twice",
        ),
        pytest.param(
            [*batch(10, 2), *RIGHT[3:]],
            {"rows_match_footers"},
            "sequence 10 has 2 rows in {file}, and its footer says 3",
            id="the end of a batch missing",
        ),
        pytest.param(
            [(10, 0), (10, 2), *RIGHT[3:]],
            {"rows_match_footers", "no_duplicates"},
            "sequence 10, index 2 in {file} comes right after sequence 10, index 0",
            id="a hole in a batch",
        ),
        pytest.param(
            [*batch(10, 3), *batch(13, 4)],
            {"contiguous_sequences", "rows_match_footers"},
            "sequence 11 has 1 records and not one row in any of 1 files",
            id="a batch missing",
        ),
        pytest.param(
            [*RIGHT, (14, 0)],
            {"contiguous_sequences"},
            "sequence 14, index 0 in {file} is outside the range",
            id="a batch after the range",
        ),
        pytest.param(
            [(9, 0), (9, 1), *RIGHT],
            {"contiguous_sequences"},
            "sequence 9, index 0 in {file} is outside the range",
            id="a batch before the range",
        ),
        pytest.param(
            [*batch(10, 3), *batch(11, 1), (12, 0), *batch(13, 4)],
            {"rows_match_footers"},
            "sequence 12 has 1 rows in {file}, and its footer says 0",
            id="rows of an empty batch",
        ),
        pytest.param(
            [(10, 1), (10, 0), (10, 2), *RIGHT[3:]],
            {"no_duplicates"},
            "sequence 10, index 1 in {file} is the first row of all",
            id="rows out of order",
        ),
        pytest.param(
            [*batch(11, 1), *batch(10, 3), *batch(13, 4)],
            {"no_duplicates"},
            "sequence 10, index 0 in {file} comes right after sequence 11, index 0",
            id="batches out of order",
        ),
        pytest.param(
            [(10, 0), (11, 0), (10, 1), (10, 2), *batch(13, 4)],
            {"no_duplicates"},
            "sequence 10, index 1 in {file} comes right after sequence 11, index 0",
            id="a batch inside another",
        ),
        pytest.param(
            [*batch(10, 3), (11, 7), *batch(13, 4)],
            {"no_duplicates"},
            "sequence 11, index 7 in {file} comes right after sequence 10, index 2",
            id="a batch that starts late",
        ),
        pytest.param(
            [*batch(10, 3), (11, None), *batch(13, 4)],
            {"no_duplicates"},
            "sequence 11, index -1 in {file}",
            id="no index",
        ),
        pytest.param(
            [*batch(10, 3), (None, 0), *batch(13, 4)],
            {"contiguous_sequences", "rows_match_footers", "no_duplicates"},
            "sequence -1, index 0 in {file} is outside the range",
            id="no sequence",
        ),
        pytest.param(
            [],
            {"contiguous_sequences", "rows_match_footers"},
            "sequence 10 has 3 records and not one row",
            id="nothing at all",
        ),
    ],
)
@pytest.mark.parametrize("group", [1, 2, 1000])
def test_what_is_wrong_is_found_and_its_place_named(
    local: LakeTable, rows: Rows, fails: set[str], says: str, group: int
) -> None:
    of = planned(10, 13)
    file = put(local, of, rows, group=group)

    checks = by_name(check_range(local, of, [file], RECORDS))

    assert set(failed(list(checks.values()))) == fails
    assert any(says.format(file=file.path) in check.description for check in checks.values() if not check.passed)
    for name in fails:
        assert "sequence" in checks[name].metadata


def test_the_place_of_a_fault_is_in_its_metadata(local: LakeTable) -> None:
    of = planned(10, 13)
    file = put(local, of, [*batch(10, 3), *batch(11, 1), (13, 0), (13, 0), (13, 1), (13, 1)])

    check = by_name(check_range(local, of, [file], RECORDS))["no_duplicates"]

    assert check.metadata == {"rows": 8, "rows_misplaced": 2, "sequence": 13, "index": 0, "file": file.path}


def test_the_same_rows_in_two_files_are_found(local: LakeTable) -> None:
    of = planned(10, 13)
    first, second = put(local, of, RIGHT), put(local, of, batch(13, 4))

    checks = by_name(check_range(local, of, [second, first], RECORDS))

    assert failed(list(checks.values())) == ["rows_match_footers", "no_duplicates"]
    assert checks["no_duplicates"].metadata["file"] == second.path
    assert "comes right after sequence 13, index 3" in checks["no_duplicates"].description
    assert "sequence 13 has 8 rows" in checks["rows_match_footers"].description


def test_batches_whose_count_nobody_told_fail(local: LakeTable) -> None:
    of = planned(10, 13)

    checks = check_range(local, of, [put(local, of, RIGHT)], {10: 3, 11: 1, 12: 0})

    assert failed(checks) == ["rows_match_footers"]
    assert "nobody told what its footer says" in checks[1].description


def test_a_file_with_other_rows_than_its_writer_said_fails(local: LakeTable) -> None:
    of = planned(10, 13)
    file = replace(put(local, of, RIGHT), rows=9)

    checks = check_range(local, of, [file], RECORDS)

    assert failed(checks) == ["rows_match_footers"]
    assert checks[1].description == f"{file.path} has 8 rows, and its writer said 9"


def test_a_range_beyond_what_a_column_can_hold_is_no_reason_to_break(local: LakeTable) -> None:
    of = planned(2**64 - 2, 2**64 - 1)

    checks = check_range(local, of, [put(local, of, batch(5, 1))], {2**64 - 2: 0, 2**64 - 1: 0})

    assert failed(checks) == ["contiguous_sequences"]


def test_a_million_rows_of_many_batches_pass_and_one_fault_among_them_is_found(local: LakeTable) -> None:
    of = planned(0, 9999)
    sequences, indices = np.repeat(np.arange(10_000), 100), np.tile(np.arange(100), 10_000)
    records = dict.fromkeys(range(10_000), 100)
    right = put_table(local, of, pa.table({"_odb_sequence": sequences, "_odb_entry_index": indices}), group=300_000)
    indices[654_321] = 20
    wrong = put_table(local, of, pa.table({"_odb_sequence": sequences, "_odb_entry_index": indices}), group=300_000)

    assert failed(check_range(local, of, [right], records)) == []
    checks = check_range(local, of, [wrong], records)
    assert failed(checks) == ["no_duplicates"]
    assert "sequence 6543, index 20" in checks[2].description
    assert "comes right after sequence 6543, index 20" in checks[2].description


_PEAK = """
import sys
import pyarrow as pa
from objbuf_dagster.lake import DataFile, LakeTable, check_range
from tests.lake.test_checks import planned

folder, path, size, rows, batches = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
file = DataFile(path, size, rows)
each = rows // batches
checks = check_range(LakeTable(folder), planned(0, batches - 1), [file], dict.fromkeys(range(batches), each))
assert all(check.passed for check in checks), checks
print(pa.default_memory_pool().max_memory())
"""


def peak(table: LakeTable, rows: int, batches: int) -> int:
    """The most that Arrow held, in bytes, in a process that checks a range of so many rows."""
    of = planned(0, batches - 1)
    each = rows // batches
    data = pa.table(
        {
            "_odb_sequence": np.repeat(np.arange(batches), each),
            "_odb_entry_index": np.tile(np.arange(each), batches),
            "entry": pa.array([b"x"]).take(pa.array(np.zeros(rows, np.int64))),
        }
    )
    file = put_table(table, of, data, group=1_000_000, stats=False)
    command = [sys.executable, "-c", _PEAK, str(table.root), file.path, *map(str, (file.size, rows, batches))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=120)
    return int(ran.stdout)


def test_memory_does_not_grow_with_the_rows(local: LakeTable) -> None:
    few, many = peak(local, 1_000_000, 100), peak(local, 6_000_000, 100)

    assert many < few + (4 << 20), f"{few} bytes for a million rows, {many} for six"
    assert many < 32 << 20


@pytest.fixture
def proxy(s3: S3Location) -> Iterator[Proxy]:
    with proxied(s3) as found:
        yield found


def through(proxy: Proxy) -> LakeTable:
    quick = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.01)
    return LakeTable(proxy.location.url, options=proxy.location.options, retry=quick)


def test_a_bucket_gives_two_columns_and_no_more(proxy: Proxy) -> None:
    table, of = through(proxy), planned(0, 9)
    data = pa.table(
        {
            "_odb_sequence": np.repeat(np.arange(10), 100),
            "_odb_entry_index": np.tile(np.arange(100), 10),
            "entry": [os.urandom(2000) for _ in range(1000)],
        }
    )
    file = put_table(table, of, data, group=500)
    proxy.requests.clear()

    checks = check_range(table, of, [file], dict.fromkeys(range(10), 100))

    assert failed(checks) == []
    ranges = [request.headers["range"].removeprefix("bytes=").split("-") for request in proxy.requests]
    assert sum(int(end) - int(start) + 1 for start, end in ranges) < 100_000 < file.size // 10
    assert {request.method for request in proxy.requests} == {"GET"}
    assert len(proxy.requests) <= 5


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [(500, StorageUnavailable, "try again"), (403, StorageError, "access denied"), (404, NotFound, "land the range")],
)
def test_a_bucket_that_fails_is_said_so(proxy: Proxy, status: int, kind: type[ObjbufError], says: str) -> None:
    table, of = through(proxy), planned(10, 13)
    file = put(table, of, RIGHT)
    proxy.spoil = lambda request: status if request.method == "GET" else None

    with pytest.raises(kind, match=says) as raised:
        check_range(table, of, [file], RECORDS)

    assert type(raised.value) is kind
    assert "test-secret-key" not in str(raised.value)


def test_a_request_that_fails_once_is_repeated(proxy: Proxy) -> None:
    table, of = through(proxy), planned(10, 13)
    file = put(table, of, RIGHT)
    spoiled: list[Request] = []

    def once(request: Request) -> int | None:
        spoiled.append(request)
        return 503 if len(spoiled) == 1 else None

    proxy.spoil = once

    assert failed(check_range(table, of, [file], RECORDS)) == []


def test_files_that_cannot_be_read_are_named(table: LakeTable) -> None:
    of = planned(10, 13)
    file = put(table, of, RIGHT)
    data = table.store.read(file.path)

    def says(kind: type[ObjbufError], changed: bytes | None, size: int | None = None) -> None:
        if changed is None:
            table.store.delete([file.path])
        else:
            table.store.put(file.path, changed)
        with pytest.raises(kind, match="parquet"):
            check_range(table, of, [replace(file, size=size or len(changed or data))], RECORDS)

    says(CorruptData, data[:-20])
    says(CorruptData, data[:9], len(data) * 100_000)
    says(CorruptData, b"PAR1" + b"\xff" * 300 + data[304:])
    says(CorruptData, b"x")
    other = io.BytesIO()
    pq.write_table(pa.table({"_odb_sequence": ["10"], "_odb_entry_index": [0]}), other)
    says(CorruptData, other.getvalue())
    says(NotFound, None)


def test_pyarrow_reads_files_that_no_commit_names(table: LakeTable) -> None:
    file = put(table, planned(10, 13), RIGHT)

    for sizes in (None, {file.path: file.size}):
        found = pq.read_table(
            file.path, filesystem=table.filesystem(sizes), columns=["_odb_sequence"], partitioning=None
        )
        assert found["_odb_sequence"].to_pylist() == [sequence for sequence, _ in RIGHT]
    assert not table.exists()


def test_a_disk_that_refuses_is_said_so(local: LakeTable, tmp_path: Path) -> None:
    of = planned(10, 13)
    file = put(local, of, RIGHT)
    (tmp_path / "lake/entries" / file.path).unlink()
    (tmp_path / "lake/entries" / file.path).symlink_to(file.path.rpartition("/")[2])

    with pytest.raises(StorageError, match="check the disk"):
        check_range(local, of, [file], RECORDS)
