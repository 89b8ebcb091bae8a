"""Decoders of the same name for tables of their own: neither takes the letters of the other one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, RangeLetters
from objbuf_dagster.lake.kept_for import Owner, kept_for, mark_of
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import DecodedRange
from objbuf_dagster.spark.decoding_worker import OnError
from objbuf_dagster.spark.landing import Failed
from objbuf_dagster.spark.redriving import Redriven, redrive
from tests.cli.letters import put_letters
from tests.lake.mortal import Died, Mortal
from tests.spark.decoding import Lake, Words, expected_letters, expected_words, letters_in, words_in
from tests.spark.here import MENDED, NEWER, OLDER, RANGE, TEXTS, has_exactly, here, lake_of


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A range with a letter of OLDER, kept for the table `words`."""
    lake = lake_of(tmp_path, TEXTS)
    lake.succeed(here(), OLDER)
    return lake


def beside(lake: Lake, name: str, letters: str = "dead_letters") -> Lake:
    """Another asset of the same lake."""
    parent = lake.table.url.rpartition("/")[0]
    table = LakeTable(f"{parent}/{name}", lake.table.schema)
    return dataclasses.replace(lake, table=table, dead_letters=LakeTable(f"{parent}/{letters}", DEAD_LETTERS))


def refusal(outcomes: list[DecodedRange | Failed]) -> str:
    (failed,) = outcomes
    assert isinstance(failed, Failed), failed
    assert isinstance(failed.error, InvalidInput), failed.error
    return str(failed.error)


@pytest.mark.parametrize("dry_run", [False, True], ids=["for real", "dry"])
@pytest.mark.parametrize(
    ("on_error", "decoder"),
    [("dead_letter", OLDER), ("dead_letter", Words()), ("skip", OLDER), ("fail", Words(bad=()))],
    ids=["the same letters", "others", "skip", "fail"],
)
def test_letters_of_another_table_are_not_taken_by_the_same_version(
    lake: Lake, on_error: OnError, decoder: Words, dry_run: bool
) -> None:
    other, version = beside(lake, "words_lenient"), lake.dead_letters.version()

    says = refusal(other.decode(here(), decoder, on_error=on_error, dry_run=dry_run))

    assert "words were kept for another table than" in says
    assert "a table of dead letters of its own (dead_letters=...)" in says
    assert "count the decoder's version up" in says
    assert has_exactly(OLDER, lake)
    assert (other.table.exists(), lake.dead_letters.version()) == (False, version)


def test_nor_are_those_of_a_newer_version(lake: Lake) -> None:
    """As when a run of the asset as it was ends after one of the asset as it is."""
    lake.succeed(here(), NEWER)

    refusal(beside(lake, "words_before").decode(here(), OLDER))

    assert has_exactly(NEWER, lake)


def test_each_of_the_ways_out_works(lake: Lake) -> None:
    apart = beside(lake, "words_lenient", "dead_letters_lenient")
    apart.succeed(here(), OLDER)
    assert has_exactly(OLDER, apart)
    assert has_exactly(OLDER, lake)

    counted_up = beside(lake, "words_2")
    counted_up.succeed(here(), NEWER)
    assert has_exactly(NEWER, counted_up)
    counted_up.succeed(here(), NEWER)
    assert has_exactly(NEWER, counted_up)


def test_the_table_itself_is_known_wherever_the_lake_is(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "lake").rename(tmp_path / "moved")
    there = [f"{(tmp_path / 'moved').as_uri()}/{name}/" for name in ("entries", "words", "dead_letters")]
    tables = [
        LakeTable(url, of.schema) for url, of in zip(there, (lake.entries, lake.table, lake.dead_letters), strict=True)
    ]

    moved = Lake(lake.filled, *tables)
    moved.succeed(here(), Words(version=1, bad=("three",)))

    assert has_exactly(Words(version=1, bad=("three",)), moved)


def test_letters_that_do_not_say_are_believed(tmp_path: Path) -> None:
    """As earlier releases wrote them."""
    lake = lake_of(tmp_path, TEXTS)
    put_letters(lake.dead_letters, RANGE.key, "words", [(0, 1, "it says bad", b"bad apple")])

    lake.succeed(here(), OLDER)

    assert has_exactly(OLDER, lake)
    assert [kept_for(file) for file in lake.dead_letters.files()] == [mark_of(lake.table)]


def test_letters_that_are_written_again_say_for_which_table_still(lake: Lake) -> None:
    """A death between two commits of the newer version, whose table is another one."""
    newer = beside(lake, "words_2")
    table, letters = (Mortal(one.url, one.schema) for one in (newer.table, newer.dead_letters))
    for one in (table, letters):
        one.fate, one.after = {"left": 2}, False

    with pytest.raises(Died):
        dataclasses.replace(newer, table=table, dead_letters=letters).decode(here(), NEWER)

    marks = {mark_of(lake.table), mark_of(newer.table)}
    assert {kept_for(file) for file in lake.dead_letters.files()} == marks
    assert letters_in(lake.dead_letters) == sorted(
        expected_letters(OLDER, lake.filled.rows()) + expected_letters(NEWER, lake.filled.rows())
    )
    refusal(lake.decode(here(), OLDER))
    newer.succeed(here(), NEWER)
    assert has_exactly(NEWER, newer)
    assert {kept_for(file) for file in lake.dead_letters.files()} == {mark_of(newer.table)}


def test_who_keeps_in_the_same_moment_for_another_table_is_refused(tmp_path: Path) -> None:
    """The same letters are no reason to take the other's for one's own."""
    lake = lake_of(tmp_path, TEXTS)
    put_letters(lake.dead_letters, RANGE.key, "words", [(0, 1, "it says bad", b"bad apple")])
    faster = [OLDER]

    def overtaken() -> None:
        while faster:
            lake.succeed(here(), faster.pop())

    owner = Owner(beside(lake, "words_lenient").table, OLDER.version)
    late = RangeLetters(lake.dead_letters, RANGE.key, "words", [], epoch=1, owner=owner, still=overtaken)

    with pytest.raises(InvalidInput, match="kept for another table"):
        late.keep()

    assert has_exactly(OLDER, lake)


def test_a_redrive_moves_no_letters_to_another_table_unless_it_is_said_to_be_the_same(lake: Lake) -> None:
    other = beside(lake, "words_lenient")
    other.table.commit(SequenceRange(7, 7).key, [], epoch=1)
    tables = lake.entries, MENDED, other.table, lake.dead_letters

    (failed,) = redrive(here(), *tables)

    assert isinstance(failed, Failed)
    assert "name the one that they were kept for, with --table" in str(failed.error)
    assert has_exactly(OLDER, lake)
    assert words_in(other.table) == []

    (done,) = redrive(here(), *tables, renamed=True)

    assert isinstance(done, Redriven)
    assert (done.moved, done.dead_letters) == (1, 0)
    assert words_in(other.table) == expected_words(MENDED, lake.filled.rows())


def test_a_redrive_to_their_own_table_moves_them_whatever_its_version(lake: Lake) -> None:
    (done,) = redrive(here(), lake.entries, Words(version=1, bad=()), lake.table, lake.dead_letters)

    assert isinstance(done, Redriven)
    assert done.moved == 1
