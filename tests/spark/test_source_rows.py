"""Rows from batches: every value right, blocks of a bounded size, and no more memory for a larger batch."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound
from objbuf_dagster.lake.schema import ENTRIES
from objbuf_dagster.protocol import BatchDescriptor, Compression, Metadata, PlannedBatch, encode_batch
from objbuf_dagster.spark.rows import read_rows, rows_of
from objbuf_dagster.store import MemoryStore
from tests.support.counting import CountingStore
from tests.support.faults import Delay, FaultStore

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20


def stored(
    store: MemoryStore,
    sequence: int,
    entries: list[bytes],
    metadata: tuple[Metadata, ...] = (),
    compression: Compression = "zstd",
) -> PlannedBatch:
    location = f"ingest/{sequence}.batch"
    data = encode_batch(entries, compression)
    store.put(location, data)
    return PlannedBatch(BatchDescriptor(sequence, location, metadata), len(data))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("block_bytes", [100, 1_000, 4 << 20])
def test_rows_are_the_entries_with_where_they_come_from(compression: Compression, block_bytes: int) -> None:
    store = MemoryStore()
    items = (Metadata(2, 1000, b"first"), Metadata(3, -5, b""), Metadata(40, 2000, b"\xff" * 30))
    entries = [b"%d" % n * (n % 7) for n in range(50)]
    batches = [stored(store, 7, entries, items, compression), stored(store, 8, [b"x"], (), compression)]

    blocks = list(read_rows(BufferPlace(store), batches, block_bytes=block_bytes))

    rows = [tuple(row.values()) for row in pa.Table.from_batches(blocks).to_pylist()]
    covering = [None] * 2 + [items[0]] + [items[1]] * 37 + [items[2]] * 10
    assert rows == [
        (
            7,
            index,
            item.ingestion_time_ms if item else None,
            "ingest/manifest",
            "ingest/7.batch",
            item.payload if item else None,
            entry,
        )
        for index, (item, entry) in enumerate(zip(covering, entries, strict=True))
    ] + [(8, 0, None, "ingest/manifest", "ingest/8.batch", None, b"x")]
    assert {str(block.schema) for block in blocks} == {str(ENTRIES.to_arrow())}
    assert all(block.schema.equals(ENTRIES.to_arrow()) for block in blocks)


def test_an_item_for_every_record_is_as_right_as_one_for_all() -> None:
    items = tuple(Metadata(n, n, b"%d" % n) for n in range(200_000))
    records = pa.array([b""] * 200_000, pa.binary())

    table = pa.Table.from_batches(rows_of([records], BatchDescriptor(1, "ingest/x", items), "m"))

    assert table["_odb_ingestion_time_ms"].to_pylist() == list(range(200_000))
    assert table["_odb_metadata"][123_456].as_py() == b"123456"


def test_a_batch_without_records_has_no_rows() -> None:
    store = MemoryStore()

    assert list(read_rows(BufferPlace(store), [stored(store, 0, [])])) == []


@pytest.mark.parametrize(
    ("entry", "payload", "count"),
    [
        pytest.param(b"", b"", 3_000_000, id="empty entries"),
        pytest.param(b"", b"p" * 1_000, 200_000, id="payload far larger than entries"),
        pytest.param(b"e" * 1_000, b"", 50_000, id="usual entries"),
        pytest.param(b"e" * 3_000_000, b"", 10, id="large entries"),
        pytest.param(b"", b"p" * 3_000_000, 100, id="large payload"),
    ],
)
def test_blocks_are_about_four_mebibytes_with_all_their_columns(entry: bytes, payload: bytes, count: int) -> None:
    store = MemoryStore()
    batch = stored(store, 0, [entry] * count, (Metadata(0, 1, payload),))

    sizes = [(len(block), block.nbytes) for block in read_rows(BufferPlace(store), [batch])]

    assert sum(rows for rows, _ in sizes) == count
    assert max(size for _, size in sizes) <= 6 * MIB + len(entry) + len(payload) + 64_000
    assert len(sizes) <= 1 + sum(size for _, size in sizes) / (2 * MIB)


def test_a_sequence_that_is_no_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="larger than Spark's largest number"):
        list(rows_of([], BatchDescriptor(2**63, "ingest/x"), "m"))


def test_an_entry_that_no_row_can_hold_is_refused_by_name() -> None:
    offsets = pa.py_buffer(struct.pack("<4q", 0, 1, 2, 2 + 2**31))
    untouched = pa.py_buffer(mmap.mmap(-1, 2 + 2**31))  # so it takes no memory
    records = pa.Array.from_buffers(pa.large_binary(), 3, [None, offsets, untouched])
    before = pa.array([b"x"] * 5, pa.binary())
    rows = rows_of([before, records], BatchDescriptor(7, "ingest/x.batch"), "m")

    assert len(next(rows)) == 5
    with pytest.raises(
        InvalidInput,
        match=r"sequence 7, ingest/x\.batch: entry 7 has 2147483648 bytes, but a row holds at most 2 GiB",
    ):
        next(rows)


def test_entries_with_long_offsets_that_rows_can_hold_are_rows() -> None:
    records = pa.array([b"a", b"", b"bc"], pa.large_binary())

    [block] = rows_of([records], BatchDescriptor(7, "ingest/x.batch"), "m")

    assert block["entry"].to_pylist() == [b"a", b"", b"bc"]


# Fetching


def test_batches_come_in_order_and_each_is_fetched_once() -> None:
    inner = MemoryStore()
    batches = [stored(inner, n, [b"%d" % n]) for n in range(100)]
    store = CountingStore(inner)

    blocks = list(read_rows(BufferPlace(store), batches))

    assert [block["_odb_sequence"][0].as_py() for block in blocks] == list(range(100))
    assert set(store.calls.values()) == {1}


def test_small_batches_are_fetched_ahead_and_large_ones_are_not() -> None:
    inner = MemoryStore()
    small = [stored(inner, n, [b"%d" % n]) for n in range(10)]
    huge = encode_batch([bytes(64 * MIB)], "none")
    large = [PlannedBatch(BatchDescriptor(n, f"ingest/large{n}.batch", ()), len(huge)) for n in range(3)]
    for batch in large:
        inner.put(batch.descriptor.location, huge)
    unknown = [PlannedBatch(batch.descriptor, None) for batch in small]

    def fetched_for_the_first(batches: list[PlannedBatch]) -> int:
        store = CountingStore(inner)
        rows = read_rows(BufferPlace(store), batches)
        next(rows)
        rows.close()  # type: ignore[attr-defined]
        return store.count("read")

    assert fetched_for_the_first(small) == 10
    assert fetched_for_the_first(large) == fetched_for_the_first(unknown) == 1


def test_fetching_ahead_hides_the_time_that_a_get_takes() -> None:
    inner = MemoryStore()
    batches = [stored(inner, n, [b"x"]) for n in range(40)]
    store = FaultStore(inner, lambda call: Delay(0.05))

    began = time.perf_counter()
    assert sum(map(len, read_rows(BufferPlace(store), batches))) == 40

    assert time.perf_counter() - began < 40 * 0.05 / 2


def test_a_damaged_batch_fails_with_its_name_after_the_rows_before_it() -> None:
    store = MemoryStore()
    batches = [stored(store, n, [b"x" * 100] * 10) for n in range(3)]
    store.put("ingest/1.batch", store.read("ingest/1.batch")[:-20] + bytes(13) + b"\x01\x0a\0\0\0\x01\0")
    rows = read_rows(BufferPlace(store), batches)

    assert next(rows)["_odb_sequence"][0].as_py() == 0
    with pytest.raises(CorruptData, match=r"sequence 1, ingest/1\.batch: .*corrupt"):
        list(rows)


def test_a_missing_batch_fails_with_its_name() -> None:
    gone = PlannedBatch(BatchDescriptor(5, "ingest/gone.batch"), 10)

    with pytest.raises(NotFound, match=r"'ingest/gone\.batch': sequence 5 names it"):
        list(read_rows(BufferPlace(MemoryStore()), [gone]))


def test_a_location_outside_the_buffer_is_never_fetched() -> None:
    inner = MemoryStore()
    inner.put("elsewhere/x.batch", encode_batch([b"x"]))
    store = CountingStore(inner)
    outside = PlannedBatch(BatchDescriptor(5, "elsewhere/x.batch"), 10)

    with pytest.raises(CorruptData, match=r"sequence 5, elsewhere/x\.batch: .*outside the buffer's data prefix"):
        list(read_rows(BufferPlace(store), [outside]))
    assert not store.calls


# Memory

_MAKE = """
import os, sys
from objbuf_dagster.protocol.batch import frame_batch
from objbuf_dagster.store import open_store

