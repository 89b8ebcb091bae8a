"""JSON by Spark's parser: an entry is a row with exactly its values, or a dead letter with a reason; never nulls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.decode.json_types import Field, Struct
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.spark import read
from objbuf_dagster.spark.decoding import DecodedRange, DecodingFailed, land_decoded, typed_schema
from objbuf_dagster.spark.landing import Failed, Landed, land_all
from objbuf_dagster.spark.redriving import Redriven, redrive
from objbuf_dagster.store import LocalStore
from tests.decode.json_cases import DDL, HOSTILE, ODD
from tests.decode.json_oracle import Generated, generated
from tests.spark.decoding import Lake, lake_at, letters_in, rows_in
from tests.spark.landing import fill
from tests.spark.rows import Batch, batch

JSON = Metadata(0, 1000, b"json")


def landed(
    spark: SparkSession, directory: Path, decoder: JsonDecoder, batches: Sequence[Batch], *, per_range: int = 100
) -> Lake:
    filled = fill(LocalStore(directory / "buffer"), batches, per_range=per_range)
    lake = lake_at(directory, filled, decoder)
    outcomes = list(land_all(spark, filled.place, filled.ranges, lake.entries))
    assert all(isinstance(one, Landed) for one in outcomes), outcomes
    return lake


def of(entries: Sequence[bytes], *, per_batch: int = 50) -> list[Batch]:
    return [
        batch(number, entries[first : first + per_batch], [JSON])
        for number, first in enumerate(range(0, len(entries), per_batch))
    ]


def values(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The columns of a row that are not null, and `_rest`."""
    found = {name: plain(value) for name, value in row.items() if not name.startswith("_") and value is not None}
    return found, dict(row["_rest"])


