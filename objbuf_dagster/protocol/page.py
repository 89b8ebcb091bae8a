"""Parquet around a record block, as little as it takes.

A length-prefixed block *is* a Parquet PLAIN page of a required BYTE_ARRAY column, and a Zstandard frame of one is a
ZSTD page. So a file of that one page lets pyarrow's C++ reader decompress and walk it, with every length checked
against the bytes there. Parquet's metadata is Thrift in its compact encoding, of which the few functions here write
what is needed; what lands blocks in real Parquet files writes its headers with them too.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PAGE = 2**31 - 1  # a page header's sizes are i32
UNCOMPRESSED, ZSTD = 0, 6  # parquet.thrift: CompressionCodec
PLAIN, RLE = 0, 3  # parquet.thrift: Encoding
INT64, BYTE_ARRAY = 2, 6  # parquet.thrift: Type
I32, I64, BINARY, LIST, STRUCT = 0x05, 0x06, 0x08, 0x09, 0x0C  # Thrift's own types

Buffer = bytes | bytearray | memoryview


class UnreadablePage(Exception):
    """The records do not fill the block exactly, or it does not decompress to its size. Give up: the bytes are bad."""


def read_page(stored: Buffer, count: int, *, zstd_of: int | None = None, exact: bool = True) -> pa.Array:
    """The `count` records of a block, `stored` as it is or as a Zstandard frame of `zstd_of` bytes.

    They must fill it, unless not `exact`: then they are its first ones.
    """
    import pyarrow as pa

    size = len(stored) if zstd_of is None else zstd_of
    before, behind = parquet_around(size, count, zstd=None if zstd_of is None else len(stored))
    # Arrow's own memory, which it keeps warm: copying into fresh pages costs more than all the rest.
    file = pa.allocate_buffer(len(before) + len(stored) + len(behind))
    view = memoryview(file).cast("B")
    view[: len(before)] = before
    view[len(before) : len(before) + len(stored)] = memoryview(stored).cast("B")
    view[len(before) + len(stored) :] = behind
    records = read_file(file, count)
    if exact and bytes_of(records) != size:
        raise UnreadablePage("bytes are left over")
    return records


def read_file(file: pa.Buffer, count: int) -> pa.Array:
    """The records of a file as `parquet_around` makes it. Raises UnreadablePage unless there are so many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        column = pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False).column(0)
    except (pa.ArrowException, OSError) as error:
        raise UnreadablePage(str(error)) from None
    if column.num_chunks != 1 or len(column) != count:
        raise UnreadablePage(f"{len(column)} of {count} records are there")
    return column.chunk(0)


def bytes_of(records: pa.Array, count: int | None = None) -> int:
    """How long the block of these records is, or of the first `count` of them."""
    offsets = memoryview(records.buffers()[1]).cast("q" if str(records.type) == "large_binary" else "i")
    count = len(records) if count is None else count
    size: int = 4 * count + offsets[records.offset + count] - offsets[records.offset]
    return size


def page_header(size: int, stored: int, count: int, *, encoding: int = PLAIN) -> bytes:
    """The header of a data page."""
    levels = ((3, I32, RLE), (4, I32, RLE))
    data = thrift((1, I32, count), (2, I32, encoding), *levels)
    return thrift((1, I32, 0), (2, I32, size), (3, I32, stored), (5, STRUCT, data))


def dictionary_header(size: int, stored: int, count: int) -> bytes:
    """The header of a dictionary page."""
    data = thrift((1, I32, count), (2, I32, PLAIN))
    return thrift((1, I32, 2), (2, I32, size), (3, I32, stored), (7, STRUCT, data))


def thrift(*fields: tuple[int, int, Any]) -> bytes:
    """A struct: `(id, type, value)` in rising order of id; a struct's value is its bytes, a list's `elements(...)`."""
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        if 0 < number - last <= 15:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            out += zigzag(number)
        last = number
        if kind in (I32, I64):
            out += zigzag(value)
        elif kind == BINARY:
            out += varint(len(value)) + value
        else:
            out += value
    out.append(0)
    return bytes(out)


def elements(kind: int, values: list[Any]) -> bytes:
    """A list's value."""
    size = len(values)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    if kind in (I32, I64):
        return head + b"".join(map(zigzag, values))
    if kind == BINARY:
        return head + b"".join(varint(len(value)) + value for value in values)
    return head + b"".join(values)


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def zigzag(n: int) -> bytes:
    return varint(n << 1 if n >= 0 else (-n << 1) - 1)


def parquet_around(size: int, count: int, *, zstd: int | None = None) -> tuple[bytes, bytes]:
    """What makes a block of `size` bytes, or a Zstandard frame of it that has `zstd` bytes, a file of `count` rows."""
    stored = size if zstd is None else zstd
    before = b"PAR1" + page_header(size, stored, count)
    return before, _footer(len(before) - 4 + stored, len(before) - 4 + size, count, zstd is not None)


def _footer(stored: int, size: int, count: int, zstd: bool) -> bytes:
    column = thrift(
        (1, I32, BYTE_ARRAY),
        (2, LIST, elements(I32, [PLAIN])),
        (3, LIST, elements(BINARY, [b"r"])),  # path_in_schema
        (4, I32, ZSTD if zstd else UNCOMPRESSED),
        (5, I64, count),
        (6, I64, size),
        (7, I64, stored),
        (9, I64, 4),  # data_page_offset
    )
    chunk = thrift((2, I64, 4), (3, STRUCT, column))
    schema = [thrift((4, BINARY, b"s"), (5, I32, 1)), thrift((1, I32, BYTE_ARRAY), (3, I32, 0), (4, BINARY, b"r"))]
    group = thrift((1, LIST, elements(STRUCT, [chunk])), (2, I64, size), (3, I64, count))
    footer = thrift(
        (1, I32, 1), (2, LIST, elements(STRUCT, schema)), (3, I64, count), (4, LIST, elements(STRUCT, [group]))
    )
    return footer + struct.pack("<I", len(footer)) + b"PAR1"
