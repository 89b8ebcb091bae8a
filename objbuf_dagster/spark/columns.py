"""The columns of `entries` as Parquet column chunks: pages, and what the footer says of them.

All but `entry` hold one value over a long run of rows, or count up. The first kind is a dictionary of the values and
their run lengths, the second a page that says "one more each time": neither grows with the rows, so neither is made
row by row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from objbuf_dagster.protocol import BatchDescriptor, Metadata, metadata_runs
from objbuf_dagster.protocol.page import (
    BINARY,
    BYTE_ARRAY,
    I32,
    I64,
    INT64,
    LIST,
    PLAIN,
    RLE,
    STRUCT,
    ZSTD,
    Buffer,
    dictionary_header,
    elements,
    page_header,
    thrift,
    varint,
    zigzag,
)

DELTA_BINARY_PACKED, RLE_DICTIONARY = 5, 8  # parquet.thrift: Encoding

_OWN_PAGE_FROM = 128  # rows of a batch; fewer share a page of plain numbers with their neighbours
_RAMP = struct.pack(f"<{_OWN_PAGE_FROM}q", *range(_OWN_PAGE_FROM))

Value = int | bytes
Runs = Iterable[tuple[Value | None, int]]
"""A value, or None for null, and how many rows in a row have it."""
Compress = Callable[[Buffer], bytes]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: int = BYTE_ARRAY
    optional: bool = False
    text: bool = False

    def schema_element(self) -> bytes:
        text = [(6, I32, 0), (10, STRUCT, thrift((1, STRUCT, thrift())))]  # UTF8, and STRING as it is called now
        name = (4, BINARY, self.name.encode())
        return thrift((1, I32, self.type), (3, I32, int(self.optional)), name, *(text if self.text else []))


SEQUENCE = Column("_odb_sequence", INT64)
INDEX = Column("_odb_entry_index", INT64)
TIME = Column("_odb_ingestion_time_ms", INT64, optional=True)
MANIFEST_PATH = Column("_odb_manifest_path", text=True)
DATA_PATH = Column("_odb_data_path", text=True)
METADATA = Column("_odb_metadata", optional=True)
ENTRY = Column("entry")
COLUMNS = (SEQUENCE, INDEX, TIME, MANIFEST_PATH, DATA_PATH, METADATA, ENTRY)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What statistics say of a column: its least and greatest number, if it has any, and how many nulls."""

    least: int | None = None
    most: int | None = None
    nulls: int = 0

    def __or__(self, other: Bounds) -> Bounds:
        least = [bound for bound in (self.least, other.least) if bound is not None]
        most = [bound for bound in (self.most, other.most) if bound is not None]
        return Bounds(min(least, default=None), max(most, default=None), self.nulls + other.nulls)

    def statistics(self) -> bytes:
        fields: list[tuple[int, int, int | bytes]] = [(3, I64, self.nulls)]
        if self.least is not None and self.most is not None:
            fields += [(5, BINARY, struct.pack("<q", self.most)), (6, BINARY, struct.pack("<q", self.least))]
        return thrift(*fields)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one batch that follow each other: `count` of them from record `first` on, of the `of` that it has."""

    batch: BatchDescriptor
    first: int
    count: int
    of: int

    def metadata(self) -> Iterator[tuple[Metadata | None, int]]:
        at, end = 0, self.first + self.count
        for item, length in metadata_runs(self.batch.metadata, self.of):
            rows = min(at + length, end) - max(at, self.first)
            if rows > 0:
                yield item, rows
            at += length


class Chunk:
    """The pages of a column in one row group, all compressed with Zstandard."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.size = 0
        self.stored = 0
        self.bounds = Bounds()
        self._dictionary_size = 0
        self._values = 0
        self._encodings = {RLE}  # of the levels
        self.parts: list[Buffer] = []

    def add_page(self, stored: Buffer, size: int, count: int, encoding: int = PLAIN) -> None:
        """A page of `size` bytes once decompressed."""
        self._values += count
        self._encodings.add(encoding)
        self._add(page_header(size, len(stored), count, encoding=encoding), stored, size)

    def add_dictionary(self, stored: Buffer, size: int, count: int) -> None:
        """The dictionary of the pages that follow; comes first."""
        self._encodings.add(PLAIN)
        self._add(dictionary_header(size, len(stored), count), stored, size)
        self._dictionary_size = self.stored

    def _add(self, header: bytes, stored: Buffer, size: int) -> None:
        self.parts += (header, stored)
        self.size += len(header) + size
        self.stored += len(header) + len(stored)

    def metadata(self, offset: int) -> bytes:
        """Its ColumnChunk in the footer, if it starts at this byte of the file."""
        dictionary = [(11, I64, offset)] if self._dictionary_size else []
        column = thrift(
            (1, I32, self.column.type),
            (2, LIST, elements(I32, sorted(self._encodings))),
            (3, LIST, elements(BINARY, [self.column.name.encode()])),
            (4, I32, ZSTD),
            (5, I64, self._values),
            (6, I64, self.size),
            (7, I64, self.stored),
            (9, I64, offset + self._dictionary_size),
            *dictionary,
            (12, STRUCT, self.bounds.statistics()),
        )
        return thrift((2, I64, offset), (3, STRUCT, column))


