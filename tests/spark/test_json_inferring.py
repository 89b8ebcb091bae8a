"""Columns inferred from entries that have landed: they hold all of the sample, are written down, and then stay."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.spark import infer_json
from tests.spark.decoding import Lake, lake_at, letters_in, rows_in
from tests.spark.rows import batch
from tests.spark.test_json_decoding import landed, of

ANY = JsonDecoder("any STRING")

SAMPLE = [
    {"id": 1, "price": 1, "user": {"name": "a", "tags": []}, "mixed": 1, "never": None, "a b": 1, "big": 2**64},
    {"id": 2, "price": 1.5, "user": {"name": None, "tags": ["x"]}, "mixed": "x", "Id": 1, "_rest": 1, "none": {}},
    {"id": -3, "ok": True, "items": [{"sku": "s"}, {"n": 1.0}], "odd": [1, "x"], "": 5},
]


def pinned_to(decoder: JsonDecoder, lake: Lake, directory: Path) -> Lake:
    """The same entries, with a table for this decoder."""
    table = lake_at(directory / "pinned", lake.filled, decoder).table
    return Lake(lake.filled, lake.entries, table, lake.dead_letters)


def test_columns_hold_the_whole_sample_and_the_others_are_told(spark: SparkSession, tmp_path: Path) -> None:
    entries = [json.dumps(one).encode() for one in SAMPLE] + [b"no JSON", b"[1]"]
    lake = landed(spark, tmp_path, ANY, of(entries))

    found = infer_json(spark, lake.entries)

    assert found.ddl == (
        "`Id` BIGINT, `big` DECIMAL(20,0), `items` ARRAY<STRUCT<`n`: DOUBLE, `sku`: STRING>>, `ok` BOOLEAN, "
        "`price` DOUBLE, `user` STRUCT<`name`: STRING, `tags`: ARRAY<STRING>>"
    )
    assert (found.entries, found.refused) == (3, 2)
    assert set(found.left_out) == {"id", "mixed", "never", "a b", "_rest", "none", "odd", ""}
    assert found.left_out["mixed"] == "mixed: it is the number 1, and STRING is declared"
    assert "is declared twice" in found.left_out["id"]
    decoder = JsonDecoder(found.ddl)
    pinned = Lake(
        lake.filled, lake.entries, lake_at(tmp_path / "pinned", lake.filled, decoder).table, lake.dead_letters
    )
    (outcome,) = pinned.succeed(spark, decoder)
    assert (outcome.rows, outcome.dead_letters) == (3, 2)
    for row, one in zip(rows_in(pinned.table), SAMPLE, strict=True):
        assert {name: json.loads(text) for name, text in row["_rest"]} == {
            name: value for name, value in one.items() if name in found.left_out
        }


def test_pinned_columns_stay_when_entries_change(spark: SparkSession, tmp_path: Path) -> None:
    made = [batch(0, [b'{"id":1}', b'{"id":2}']), batch(1, [b'{"id":"x"}', b'{"id":3,"new":[1.50]}'])]
    lake = landed(spark, tmp_path, ANY, made, per_range=1)
    decoder = JsonDecoder(infer_json(spark, lake.entries, [lake.entries.files()[0].range]).ddl)
    lake = pinned_to(decoder, lake, tmp_path)
    assert decoder.ddl == "`id` BIGINT"

    lake.succeed(spark, pickle.loads(pickle.dumps(decoder)))

    assert [(row["id"], row["_rest"]) for row in rows_in(lake.table)] == [(1, []), (2, []), (3, [("new", "[1.50]")])]
    assert [letter[4] for letter in letters_in(lake.dead_letters)] == ["id: it is a string, and BIGINT is declared"]


def test_a_sample_is_bounded_is_always_the_same_and_of_the_payload_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    items = [Metadata(0, 1, b"a/1"), Metadata(200, 1, b"a/2"), Metadata(400, 1, b"b")]
    entries = [b'{"x%d":%d}' % (number // 200, number) for number in range(600)]
    large = b'{"large":"' + b"x" * (64 << 10) + b'"}'
    lake = landed(spark, tmp_path, ANY, [batch(0, [*entries, large], items)])

    assert infer_json(spark, lake.entries, payload=b"a/2").ddl == "`x1` BIGINT"
    assert infer_json(spark, lake.entries, prefix=b"a/").ddl == "`x0` BIGINT, `x1` BIGINT"
    some = infer_json(spark, lake.entries, sample=100)
    assert some == infer_json(spark, lake.entries, sample=100)
    assert some.entries == 100
    assert some.ddl == "`x0` BIGINT, `x1` BIGINT, `x2` BIGINT", "from all over the range"


def test_entries_that_give_no_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = [batch(0, [b"x", b"1"]), batch(1, [b"{}", b'{"a":null}'])]
    lake = landed(spark, tmp_path, ANY, made, per_range=1)
    first, second = [file.range for file in lake.entries.files()]

    with pytest.raises(InvalidInput, match="none of the 2 entries looked at is a JSON object"):
        infer_json(spark, lake.entries, [first])
    with pytest.raises(InvalidInput, match="no field of these entries can be a column"):
        infer_json(spark, lake.entries, [second])


def test_a_spark_connect_server_infers(connect_spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(connect_spark, tmp_path, ANY, of([b'{"it\'s":1,"id":1.5}']))

    assert infer_json(connect_spark, lake.entries).ddl == "`id` DOUBLE"
