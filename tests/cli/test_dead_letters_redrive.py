"""`objbuf dead-letters redrive`: what a mended decoder can do moves, what it cannot stays, nothing is in between."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.decode import OtlpLogs
from objbuf_dagster.decode.named import find_decoder, table_of
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.spark.decoding import DecodedRange, land_decoded, typed_schema
from objbuf_dagster.spark.landing import Failed, land_all
from objbuf_dagster.spark.redriving import Redriven, redrive
from objbuf_dagster.store import LocalStore
from tests.cli.commands import error, ok, run
from tests.cli.letters import put_letters
from tests.decode.messages import LOGS, field, log_entry
from tests.lake.mortal import Died, Mortal
from tests.spark.decoding import (
    Lake,
    Words,
    expected_letters,
    expected_words,
    landed,
    letters_in,
    nothing_is_lost,
    rows_in,
    words_in,
)
from tests.spark.here import here, lake_of
from tests.spark.landing import fill
from tests.spark.rows import batch

TEXTS = [("words", "one two"), ("words", "bad apple"), ("words", "worse still")] * 6
"""Three ranges of two batches, each with two entries of either kind of failure."""

FAILING = Words(bad=("bad", "worse"))
BETTER = Words(version=2, bad=("worse",))
MENDED = Words(version=3, bad=())

MODULE = """
import pyarrow as pa
from objbuf_dagster.decode import EntryDecoder, Undecodable

class Words(EntryDecoder):
    name = "words"
    version = 2
    schema = pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("length", pa.int32())])

    def takes(self, payload):
        return payload == b"words"

    def records(self, entry):
        words = entry.decode().split()
        if "worse" in words:
            raise Undecodable("it says worse")
        return [{"word": word, "length": len(word)} for word in words]

class Needy(Words):
    def __init__(self, setting):
        self.setting = setting

made = Words()
other = 5
"""
"""A decoder of a user's own, in one file."""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """Ranges that were decoded with what failed."""
    lake = landed(spark, tmp_path, TEXTS)
    lake.succeed(spark, FAILING)
    return lake


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current directory, which is not on the path until it is looked for."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return name


def key(lake: Lake, number: int) -> str:
    return range_of(lake.filled.ranges[number]).key


def again(spark: SparkSession, lake: Lake, decoder: Words = MENDED, *numbers: int) -> list[Redriven | Failed]:
    ranges = [range_of(lake.filled.ranges[number]) for number in numbers] or None
    return list(redrive(spark, lake.entries, decoder, lake.table, lake.dead_letters, ranges))


def test_what_succeeds_moves_and_the_rest_stays(spark: SparkSession, lake: Lake, own: str, tmp_path: Path) -> None:
    out = ok("dead-letters", "redrive", tmp_path / "lake", "--decoder", f"{own}:Words")

    head, *lines, total = out.splitlines()
    assert head.split() == ["RANGE", "DECODER", "BEFORE", "MOVED", "STILL", "DEAD", "ROWS"]
    assert [line.split() for line in lines] == [[key(lake, n), "words", "4", "2", "2", "8"] for n in range(3)]
    assert total == "moved 6 dead letters of 3 ranges, 6 still dead"
    assert words_in(lake.table) == expected_words(BETTER, lake.filled.rows())
    assert letters_in(lake.dead_letters) == expected_letters(BETTER, lake.filled.rows())


def test_letters_go_to_another_table_only_if_it_is_said_to_be_the_same(
    spark: SparkSession, lake: Lake, own: str, tmp_path: Path
) -> None:
    other = LakeTable(tmp_path / "lake/words_lenient", lake.table.schema)
    other.commit(SequenceRange(100, 109).key, [], epoch=1)
    letters = letters_in(lake.dead_letters)
    where = [str(tmp_path / "lake"), "--decoder", f"{own}:Words", "--table", "words_lenient"]

    result = run("dead-letters", "redrive", *where)

    assert result.exit_code == 1
    assert f"range {key(lake, 2)} of words failed, its letters stay" in result.stderr
    assert "name the one that they were kept for, with --table" in result.stderr
    assert letters_in(lake.dead_letters) == letters

    out = ok("dead-letters", "redrive", *where, "--renamed")

    assert out.splitlines()[-1] == "moved 6 dead letters of 3 ranges, 6 still dead"
    assert words_in(other) == expected_words(BETTER, lake.filled.rows())


