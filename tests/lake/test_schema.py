"""One description of the columns, and what is derived from it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import ENTRIES, RANGE_COLUMN, Column, TableSchema


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