def plain(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        return {key: plain(one) for key, one in value}
    return value


def test_hostile_and_odd_entries_become_letters_with_reasons_and_rows_with_all_values(
    spark: SparkSession, tmp_path: Path
) -> None:
    decoder = JsonDecoder(DDL)
    entries = [*(entry for entry, _ in HOSTILE.values()), *(entry for entry, *_ in ODD.values())]
    lake = landed(spark, tmp_path, decoder, [batch(0, entries, [JSON])])

    (outcome,) = lake.succeed(spark, decoder)

    letters = {index: (reason, entry, version) for _, index, _, version, reason, entry in letters_in(lake.dead_letters)}
    rows = {row["_odb_entry_index"]: row for row in rows_in(lake.table)}
    assert set(letters) == set(range(len(HOSTILE)))
    assert set(rows) == set(range(len(HOSTILE), len(entries)))
    for index, (name, (entry, reason)) in enumerate(HOSTILE.items()):
        told, kept, version = letters[index]
        assert re.search(reason, told), (name, told)
        assert (kept, version) == (entry, 1)
    for index, (name, (_, columns, rest)) in enumerate(ODD.items(), len(HOSTILE)):
        found, found_rest = values(rows[index])
        wanted = {key: value if value != {} else [] for key, value in columns.items()}
        assert found == wanted, name
        assert found_rest == rest, name
        assert rows[index]["_odb_record_index"] == 0
        assert rows[index]["_odb_metadata"] == b"json"
        assert rows[index]["_odb_ingestion_time_ms"] == 1000
    assert (outcome.rows, outcome.dead_letters, outcome.entries) == (len(ODD), len(HOSTILE), len(entries))
    assert str(rows[len(HOSTILE) + list(ODD).index("minus zero")]["d"]) == "-0.0"


def test_generated_entries_become_what_plain_python_makes_of_them(spark: SparkSession, tmp_path: Path) -> None:
    entries: list[Generated] = []

    @settings(derandomize=True, database=None, deadline=None, max_examples=600, suppress_health_check=list(HealthCheck))
    @given(generated())
    def collect(entry: Generated) -> None:
        entries.append(entry)

    collect()
    decoder = JsonDecoder(DDL)
    lake = landed(spark, tmp_path, decoder, of([entry.text.encode() for entry in entries]))

    lake.succeed(spark, decoder)

    rows = {(row["_odb_sequence"], row["_odb_entry_index"]): values(row) for row in rows_in(lake.table)}
    letters = {(sequence, index): entry for sequence, index, *_, entry in letters_in(lake.dead_letters)}
    expected = {divmod(number, 50): entry.expected() for number, entry in enumerate(entries)}
    good = {place: found for place, found in expected.items() if found is not None}
    assert min(len(good), len(expected) - len(good)) > 100, "both are tested"
    assert set(rows) == set(good)
    assert set(letters) == set(expected) - set(good)
    for place, (columns, rest) in good.items():
        found, found_rest = rows[place]
        assert {name: value if value != [] else None for name, value in found.items()} == {
            name: value if value not in ([], {}) else None for name, value in columns.items()
        }, entries[place[0] * 50 + place[1]]
        assert found_rest == rest
    for (sequence, index), kept in letters.items():
        assert kept == entries[sequence * 50 + index].text.encode()


MIXED = [b'{"id":1,"x":1}', b'{"id":2}', b'{"id":"3"}', b'{"id":4}', b"nothing", b'{"id":6,"y":[]}']


def test_decoding_again_changes_nothing_and_a_mended_declaration_moves_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = JsonDecoder("id BIGINT"), JsonDecoder("id DECIMAL(20,0)", version=2)
    lake = landed(spark, tmp_path, first, of(MIXED, per_batch=3), per_range=1)

    for _ in range(2):
        lake.succeed(spark, first)
        assert [row["id"] for row in rows_in(lake.table)] == [1, 2, 4, 6]
        assert [letter[:2] for letter in letters_in(lake.dead_letters)] == [(0, 2), (1, 1)]
    mended = lake_at(tmp_path / "mended", lake.filled, second)
    mended = Lake(lake.filled, lake.entries, mended.table, lake.dead_letters)
    mended.succeed(spark, second)
    mended.succeed(spark, second)

    assert [int(row["id"]) for row in rows_in(mended.table)] == [1, 2, 3, 4, 6]
    assert [letter[3:] for letter in letters_in(lake.dead_letters)] == [
        (2, "not JSON: a value is expected at character 0, where 'nothing' is", b"nothing")
    ]


def test_fail_commits_nothing_and_names_the_first_failures(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("id BIGINT")
    lake = landed(spark, tmp_path, decoder, of([b'{"id":0}', b'{"id":1}', *MIXED], per_batch=2), per_range=1)

    outcomes = lake.decode(spark, decoder, on_error="fail")

    assert [isinstance(one, DecodedRange) for one in outcomes] == [True, True, False, False]
    failed = outcomes[2]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DecodingFailed)
    assert "json cannot decode 1 entries: sequence 2, entry 0: id: it is a string, and BIGINT" in str(failed.error)
    assert [row["id"] for row in rows_in(lake.table)] == [0, 1, 1, 2]
    assert not lake.dead_letters.exists()


def test_skip_drops_and_counts(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("id BIGINT")
    lake = landed(spark, tmp_path, decoder, of(MIXED))

    (outcome,) = lake.succeed(spark, decoder, on_error="skip")

    assert (outcome.rows, outcome.skipped, outcome.dead_letters, outcome.entries) == (4, 2, 0, 6)
    assert not lake.dead_letters.exists()


def test_a_dry_run_commits_nothing_and_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("id BIGINT")
    lake = landed(spark, tmp_path, decoder, of(MIXED))

    (outcome,) = lake.decode(spark, decoder, dry_run=True)

    assert isinstance(outcome, DecodedRange)
    assert (outcome.rows, outcome.dead_letters, outcome.version) == (4, 2, None)
    assert not lake.table.exists()
    assert not [path for name in ("json", "dead_letters") for path in (tmp_path / "lake" / name).rglob("*.parquet")]


def test_entries_of_others_are_left_alone_and_ranges_without_rows_are_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    decoder = JsonDecoder("id BIGINT NOT NULL", prefix=b"js")
    other = [Metadata(0, 1, b"otlp"), Metadata(1, 2, b"json"), Metadata(2, 3, b"js")]
    made = [batch(0, []), batch(1, [b"\xff", b'{"id":5}', b"{}"], other), batch(2, [b"\xff"]), batch(3, [])]
    lake = landed(spark, tmp_path, decoder, made, per_range=1)

    outcomes = lake.succeed(spark, decoder)

    assert [(one.rows, one.entries, one.others, one.dead_letters) for one in outcomes] == [
        (0, 0, 0, 0),
        (1, 2, 1, 1),
        (0, 0, 1, 0),
        (0, 0, 0, 0),
    ]
    assert len(lake.table.ranges()) == 4
    (letter,) = letters_in(lake.dead_letters)
    assert letter[:5] == (1, 2, "json", 1, "no value for id")


def test_spark_reads_the_table_with_the_declared_types(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder(DDL)
    lake = landed(spark, tmp_path, decoder, of([b'{"id":1,"p":{"k":7},"n":{"in":{"z":2.5}},"zz": {"a":1.0}}']))
    lake.succeed(spark, decoder)

    (row,) = read(spark, lake.table).selectExpr("id", "p['k'] AS k", "n.in.z AS z", "_rest['zz'] AS zz").collect()

    assert (row["id"], int(row["k"]), row["z"], row["zz"]) == (1, 7, 2.5, '{"a":1.0}')


def test_large_entries_are_letters_unless_the_decoder_allows_them(spark: SparkSession, tmp_path: Path) -> None:
    large = b'{"t":"' + b"x" * (64 << 20) + b'"}'
    decoder = JsonDecoder("t STRING")
    lake = landed(spark, tmp_path, decoder, [batch(0, [b'{"t":"a"}', large, b'{"t":"b"}'], [JSON])])

    lake.succeed(spark, decoder)

    assert [row["t"] for row in rows_in(lake.table)] == ["a", "b"]
    (letter,) = letters_in(lake.dead_letters)
    assert letter[4] == f"it has {len(large)} bytes, more than the 16777216 of max_bytes"
    assert letter[5] == large
    lake.succeed(spark, JsonDecoder("t STRING", version=2, max_bytes=128 << 20))
    assert [len(row["t"]) for row in rows_in(lake.table)] == [1, 64 << 20, 1]
    assert letters_in(lake.dead_letters) == []


def test_a_file_that_cannot_be_read_fails_its_range_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("id BIGINT")
    lake = landed(spark, tmp_path, decoder, of(MIXED, per_batch=3), per_range=1)
    (file,) = (tmp_path / "lake/entries").glob("_odb_range=000000000000-*/*.parquet")
    file.write_bytes(b"\0" * file.stat().st_size)

    first, second = lake.decode(spark, decoder)

    assert isinstance(first, Failed)
    assert isinstance(second, DecodedRange)
    assert list(lake.table.ranges()) == [second.range.key]


class Otherwise(Struct):
    """A type that Spark is told of in other words than the check."""

    def ddl(self) -> str:
        return super().ddl().replace("`x`: BIGINT", "`w`: BIGINT").replace("`s`: STRING", "`s`: BIGINT")


def test_what_spark_makes_null_is_a_letter_whatever_the_check_says(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("id BIGINT, n STRUCT<x: BIGINT, s: STRING>")
    fields = decoder.columns.fields
    decoder.columns = Struct((fields[0], Field("n", Otherwise(fields[1].kind.fields))))  # type: ignore[union-attr]
    entries = [b'{"id":1}', b'{"id":2,"n":{"x":7}}', b'{"id":3,"n":{}}', b'{"id":4,"n":{"s":"a"}}', b'{"id":5}']
    lake = landed(spark, tmp_path, decoder, of(entries))

    lake.succeed(spark, decoder)

    assert [row["id"] for row in rows_in(lake.table)] == [1, 3, 5]
    assert [(letter[1], letter[5]) for letter in letters_in(lake.dead_letters)] == [(1, entries[1]), (3, entries[3])]
    assert all("finds other values in it than the 3 that" in letter[4] for letter in letters_in(lake.dead_letters))


def test_columns_of_any_name_hold_their_field(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        "é",
        "a.b",
        "x-y",
        "select",
        "$ref",
        "@type",
        "100%",
        "a:b",
        "a/b",
        "#",
        "?",
        "<",
        "text",
        "known",
        "parsed",
    ]
    names += ["entry", "reason", "control", "decoder", "share", "report", "Upper"]
    decoder = JsonDecoder(", ".join(f"`{name}` INT" for name in names) + ", `o` STRUCT<`é.?`: INT>")
    entry = {**{name: number for number, name in enumerate(names)}, "o": {"é.?": 99}}
    lake = landed(spark, tmp_path, decoder, of([json.dumps(entry).encode()]))

    lake.succeed(spark, decoder)

    assert values(rows_in(lake.table)[0]) == (entry, {})


def test_times_and_numbers_are_the_same_in_a_session_of_another_place(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder(DDL)
    zeros = [b'{"m":0e1000000000}', b'{"m":0e-1000000000}', b'{"m":0e-3000000000}']
    lake = landed(spark, tmp_path, decoder, of([*(entry for entry, *_ in ODD.values()), *zeros]))
    changed = {
        "spark.sql.session.timeZone": "Asia/Kolkata",
        "spark.sql.json.enablePartialResults": "false",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    }
    before = {name: spark.conf.get(name) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        (outcome,) = lake.succeed(spark, decoder)
    finally:
        for name, found in before.items():
            spark.conf.set(name, str(found))

    rows = rows_in(lake.table)
    for row, (columns, rest) in zip(rows[: len(ODD)], [found for _, *found in ODD.values()], strict=True):
        assert values(row) == ({key: value if value != {} else [] for key, value in columns.items()}, rest)
    assert outcome.rows + outcome.dead_letters == len(ODD) + len(zeros)
    assert all(row["m"] == 0 for row in rows[len(ODD) :])


def test_settings_that_change_what_times_are_make_it_refuse(spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("ts TIMESTAMP")
    lake = landed(spark, tmp_path, decoder, of([b"{}"]))
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        with pytest.raises(InvalidInput, match="timeParserPolicy=LEGACY"):
            lake.decode(spark, decoder)
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    lake.succeed(spark, decoder)


def test_executors_without_this_package_decode(cluster_spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder("id BIGINT")
    lake = landed(cluster_spark, tmp_path, decoder, of(MIXED, per_batch=2), per_range=1)

    lake.succeed(cluster_spark, decoder)

    assert [row["id"] for row in rows_in(lake.table)] == [1, 2, 4, 6]
    assert len(letters_in(lake.dead_letters)) == 2


def test_a_spark_connect_server_decodes(connect_spark: SparkSession, tmp_path: Path) -> None:
    decoder = JsonDecoder(DDL)
    lake = landed(connect_spark, tmp_path, decoder, of([entry for entry, *_ in ODD.values()]))

    lake.succeed(connect_spark, decoder)

    assert [values(row)[1] for row in rows_in(lake.table)] == [rest for *_, rest in ODD.values()]
    assert not lake.dead_letters.exists()


def test_redrive_and_other_columns_in_another_table_take_letters_out(spark: SparkSession, tmp_path: Path) -> None:
    entries = [b'{"id":1}', b'{"id":2,"note":"long"}', b'{"id":"three"}']
    first = JsonDecoder("id BIGINT", name="events", max_bytes=10)
    lake = landed(spark, tmp_path, first, [batch(0, entries, [JSON])])
    lake.succeed(spark, first)
    assert [letter[1] for letter in letters_in(lake.dead_letters)] == [1, 2]

    mended = JsonDecoder("id BIGINT", name="events", version=2)
    (again,) = redrive(spark, lake.entries, mended, lake.table, lake.dead_letters)

    assert isinstance(again, Redriven)
    assert (again.before, again.moved, again.dead_letters) == (2, 1, 1)
    assert [row["id"] for row in rows_in(lake.table)] == [1, 2]

    other = JsonDecoder("id STRING", name="events", version=3)
    with pytest.raises(InvalidInput, match="other columns"):
        list(redrive(spark, lake.entries, other, lake.table, lake.dead_letters))
    table = LakeTable(tmp_path / "lake/events_3", typed_schema(other))
    (done,) = land_decoded(spark, lake.entries, lake.filled.ranges, other, table, lake.dead_letters)

    assert isinstance(done, DecodedRange)
    assert [row["id"] for row in rows_in(table)] == ["three"]
    assert [(letter[1], letter[3]) for letter in letters_in(lake.dead_letters)] == [(0, 3), (1, 3)]
