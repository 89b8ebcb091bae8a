"""The data source `objbuf`: a buffer's entries for any Spark job, without acking anything.

    register(spark)
    spark.read.format("objbuf").option("buffer", "s3://bucket/prefix").option("since_frontier", "true").load()

What to read is said in one way: `range` (a key, or several with commas between), `from` and/or `to` (sequences, both
included), or `since_frontier` (all that is not acked); there is no default, since each leaves something out. The other
options: `manifest_path`, `data_prefix`, `max_bytes` as in BufferPlace; `partition_bytes`, about how many stored bytes a
partition has (64 MiB); `min_partitions`, how many there are where the data is worth it (the session's default
parallelism); and `storage.<setting>` for the store's settings, as `storage.endpoint`, but not for credentials.

The buffer is looked at when a query is planned, so each action sees it anew. Rows are complete or the query fails: a
batch that is missing or damaged, or a sequence that is not there any more, is an error. Conditions on `_odb_sequence`
decide which batches are fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake.schema import ENTRIES
from objbuf_dagster.protocol import BLOCK_BYTES, PlannedBatch
from objbuf_dagster.spark.options import Options, Session, parse
from objbuf_dagster.spark.packing import cost, pack
from objbuf_dagster.spark.pushdown import Sequences, push
from objbuf_dagster.spark.rows import read_rows
from objbuf_dagster.spark.selection import choose
from objbuf_dagster.spark.tasks import ddl, parallelism
from objbuf_dagster.store.cloud import Credentials

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
    from pyspark.sql.types import StructType

FORMAT = "objbuf"

_REGISTERED = "spark.objbuf.registered"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_HIDDEN_OPTIONS = ("spark.sql.redaction.options.regex", "(?i:^storage[.])")
_HIDDEN_TEXT = ("spark.sql.redaction.string.regex", r'(?i:storage[.]\w+"\s+value: "[^"\\]*(\\.[^"\\]*)*")')
"""A Spark Connect server logs requests as they came, options and all, before it asks whether they are any good."""
_PARALLELISM = "spark.sql.leafNodeDefaultParallelism"


def register(
    spark: SparkSession, *, storage: Mapping[str, str] | None = None, credentials: Credentials | None = None
) -> None:
    """Make the format `objbuf` known to this session; may be repeated, and the last time counts.

    `storage` and `credentials` are for buckets, as `open_store` takes them, and hold for every read of this session.
    They travel inside the data source, where no plan, log or page of Spark shows them; without them, driver and
    executors look in their environment. Changes settings of the session: filters may be pushed down, and `storage.`
    options are hidden where Spark shows options, also those that will be refused.
    """
    from pyspark.errors import AnalysisException

    spark.conf.set(_PUSHDOWN, "true")
    for name, pattern in (_HIDDEN_OPTIONS, _HIDDEN_TEXT):
        hidden = spark.conf.get(name) or ""
        if pattern not in hidden:
            spark.conf.set(name, f"{hidden}|{pattern}" if hidden else pattern)
    source = source_class(Session(dict(storage or {}), credentials, _parallelism(spark)))
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        raise InvalidInput(
            f"another session of this Spark application has registered {FORMAT!r}, and Spark takes that for the only "
            "one that may read it: read through that session"
        ) from error
    spark.conf.set(_REGISTERED, "true")


def is_registered(spark: SparkSession) -> bool:
    """Whether `register` was called for this session."""
    return spark.conf.get(_REGISTERED, None) is not None


def source_class(session: Session) -> type[DataSource]:
    """The class that Spark wants. It is made here, and not when this module is loaded, which must not load pyspark;
    so it is pickled by its contents, while all that it calls is found in this package wherever that is."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, options: Options) -> None:
            self._options = options
            self._wanted = Sequences()

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, the name is Spark's
            self._wanted, rest = push(filters)
            return rest

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(share) for share in plan_partitions(self._options, self._wanted)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            # Spark makes one partition of None where there are none.
            return read_rows(self._options.place, partition.value or ())

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            parse(self.options, session)  # so that a wrong option is an error of `load`, not of the first action
            return ddl(ENTRIES.data)

        def reader(self, schema: StructType) -> DataSourceReader:
            _check_schema(schema)
            return Reader(parse(self.options, session))

    return Source


def plan_partitions(options: Options, wanted: Sequences) -> list[tuple[PlannedBatch, ...]]:
    """The batches to read, shared out in order and about equally."""
    batches = choose(options.place, options.selection, wanted)
    costs = list(map(cost, batches))
    useful = min(options.min_partitions, 1 + sum(costs) // BLOCK_BYTES)
    return [tuple(batches[share.start : share.stop]) for share in pack(costs, options.partition_bytes, useful)]


def _parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at once, as far as it tells."""
    told = spark.conf.get(_PARALLELISM, None)
    return int(told) if told else parallelism(spark)


def _check_schema(schema: StructType) -> None:
    """A schema of the user's own would have to be this one: what is read does not follow it."""
    wanted = [(column.name, column.type, column.nullable) for column in ENTRIES.data]
    if [(field.name, field.dataType.typeName(), field.nullable) for field in schema.fields] != wanted:
        raise InvalidInput(f"the columns of {FORMAT} are always the same: leave schema(...) away, and select from them")
