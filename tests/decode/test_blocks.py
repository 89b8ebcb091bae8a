"""Blocks stay small whatever comes out of them, and rows keep saying where they came from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from objbuf_dagster.decode import OtlpLogs, decode_block, failures_schema, rows_schema
from objbuf_dagster.decode.sizes import cuts, sizes
from tests.decode.messages import decoded, entries_batch, field, log_entry

ROOT = Path(__file__).parent.parent.parent


def fanning_out(records: int, resource_bytes: int) -> bytes:
    """An entry whose resource is written out once per record."""
    resource = field(1, field(1, field(1, b"k") + field(2, field(1, b"r" * resource_bytes))))
    return field(1, resource + field(2, b"".join(field(2, field(5, field(1, b"b" * 20))) for _ in range(records))))


def test_rows_carry_where_they_came_from() -> None:
    batch = entries_batch([log_entry(b"", b""), b"\xff", log_entry(b"")])
    rows, failures = decoded(OtlpLogs(), batch)

    names = [name for name in batch.schema.names if name != "entry"]
    origin = [{name: row[name] for name in names} for row in batch.to_pylist()]
    assert [{name: row[name] for name in names} for row in rows] == [origin[0], origin[0], origin[2]]
    assert [row["_odb_record_index"] for row in rows] == [0, 1, 0]
    assert {name: failures[0][name] for name in batch.schema.names} == batch.to_pylist()[1]


def test_rows_are_the_same_however_the_blocks_are_cut() -> None:
    entries = [log_entry(*[field(3, b"%d" % index)] * (index % 4)) for index in range(40)] + [b"\xff", b""] * 3
    batch = entries_batch(entries)
    whole = decoded(OtlpLogs(), batch)

    for entry_bytes, row_bytes in [(1, 1), (50, 1 << 20), (1 << 20, 300), (7, 900)]:
        assert decoded(OtlpLogs(), batch, entry_bytes=entry_bytes, row_bytes=row_bytes) == whole
    assert decoded(OtlpLogs(), batch.slice(5, 30)) != whole
    assert decoded(OtlpLogs(), batch.slice(5, 30)) == decoded(OtlpLogs(), entries_batch(entries).slice(5, 30))


def test_blocks_have_the_schemas_that_were_announced() -> None:
    for rows, failures in decode_block(OtlpLogs(), entries_batch([log_entry(b""), b"\xff"]), entry_bytes=1):
        assert rows.schema.equals(rows_schema(OtlpLogs()))
        assert failures.schema.equals(failures_schema())


def test_no_entries_give_no_blocks() -> None:
    assert list(decode_block(OtlpLogs(), entries_batch([]))) == []


def test_an_entry_that_fans_out_a_thousandfold_is_handed_out_in_blocks() -> None:
    entry = fanning_out(1_000, 20_000)
    blocks = list(decode_block(OtlpLogs(), entries_batch([entry]), row_bytes=1 << 20))

    sizes_of_blocks = [rows.nbytes for rows, _ in blocks]
    assert sum(sizes_of_blocks) > 300 * len(entry)
    assert max(sizes_of_blocks) < 1.2 * (1 << 20)
    index = [value for rows, _ in blocks for value in rows.column("_odb_record_index").to_pylist()]
    assert index == list(range(1_000))


_MEASURED = """
import resource, sys
import pyarrow as pa
from objbuf_dagster.decode import OtlpLogs, decode_block
from tests.decode.messages import entries_batch
from tests.decode.test_blocks import fanning_out

entry = fanning_out(records=70, resource_bytes=4_500)
one = entries_batch([entry] * ((64 << 20) // len(entry)))
list(decode_block(OtlpLogs(), one.slice(0, 300)))
before, arrow_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, pa.total_allocated_bytes()
given = len(entry) * len(one)
written, most_arrow = 0, 0
for rows, failures in decode_block(OtlpLogs(), one):
    assert len(failures) == 0
    written += rows.nbytes
    most_arrow = max(most_arrow, pa.total_allocated_bytes() - arrow_before)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(given, written, most_arrow, grown)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_a_batch_of_64_mib_that_fans_out_fifty_times_is_never_there_fifty_times() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _MEASURED], capture_output=True, text=True, timeout=280, check=True, cwd=ROOT
    )
    given, written, most_arrow, grown = map(int, ran.stdout.split())

    assert given > 63 << 20
    assert written > 50 * given
    assert most_arrow < 32 << 20  # a block of entries, decoded, and a block of rows
    assert grown < 96 << 20  # on top of what 300 entries took


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3], pa.int64()),
        pa.array([True, False, None]),
        pa.array(["a", None, "bcd"]),
        pa.array(["a", None, "bcd"], pa.large_string()),
        pa.array([[("k", "v")], [], [("key", None), ("l", "w")]], pa.map_(pa.string(), pa.string())),
        pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        pa.array([[{"a": "x", "b": 1.0}], [], [{"a": "yyy", "b": None}] * 2]),
        pa.array(["a", "bbb", "a"]).dictionary_encode(),
        pa.array([None, None, None]),
    ],
    ids=lambda array: str(array.type),
)
def test_sizes_of_a_part_are_a_part_of_the_sizes(array: pa.Array) -> None:
    whole = sizes(array)

    assert len(whole) == len(array)
    assert np.all(whole > 0)
    for begin in range(3):
        for end in range(begin, 4):
            assert sizes(array[begin:end]).tolist() == whole[begin:end].tolist()


def test_a_list_is_as_large_as_what_is_in_it() -> None:
    array = pa.array([["x" * 1000], [], ["y"] * 10])

    assert sizes(array).tolist() == [4 + 1004, 4, 4 + 50]


def test_blocks_are_cut_at_the_first_limit_that_is_reached() -> None:
    assert cuts(np.array([5, 5, 5, 20, 1, 1, 1]), 10, 2) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert cuts(np.array([], np.int64), 10, 2) == []
