"""One description of the columns, and what is derived from it."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from objbuf_dagster.decode import OtlpLogs, OtlpMetrics, OtlpTraces, rows_schema
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import ENTRIES, RANGE_COLUMN, Column, TableSchema
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS


def test_entries_have_the_columns_of_the_design_and_the_partition_last() -> None:
    assert [(column.name, column.type, column.nullable) for column in ENTRIES.columns] == [
        ("_odb_sequence", "long", False),
        ("_odb_entry_index", "long", False),
        ("_odb_ingestion_time_ms", "long", True),
        ("_odb_manifest_path", "string", False),
        ("_odb_data_path", "string", False),
        ("_odb_metadata", "binary", True),
        ("entry", "binary", False),
        ("_odb_range", "string", False),
    ]


def test_every_type_has_its_delta_and_its_arrow_type() -> None:
    schema = TableSchema(
        (
            Column("a", "long"),
            Column("b", "int"),
            Column("c", "double"),
            Column("d", "boolean"),
            Column("e", "string"),
            Column("f", "binary", nullable=False),
        )
    )

    fields = json.loads(schema.to_delta().to_json())["fields"]
    assert [(field["name"], field["type"], field["nullable"]) for field in fields] == [
        ("a", "long", True),
        ("b", "integer", True),
        ("c", "double", True),
        ("d", "boolean", True),
        ("e", "string", True),
        ("f", "binary", False),
        (RANGE_COLUMN, "string", False),
    ]
    types = [pa.int64(), pa.int32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()]
    assert schema.to_arrow().types == types
    assert [field.nullable for field in schema.to_arrow()] == [True] * 5 + [False]


@pytest.mark.parametrize(
    "columns",
    [(), (Column("a", "long"), Column("A", "int")), (Column(RANGE_COLUMN, "string"),), (Column("", "long"),)],
    ids=["none", "twice", "the partition", "no name"],
)
def test_columns_that_no_table_can_have_are_refused(columns: tuple[Column, ...]) -> None:
    with pytest.raises(InvalidInput):
        TableSchema(columns)


@pytest.mark.parametrize(
    "schema",
    [rows_schema(decoder()) for decoder in (OtlpLogs, OtlpMetrics, OtlpTraces)],
    ids=["logs", "metrics", "traces"],
)
def test_a_schema_from_arrow_gives_it_back_and_has_delta_and_spark_types(schema: pa.Schema) -> None:
    made = TableSchema.from_arrow(schema)

    assert made.to_arrow().equals(schema)
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(TableSchema.from_arrow(schema))
    fields = json.loads(made.to_delta().to_json())["fields"]
    assert [(field["name"], field["nullable"]) for field in fields] == [
        *((field.name, field.nullable) for field in schema),
        (RANGE_COLUMN, False),
    ]


def test_a_schema_from_arrow_of_simple_columns_is_the_one_written_by_hand() -> None:
    assert TableSchema.from_arrow(ENTRIES.to_arrow()) == ENTRIES


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.map_(pa.string(), pa.int64()), "map<string,long>"),
        (pa.list_(pa.struct([pa.field("a b", pa.float64(), nullable=False)])), "array<struct<`a b`:double NOT NULL>>"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.date32(), "date"),
        (pa.int8(), "byte"),
        (pa.int16(), "short"),
        (pa.float32(), "float"),
    ],
    ids=str,
)
def test_types_from_arrow_have_their_words_in_spark(arrow: pa.DataType, spark: str) -> None:
    schema = TableSchema.from_arrow(pa.schema([pa.field("c", arrow)]))

    assert schema.data[0].type == spark
    assert schema.to_arrow().field("c").type == arrow
    assert schema.to_delta().fields[0].name == "c"


@pytest.mark.parametrize(
    "arrow", [pa.uint64(), pa.large_string(), pa.timestamp("ns"), pa.timestamp("us"), pa.list_(pa.null())], ids=str
)
def test_types_that_delta_does_not_have_are_refused(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match=r"column c: .* use signed numbers"):
        TableSchema.from_arrow(pa.schema([pa.field("c", arrow)]))


def test_dead_letters_have_a_second_partition_column() -> None:
    assert DEAD_LETTERS.partitions == (RANGE_COLUMN, "decoder")
    assert [column.name for column in DEAD_LETTERS.columns[-4:]] == [
        "reason",
        "decoder_version",
        RANGE_COLUMN,
        "decoder",
    ]
    with pytest.raises(InvalidInput):
        TableSchema((Column("a", "long"),), part="A")
