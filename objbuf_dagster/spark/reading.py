"""A table's rows as a DataFrame: the files that are live now, and no jar.

Where the JVM can reach the files, Spark reads them itself, with all it can do: on a local disk, on hdfs, and in s3 and
gs buckets that the session is configured for. Elsewhere tasks fetch them through the same store that wrote them and
hand them over as Arrow: a lake in a bucket needs nothing on the JVM's side.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from objbuf_dagster.decode.sizes import sizes
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import LakeTable, LiveFile, TableSchema
from objbuf_dagster.protocol import BLOCK_BYTES
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.packing import pack
from objbuf_dagster.spark.rows import MOST_ROWS, cuts
from objbuf_dagster.spark.shipping import is_connect
from objbuf_dagster.spark.tasks import ddl, parallelism, share_tasks, shares_in
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession

_SEQUENCE = "_odb_sequence"
_LARGEST = 2**63 - 1
_TASK_BYTES = 128 << 20
_MIXED_ROWS = 1024
_NESTED_ROWS = 128
"""Rows read at a time where the file does not tell how large they are: of one value each, and of many."""
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}
_DICTIONARY = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
_INDEX_BYTES = 4
_PAGE_HEADERS = 4096
_JVM_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "hdfs": "hdfs"}
_SETTINGS = {
    "s3a": ("impl", "endpoint", "endpoint.region", "access.key", "aws.credentials.provider"),
    "gs": ("impl", "project.id", "auth.type"),
}
"""What somebody sets who means the JVM to read buckets; Spark sets others of these names itself."""


def read(
    spark: SparkSession,
    table: LakeTable,
    ranges: Iterable[SequenceRange | str] | None = None,
    *,
    sequences: SequenceRange | tuple[int, int] | None = None,
    native: bool | None = None,
) -> DataFrame:
    """The rows of these ranges, or of all, as the table is now; ranges that are not in it give none.

    sequences: the first and the last whose rows are wanted; files that have none of them are not looked at.
    native: whether Spark shall read the files itself. By default it does for local files, for hdfs if the session is a
        classic one that has the options of the table, too (as `spark.hadoop.dfs...`), and for buckets if it has
        settings for them (`spark.hadoop.fs.s3a.access.key` and the like). The server of Spark Connect has a user and a
        HADOOP_CONF_DIR of its own, so that only who knows these can ask for it.

    Where Spark reads by itself, `where` on sequences and times skips what it can, too. Elsewhere each file of these
    ranges and sequences is fetched whole, by one task and into its memory, whatever the query makes of it: so name
    them here. Raises InvalidInput for what is no range.
    """
    wanted = None if sequences is None else _checked(table, sequences)
    files = [file for file in table.files(_keys(ranges)) if wanted is None or _may_have(file, wanted)]
    columns = ddl(table.schema.columns)
    if not files:
        return spark.createDataFrame([], columns)
    rows = _rows_of(spark, table, files, columns, native)
    if wanted is None:
        return rows
    return rows.where(f"{_SEQUENCE} BETWEEN {wanted.start} AND {min(wanted.end, _LARGEST)}")


def _keys(ranges: Iterable[SequenceRange | str] | None) -> list[str] | None:
    if ranges is None:
        return None
    if isinstance(ranges, (str, SequenceRange)):
        raise InvalidInput(f"ranges is a list of them: give [{str(ranges)[:80]!r}]")
    return [SequenceRange.from_key(one).key if isinstance(one, str) else one.key for one in ranges]


def _checked(table: LakeTable, sequences: SequenceRange | tuple[int, int]) -> SequenceRange:
    if _SEQUENCE not in [column.name for column in table.schema.columns]:
        raise InvalidInput(f"the table at {table.name} has no column {_SEQUENCE}: read it by its ranges")
    return sequences if isinstance(sequences, SequenceRange) else SequenceRange(*sequences)


def _may_have(file: LiveFile, wanted: SequenceRange) -> bool:
    """Whether one of these sequences may be in this file, as its range and its statistics tell."""
    of = SequenceRange.from_key(file.range)
    least, most = (file.stats.get(bound, {}).get(_SEQUENCE) for bound in ("minValues", "maxValues"))
    first = max(of.start, least) if isinstance(least, int) else of.start
    last = min(of.end, most) if isinstance(most, int) else of.end
    return first <= wanted.end and wanted.start <= last


def _rows_of(
    spark: SparkSession, table: LakeTable, files: Sequence[LiveFile], columns: str, native: bool | None
) -> DataFrame:
    root = _jvm_root(spark, table, native)
    if root is not None:
        paths = [_literal(f"{root}/{file.path}") for file in files]
        return spark.read.schema(columns).option("basePath", root).parquet(*paths)
    packed = pack([file.size for file in files], _TASK_BYTES, parallelism(spark))
    named = [(file.path, [file.range] if file.part is None else [file.range, file.part]) for file in files]
    shares = [pickle.dumps(named[part.start : part.stop]) for part in packed]
    return share_tasks(spark, shares, _Task(table.store, table.schema), columns)


def _jvm_root(spark: SparkSession, table: LakeTable, native: bool | None) -> str | None:
    """The table as the JVM names it, which is without escapes, or None if tasks shall read it."""
    if native is False:
        return None
    if table.root is not None:
        return f"file://{table.root}"
    scheme, _, rest = table.url.partition("://")
    named = _JVM_SCHEMES.get(scheme)
    if named is None or not (native or _reaches(spark, table, named)):
        return None
    return f"{named}://{rest}".rstrip("/")


def _literal(path: str) -> str:
    """A path that Spark shall not take for a pattern. It takes `basePath` as it is."""
    return re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", path)


def _reaches(spark: SparkSession, table: LakeTable, scheme: str) -> bool:
    """Whether the JVM can be expected to: it has a client for hdfs, and one that this process started its environment.

    A connection that fails would be told by the query, long after there was a choice.
    """
    if scheme == "hdfs":
        options: dict[str, str] = table.settings["options"]
        return not is_connect(spark) and all(
            spark.conf.get(f"spark.hadoop.{name}", None) == value for name, value in options.items()
        )
    return any(spark.conf.get(f"spark.hadoop.fs.{scheme}.{name}", None) for name in _SETTINGS[scheme])


@dataclass(frozen=True, slots=True)
class _Task:
    """The function that Spark runs: each row is a share of the files, and gives their rows."""

    store: Store
    schema: TableSchema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for share in shares_in(batches):
            for path, partition in pickle.loads(share):  # noqa: S301  the driver made it
                yield from self._rows(path, partition)

    def _rows(self, path: str, partition: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a file, each with the values of its partition's columns."""
        import pyarrow as pa

        schema = self.schema.to_arrow()
        for name in self.schema.partitions:
            schema = schema.append(pa.field(name, pa.string(), nullable=False))
        for block in _blocks(pa.BufferReader(self.store.read(path)), sum(len(value) + 4 for value in partition)):
            values = [pa.repeat(value, len(block[0])) for value in partition]
            yield pa.record_batch([*block, *values], schema=schema)


