"""A table's rows as a DataFrame: the files that are live now, and no jar.

Where the JVM can reach the files, Spark reads them itself, with all it can do. Elsewhere tasks fetch them through the
same store that wrote them and hand them over as Arrow: a lake in a bucket needs nothing on the JVM's side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.lake import RANGE_COLUMN, LakeTable, TableSchema
from objbuf_dagster.protocol import BLOCK_BYTES
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.packing import pack
from objbuf_dagster.spark.tasks import ddl, number_tasks, numbers, parallelism
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 128 << 20
_JVM_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs"}
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
    native: bool | None = None,
) -> DataFrame:
    """The rows of these ranges, or of all, as the table is now; ranges that are not in it give none.

    native: whether Spark shall read the files itself. By default it does for local files, and for buckets if the
        session has settings for them (`spark.hadoop.fs.s3a.access.key` and the like).
    """
    keys = None if ranges is None else [one if isinstance(one, str) else one.key for one in ranges]
    files = table.files(keys)
    columns = ddl(table.schema.columns)
    if not files:
        return spark.createDataFrame([], columns)
    root = _jvm_root(spark, table, native)
    if root is not None:
        paths = [f"{root}/{file.path}" for file in files]
        return spark.read.schema(columns).option("basePath", root).parquet(*paths)
    packed = pack([file.size for file in files], _TASK_BYTES, parallelism(spark))
    shares = tuple(tuple((file.path, file.range) for file in files[part.start : part.stop]) for part in packed)
    task = _Task(shares, table.store, table.schema)
    return number_tasks(spark, len(shares), task, columns)


def _jvm_root(spark: SparkSession, table: LakeTable, native: bool | None) -> str | None:
    """The table as the JVM names it, or None if tasks shall read it."""
    if native is False:
        return None
    if table.root is not None:
        return table.root.as_uri()
    scheme, _, rest = table.url.partition("://")
    named = _JVM_SCHEMES.get(scheme)
    if named is None or not (native or _has_settings(spark, named)):
        return None
    return f"{named}://{rest}".rstrip("/")


def _has_settings(spark: SparkSession, scheme: str) -> bool:
    return any(spark.conf.get(f"spark.hadoop.fs.{scheme}.{name}", None) for name in _SETTINGS[scheme])


@dataclass(frozen=True, slots=True)
class _Task:
    """The function that Spark runs: each row is the number of a share of the files, and gives their rows."""

    shares: tuple[tuple[tuple[str, str], ...], ...]
    store: Store
    schema: TableSchema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers(batches):
            for path, key in self.shares[number]:
                yield from self._rows(path, key)

    def _rows(self, path: str, key: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self.schema.to_arrow().append(pa.field(RANGE_COLUMN, pa.string(), nullable=False))
        file = pq.ParquetFile(pa.BufferReader(self.store.read(path)))
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        rows = max(1, file.metadata.num_rows * BLOCK_BYTES // max(size, 1))
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            yield pa.record_batch([*batch.columns, pa.repeat(key, len(batch))], schema=schema)