def test_one_range_is_one_range(spark: SparkSession, lake: Lake, own: str, tmp_path: Path) -> None:
    where = [str(tmp_path / "lake"), "--decoder", f"{own}:made", "--range", key(lake, 1), "--json"]

    first, sums = map(json.loads, ok("dead-letters", "redrive", *where).splitlines())

    assert {**first, "version": 0} == {
        "range": key(lake, 1),
        "decoder": "words",
        "before": 4,
        "moved": 2,
        "dead_letters": 2,
        "rows": 8,
        "version": 0,
    }
    assert sums == {"ranges": 1, "failed": 0, "moved": 2, "dead_letters": 2}
    assert letters_in(lake.dead_letters) == expected_letters(FAILING, lake.filled.rows(0)) + expected_letters(
        BETTER, lake.filled.rows(1)
    ) + expected_letters(FAILING, lake.filled.rows(2))


def test_our_own_decoders_know_their_tables(spark: SparkSession, tmp_path: Path) -> None:
    good, bad = log_entry(field(5, field(1, b"hello"))), b"\xff\xff"
    filled = fill(LocalStore(tmp_path / "buffer"), [batch(0, [good, bad], [Metadata(0, 5, LOGS)])], per_range=1)
    entries = LakeTable(tmp_path / "lake/entries")
    table = LakeTable(tmp_path / "lake/otel_logs", typed_schema(OtlpLogs()))
    letters = LakeTable(tmp_path / "lake/dead_letters", DEAD_LETTERS)
    list(land_all(spark, filled.place, filled.ranges, entries))
    (done,) = land_decoded(spark, entries, filled.ranges, OtlpLogs(most_bytes=3), table, letters)
    assert isinstance(done, DecodedRange)
    assert (done.rows, done.dead_letters) == (0, 2)

    out = ok("dead-letters", "redrive", tmp_path / "lake")

    assert out.splitlines()[-1] == "moved 1 dead letter of 1 range, 1 still dead"
    assert [row["Body"] for row in rows_in(table)] == ["hello"]
    assert [letter[5] for letter in letters_in(letters)] == [bad]
    assert [table_of(name) for name in ("otlp_logs", "otlp_metrics", "otlp_traces", "words")] == [
        "otel_logs",
        "otel_metrics",
        "otel_traces",
        "words",
    ]


