"""Length-prefixed blocks, `count` times `[length u32][bytes]`: the one shape that batches and manifests share.

Finding where the records of such a block start is a chain of dependent reads, which Python does slowly. But the block
*is* a Parquet PLAIN page of a required BYTE_ARRAY column, and compressed it is a ZSTD page, so a few bytes of Parquet
around it let pyarrow's C++ reader walk it: about 30 ns a record, with every length checked against the bytes there.
Tiny blocks, and those a page header cannot describe (2 GiB and more), are walked here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from objbuf_dagster.errors import CorruptData, InvalidInput
from objbuf_dagster.protocol.model import MAX_U32

if TYPE_CHECKING:
    import pyarrow as pa

U32 = struct.Struct("<I")
_WALK_BELOW = 1_000  # records; wrapping a block costs as much as walking about this many
_MAX_PAGE = 2**31 - 1  # a page header's sizes are i32

Buffer = bytes | bytearray | memoryview


class _Prefixes(dict[int, bytes]):
    """Packed lengths, made once each: entries of one service have few different lengths."""

    def __missing__(self, length: int) -> bytes:
        packed = U32.pack(length)
        if len(self) < 65_536:
            self[length] = packed
        return packed


_prefixes = _Prefixes()


def encode_block(entries: Iterable[Buffer]) -> tuple[bytes, int]:
    """The block of `entries` and their number.

    Raises InvalidInput for an entry that is not bytes or is over 2^32 - 1 bytes long.
    """
    items = entries if isinstance(entries, list) else list(entries)
    parts: list[Buffer] = [b""] * (2 * len(items))
    try:
        lengths = list(map(len, items))
        parts[::2] = map(_prefixes.__getitem__, lengths)
        parts[1::2] = items
        block = b"".join(parts)
    except struct.error:
        raise InvalidInput(f"an entry is longer than {MAX_U32} bytes: split it") from None
    except TypeError as error:
        raise InvalidInput(f"entries must be bytes: {error}") from None
    if len(block) != sum(lengths) + 4 * len(items):
        raise InvalidInput("entries must be bytes: one is a buffer of wider items")
    return block, len(items)


def decode_block(block: Buffer, count: int, what: str) -> pa.Array:
    """The records of `block` as an Arrow binary array; raises CorruptData unless they fill it exactly."""
    import pyarrow as pa

    _check_count(block, count, what)
    if count < _WALK_BELOW or len(block) > _MAX_PAGE:
        starts = walk(block, count, what)
        return pa.array([bytes(block[a + 4 : b]) for a, b in pairwise(starts)], _kind(block))
    return _decode_page(block, count, what)


def decode_list(block: Buffer, count: int, what: str) -> list[bytes]:
    """The same as a list; no per-record Python loop unless the block is tiny or enormous."""
    _check_count(block, count, what)
    if count < _WALK_BELOW or len(block) > _MAX_PAGE:
        starts = walk(block, count, what)
        return [bytes(block[a + 4 : b]) for a, b in pairwise(starts)]
    records: list[bytes] = _decode_page(block, count, what).to_pylist()
    return records


def offset_of(data: bytes, start: int, end: int, index: int, count: int, what: str) -> int:
    """Where in `data` record `index` starts, of the `count` that fill `data[start:end]`; the end is `index == count`.

    Few records are hopped over one by one, many at one stride or in one sweep; what is hopped over is checked.
    """
    block = memoryview(data)[start:end]
    if index == count:
        last = offset_of(data, start, end, count - 1, count, what) - start if count else 0
        if (_hop(block, last, what) if count else 0) != len(block):
            raise CorruptData(what, f"bytes are left over after {count} records", offset=start + last)
        return end
    if index < _WALK_BELOW or len(block) > _MAX_PAGE:
        at = 0
        for _ in range(index):
            at = _hop(block, at, what)
        return start + at
    stride = _hop(block, 0, what)
    if _is_stride(data, start, end, index, stride):
        return start + index * stride
    _check_count(block, count, what)
    likely = len(block) * index // count
    try:  # entries are much alike, so sweeping a little more than their share of the bytes is nearly always enough
        records = read_page(block[: likely + likely // 32 + 4096], index, exact=False)
    except UnreadablePage:
        records = _decode_page(block, count, what)
    offsets = memoryview(records.buffers()[1]).cast("i")
    return start + 4 * index + offsets[index] - offsets[0]


def walk(block: Buffer, count: int, what: str) -> list[int]:
    """The starts of all records, and the end of the last, which must be the end of the block."""
    starts = [0] * (count + 1)
    at = 0
    for i in range(1, count + 1):
        at = _hop(block, at, what)
        starts[i] = at
    if at != len(block):
        raise CorruptData(what, f"{len(block) - at} bytes are left over after {count} records", offset=at)
    return starts


def _hop(block: Buffer, at: int, what: str) -> int:
    if at + 4 > len(block):
        raise CorruptData(what, "a record's length is cut short", offset=at)
    end: int = at + 4 + U32.unpack_from(block, at)[0]
    if end > len(block):
        raise CorruptData(what, f"a record of {end - at - 4} bytes does not fit", offset=at)
    return end


def _is_stride(data: bytes, start: int, end: int, count: int, stride: int) -> bool:
    """Whether the first `count` records are all as long as the first, as the entries of most manifests are.

    If the first length leads to an equal one, and so on, there is no other place where the next record could be.
    """
    stop = start + count * stride
    return stop <= end and all(
        data[start + i : stop : stride] == bytes([byte]) * count for i, byte in enumerate(U32.pack(stride - 4))
    )


def _check_count(block: Buffer, count: int, what: str) -> None:
    if count * 4 > len(block):
        raise CorruptData(what, f"{count} records do not fit in {len(block)} bytes")


def _kind(block: Buffer) -> pa.DataType:
    import pyarrow as pa

    return pa.large_binary() if len(block) > _MAX_PAGE else pa.binary()


def _decode_page(block: Buffer, count: int, what: str) -> pa.Array:
    try:
        return read_page(block, count)
    except UnreadablePage as error:
        walk(block, count, what)  # says exactly where
        raise CorruptData(what, f"its records cannot be read: {error}") from None


class UnreadablePage(Exception):
    """Inside `protocol/` only: the records do not fill the block exactly, or it does not decompress to its size."""


def is_page(size: int, count: int) -> bool:
    """Whether a block of so many bytes and records is one that `read_page` should read."""
    return count >= _WALK_BELOW and count * 4 <= size <= _MAX_PAGE


def read_page(stored: Buffer, count: int, *, zstd_of: int | None = None, exact: bool = True) -> pa.Array:
    """The `count` records of a block, `stored` as it is or as a Zstandard frame of `zstd_of` bytes.

    They must fill it, unless not `exact`: then they are its first ones.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    zstd = zstd_of is not None
    size = len(stored) if zstd_of is None else zstd_of
    header = b"PAR1" + _page_header(size, len(stored), count)
    footer = _footer(len(header) - 4 + len(stored), len(header) - 4 + size, count, zstd)
    # Arrow's own memory, which it keeps warm: copying into fresh pages costs more than all the rest.
    file = pa.allocate_buffer(len(header) + len(stored) + len(footer))
    view = memoryview(file).cast("B")
    view[: len(header)] = header
    view[len(header) : len(header) + len(stored)] = memoryview(stored).cast("B")
    view[len(header) + len(stored) :] = footer
    try:
        column = pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False).column(0)
    except (pa.ArrowException, OSError) as error:
        raise UnreadablePage(str(error)) from None
    if column.num_chunks != 1 or len(column) != count:
        raise UnreadablePage(f"{len(column)} of {count} records are there")
    records = column.chunk(0)
    offsets = memoryview(records.buffers()[1]).cast("i")
    if exact and 4 * count + offsets[count] - offsets[0] != size:
        raise UnreadablePage("bytes are left over")
    return records


