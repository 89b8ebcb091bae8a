"""What a decoding's tasks do: read entries that have landed, decode them, write rows and dead letters as Parquet files.

Runs on executors, which may have this package only as a shipped archive. What a task holds is a page of its input, a
block of entries and what was made of it, and of its output one row group and one file, of rows and of letters each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from objbuf_dagster.decode import Decoder, decode_block, rows_schema
from objbuf_dagster.decode.sizes import cuts, sizes
from objbuf_dagster.errors import ObjbufError, shown
from objbuf_dagster.lake import DataFile, LakeTable
from objbuf_dagster.lake.decoded_from import file_name
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.lake.kept_for import letters_name, mark_of
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.protocol import BLOCK_BYTES
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.tasks import ReportingTask, unexpected

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

OnError = Literal["dead_letter", "fail", "skip"]
"""What becomes of an entry that cannot be decoded: it is kept as a dead letter, fails its range, or is dropped."""

REMEDY = "nothing was committed: decode it again"
NAMED = 3
"""How many failures are told one by one."""

_REPEATED = ["_odb_manifest_path", "_odb_data_path", "_odb_metadata"]
_DICTIONARY = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
_MOST_ROWS = 1 << 16
_MIXED_ROWS = 1024
"""Rows read at a time where the file does not tell how large they are."""
_ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """The row groups of a file of `entries` that begin at these bytes of it; pieces that together are all of the file
    have each row group once."""

    path: str
    size: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one task does: some pieces of one range, in order. `number` tells it from others of the job.

    landed: rows of the whole range, if they are known.
    """

    number: int
    range: SequenceRange
    pieces: tuple[Piece, ...]
    landed: int | None = None