def test_rows_of_a_decoder_with_larger_limits_are_not_taken_out_by_one_with_smaller(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = log_entry(field(5, field(1, b"x" * (65 << 20))))
    good, bad = log_entry(field(5, field(1, b"hello"))), b"\xff\xff"
    filled = fill(LocalStore(tmp_path / "buffer"), [batch(0, [good, large, bad], [Metadata(0, 5, LOGS)])], per_range=1)
    entries = LakeTable(tmp_path / "lake/entries")
    table = LakeTable(tmp_path / "lake/otel_logs", typed_schema(OtlpLogs()))
    letters = LakeTable(tmp_path / "lake/dead_letters", DEAD_LETTERS)
    list(land_all(spark, filled.place, filled.ranges, entries))
    (done,) = land_decoded(spark, entries, filled.ranges, OtlpLogs(most_bytes=128 << 20), table, letters)
    assert isinstance(done, DecodedRange)
    assert (done.rows, done.dead_letters) == (2, 1)
    versions = table.version(), letters.version()

    result = run("dead-letters", "redrive", tmp_path / "lake")

    assert result.exit_code == 1
    assert "the first sequence 0, entry 1: the entry has" in result.stderr
    assert "--decoder module:attribute" in result.stderr
    assert result.stdout.splitlines()[-1] == "moved 0 dead letters of 0 ranges, 0 still dead; 1 range failed"
    assert (table.version(), letters.version()) == versions

    (tmp_path / "decoders_of_mine.py").write_text(
        "from objbuf_dagster.decode import OtlpLogs\nlogs = OtlpLogs(most_bytes=128 << 20)\n"
    )
    monkeypatch.chdir(tmp_path)
    out = ok("dead-letters", "redrive", tmp_path / "lake", "--decoder", "decoders_of_mine:logs")
    assert out.splitlines()[-1] == "moved 0 dead letters of 1 range, 1 still dead"
    assert len(rows_in(table)) == 2

    ok("dead-letters", "redrive", tmp_path / "lake", "--new-letters")
    assert [letter[1] for letter in letters_in(letters)] == [1, 2]
    assert len(rows_in(table)) == 1


def test_a_range_that_entries_lacks_fails_and_its_letters_stay(
    spark: SparkSession, lake: Lake, own: str, tmp_path: Path
) -> None:
    absent = SequenceRange(100, 109).key
    put_letters(lake.dead_letters, absent, "words", [(100, 0, "it says bad", b"bad")])

    result = run("dead-letters", "redrive", tmp_path / "lake", "--decoder", f"{own}:Words")

    assert result.exit_code == 1
    assert f"range {absent} of words failed, its letters stay: range {absent} is not in" in result.stderr
    assert "land it first" in result.stderr
    assert result.stdout.splitlines()[-1] == "moved 6 dead letters of 3 ranges, 6 still dead; 1 range failed"
    assert (100, 0, "words", 1, "it says bad", b"bad") in letters_in(lake.dead_letters)


def test_nothing_to_do_starts_no_spark(tmp_path: Path) -> None:
    where = [str(tmp_path / "lake"), "--decoder", "otlp_logs", "--master", "spark://127.0.0.1:1"]

    nothing = run("dead-letters", "redrive", *where)
    assert (nothing.exit_code, nothing.stdout) == (0, "nothing to decode again: no dead letters like that\n")
    assert "there is no table at" in nothing.stderr
    assert not (tmp_path / "lake").exists()


def test_what_cannot_be_done_is_told_before_spark_starts(own: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    letters = LakeTable(lake / "dead_letters", DEAD_LETTERS)
    put_letters(letters, SequenceRange(0, 0).key, "words", [(0, 0, "bad", b"bad")])
    put_letters(letters, SequenceRange(0, 0).key, "quarantine", [(0, 0, "zeros", b"")])
    before = letters.version()

    def refused(*args: str, code: int = 1) -> str:
        return error("dead-letters", "redrive", lake, "--master", "spark://127.0.0.1:1", *args, code=code)

    assert "letters of 'words' are in 1 range, and it is no decoder of this package" in refused()
    assert "no decoder is called 'wrods'" in refused("--decoder", "wrods")
    assert "cannot be imported" in refused("--decoder", "no.such.module:Words")
    assert "is of type int: it must be a Decoder" in refused("--decoder", f"{own}:other")
    assert "is not there" in refused("--decoder", f"{own}:missing")
    assert "without arguments" in refused("--decoder", f"{own}:Needy")
    assert "say with --table" in refused("--decoder", f"{own}:Words")
    assert "not a range" in refused("--decoder", f"{own}:Words", "--range", "x")
    assert "quarantine --undo" in refused("--decoder", "quarantine", code=2)
    assert "--table is for one decoder" in refused(
        "--decoder", f"{own}:Words", "--decoder", "otlp_logs", "--table", "x", code=2
    )
    assert "name of its own" in refused("--decoder", f"{own}:Words", "--decoder", f"{own}:made", code=2)
    assert letters.version() == before


def test_own_decoders_are_found_in_the_current_directory(own: str, tmp_path: Path) -> None:
    found = find_decoder(f"{own}:Words")

    assert (found.name, found.version) == ("words", 2)
    assert sys.path[0] == str(tmp_path)


def test_repeating_it_changes_nothing_more(spark: SparkSession, lake: Lake) -> None:
    first = again(spark, lake)
    rows = words_in(lake.table)

    assert [(one.before, one.moved, one.dead_letters) for one in first if isinstance(one, Redriven)] == [(4, 4, 0)] * 3
    assert again(spark, lake) == []
    assert (words_in(lake.table), letters_in(lake.dead_letters)) == (rows, [])


def test_a_table_that_is_not_there_is_not_made(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    other = LakeTable(tmp_path / "lake/typo", typed_schema(MENDED))

    with pytest.raises(InvalidInput, match="there is no table"):
        redrive(spark, lake.entries, MENDED, other, lake.dead_letters)
    with pytest.raises(InvalidInput, match="quarantine --undo"):
        redrive(spark, lake.entries, Words("quarantine"), lake.table, lake.dead_letters)

    assert not other.exists()


def test_entries_that_are_gone_leave_letters_and_rows_as_they_are(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    rows, letters = words_in(lake.table), letters_in(lake.dead_letters)
    shutil.rmtree(tmp_path / "lake/entries")

    outcomes = again(spark, lake)

    assert [type(one) for one in outcomes] == [Failed] * 3
    assert (words_in(lake.table), letters_in(lake.dead_letters)) == (rows, letters)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("commit", [1, 2, 3])
@pytest.mark.parametrize("decoder", [BETTER, MENDED], ids=["better", "mended"])
def test_a_death_at_any_commit_loses_nothing_and_the_next_redrive_ends_it(
    decoder: Words, commit: int, after: bool, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path, [text for _, text in TEXTS[:3]])
    lake.succeed(here(), FAILING)
    mortal = [Mortal(table.url, table.schema) for table in (lake.table, lake.dead_letters)]
    fate = {"left": commit}
    for one in mortal:
        one.fate, one.after = fate, after

    with pytest.raises(Died):
        list(redrive(here(), lake.entries, decoder, mortal[0], mortal[1]))

    nothing_is_lost(decoder, lake)
    list(redrive(here(), lake.entries, decoder, lake.table, lake.dead_letters))
    assert words_in(lake.table) == expected_words(decoder, lake.filled.rows())
    assert letters_in(lake.dead_letters) == expected_letters(decoder, lake.filled.rows())


def test_two_at_once_leave_what_one_would_have_left(spark: SparkSession, lake: Lake) -> None:
    outcomes: list[list[Redriven | Failed]] = []
    both = [threading.Thread(target=lambda: outcomes.append(again(spark, lake))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(outcomes) == 2
    nothing_is_lost(MENDED, lake)

    left = again(spark, lake)  # one that found the other's rows in place of its own left its letters there

    assert all(isinstance(one, Redriven) for one in left)
    assert words_in(lake.table) == expected_words(MENDED, lake.filled.rows())
    assert letters_in(lake.dead_letters) == []


@pytest.mark.timeout(600)
def test_own_decoders_travel_to_executors_that_cannot_import_them(
    classic_sessions: object, own: str, tmp_path: Path
) -> None:
    spark = classic_sessions.cluster()  # type: ignore[attr-defined]
    lake = landed(spark, tmp_path, [("words", "fine"), ("words", "bad")])
    decoder = find_decoder(f"{own}:Words")
    lake.table.commit(key(lake, 0), [], epoch=1)
    put_letters(lake.dead_letters, key(lake, 0), "words", [(0, 1, "it says bad", b"bad")])

    (outcome,) = redrive(spark, lake.entries, decoder, lake.table, lake.dead_letters)

    assert isinstance(outcome, Redriven), outcome
    assert (outcome.moved, outcome.rows) == (1, 2)
