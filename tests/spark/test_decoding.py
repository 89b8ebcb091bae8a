"""Decoding: the typed table and the dead letters have exactly what the decoder made of a range, once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.decode import OtlpLogs, OtlpMetrics, OtlpTraces, decode_block
from objbuf_dagster.errors import InvalidInput, JobFailed, StorageError
from objbuf_dagster.lake import ENTRIES, LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.spark import read
from objbuf_dagster.spark.decoding import DecodedRange, DecodingFailed, land_decoded, typed_schema
from objbuf_dagster.spark.landing import Failed, land_all
from objbuf_dagster.store import LocalStore
from tests.decode.messages import LOGS, field, log_entry
from tests.spark.decoding import (
    Lake,
    Words,
    expected_letters,
    expected_words,
    lake_at,
    landed,
    letters_in,
    rows_in,
    words_in,
)
from tests.spark.landing import fill
from tests.spark.rows import batch

MIXED = [
    ("words", "one two three"),
    ("names", "anna bad"),
    ("words", "bad apple"),
    ("words", ""),
    ("other", "nobody's"),
    ("words", "four"),
] * 4
"""Four ranges of two batches: rows, a letter of each of two decoders, an entry without rows, and one of nobody."""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return landed(spark, tmp_path, MIXED)


def versions(lake: Lake) -> tuple[int | None, int | None]:
    return lake.table.version(), lake.dead_letters.version()


def test_ranges_become_exactly_the_rows_and_the_letters_of_plain_python(spark: SparkSession, lake: Lake) -> None:
    words = Words()

    outcomes = lake.succeed(spark, words)

    assert words_in(lake.table) == expected_words(words, lake.filled.rows())
    assert letters_in(lake.dead_letters) == expected_letters(words, lake.filled.rows())
    assert [one.range for one in outcomes] == [range_of(one) for one in lake.filled.ranges]
    for one in outcomes:
        assert (one.rows, one.entries, one.others, one.dead_letters, one.skipped) == (4, 4, 2, 1, 0)
        assert one.bytes_read > 0
        assert one.files == 2
        assert one.bytes_written > 0
        assert one.seconds > 0
    assert [one.version for one in outcomes] == [1, 2, 3, 4], "one commit each"
    by_spark = read(spark, lake.table).select("word", "_odb_range").collect()
    assert sorted(row["word"] for row in by_spark) == sorted(row[3] for row in words_in(lake.table))
    assert {row["_odb_range"] for row in by_spark} == {one.range.key for one in outcomes}
    by_spark = read(spark, lake.dead_letters).select("reason", "decoder").collect()
    assert [(row["reason"], row["decoder"]) for row in by_spark] == [("it says bad", "words")] * 4


def test_rows_and_letters_say_where_they_came_from(spark: SparkSession, lake: Lake) -> None:
    lake.succeed(spark, Words())

    of_entry = {row[:2]: row for row in lake.filled.rows()}
    letters = lake.dead_letters.delta().to_pyarrow_table().to_pylist()
    for row in [*rows_in(lake.table), *letters]:
        told = tuple(row[column.name] for column in ENTRIES.data if column.name != "entry")
        assert told == of_entry[row["_odb_sequence"], row["_odb_entry_index"]][:-1]


def test_decoding_again_changes_nothing_but_the_version(spark: SparkSession, lake: Lake) -> None:
    lake.succeed(spark, Words())
    rows, letters = rows_in(lake.table), letters_in(lake.dead_letters)

    lake.succeed(spark, Words(), 1, 2)
    lake.succeed(spark, Words())

    assert rows_in(lake.table) == rows
    assert letters_in(lake.dead_letters) == letters


def test_entries_without_failures_need_no_dead_letters(spark: SparkSession, lake: Lake) -> None:
    lake.succeed(spark, Words(bad=()))
    lake.succeed(spark, Words(bad=()), 0)

    assert not lake.dead_letters.exists()


def test_the_buffer_is_not_needed(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "buffer").rename(tmp_path / "gone")
    ranges = [range_of(one) for one in lake.filled.ranges]

    outcomes = list(land_decoded(spark, lake.entries, ranges, Words(), lake.table, lake.dead_letters))

    assert all(isinstance(one, DecodedRange) for one in outcomes)
    assert words_in(lake.table) == expected_words(Words(), lake.filled.rows())


def test_a_range_that_has_not_landed_fails_and_says_what_to_do(spark: SparkSession, lake: Lake) -> None:
    absent, there = SequenceRange(100, 109), range_of(lake.filled.ranges[0])

    outcomes = list(land_decoded(spark, lake.entries, [absent, there], Words(), lake.table, lake.dead_letters))

    failed, done = outcomes
    assert isinstance(failed, Failed)
    assert failed.range == absent
    with pytest.raises(InvalidInput, match="land it first"):
        raise failed.error
    assert isinstance(done, DecodedRange)
    assert list(lake.table.ranges()) == [there.key]


def test_a_mended_decoder_moves_letters_to_the_table(spark: SparkSession, lake: Lake) -> None:
    lake.succeed(spark, Words())
    mended = Words(version=2, bad=())

    outcomes = lake.succeed(spark, mended, 0, 1)

    assert [one.dead_letters for one in outcomes] == [0, 0]
    assert words_in(lake.table) == expected_words(mended, lake.filled.rows(0, 1)) + expected_words(
        Words(), lake.filled.rows(2, 3)
    )
    assert letters_in(lake.dead_letters) == expected_letters(Words(), lake.filled.rows(2, 3))


def test_decoders_side_by_side_leave_each_others_letters_alone(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    words, names = Words(), Words("names")
    other = lake_at(tmp_path, lake.filled, names)
    rows = lake.filled.rows()

    lake.succeed(spark, words)
    other.succeed(spark, names)
    lake.succeed(spark, words)

    assert letters_in(lake.dead_letters) == sorted(expected_letters(words, rows) + expected_letters(names, rows))
    assert words_in(other.table) == expected_words(names, rows)
    lake.succeed(spark, Words(version=2, bad=()))
    assert letters_in(lake.dead_letters) == expected_letters(names, rows)


def test_fail_commits_nothing_and_names_the_first_failures(spark: SparkSession, tmp_path: Path) -> None:
    good, bad = [("words", "fine")] * 6, [("words", "bad"), ("words", "fine")] * 3
    lake = landed(spark, tmp_path, [*good, *bad])

    first, second = lake.decode(spark, Words(), on_error="fail")

    assert isinstance(first, DecodedRange)
    assert isinstance(second, Failed)
    assert isinstance(second.error, DecodingFailed)
    assert second.error.count == 3
    assert "cannot decode 3 entries: sequence 2, entry 0: it says bad; sequence 2, entry 2: it says bad" in str(
        second.error
    )
    assert list(lake.table.ranges()) == [first.range.key]
    assert not lake.dead_letters.exists()


def test_fail_leaves_an_earlier_decoding_as_it_was(spark: SparkSession, lake: Lake) -> None:
    lake.succeed(spark, Words())
    before = versions(lake)

    outcomes = lake.decode(spark, Words(version=2, bad=("one",)), on_error="fail")

    assert all(isinstance(one, Failed) for one in outcomes)
    assert versions(lake) == before


def test_skip_drops_and_counts(spark: SparkSession, lake: Lake) -> None:
    outcomes = lake.succeed(spark, Words(), on_error="skip")

    assert [(one.skipped, one.dead_letters) for one in outcomes] == [(1, 0)] * 4
    assert words_in(lake.table) == expected_words(Words(), lake.filled.rows())
    assert not lake.dead_letters.exists()


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_letter_that_became_rows_is_gone_whatever_becomes_of_failures(
    spark: SparkSession, lake: Lake, on_error: str
) -> None:
    lake.succeed(spark, Words())
    mended = Words(version=2, bad=())

    lake.succeed(spark, mended, on_error=on_error)  # type: ignore[arg-type]

    assert words_in(lake.table) == expected_words(mended, lake.filled.rows())
    assert letters_in(lake.dead_letters) == []


def test_a_dry_run_commits_nothing_and_leaves_no_file(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    outcomes = lake.decode(spark, Words(), dry_run=True)

    assert [(one.rows, one.dead_letters, one.version) for one in outcomes if isinstance(one, DecodedRange)] == [
        (4, 1, None)
    ] * 4
    assert not lake.table.exists()
    assert not lake.dead_letters.exists()
    assert not [path for name in ("words", "dead_letters") for path in (tmp_path / "lake" / name).rglob("*.parquet")]


def test_ranges_without_entries_or_without_rows_are_known_to_be_decoded(spark: SparkSession, tmp_path: Path) -> None:
    made = [batch(0, []), batch(1, []), batch(2, [b"x"]), batch(3, [])]
    filled = fill(LocalStore(tmp_path / "buffer"), made, per_range=2)
    lake = lake_at(tmp_path, filled, Words())
    list(land_all(spark, filled.place, filled.ranges, lake.entries))

    outcomes = lake.succeed(spark, Words())

    assert [(one.rows, one.entries, one.others) for one in outcomes] == [(0, 0, 0), (0, 0, 1)]
    assert list(lake.table.ranges()) == [range_of(one).key for one in filled.ranges]
    assert words_in(lake.table) == []


def test_logs_land_with_all_their_types(spark: SparkSession, tmp_path: Path) -> None:
    entries = [log_entry(field(3, b"INFO") + field(5, field(1, b"hello"))), b"\xff\xff", log_entry()]
    metrics = bytes((1, 1, 1, 0))
    made = [
        batch(0, entries, [Metadata(0, 5, LOGS)]),
        batch(1, [b"of metrics", entries[0]], [Metadata(0, 5, metrics), Metadata(1, 6, LOGS)]),
    ]
    filled = fill(LocalStore(tmp_path / "buffer"), made, per_range=2)
    lake = lake_at(tmp_path, filled, OtlpLogs())
    list(land_all(spark, filled.place, filled.ranges, lake.entries))

    (outcome,) = lake.succeed(spark, OtlpLogs())

    columns = list(zip(*filled.rows(), strict=True))
    given = pa.RecordBatch.from_arrays(
        [pa.array(column, at.type) for column, at in zip(columns, ENTRIES.to_arrow(), strict=True)],
        schema=ENTRIES.to_arrow(),
    )
    plain = [row for rows, _ in decode_block(OtlpLogs(), given) for row in rows.to_pylist()]
    assert rows_in(lake.table) == plain
    assert (outcome.rows, outcome.entries, outcome.others, outcome.dead_letters) == (len(plain), 4, 1, 1)
    assert outcome.rows == 2
    found = read(spark, lake.table).selectExpr("Body", "SeverityText", "LogAttributes", "Timestamp").collect()
    assert [(row["Body"], row["SeverityText"], row["LogAttributes"]) for row in found] == [("hello", "INFO", {})] * 2


def test_signals_in_one_batch_go_each_to_its_decoder(spark: SparkSession, tmp_path: Path) -> None:
    payloads = {"otlp_logs": LOGS, "otlp_metrics": b"\x01\x01\x01\x00", "otlp_traces": b"\x01\x03\x01\x00"}
    of_signal = {
        "otlp_logs": log_entry(field(3, b"INFO")),
        "otlp_metrics": field(1, field(2, field(2, field(1, b"m") + field(5, field(1, b"") * 2)))),
        "otlp_traces": field(1, field(2, field(2, field(5, b"span") + field(11, field(2, b"event"))))),
    }
    entries = [*of_signal.values(), b"\xff", b"\xff", b"\xff", b"nobody's"]
    metadata = [Metadata(at, 5, payload) for at, payload in enumerate([*payloads.values()] * 2)]
    metadata.append(Metadata(6, 5, b"no envelope"))
    filled = fill(LocalStore(tmp_path / "buffer"), [batch(0, entries, metadata)], per_range=1)
    raw = lake_at(tmp_path, filled, OtlpLogs()).entries
    list(land_all(spark, filled.place, filled.ranges, raw))

    for decoder in (OtlpLogs(), OtlpMetrics(), OtlpTraces()):
        lake = lake_at(tmp_path, filled, decoder)
        (done,) = lake.succeed(spark, decoder)

        given = raw.delta().to_pyarrow_table().select(ENTRIES.to_arrow().names).cast(ENTRIES.to_arrow())
        (block,) = given.combine_chunks().to_batches()
        plain = [row for rows, _ in decode_block(decoder, block) for row in rows.to_pylist()]
        assert len(plain) == (2 if decoder.name == "otlp_metrics" else 1)
        assert rows_in(lake.table) == plain
        assert (done.rows, done.entries, done.others, done.dead_letters) == (len(plain), 3, 4, 2)
        mine = [letter[1] for letter in letters_in(lake.dead_letters) if letter[2] == decoder.name]
        assert mine == [3 + [*payloads].index(decoder.name), 6], "its own that is damaged, and the one of nobody"


class Broken(Words):
    """Breaks its contract, or breaks down, at one entry."""

    def decode(self, entries: pa.Array) -> object:  # type: ignore[override]
        if b"four" in entries.to_pylist():
            raise RuntimeError("this is the reason")
        return super().decode(entries)


def test_a_decoder_that_breaks_down_fails_its_range_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one")] * 6 + [("words", "four")] * 6 + [("words", "two")] * 6)

    first, failed, third = lake.decode(spark, Broken())

    assert isinstance(first, DecodedRange)
    assert isinstance(third, DecodedRange)
    assert isinstance(failed, Failed)
    with pytest.raises(JobFailed, match=r"decoder words, .* from sequence 2 on: RuntimeError: this is the reason"):
        raise failed.error
    assert list(lake.table.ranges()) == [first.range.key, third.range.key]


class Refusing(LakeTable):
    """A table that nothing can be committed to."""

    def commit(self, *_: object, **__: object) -> object:  # type: ignore[override]
        raise StorageError("access denied")


def test_a_failing_dead_letter_write_fails_the_range_before_its_rows(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    refusing = Refusing(tmp_path / "lake/dead_letters", DEAD_LETTERS)

    outcomes = list(land_decoded(spark, lake.entries, lake.filled.ranges, Words(), lake.table, refusing))

    assert all(isinstance(one, Failed) and isinstance(one.error, StorageError) for one in outcomes)
    assert not lake.table.exists()


def test_dead_letters_that_cannot_be_written_fail_the_range_before_its_rows(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """The data files, which tasks write: where their folder must be is something else."""
    for planned in lake.filled.ranges:
        blocked = tmp_path / "lake" / "dead_letters" / f"_odb_range={range_of(planned).key}"
        blocked.parent.mkdir(exist_ok=True)
        blocked.write_bytes(b"no folder")

    outcomes = lake.decode(spark, Words())

    assert all(isinstance(one, Failed) and isinstance(one.error, StorageError) for one in outcomes), outcomes
    assert not lake.table.exists()
    assert not lake.dead_letters.exists()
    lake.succeed(spark, Words(bad=()))  # there is nothing to write


def _logs(spark: SparkSession, directory: Path) -> Lake:
    entries = [log_entry(field(3, b"INFO") + field(5, field(1, b"hello"))), b"\xff\xff", log_entry(field(3, b"WARN"))]
    filled = fill(LocalStore(directory / "buffer"), [batch(0, entries, [Metadata(0, 5, LOGS)])], per_range=1)
    lake = lake_at(directory, filled, OtlpLogs())
    list(land_all(spark, filled.place, filled.ranges, lake.entries))
    return lake


def test_executors_without_this_package_decode_logs(cluster_spark: SparkSession, tmp_path: Path) -> None:
    lake = _logs(cluster_spark, tmp_path)

    (done,) = lake.succeed(cluster_spark, OtlpLogs())

    assert (done.rows, done.dead_letters) == (2, 1)
    assert [row["SeverityText"] for row in rows_in(lake.table)] == ["INFO", "WARN"]


def test_a_spark_connect_server_decodes_logs(connect_spark: SparkSession, tmp_path: Path) -> None:
    lake = _logs(connect_spark, tmp_path)

    (done,) = lake.succeed(connect_spark, OtlpLogs())

    assert (done.rows, done.dead_letters) == (2, 1)
    assert [letter[5] for letter in letters_in(lake.dead_letters)] == [b"\xff\xff"]


def test_tables_that_do_not_fit_are_refused_at_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    planned = lake.filled.ranges
    with pytest.raises(InvalidInput, match="other columns than rows of decoder words"):
        land_decoded(spark, lake.entries, planned, Words(), lake.entries, lake.dead_letters)
    with pytest.raises(InvalidInput, match="other columns than dead letters"):
        land_decoded(spark, lake.entries, planned, Words(), lake.table, lake.entries)
    with pytest.raises(InvalidInput, match="more often"):
        land_decoded(spark, lake.entries, [*planned, planned[0]], Words(), lake.table, lake.dead_letters)
    named = Words("no/folder")
    table = LakeTable(tmp_path / "lake/other", typed_schema(named))
    with pytest.raises(InvalidInput, match="letters, digits"):
        land_decoded(spark, lake.entries, planned, named, table, lake.dead_letters)
    with pytest.raises(InvalidInput, match="on_error"):
        lake.decode(spark, Words(), on_error="drop")  # type: ignore[arg-type]
