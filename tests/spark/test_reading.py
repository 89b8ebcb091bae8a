"""Reading a table: blocks of a bounded size whatever the files hold, and directories of any name."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import Column, LakeTable, LiveFile, TableSchema
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.protocol import BLOCK_BYTES, Metadata
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.spark.landing import land as land_range
from objbuf_dagster.spark.landing import land_all
from objbuf_dagster.spark.reading import _jvm_root, _may_have, _Task, read
from objbuf_dagster.store import LocalStore, MemoryStore
from tests.lake.landings import key, land, sequences
from tests.spark.landing import Filled, fill
from tests.spark.rows import batch
from tests.support.namenode import name_node

MIB = 1 << 20
TYPED = TableSchema(
    (
        Column("count", "long", nullable=False),
        Column("share", "double"),
        Column("good", "boolean"),
        Column("body", "string"),
        Column("payload", "binary"),
    )
)


def typed(rows: int, body: list[str | None], payload: list[bytes | None]) -> pa.Table:
    """Rows that take these bodies and payloads in turn."""
    return pa.table(
        {
            "count": range(rows),
            "share": [None if n % 5 == 0 else n / 7 for n in range(rows)],
            "good": [n % 3 == 0 for n in range(rows)],
            "body": [body[n % len(body)] for n in range(rows)],
            "payload": [payload[n % len(payload)] for n in range(rows)],
        },
        schema=TYPED.to_arrow(),
    )


def blocks_of(store: LocalStore | MemoryStore, path: str, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """What a task hands to Spark."""
    share = pickle.dumps([(path, [key(0)])])
    return _Task(store, schema)(iter([pa.RecordBatch.from_pydict({"share": [share]})]))


def blocks_of_file(data: pa.Table, **options: Any) -> Iterator[pa.RecordBatch]:
    sink = io.BytesIO()
    pq.write_table(data, sink, **options)
    store = MemoryStore()
    store.put("file", sink.getvalue())
    return blocks_of(store, "file", TYPED)


def test_a_metadata_payload_that_all_rows_share_is_counted_in_all_of_them(spark: SparkSession, tmp_path: Path) -> None:
    payload = b"p" * 50_000
    made = [batch(0, [b""] * 3_000, [Metadata(0, 1, payload)]), batch(1, [b"x"])]
    filled = fill(LocalStore(tmp_path / "buffer"), made, per_range=2)
    table = LakeTable(tmp_path / "lake")
    land_range(spark, filled.place, filled.ranges[0], table)
    [file] = table.files()

    rows, total = 0, 0
    for block in blocks_of(LocalStore(tmp_path / "lake"), file.path, table.schema):
        assert block.nbytes <= 1.5 * BLOCK_BYTES + len(payload) + 64_000
        rows, total = rows + len(block), total + block.nbytes

    assert rows == 3_001
    assert total >= 3_000 * len(payload)


@pytest.mark.parametrize(
    ("body", "payload", "options"),
    [
        pytest.param(["same" * 5_000], [b""], {}, id="string in a dictionary"),
        pytest.param([None], [None, b"p" * 20_000], {}, id="binary in a dictionary, with nulls"),
        pytest.param(["b" * 2_000], [b"p" * 2_000], {"use_dictionary": False}, id="plain"),
        pytest.param([""], [None], {}, id="nothing in it"),
        pytest.param(
            ["same" * 500] * 3_000 + [f"{n}" * 200 for n in range(3_000)],
            [b"p"],
            {"dictionary_pagesize_limit": 10_000, "data_page_size": 10_000, "write_batch_size": 100},
            id="dictionary given up midway",
        ),
        pytest.param(["b" * 2_000], [b"p" * 3_000], {"row_group_size": 700}, id="many row groups"),
        pytest.param(
            ["b" * 500], [b"p"], {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}, id="deltas"
        ),
    ],
)
def test_blocks_of_any_table_are_bounded_and_hold_its_rows(
    body: list[str | None], payload: list[bytes | None], options: dict[str, Any]
) -> None:
    if "column_encoding" in options:
        options = {**options, "column_encoding": dict.fromkeys(("body", "payload"), options["column_encoding"])}
    data = typed(6_000, body, payload)

    blocks = list(blocks_of_file(data, **options))

    assert pa.Table.from_batches(blocks).drop_columns("_odb_range").equals(data)
    assert {value for block in blocks for value in block["_odb_range"].to_pylist()} == {key(0)}
    assert max(block.nbytes for block in blocks) <= 1.5 * BLOCK_BYTES + 64_000
    assert len(blocks) <= 10 + sum(block.nbytes for block in blocks) / MIB  # nor are they tiny


def test_maps_lists_and_structs_are_read_in_bounded_blocks(tmp_path: Path) -> None:
    large = {"a": "x" * 5_000, "b": "y" * 5_000}
    data = pa.table(
        {
            "map": pa.array([list(large.items())] * 2_000, pa.map_(pa.string(), pa.string())),
            "list": pa.array([[n, n + 1] for n in range(2_000)], pa.list_(pa.int64())),
            "struct": pa.array([{"s": "same"}] * 2_000, pa.struct([pa.field("s", pa.string())])),
            "a.b": pa.array(["dotted"] * 2_000, pa.string()),
        }
    )
    schema = TableSchema.from_arrow(data.schema)
    pq.write_table(data, tmp_path / "file")

    blocks = list(blocks_of(LocalStore(tmp_path), "file", schema))

    assert pa.Table.from_batches(blocks).drop_columns("_odb_range").equals(data.cast(schema.to_arrow()))
    assert max(block.nbytes for block in blocks) <= 1.5 * BLOCK_BYTES + 64_000


def test_dead_letters_and_typed_rows_are_read_both_ways(spark: SparkSession, tmp_path: Path) -> None:
    schema = TableSchema.from_arrow(
        pa.schema([pa.field("_odb_sequence", pa.int64()), pa.field("tags", pa.map_(pa.string(), pa.string()))])
    )
    typed_table = LakeTable(tmp_path / "typed", schema)
    with_parts = LakeTable(tmp_path / "parts", TableSchema(schema.data, part="decoder"))
    rows = pa.RecordBatch.from_pylist([{"_odb_sequence": 3, "tags": [("k", "v")]}], schema.to_arrow())
    for table, part in ((typed_table, None), (with_parts, "one"), (with_parts, "two")):
        writer = RowsWriter(table.store, schema.to_arrow(), partial(table.new_path, key(0), part))
        writer.add(rows)
        table.commit(key(0), writer.finish(), epoch=1, part=part)

    for native in (True, False):
        (row,) = read(spark, typed_table, native=native).collect()
        assert (row._odb_sequence, row.tags, row._odb_range) == (3, {"k": "v"}, key(0))
        found = read(spark, with_parts, native=native).collect()
        assert sorted(one.decoder for one in found) == ["one", "two"]
        assert {(one._odb_sequence, one.tags["k"], one._odb_range) for one in found} == {(3, "v", key(0))}


def test_a_file_without_rows_gives_no_block() -> None:
    assert list(blocks_of_file(typed(0, [""], [b""]))) == []


@pytest.mark.parametrize("name", ["a b", "é", "a+b", "a#b", "a[b]", "a{b,c}", "a*b", "a?b"])
def test_a_directory_of_any_name_is_read_both_ways(name: str, spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(tmp_path / name / "entries")
    for other in ("axb", "ab", "a"):  # what a pattern would match
        land(LakeTable(tmp_path / other / "entries"), key(5))
    for number in range(2):
        land(table, key(number), b"tag")

    for native in (None, False):
        rows = read(spark, table, native=native).collect()
        assert sorted(row._odb_sequence for row in rows) == sequences(table) == list(range(20))
        assert {(bytes(row.entry), row._odb_range) for row in rows} == {(b"tag", key(0)), (b"tag", key(1))}
        assert read(spark, table, [key(1)], native=native).count() == 10


def test_local_files_are_read_natively_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(tmp_path / "a b")

    assert _jvm_root(spark, table, None) == _jvm_root(spark, table, True) == f"file://{tmp_path}/a b"
    assert _jvm_root(spark, table, False) is None


@pytest.mark.parametrize(
    ("url", "setting", "root"),
    [
        ("s3://bucket/lake", "spark.hadoop.fs.s3a.access.key", "s3a://bucket/lake"),
        ("s3://bucket/lake", "spark.hadoop.fs.s3a.endpoint", "s3a://bucket/lake"),
        ("gs://bucket/lake", "spark.hadoop.fs.gs.project.id", "gs://bucket/lake"),
    ],
)
def test_buckets_are_read_natively_if_the_session_is_configured_for_them(
    url: str, setting: str, root: str, spark: SparkSession
) -> None:
    table = LakeTable(url, options={"skip_signature": "true"})
    assert _jvm_root(spark, table, None) is None
    assert _jvm_root(spark, table, True) == root

    spark.conf.set(setting, "x")
    try:
        assert _jvm_root(spark, table, None) == root
        assert _jvm_root(spark, table, False) is None
    finally:
        spark.conf.unset(setting)

    assert _jvm_root(spark, table, None) is None


def blind(tmp_path: Path, table: LakeTable, ranges: list[str]) -> None:
    """Overwrite all of the files of these ranges but their footers: who looks for rows in them fails."""
    for file in table.files(ranges):
        path = tmp_path / "lake/entries" / file.path
        data = path.read_bytes()
        footer = int.from_bytes(data[-8:-4], "little") + 8
        path.write_bytes(data[:4] + b"\xff" * (len(data) - footer - 4) + data[-footer:])


def test_filters_on_sequence_and_time_skip_files(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    list(land_all(spark, small.place, small.ranges, table))
    blind(tmp_path, table, [range_of(small.ranges[number]).key for number in (0, 2)])

    for query in ("_odb_sequence = 4", "_odb_ingestion_time_ms = 4", f"_odb_range = '{range_of(small.ranges[1]).key}'"):
        found = read(spark, table).where(query).selectExpr("max(entry)").collect()
        assert found[0][0] in (b"4-4", b"5-5")
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        read(spark, table).selectExpr("max(entry)").collect()


@pytest.mark.parametrize("native", [True, False])
def test_sequences_give_their_rows_and_files_without_them_are_not_looked_at(
    native: bool, spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    list(land_all(spark, small.place, small.ranges, table))
    for number in (0, 2):
        for file in table.files([range_of(small.ranges[number]).key]):
            (tmp_path / "lake/entries" / file.path).unlink()

    found = read(spark, table, sequences=(4, 5), native=native)

    assert sorted(row[0] for row in found.select("_odb_sequence").collect()) == [4] * 5 + [5] * 6
    keys = [range_of(one) for one in small.ranges[:2]]
    assert read(spark, table, keys, sequences=SequenceRange(3, 3), native=native).count() == 4
    assert read(spark, table, sequences=SequenceRange(9, 2**64 - 1), native=native).count() == 0


def test_files_are_skipped_by_their_statistics_where_a_range_is_wider() -> None:
    stats = {"minValues": {"_odb_sequence": 3}, "maxValues": {"_odb_sequence": 5}}
    told, untold = (LiveFile(SequenceRange(0, 9).key, "path", 1, 1, given) for given in (stats, {}))

    assert [n for n in range(12) if _may_have(told, SequenceRange(n, n))] == [3, 4, 5]
    assert [n for n in range(12) if _may_have(untold, SequenceRange(n, n))] == list(range(10))
    assert _may_have(told, SequenceRange(0, 100))


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param("000000000000-000000000002", id="one key, not a list"),
        pytest.param(SequenceRange(0, 2), id="one range, not a list"),
        pytest.param(["0-2"], id="not how a key is written"),
        pytest.param(["000000000002-000000000000"], id="the wrong way round"),
    ],
)
def test_what_is_no_range_is_refused_and_not_an_empty_frame(ranges: Any, spark: SparkSession, table: LakeTable) -> None:
    with pytest.raises(InvalidInput, match="range"):
        read(spark, table, ranges)


def test_sequences_of_a_table_without_them_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no column _odb_sequence: read it by its ranges"):
        read(spark, LakeTable(tmp_path / "typed", TYPED), sequences=(0, 1))
    with pytest.raises(InvalidInput, match="0 <= start <= end"):
        read(spark, LakeTable(tmp_path / "entries"), sequences=(2, 1))


def test_through_spark_connect_tasks_read_what_is_on_hdfs(connect_spark: SparkSession) -> None:
    with name_node() as names:
        table = LakeTable(f"{names.url}/lake/entries")
        land(table, key(0))

        rows = read(connect_spark, table)

        assert sorted(row["_odb_sequence"] for row in rows.select("_odb_sequence").collect()) == list(range(10))
        assert rows.inputFiles() == [], "the server's JVM has another user and other settings"
