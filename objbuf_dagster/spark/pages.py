"""Batches as rows of a Parquet file, without decoding them: the block of a batch is written as a page, as it is.

A file of table `entries` is a list of row groups, each of about 64 MiB of records and metadata, from one batch or many.
In a row group, column `entry` is a page per batch, with the small columns (columns.py) beside it.

The rule. A block goes in as it is if it is one Zstandard frame of 64 KiB to 128 MiB of records, in a window that every
reader takes. Otherwise it is encoded again:

- uncompressed blocks, several frames, frames that do not state their size, larger windows: compressed, as a page;
- smaller blocks: gathered with their neighbours, in order, into pages of about 1 MiB;
- larger blocks: cut between records into pages of about 16 MiB, and so into row groups of sensible size.

Whoever adds a block has checked it (`check_batch`); nothing is looked at again here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster import __version__
from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.protocol import BatchDescriptor, Block
from objbuf_dagster.protocol.page import BINARY, I32, I64, LIST, MAX_PAGE, STRUCT, Buffer, bytes_of, elements, thrift
from objbuf_dagster.spark.columns import (
    COLUMNS,
    DATA_PATH,
    ENTRY,
    INDEX,
    MANIFEST_PATH,
    METADATA,
    SEQUENCE,
    TIME,
    Bounds,
    Chunk,
    Column,
    Runs,
    Span,
    chunk_of_indices,
    chunk_of_runs,
)

if TYPE_CHECKING:
    from objbuf_dagster.protocol.window import Piece


@dataclass(frozen=True, slots=True)
class Sizes:
    """The rule's sizes, in bytes of records.

    least, most: of a block that goes in as it is.
    gathered, cut: of pages made of smaller and of larger blocks, more or less.
    row_group: of a row group, more or less.
    largest: of a page. Its header has 31 bits for each of its sizes, and what does not compress grows a little.
    """

    least: int = 64 << 10
    most: int = 128 << 20
    gathered: int = 1 << 20
    cut: int = 16 << 20
    row_group: int = 64 << 20
    largest: int = (1 << 31) - (1 << 20)


SIZES = Sizes()

_LARGEST_WINDOW = 1 << 27  # more is refused by Zstandard's streaming readers, and so by Spark
_ZSTD_LEVEL = 1
_LARGEST_SEQUENCE = 2**63 - 1


class EntriesFile:
    """A Parquet file of `entries` in the making, as parts: blocks are not copied.

    Add batches in rising order, then `finish`. Holds what was added until then.
    """

    def __init__(self, manifest_path: str, sizes: Sizes = SIZES) -> None:
        import zstandard

        self._sizes = sizes
        self.rows = 0
        self.size = 4
        self._manifest_path = manifest_path.encode()
        self._compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress
        self._parts: list[Buffer] = [b"PAR1"]
        self._groups: list[bytes] = []
        self._bounds: dict[Column, Bounds] = {}
        self._locations: tuple[str, str] | None = None
        self._start_group()

    def _start_group(self) -> None:
        self._entry = Chunk(ENTRY)
        self._spans: list[Span] = []
        self._gathered: list[Buffer] = []
        self._gathered_size = self._gathered_rows = 0
        self._payloads: set[bytes] = set()
        self._beside = 0

    def add(self, batch: BatchDescriptor, block: Block) -> None:
        """The rows of one more batch. Raises InvalidInput for what no row can hold."""
        if batch.sequence > _LARGEST_SEQUENCE:
            raise _refused(batch, "the sequence does not fit into a table's column of 64 bits with a sign")
        if not block.count:
            return
        if goes_in_as_it_is(block, self._sizes):
            self._end_gathering()
            self._entry.add_page(block.stored, block.size, block.count)
            self._add_rows(Span(batch, 0, block.count, block.count))
            return
        if block.size > self._sizes.most:
            self._add_cut(batch, block)
            return
        raw = memoryview(_decompressed(block))
        self._gathered.append(raw)
        self._gathered_size += len(raw)
        self._gathered_rows += block.count
        if self._gathered_size >= self._sizes.gathered:
            self._end_gathering()
        self._add_rows(Span(batch, 0, block.count, block.count))

    def _add_cut(self, batch: BatchDescriptor, block: Block) -> None:
        """Decompressed and cut a piece at a time: it is too large to be held whole."""
        self._end_gathering()
        first = 0
        for records, raw in _halved(block.pieces(self._sizes.cut), self._sizes.largest):
            page = self._compress(raw) if len(raw) <= self._sizes.largest else b""
            if not page or len(page) > MAX_PAGE:
                raise _refused(
                    batch,
                    f"entry {first} has {len(raw) - 4} bytes, and a row can have {self._sizes.largest - 4}: split it "
                    "where it is produced, or `objbuf quarantine` lands the range without its batch",
                )
            self._entry.add_page(page, len(raw), records)
            self._add_rows(Span(batch, first, records, block.count))
            first += records

    def _end_gathering(self) -> None:
        if self._gathered:
            page = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
            self._entry.add_page(self._compress(page), len(page), self._gathered_rows)
            self._gathered.clear()
            self._gathered_size = self._gathered_rows = 0

    def _add_rows(self, span: Span) -> None:
        self._spans.append(span)
        least, most = self._locations or (span.batch.location, span.batch.location)
        self._locations = min(least, span.batch.location), max(most, span.batch.location)
        self.rows += span.count
        self._beside += len(span.batch.location)
        for item, _ in span.metadata():
            if item is not None and item.payload not in self._payloads:  # a dictionary has each once
                self._payloads.add(item.payload)
                self._beside += len(item.payload)
        if self._entry.size + self._beside >= self._sizes.row_group:
            self._end_group()

    def _end_group(self) -> None:
        self._end_gathering()
        spans = self._spans
        if not spans:
            return
        items = [run for span in spans for run in span.metadata()]
        rows = sum(span.count for span in spans)
        runs: dict[Column, Runs] = {
            SEQUENCE: [(span.batch.sequence, span.count) for span in spans],
            TIME: [(item.ingestion_time_ms if item else None, count) for item, count in items],
            MANIFEST_PATH: [(self._manifest_path, rows)],
            DATA_PATH: [(span.batch.location.encode(), span.count) for span in spans],
            METADATA: [(item.payload if item else None, count) for item, count in items],
        }
        chunks = {column: chunk_of_runs(column, runs[column], self._compress) for column in runs}
        chunks |= {INDEX: chunk_of_indices(spans, self._compress), ENTRY: self._entry}
        self._append_group([chunks[column] for column in COLUMNS], rows)
        self._start_group()

    def _append_group(self, chunks: list[Chunk], rows: int) -> None:
        """In the order of the columns: Spark takes the place of the first for that of the row group."""
        start, columns = self.size, []
        for chunk in chunks:
            columns.append(chunk.metadata(self.size))
            self._parts += chunk.parts
            self.size += chunk.stored
            self._bounds[chunk.column] = self._bounds.get(chunk.column, Bounds()) | chunk.bounds
        self._groups.append(
            thrift(
                (1, LIST, elements(STRUCT, columns)),
                (2, I64, sum(chunk.size for chunk in chunks)),
                (3, I64, rows),
                (5, I64, start),
                (6, I64, self.size - start),
            )
        )

    def finish(self) -> list[Buffer]:
        """The whole file, in parts."""
        self._end_group()
        root = thrift((4, BINARY, b"entries"), (5, I32, len(COLUMNS)))
        by_type = thrift((1, STRUCT, thrift()))  # numbers are ordered as numbers, so statistics may be trusted
        footer = thrift(
            (1, I32, 2),
            (2, LIST, elements(STRUCT, [root, *(column.schema_element() for column in COLUMNS)])),
            (3, I64, self.rows),
            (4, LIST, elements(STRUCT, self._groups)),
            (6, BINARY, f"objbuf-dagster version {__version__}".encode()),
            (7, LIST, elements(STRUCT, [by_type] * len(COLUMNS))),
        )
        end = footer + struct.pack("<I", len(footer)) + b"PAR1"
        self._parts.append(end)
        self.size += len(end)
        return self._parts

    @property
    def size_so_far(self) -> int:
        """Bytes that it would have if it were finished now, more or less: what it holds in memory."""
        return self.size + self._entry.stored + self._gathered_size + self._beside

    def statistics(self) -> Mapping[str, Any]:
        """What Delta's log says of the file; complete after `finish`.

        With the names of the first and the last batch, by which a commit knows that it replaces the same batches.
        """
        least: dict[str, Any] = {c.name: b.least for c, b in self._bounds.items() if b.least is not None}
        most: dict[str, Any] = {c.name: b.most for c, b in self._bounds.items() if b.most is not None}
        if self._locations is not None:
            least[DATA_PATH.name], most[DATA_PATH.name] = self._locations
        return {
            "minValues": least,
            "maxValues": most,
            "nullCount": {c.name: b.nulls for c, b in self._bounds.items()},
        }


def _halved(pieces: Iterable[Piece], most: int) -> Iterator[tuple[int, memoryview]]:
    """How many records, and their bytes: at most so many, or one record. A large one may have others in its company."""
    for records, raw in pieces:
        if len(records) == 1 or len(raw) <= most:
            yield len(records), raw
            continue
        half = len(records) // 2
        at = bytes_of(records[:half])
        yield from _halved(((records[:half], raw[:at]), (records[half:], raw[at:])), most)


def _refused(batch: BatchDescriptor, why: str) -> InvalidInput:
    return InvalidInput(f"sequence {batch.sequence}, {shown(batch.location)}: {why}")


def goes_in_as_it_is(block: Block, sizes: Sizes = SIZES) -> bool:
    """The rule above."""
    import zstandard

    if not block.zstd or not sizes.least <= block.size <= sizes.most:
        return False
    return bool(zstandard.get_frame_parameters(block.stored).window_size <= _LARGEST_WINDOW)


def _decompressed(block: Block) -> Buffer:
    import pyarrow as pa

    if not block.zstd:
        return block.stored
    return memoryview(pa.decompress(block.stored, decompressed_size=block.size, codec="zstd"))
