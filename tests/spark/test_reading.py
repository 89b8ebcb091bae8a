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

from objbuf_dagster.lake import Column, LakeTable, TableSchema
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.protocol import BLOCK_BYTES, Metadata
from objbuf_dagster.spark.landing import land as land_range
from objbuf_dagster.spark.reading import _jvm_root, _Task, read
from objbuf_dagster.store import LocalStore, MemoryStore
from tests.lake.landings import key, land, sequences
from tests.spark.landing import fill
from tests.spark.rows import batch

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
