"""The columns of JSON tables: Spark's DDL in, the same columns out, and everything else is refused at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.decode.json_types import columns_ddl, parse_columns
from objbuf_dagster.errors import InvalidInput


def test_ddl_in_every_spelling_gives_these_columns() -> None:
    decoder = JsonDecoder(
        "a bigint not null, `b` Long,c\tINTEGER, d: struct<x:int,`y z-`:array<map<string,dec(5)>>>, e DECIMAL, "
        "f NUMERIC(38, 38), g timestamp_ltz, h REAL, i date, é boolean, j byte, k SHORT, l double, m string".replace(
            "y z-", "y-z"
        )
    )

    inner = pa.struct([("x", pa.int32()), ("y-z", pa.list_(pa.map_(pa.string(), pa.decimal128(5, 0))))])
    assert decoder.schema == pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            ("b", pa.int64()),
            ("c", pa.int32()),
            ("d", inner),
            ("e", pa.decimal128(10, 0)),
            ("f", pa.decimal128(38, 38)),
            ("g", pa.timestamp("us", "UTC")),
            ("h", pa.float32()),
            ("i", pa.date32()),
            ("é", pa.bool_()),
            ("j", pa.int8()),
            ("k", pa.int16()),
            ("l", pa.float64()),
            ("m", pa.string()),
            pa.field("_rest", pa.map_(pa.string(), pa.string()), nullable=False),
        ]
    )
    assert parse_columns(columns_ddl(decoder.columns)) == decoder.columns


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("", "the name of a column or a type is expected"),
        ("a", "the name of a column or a type is expected"),
        ("a BIGINT,", "the name of a column or a type is expected"),
        ("a BIGINT b STRING", "a comma or the end is expected"),
        ("a BINARY", "BINARY is no type of a JSON table; there are BOOLEAN"),
        ("a VARIANT", "VARIANT is no type"),
        ("a TIMESTAMP_NTZ", "is no type"),
        ("a DECIMAL(39,0)", "up to 38 digits"),
        ("a DECIMAL(2,3)", "up to 38 digits"),
        ("a DECIMAL(1,1,1)", "up to 38 digits"),
        ("a DECIMAL(x)", "has two numbers"),
        ("a DECIMAL(", "the name of a column or a type is expected"),
        ("a ARRAY", "< is expected"),
        ("a ARRAY<INT", "> is expected"),
        ("a MAP<INT, INT>", "the names of a JSON object are strings"),
        ("a MAP<STRING>", ", is expected"),
        ("a STRUCT<>", "the name of a column or a type is expected"),
        ("a STRUCT<x: INT NOT NULL>", "NOT NULL is for columns"),
        ("a INT NOT", "NULL is expected"),
        ("a INT COMMENT 'x'", "a comma or the end is expected"),
        ("a INT; DROP", "this is no DDL"),
        ("_rest STRING", "the name is ours; leave it to _rest"),
        ("_odb_x STRING", "the name is ours"),
        ("a STRUCT<`_ODB_corrupt`: INT>", "no column for a._ODB_corrupt: the name is ours"),
        ("`a b` INT", "Delta tables have no such name"),
        ("`a'b` INT", "Delta tables have no such name"),
        ("`a``b` INT", "Delta tables have no such name"),
        ("a INT, A INT", "A is declared twice"),
        ("a ARRAY<STRUCT<x: INT, X: INT>>", "a.X is declared twice"),
        ("a MAP<STRING, STRUCT<x: INT, X: INT>>", "a.X is declared twice"),
    ],
)
def test_what_is_no_declaration_is_refused_and_says_what_to_do(ddl: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        JsonDecoder(ddl)

    assert why in str(refused.value)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidInput, match="give one"):
        JsonDecoder("a INT", payload=b"a", prefix=b"b")
    with pytest.raises(InvalidInput, match="max_bytes"):
        JsonDecoder("a INT", max_bytes=0)
