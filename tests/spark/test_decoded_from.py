"""Typed rows of entries that have landed anew since: it is told, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.lake import RangeCheck
from objbuf_dagster.lake.decoded_from import check_decoded_from
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.spark.landing import Landed, land_all
from objbuf_dagster.spark.redriving import Redriven, redrive
from objbuf_dagster.store import LocalStore
from tests.spark.decoding import Lake, Words, lake_at, landed, rows_in
from tests.spark.here import MENDED, OLDER, RANGE, decoded_by, here, lake_of, lake_there, land_texts
from tests.spark.landing import fill
from tests.spark.quarantining import bring_back, quarantine
from tests.spark.rows import batch


def check(lake: Lake) -> RangeCheck:
    return check_decoded_from(lake.table.snapshot(), lake.entries.snapshot())


def land_again(spark: SparkSession, lake: Lake) -> None:
    outcomes = list(land_all(spark, lake.filled.place, lake.filled.ranges, lake.entries))
    assert all(isinstance(one, Landed) for one in outcomes), outcomes


@pytest.mark.parametrize("json", [False, True], ids=["words", "json"])
def test_a_range_that_landed_without_a_batch_or_with_it_again_is_outdated_until_it_is_decoded(
    spark: SparkSession, tmp_path: Path, json: bool
) -> None:
    # given two ranges of two batches, decoded without one of them
    decoder = JsonDecoder("n BIGINT") if json else Words()
    texts = [f'{{"n": {number}}}'.encode() if json else b"one two" for number in range(4)]
    filled = fill(
        LocalStore(tmp_path / "buffer"),
        [batch(number, [text], [Metadata(0, 0, b"words")]) for number, text in enumerate(texts)],
        per_range=2,
    )
    lake = lake_at(tmp_path, filled, decoder)
    quarantine(filled, 3)
    land_again(spark, lake)
    lake.succeed(spark, decoder)
    assert check(lake).passed
    rows = len(rows_in(lake.table))
    # when the batch is brought back
    bring_back(filled, 3)
    assert check(lake).passed, "it has not landed again yet"
    land_again(spark, lake)
    # then that range alone is told, with what to do
    found = check(lake)
    assert not found.passed
    assert dict(found.metadata) == {"ranges": 2, "ranges_outdated": 1, "sequence": 2}
    assert "000000000002-000000000003 (1 entries then, 2 now); decode them again" in found.description
    assert "000000000000" not in found.description
    # and decoding it again mends that
    lake.succeed(spark, decoder, 1)
    assert check(lake).passed
    assert len(rows_in(lake.table)) == rows * 4 // 3
    # and the other way round
    quarantine(filled, 0)
    land_again(spark, lake)
    assert check(lake).metadata["sequence"] == 0
    lake.succeed(spark, decoder, 0)
    assert check(lake).passed


def test_landing_the_same_rows_again_is_no_alarm(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one two"), ("words", "bad apple"), ("other", "three"), ("words", "")])
    lake.succeed(spark, Words())
    before = {file.path for file in lake.entries.files()}

    land_again(spark, lake)

    assert not before & {file.path for file in lake.entries.files()}, "it is another landing"
    assert check(lake).passed


@pytest.mark.parametrize("texts", [["one"], [""], ["bad"]], ids=["rows", "no rows", "letters only"])
def test_a_range_is_told_whatever_it_was_decoded_to(tmp_path: Path, texts: Sequence[str]) -> None:
    lake = lake_of(tmp_path, texts)
    lake.succeed(here(), OLDER)
    lake.succeed(here(), OLDER)
    assert check(lake).passed

    land_texts(lake.entries, [*texts, *texts])

    assert check(lake).metadata["ranges_outdated"] == 1
    lake.succeed(here(), OLDER)
    assert check(lake).passed, "also if it has no rows again"


def test_a_redrive_reads_what_is_there(tmp_path: Path) -> None:
    decoded_by(OLDER, tmp_path)
    lake = lake_there(tmp_path)
    land_texts(lake.entries, ["one two", "bad apple"])
    assert not check(lake).passed

    (outcome,) = redrive(here(), lake.entries, MENDED, lake.table, lake.dead_letters)

    assert isinstance(outcome, Redriven)
    assert check(lake).passed


def test_rows_that_do_not_say_what_they_were_decoded_from_are_believed(tmp_path: Path) -> None:
    """As earlier versions wrote them, and as they are after OPTIMIZE."""
    lake = lake_of(tmp_path, ["one"])
    lake.succeed(here(), OLDER)
    (typed,) = lake.table.files()
    schema = lake.table.schema.to_arrow()
    writer = RowsWriter(lake.table.store, schema, lambda: lake.table.new_path(RANGE.key))
    found = lake.table.delta().to_pyarrow_table().select(schema.names).cast(schema)
    for block in found.to_batches():
        writer.add(block)
    lake.table.commit(RANGE.key, writer.finish(), epoch=1)
    assert [file.path for file in lake.table.files()] != [typed.path]

    land_texts(lake.entries, ["one", "two"])

    assert check(lake).passed


def test_tables_that_are_not_there_and_ranges_that_are_in_one_of_them_alone_are_no_alarm(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, ["one"])
    assert check(lake).passed
    lake.succeed(here(), OLDER)
    assert check_decoded_from(lake.table.snapshot(), None).passed
    other = lake_at(tmp_path / "other", lake.filled, OLDER)
    other.entries.commit("000000000007-000000000007", [], epoch=1)
    assert check_decoded_from(lake.table.snapshot(), other.entries.snapshot()).passed