def _blocks(source: pa.BufferReader, more: int) -> Iterator[list[pa.Array]]:
    """The columns of a file, in blocks of about BLOCK_BYTES, if each row has so many bytes more.

    What a file tells of its size counts a value that is in a dictionary once, and a thousand rows may have it: so
    rows are read with their dictionaries, measured, and cut before they are written out.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(source)
    dictionaries, rows = _how_to_read(metadata)
    file = pq.ParquetFile(source, metadata=metadata, read_dictionary=dictionaries)
    for batch in file.iter_batches(batch_size=rows, use_threads=False):
        if not len(batch):
            continue
        each = sum((sizes(column) for column in batch.columns), start=np.full(len(batch), more, np.int64))
        for begin, end in pairwise(cuts(each, BLOCK_BYTES)):
            columns = [column.slice(begin, end - begin) for column in batch.columns]
            yield [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in columns]


def _how_to_read(metadata: pq.FileMetaData) -> tuple[list[str], int]:
    """Which columns to read as dictionaries, and how many rows at a time: about BLOCK_BYTES as they are then.

    A column whose writer gave its dictionary up midway is not among them: its dictionary would grow with every row.
    """
    dictionaries: list[str] = []
    each, most = 1, MOST_ROWS
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    for number in range(metadata.num_columns):
        chunks = [chunk for group in groups if (chunk := group.column(number)).num_values]
        if not chunks:
            continue
        encodings = {name for chunk in chunks for name in chunk.encodings}
        if metadata.schema.column(number).max_repetition_level:  # of a list or a map: many values in a row
            most = min(most, _MIXED_ROWS if encodings <= _PLAIN else _NESTED_ROWS)
            each += max(group.column(number).total_uncompressed_size // max(1, group.num_rows) for group in groups)
            continue
        if chunks[0].physical_type == "BYTE_ARRAY" and not encodings <= _PLAIN:
            is_column = chunks[0].path_in_schema == metadata.schema.column(number).name  # and not a part of a struct
            if is_column and encodings <= _PLAIN | _DICTIONARY and all(map(_has_only_indices, chunks)):
                dictionaries.append(chunks[0].path_in_schema)
                each += _INDEX_BYTES
                continue
            most = min(most, _MIXED_ROWS)
        each += max(chunk.total_uncompressed_size // chunk.num_values for chunk in chunks)
    return dictionaries, max(1, min(most, BLOCK_BYTES // each))


def _has_only_indices(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether its pages, but for the dictionary, are too small to hold many values."""
    dictionary = chunk.data_page_offset - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
    return bool(chunk.total_compressed_size - dictionary <= chunk.num_values * _INDEX_BYTES + _PAGE_HEADERS)