# Parquet's metadata is Thrift in its compact encoding. A field is one byte, (id delta << 4 | type), then its value;
# a zero byte ends a struct. Names beside the lines are those of parquet.thrift.


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _int(n: int) -> bytes:
    return _varint(n << 1)  # zigzag; nothing here is negative


def _page_header(size: int, stored: int, count: int) -> bytes:
    return b"".join(
        (
            b"\x15\x00",  # type: DATA_PAGE
            b"\x15" + _int(size),  # uncompressed_page_size
            b"\x15" + _int(stored),  # compressed_page_size
            b"\x2c",  # data_page_header
            b"\x15" + _int(count),  # num_values
            b"\x15\x00",  # encoding: PLAIN
            b"\x15\x06\x15\x06",  # definition and repetition levels: RLE, and there are none
            b"\x00\x00",
        )
    )


def _footer(stored: int, size: int, count: int, zstd: bool) -> bytes:
    column = b"".join(
        (
            b"\x15\x0c",  # type: BYTE_ARRAY
            b"\x19\x15\x00",  # encodings: [PLAIN]
            b"\x19\x18\x01r",  # path_in_schema: ["r"]
            b"\x15" + _int(6 if zstd else 0),  # codec: ZSTD or UNCOMPRESSED
            b"\x16" + _int(count),  # num_values
            b"\x16" + _int(size),  # total_uncompressed_size
            b"\x16" + _int(stored),  # total_compressed_size
            b"\x26\x08",  # data_page_offset: 4
            b"\x00",
        )
    )
    footer = b"".join(
        (
            b"\x15\x02",  # version: 1
            b"\x19\x2c",  # schema: two elements
            b"\x48\x01s\x15\x02\x00",  # root "s" with one child
            b"\x15\x0c\x25\x00\x18\x01r\x00",  # required BYTE_ARRAY "r"
            b"\x16" + _int(count),  # num_rows
            b"\x19\x1c",  # row_groups: one
            b"\x19\x1c\x26\x08\x1c" + column + b"\x00",  # columns: one, file_offset 4, meta_data
            b"\x16" + _int(size),  # total_byte_size
            b"\x16" + _int(count),  # num_rows
            b"\x00\x00",
        )
    )
    return footer + U32.pack(len(footer)) + b"PAR1"