@dataclass(frozen=True, slots=True)
class Failing:
    """An entry that could not be decoded."""

    sequence: int
    entry_index: int
    reason: str

    def __str__(self) -> str:
        return f"sequence {self.sequence}, entry {self.entry_index}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a task did, or why it could not.

    entries: read; taken: of these, the decoder's, also those that failed; failed: how many, `first` the first of them.
    rows, letters: the files of either.
    """

    share: int
    range: SequenceRange
    entries: int = 0
    taken: int = 0
    failed: int = 0
    first: tuple[Failing, ...] = ()
    rows: tuple[DataFile, ...] = ()
    letters: tuple[DataFile, ...] = ()
    bytes_read: int = 0
    error: ObjbufError | None = None


@dataclass(frozen=True, slots=True)
class DecodeTask(ReportingTask[Share, Report]):
    """Decodes shares of ranges."""

    entries: LakeTable
    decoder: Decoder
    table: LakeTable
    dead_letters: LakeTable
    on_error: OnError
    job: str

    def do(self, share: Share) -> Report:
        working = Working(self, share)
        try:
            return working.report()
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001  memory, libraries, decoders: the other ranges have no part in it
            return working.failure(error)


class Working:
    """A share in the making."""

    def __init__(self, task: DecodeTask, share: Share) -> None:
        self.task = task
        self.share = share
        self.where = "at the start"
        self.entries = self.taken = self.failed = self.bytes_read = 0
        self.first: list[Failing] = []

    def report(self) -> Report:
        return self.written(pair for block in self.blocks() for pair in decode_block(self.task.decoder, block))

    def written(self, pairs: Iterable[tuple[pa.RecordBatch, pa.RecordBatch]]) -> Report:
        """The report once all these rows and failures are in files."""
        task, share = self.task, self.share
        rows = self._writer(task.table, rows_schema(task.decoder), None)
        letters = self._writer(task.dead_letters, task.dead_letters.schema.to_arrow(), task.decoder.name)
        for decoded, failures in pairs:
            self._note(failures)
            if task.on_error != "fail" or not self.failed:  # else the range fails, and this is to count
                rows.add(decoded)
            if task.on_error == "dead_letter":
                letters.add(failures.select(task.dead_letters.schema.to_arrow().names))
        keeps = task.on_error != "fail" or not self.failed
        return Report(
            share.number,
            share.range,
            self.entries,
            self.taken,
            self.failed,
            tuple(self.first),
            rows.finish() if keeps else (),
            letters.finish(),
            self.bytes_read,
        )

    def failure(self, error: Exception) -> Report:
        """The report of a share that could not be done."""
        if not isinstance(error, ObjbufError):
            where = f"range {self.share.range}, decoder {self.task.decoder.name}, {self.where}"
            error = unexpected(where, error, REMEDY)
        return Report(self.share.number, self.share.range, error=error)

    def _writer(self, table: LakeTable, schema: pa.Schema, part: str | None) -> RowsWriter:
        folder, job = table.folder(self.share.range.key, part), self.task.job
        if part is None:
            return RowsWriter(table.store, schema, lambda: f"{folder}/{file_name(job, self.share.landed)}")
        mark = mark_of(self.task.table)
        return RowsWriter(table.store, schema, lambda: f"{folder}/{letters_name(mark, job)}")

    def _note(self, failures: pa.RecordBatch) -> None:
        self.failed += len(failures)
        for letter in failures.slice(0, NAMED - len(self.first)).to_pylist():
            self.first.append(Failing(letter["_odb_sequence"], letter["_odb_entry_index"], letter["reason"]))

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """The entries of the share, in order, in blocks of about BLOCK_BYTES, and counted."""
        import pyarrow.parquet as pq

        source = self.task.entries.filesystem({piece.path: piece.size for piece in self.share.pieces})
        schema = self.task.entries.schema.to_arrow()
        for piece in self.share.pieces:
            with contextlib.ExitStack() as stack:
                stack.enter_context(parquet_errors(piece.path))
                opened = stack.enter_context(source.open_input_file(piece.path))
                file = stack.enter_context(pq.ParquetFile(opened, pre_buffer=True, read_dictionary=_REPEATED))
                for number in range(file.metadata.num_row_groups):
                    group = file.metadata.row_group(number)
                    if piece.start <= _begin(group) < piece.stop:
                        for block in _read(file, number, schema):
                            self.where = f"{shown(piece.path)} from sequence {block.column(0)[0]} on"
                            self.entries += len(block)
                            self.taken += _taken(self.task.decoder, block)
                            yield block
                        self.bytes_read += sum(group.column(at).total_compressed_size for at in range(len(schema)))


def _begin(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins in its file."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    first = [chunk.data_page_offset for chunk in chunks]
    first += [chunk.dictionary_page_offset for chunk in chunks if chunk.has_dictionary_page]
    return int(min(first))


def _read(file: pq.ParquetFile, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a row group.

    A value that many rows share is in the file once, so that these columns are read as dictionaries, and blocks are cut
    before they are written out.
    """
    import pyarrow as pa

    rows = _rows_at_a_time(file.metadata.row_group(number), schema.get_field_index("entry"))
    for batch in file.iter_batches(rows, row_groups=[number], columns=schema.names, use_threads=False):
        if not len(batch):
            continue
        each = sum((sizes(column) for column in batch.columns[1:]), sizes(batch.column(0)))
        for begin, end in cuts(each, BLOCK_BYTES, _MOST_ROWS):
            columns = [column.slice(begin, end - begin) for column in batch.columns]
            plain = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in columns]
            yield pa.RecordBatch.from_arrays(plain, schema=schema)


def _rows_at_a_time(group: pq.RowGroupMetaData, entry: int) -> int:
    chunk = group.column(entry)
    if _DICTIONARY & set(chunk.encodings):  # an entry that many rows share counts once in the size
        return _MIXED_ROWS
    each = chunk.total_uncompressed_size // max(1, chunk.num_values) + _ROW_BYTES
    return max(1, min(_MOST_ROWS, BLOCK_BYTES // int(each)))


def _taken(decoder: Decoder, block: pa.RecordBatch) -> int:
    """How many entries are this decoder's, or refused by it."""
    total = 0
    for item in block.column("_odb_metadata").value_counts().to_pylist():
        try:
            mine = decoder.takes(item["values"])
        except (MemoryError, ImportError):
            raise
        except Exception:  # noqa: BLE001  refused, whatever it says: `decode_block` makes a failure of it
            mine = True
        total += item["counts"] if mine else 0
    return total