url, mib, compression, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
text = (b"an entry of a kilobyte" * 50)[:1020]
entry = lambda: text if kind == "text" else os.urandom(1020)
pieces = [b"".join(b"\\xfc\\3\\0\\0" + entry() for _ in range(1024)) for _ in range(mib)]
open_store(url).put("ingest/x.batch", frame_batch(pieces, 1024 * mib, compression))
"""

_MEASURE = """
import sys
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.protocol import BatchDescriptor, Metadata, PlannedBatch
from objbuf_dagster.spark.rows import read_rows
from objbuf_dagster.store import open_store

batch = PlannedBatch(BatchDescriptor(0, "ingest/x.batch", (Metadata(0, 1, b"payload"),)), None)
rows = sum(len(block) for block in read_rows(BufferPlace(open_store(sys.argv[1])), [batch]))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]
print(rows, int(peak) // 1024)
"""


def _run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=120).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell a process's peak")
@pytest.mark.parametrize(("compression", "kind"), [("zstd", "text"), ("zstd", "noise"), ("none", "noise")])
def test_a_large_batch_needs_no_more_memory_than_its_object(tmp_path: Path, compression: str, kind: str) -> None:
    """Neither what it is decompressed to nor a second copy of it."""
    peaks, stored = {}, {}
    for mib in (16, 512):
        url = (tmp_path / str(mib)).as_uri()
        _run(_MAKE, url, mib, compression, kind)
        rows, peaks[mib] = map(int, _run(_MEASURE, url).split())
        stored[mib] = (tmp_path / str(mib) / "ingest/x.batch").stat().st_size >> 20
        assert rows == 1024 * mib

    print(f"{compression}, {kind}: {peaks}, objects of {stored}")
    assert peaks[512] - peaks[16] < stored[512] - stored[16] + 48
