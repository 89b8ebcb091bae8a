"""The data source in Spark: each way to read gives what was produced, and fails where it cannot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, everybody's name for it

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH
from objbuf_dagster.lake.schema import ENTRIES
from objbuf_dagster.protocol import Metadata, encode_batch
from objbuf_dagster.spark.source import FORMAT, register
from objbuf_dagster.store import LocalStore, Store
from tests.spark.buffers import ack, plan_ranges
from tests.support.buffers import append, batch_name, fill, put_batch
from tests.support.proxy import Proxy, proxied
from tests.support.s3 import S3Location

MIB = 1 << 20
Read = Callable[..., DataFrame]
Values = tuple[Any, ...]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "buffer")


@pytest.fixture
def read(spark: SparkSession, store: LocalStore) -> Read:
    """A read of the local buffer with these options (`from_` is `from`)."""

    def load(**options: str) -> DataFrame:
        given = {name.rstrip("_"): value for name, value in options.items()}
        return spark.read.format(FORMAT).option("buffer", store.root.as_uri()).options(**given).load()

    return load


@pytest.fixture
def proxy(s3: S3Location) -> Iterator[Proxy]:
    with proxied(s3) as proxy:
        yield proxy


@pytest.fixture
def spark_with_keys(spark: SparkSession, s3: S3Location, proxy: Proxy) -> Iterator[SparkSession]:
    register(spark, storage=proxy.location.options)
    yield spark
    register(spark)


def produce(store: Store, batches: int = 6) -> list[Values]:
    """Batches of three entries, of which the first has no metadata; returns the rows that they are."""
    rows = []
    for sequence in range(batches):
        entries = [b"%d-%d" % (sequence, index) * (sequence + 1) for index in range(3)]
        location = put_batch(store, batch_name(sequence), entries, "zstd" if sequence % 2 else "none")
        items = [Metadata(1, 1000 + sequence, b"\xff%d" % sequence)]
        append(store, location, items)
        for index, entry in enumerate(entries):
            item = items[0] if index else None
            time_ms, payload = (item.ingestion_time_ms, item.payload) if item else (None, None)
            rows.append((sequence, index, time_ms, DEFAULT_MANIFEST_PATH, location, payload, entry))
    return rows


def in_order(frame: DataFrame) -> list[Values]:
    """All rows; bytes as bytes."""
    rows = [tuple(bytes(x) if isinstance(x, bytearray) else x for x in row) for row in frame.collect()]
    return sorted(rows, key=lambda row: row[:2])


def test_every_way_to_select_gives_what_was_produced(read: Read, store: LocalStore) -> None:
    rows = produce(store)
    plan_ranges(store, 2)
    ack(store, through=1)

    assert in_order(read(from_="0", to="5")) == rows
    assert in_order(read(since_frontier="true")) == [row for row in rows if row[0] >= 2]
    keys = "000000000002-000000000003,000000000000-000000000001"
    assert in_order(read(range=keys)) == [row for row in rows if row[0] <= 3]


def test_the_columns_are_those_of_entries(read: Read, store: LocalStore) -> None:
    frame = read(since_frontier="true")

    fields = [(field.name, field.dataType.typeName(), field.nullable) for field in frame.schema.fields]
    assert fields == [(column.name, column.type, column.nullable) for column in ENTRIES.data]


def test_an_empty_buffer_has_no_rows(read: Read) -> None:
    assert read(since_frontier="true").collect() == []


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("_odb_sequence = 3 AND _odb_entry_index > 0", lambda row: row[0] == 3 and row[1] > 0),
        ("_odb_sequence > 1 AND NOT _odb_sequence = 2", lambda row: row[0] > 2),
        ("_odb_sequence IN (0, 4, NULL, 99) AND entry LIKE '%2'", lambda row: row[0] in (0, 4) and row[1] == 2),
        ("_odb_metadata IS NULL AND _odb_sequence < 2.5", lambda row: row[1] == 0 and row[0] <= 2),
        ("_odb_sequence < 1 OR _odb_ingestion_time_ms = 1005", lambda row: row[0] < 1 or row[2] == 1005),
        ("_odb_sequence = NULL", lambda row: False),
    ],
)
def test_a_filtered_read_has_the_rows_that_the_filter_leaves(
    read: Read, store: LocalStore, condition: str, holds: Callable[[Values], bool]
) -> None:
    rows = produce(store)

    assert in_order(read(to="5").where(condition)) == [row for row in rows if holds(row)]


def test_batches_that_a_filter_leaves_out_are_not_fetched(
    spark_with_keys: SparkSession, s3: S3Location, proxy: Proxy
) -> None:
    store = s3.open()
    locations = fill(store, 8)
    plan_ranges(store, 2)
    frame = spark_with_keys.read.format(FORMAT).option("buffer", s3.url).option("since_frontier", "true").load()
    assert not proxy.requests  # nothing is looked at before a query is planned

    found = frame.where("_odb_sequence IN (1, 6) AND _odb_entry_index = 0").collect()

    assert sorted(bytes(row["entry"]) for row in found) == [b"1", b"6"]
    assert [location for location in locations if proxy.count("GET", location)] == [locations[1], locations[6]]
    assert [location for location in locations if proxy.count("HEAD", location)] == [locations[6]]
    assert proxy.count("GET", ".batch") == 2
    assert proxy.count("GET", "ingest/manifest") == 1


def test_partitions_follow_the_size_asked_for(read: Read, store: LocalStore) -> None:
    fill(store, 8, size=100_000)

    frame = read(since_frontier="true", partition_bytes="400000")

    held = Counter(row["partition"] for row in frame.select(F.spark_partition_id().alias("partition")).collect())
    assert held == {0: 2, 1: 2, 2: 2, 3: 2}


def test_registering_again_changes_nothing(spark: SparkSession, read: Read, store: LocalStore) -> None:
    fill(store, 1)
    names = ("spark.sql.redaction.options.regex", "spark.sql.redaction.string.regex")
    hidden = [spark.conf.get(name) for name in names]

    register(spark)

    assert [spark.conf.get(name) for name in names] == hidden
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert read(since_frontier="true").count() == 1


# Failures say what to do


def message_of(frame: Callable[[], DataFrame]) -> str:
    with pytest.raises(PySparkException) as failed:
        frame().collect()
    return str(failed.value)


def test_a_wrong_option_fails_the_load_with_what_to_do(read: Read) -> None:
    with pytest.raises(PySparkException) as failed:
        read(since_frontier="perhaps")

    assert "InvalidInput: the option 'since_frontier' is true or false, not 'perhaps'\n" in str(failed.value)


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, store: LocalStore) -> None:
    reader = spark.read.format(FORMAT).option("buffer", store.root.as_uri()).option("since_frontier", "true")

    assert "leave schema(...) away" in message_of(lambda: reader.schema("entry binary").load())


def test_sequences_that_are_not_there_fail_the_query(read: Read, store: LocalStore) -> None:
    produce(store)
    ack(store, through=2)

    said = message_of(lambda: read(from_="0"))

    assert "range 000000000000-000000000002 is not planned" in said
    assert "from=3" in said


def test_a_damaged_batch_fails_the_query_with_sequence_location_and_reason(read: Read, store: LocalStore) -> None:
    rows = produce(store)
    location = rows[-1][4]
    store.put(location, store.read(location)[1:])

    assert re.search(
        rf"CorruptData: sequence 5, {re.escape(location)}: batch is corrupt.*Zstandard",
        message_of(lambda: read(to="5")),
    )


def test_a_missing_batch_fails_the_query(read: Read, store: LocalStore) -> None:
    rows = produce(store)
    store.delete([rows[0][4]])

    assert f"NotFound: there is no object '{rows[0][4]}': sequence 0 names it" in message_of(lambda: read(to="5"))


def test_a_batch_outside_the_buffer_is_never_fetched(
    spark_with_keys: SparkSession, s3: S3Location, proxy: Proxy
) -> None:
    store = s3.open()
    store.put("elsewhere/x.batch", encode_batch([b"x"]))
    append(store, "elsewhere/x.batch")
    frame = spark_with_keys.read.format(FORMAT).option("buffer", s3.url).option("since_frontier", "true").load()

    assert "outside the buffer's data prefix" in message_of(lambda: frame)
    assert proxy.count("GET", "elsewhere/x.batch") == 0