def chunk_of_runs(column: Column, runs: Runs, compress: Compress) -> Chunk:
    """A column whose values come in runs."""
    chunk = Chunk(column)
    places: dict[Value, int] = {}
    indices: list[tuple[int, int]] = []
    levels: list[tuple[int, int]] = []
    for value, count in runs:
        levels.append((int(value is not None), count))
        if value is not None:
            indices.append((places.setdefault(value, len(places)), count))
    rows = sum(count for _, count in levels)
    nulls = rows - sum(count for _, count in indices)
    numbers = [value for value in places if isinstance(value, int)]
    chunk.bounds = Bounds(min(numbers, default=None), max(numbers, default=None), nulls)
    page = bytearray()
    if column.optional:
        encoded = _runs(levels, width=1)
        page += struct.pack("<I", len(encoded)) + encoded
    if places:
        dictionary = b"".join(map(_plain, places))
        chunk.add_dictionary(compress(dictionary), len(dictionary), len(places))
        width = max(1, (len(places) - 1).bit_length())
        page += bytes([width]) + _runs(indices, width)
    chunk.add_page(compress(page), len(page), rows, RLE_DICTIONARY if places else PLAIN)
    return chunk


def chunk_of_indices(spans: Iterable[Span], compress: Compress) -> Chunk:
    """The column that counts the records of each batch."""
    chunk = Chunk(INDEX)
    shared: list[bytes] = []

    def end_shared() -> None:
        if shared:
            page = b"".join(shared)
            chunk.add_page(compress(page), len(page), len(page) // 8)
            shared.clear()

    for span in spans:
        end = span.first + span.count
        chunk.bounds |= Bounds(span.first, end - 1)
        if end <= _OWN_PAGE_FROM:
            shared.append(_RAMP[8 * span.first : 8 * end])
            continue
        end_shared()
        page = _counting(span.first, span.count)
        chunk.add_page(compress(page), len(page), span.count, DELTA_BINARY_PACKED)
    end_shared()
    return chunk


def _counting(first: int, count: int) -> bytes:
    """`first` and the numbers after it as deltas: blocks of 128 in 4 miniblocks, least delta 1, and no bits beyond."""
    blocks = -(-(count - 1) // 128)
    return varint(128) + varint(4) + varint(count) + zigzag(first) + (zigzag(1) + bytes(4)) * blocks


def _runs(runs: Iterable[tuple[int, int]], width: int) -> bytes:
    """Parquet's run-length encoding: only repeated runs, neighbours with the same value joined."""
    out = bytearray()
    size = (width + 7) // 8
    last, length = -1, 0
    for value, count in runs:
        if value != last and length:
            out += varint(length << 1) + last.to_bytes(size, "little")
            length = 0
        last, length = value, length + count
    if length:
        out += varint(length << 1) + last.to_bytes(size, "little")
    return bytes(out)


def _plain(value: Value) -> bytes:
    return struct.pack("<q", value) if isinstance(value, int) else struct.pack("<I", len(value)) + value
