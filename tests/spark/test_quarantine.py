"""Ranges that land without quarantined batches: exactly these, told by one letter each, and back again by undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.errors import (
    BufferReplaced,
    CheckFailed,
    CorruptData,
    InvalidInput,
    JobFailed,
    StorageUnavailable,
)
from objbuf_dagster.lake import LakeTable, check_range, check_table
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, letters_beside
from objbuf_dagster.protocol import Metadata, RangeObject
from objbuf_dagster.ranges import range_of
from objbuf_dagster.ranges.quarantine import QuarantineLedger
from objbuf_dagster.spark.decoding import DecodedRange
from objbuf_dagster.spark.landing import Failed, Landed, commit, land_all
from objbuf_dagster.spark.leaving_out import LeftOut, read_quarantine
from objbuf_dagster.spark.source import register
from objbuf_dagster.spark.worker import Report
from objbuf_dagster.store import LocalStore
from tests.spark.decoding import Words, expected_words, lake_at, words_in
from tests.spark.landing import Filled, fill
from tests.spark.quarantining import (
    bring_back,
    failed,
    landed,
    left_out,
    quarantine,
    reports,
    rows_in,
    rows_without,
    spoil,
    told,
    two_ranges,
)
from tests.spark.rows import batch
from tests.support.faults import FaultStore


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """Two ranges of three batches."""
    return two_ranges(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake/entries")


@pytest.fixture
def letters(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake/dead_letters", DEAD_LETTERS)


def test_a_corrupt_batch_stops_its_range_until_it_is_quarantined(
    spark: SparkSession, filled: Filled, table: LakeTable, letters: LakeTable
) -> None:
    spoil(filled, 1)
    stopped, other = land_all(spark, filled.place, filled.ranges, table, verify=True)
    assert isinstance(stopped, Failed)
    assert isinstance(stopped.error, CorruptData)
    assert isinstance(other, Landed)
    assert other.quarantined == ()
    assert not letters.exists()

    quarantine(filled, 1, reason="zeros from byte 4096 on")
    for _ in range(2):  # the second replaces the first
        first, _ = land_all(spark, filled.place, filled.ranges, table, verify=True)
        assert isinstance(first, Landed), first

        assert (first.batches, first.rows) == (2, 4)
        assert [one.sequence for one in first.quarantined] == [1]
        assert rows_in(table) == rows_without(filled, 0, 1) + filled.rows(1)
        (letter,) = letters.delta().to_pyarrow_table().to_pylist()
        assert letter == {
            "_odb_sequence": 1,
            "_odb_entry_index": 0,
            "_odb_ingestion_time_ms": 1,
            "_odb_manifest_path": "ingest/manifest",
            "_odb_data_path": filled.batches[1].descriptor.location,
            "_odb_metadata": None,
            "entry": b"",
            "reason": "zeros from byte 4096 on",
            "decoder_version": 1,
            "_odb_range": range_of(filled.ranges[0]).key,
            "decoder": "quarantine",
        }
    assert isinstance(first, Landed)
    by_name = {check.name: check for check in first.checks}
    assert by_name["contiguous_sequences"].metadata["batches_quarantined"] == 1
    assert by_name["contiguous_sequences"].description.endswith("but those that are quarantined: 1")
    assert by_name["rows_match_footers"].description == "the 4 rows are as many as the footers of 2 batches say"


def test_all_of_a_job_may_be_quarantined(
    spark: SparkSession, filled: Filled, table: LakeTable, letters: LakeTable
) -> None:
    for sequence in range(3):
        spoil(filled, sequence)
    quarantine(filled, 0, 1, 2)

    (only,) = land_all(spark, filled.place, filled.ranges[:1], table, verify=True)

    assert isinstance(only, Landed), only
    assert (only.batches, only.rows, only.files) == (0, 0, 0)
    assert list(table.ranges()) == [only.range.key]
    assert [sequence for sequence, _ in told(letters)] == [0, 1, 2]


@pytest.mark.parametrize("sequences", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_quarantined_after_it_landed_and_brought_back(
    filled: Filled, table: LakeTable, letters: LakeTable, sequences: tuple[int, ...]
) -> None:
    """The first and the last batch of a range tell which buffer it came from: leaving one out must not look foreign."""
    planned = [range_of(one) for one in filled.ranges]

    def check(*quarantined: int) -> None:
        assert rows_in(table) == rows_without(filled, 0, *quarantined) + filled.rows(1)
        assert told(letters) == [(sequence, "zeros") for sequence in quarantined]
        assert all(check.passed for check in check_table(table.snapshot(), planned, 6))

    landed(filled, table, number=1)
    landed(filled, table)
    check()
    quarantine(filled, *sequences)
    landed(filled, table)
    check(*sequences)
    landed(filled, table)
    check(*sequences)
    bring_back(filled, *sequences[1:])
    landed(filled, table)
    check(*sequences[:1])
    bring_back(filled, *sequences)
    landed(filled, table)
    check()
    quarantine(filled, *sequences)
    landed(filled, table)
    check(*sequences)


def test_a_new_reason_takes_the_place_of_the_old(filled: Filled, table: LakeTable, letters: LakeTable) -> None:
    quarantine(filled, 1, reason="first")
    landed(filled, table)
    bring_back(filled, 1)
    quarantine(filled, 1, reason="second")

    landed(filled, table)

    assert told(letters) == [(1, "second")]


def test_a_range_that_never_had_one_looks_for_no_letters(filled: Filled, table: LakeTable, letters: LakeTable) -> None:
    quarantine(filled, 1)

    landed(filled, table, number=1)

    assert not letters.exists()


def test_letters_of_decoders_are_left_alone(filled: Filled, table: LakeTable, letters: LakeTable) -> None:
    key = range_of(filled.ranges[0]).key
    letters.commit(key, [], epoch=1, part="words")
    quarantine(filled, 1)

    landed(filled, table)
    bring_back(filled, 1)
    landed(filled, table)

    assert {file.part for file in letters.files([key])} == {"words", "quarantine"}
    assert told(letters) == []


def test_a_table_of_letters_of_ones_own_is_used(filled: Filled, table: LakeTable, tmp_path: Path) -> None:
    mine = LakeTable(tmp_path / "lake/lost", DEAD_LETTERS)
    quarantine(filled, 1)

    landed(filled, table, mine)

    assert told(mine) == [(1, "zeros")]
    assert not (tmp_path / "lake/dead_letters").exists()


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("file:///lake/entries", "file:///lake/dead_letters"),
        ("file:///entries", "file:///dead_letters"),
        ("/lake/entries/", "/lake/dead_letters"),
        ("entries", "dead_letters"),
        ("s3://bucket/lake/entries", "s3://bucket/lake/dead_letters"),
        ("s3://bucket/entries", "s3://bucket/dead_letters"),
    ],
)
def test_letters_are_beside_the_table(url: str, beside: str) -> None:
    assert letters_beside(LakeTable(url)).url == beside


def test_a_table_that_is_a_bucket_has_no_place_for_letters() -> None:
    with pytest.raises(InvalidInput, match="no place beside it"):
        letters_beside(LakeTable("s3://bucket"))


def test_a_failing_letter_fails_the_range_before_its_rows(filled: Filled, table: LakeTable, letters: LakeTable) -> None:
    quarantine(filled, 1)
    letters.commit("000000000000-000000000099", [], epoch=1, part="quarantine")  # another chain's

    error = failed(filled, table)

    assert isinstance(error, InvalidInput)
    assert "shares sequences" in str(error)
    assert not table.exists()


def test_a_dry_run_commits_nothing_and_leaves_no_file(filled: Filled, table: LakeTable, tmp_path: Path) -> None:
    quarantine(filled, 1)

    outcome = landed(filled, table, dry_run=True)

    assert (outcome.batches, outcome.version) == (2, None)
    assert not table.exists()
    assert not [*(tmp_path / "lake/dead_letters").rglob("*.parquet")]


def test_only_the_quarantined_may_be_missing(filled: Filled, table: LakeTable) -> None:
    quarantine(filled, 1)
    known = left_out(filled)
    done = reports(filled, table, known)
    (task_report,) = done

    def outcome(report: Report) -> str:
        found = commit(known.planned, [report], table, 0.0, None, left_out=known)
        assert isinstance(found, Failed)
        assert isinstance(found.error, JobFailed)
        return str(found.error)

    few = Report(task_report.range, (0,), (1,), task_report.files)
    assert "too few of the sequences [2] and too many of []" in outcome(few)
    many = Report(task_report.range, (0, 1, 2), (1, 2, 3), task_report.files)
    assert "too few of the sequences [] and too many of [1]" in outcome(many)
    assert not table.exists()


def test_checks_accept_exactly_the_quarantined(filled: Filled, table: LakeTable) -> None:
    planned = filled.ranges[0]
    whole = [file for report in reports(filled, table, LeftOut(filled.place, planned)) for file in report.files]
    quarantine(filled, 1)
    known = left_out(filled)
    part = [file for report in reports(filled, table, known) for file in report.files]
    records = {0: 1, 1: 2, 2: 3}

    def passed(of: RangeObject, files: Any, quarantined: set[int]) -> list[bool]:
        counted = {sequence: count for sequence, count in records.items() if sequence not in quarantined}
        return [check.passed for check in check_range(table, of, files, counted, quarantined)]

    assert passed(planned, part, {1}) == [True, True, True]
    assert passed(planned, whole, set()) == [True, True, True]
    assert passed(planned, part, set()) == [False, False, True], "it is missing, and nobody said that it may"
    assert passed(planned, whole, {1}) == [True, False, True], "rows of a batch that must have none"
    assert passed(planned, part, {0}) == [False, False, True], "another one is missing"
    assert passed(planned, part, {1, 2}) == [True, False, True]


def test_rows_of_a_quarantined_batch_fail_the_range(filled: Filled, table: LakeTable) -> None:
    quarantine(filled, 1)
    known = left_out(filled)
    (whole,) = reports(filled, table, LeftOut(filled.place, filled.ranges[0]))
    said = Report(whole.range, (0, 2), (1, 3), whole.files)

    found = commit(known.planned, [said], table, 0.0, None, verify=True, left_out=known)

    assert isinstance(found, Failed)
    assert isinstance(found.error, CheckFailed)
    assert not table.exists()


def test_a_record_that_cannot_be_read_stops_all_and_one_of_another_buffer_its_range(
    spark: SparkSession, filled: Filled, table: LakeTable
) -> None:
    path = "ingest/ranges/quarantine"
    filled.place.store.put(path, b"{")
    outcomes = list(land_all(spark, filled.place, filled.ranges, table))
    assert [type(one.error) for one in outcomes if isinstance(one, Failed)] == [CorruptData, CorruptData]
    filled.place.store.delete([path])

    QuarantineLedger(filled.place.store).add(4, "ingest/foreign.batch", "of a buffer that was here before")
    first, second = land_all(spark, filled.place, filled.ranges, table)

    assert isinstance(first, Landed)
    assert isinstance(second, Failed)
    assert isinstance(second.error, BufferReplaced)
    assert list(table.ranges()) == [first.range.key]


def test_a_store_that_does_not_answer_is_tried_again_later(filled: Filled) -> None:
    silent = FaultStore(filled.place.store, lambda call: "unavailable")
    place = type(filled.place)(silent)

    found = read_quarantine(place, filled.ranges)

    assert [type(one) for one in found] == [StorageUnavailable] * 2


def test_the_data_source_reads_the_buffer_as_it_is(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    """It leaves out nothing that a query asks for: quarantined or not, a corrupt batch is an error, by its name."""
    spoil(filled, 1)
    quarantine(filled, 1, 3)
    register(spark)
    frame = spark.read.format("objbuf").option("buffer", f"file://{tmp_path}/buffer").option("from", 0).load()

    with pytest.raises(Exception, match="sequence 1"):
        frame.select("_odb_sequence").collect()
    around = frame.where("_odb_sequence > 1").select("_odb_sequence", "entry").collect()

    assert [(row[0], bytes(row[1])) for row in around] == [(row[0], row[6]) for row in filled.rows() if row[0] > 1]


def test_decoding_follows_what_has_landed(spark: SparkSession, tmp_path: Path) -> None:
    made = [batch(n, [b"one %d" % n], [Metadata(0, n, b"words")]) for n in range(3)]
    filled = fill(LocalStore(tmp_path / "buffer"), made, per_range=3)
    lake = lake_at(tmp_path, filled, Words())
    quarantine(filled, 1)
    landed(filled, lake.entries)

    (done,) = lake.decode(spark, Words())

    assert isinstance(done, DecodedRange), done
    assert words_in(lake.table) == expected_words(Words(), rows_without(filled, 0, 1))
    assert told(lake.dead_letters) == [(1, "zeros")], "a decoder's letters are its own"
    bring_back(filled, 1)
    landed(filled, lake.entries)
    lake.succeed(spark, Words())
    assert words_in(lake.table) == expected_words(Words(), filled.rows())
    assert told(lake.dead_letters) == []


def test_no_decoder_can_take_the_letters_of_the_quarantine(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    named = Words("quarantine")

    with pytest.raises(InvalidInput, match="letters for whole batches"):
        lake_at(tmp_path, filled, named).decode(spark, named)
