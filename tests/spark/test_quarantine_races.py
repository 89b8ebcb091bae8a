"""Quarantine while ranges land, and deaths in between: at any time a batch is rows or a letter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.spark.landing import Failed, Landed
from tests.lake.mortal import Died, Mortal
from tests.spark import quarantine_deaths
from tests.spark.landing import Filled
from tests.spark.quarantining import (
    bring_back,
    failed,
    land,
    landed,
    left_out,
    quarantine,
    rows_in,
    rows_without,
    told,
    two_ranges,
)
from tests.support.deaths import steps_of

Meanwhile = Callable[[], object]


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


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("change", ["quarantined", "brought back", "one for another"])
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_death_at_any_commit_loses_and_doubles_nothing(
    filled: Filled, table: LakeTable, letters: LakeTable, change: str, commits: int, after: bool
) -> None:
    # given
    if change == "quarantined":
        landed(filled, table)
        quarantine(filled, 1)
        expected = [1]
    else:
        quarantine(filled, 1)
        landed(filled, table)
        bring_back(filled, 1)
        expected = []
        if change == "one for another":
            quarantine(filled, 2)
            expected = [2]
    mortal = []
    for one in (table, letters):
        mortal.append(Mortal(one.url, one.schema))
        mortal[-1].fate, mortal[-1].after = {"left": commits} if not mortal[1:] else mortal[0].fate, after
    # when
    died = False
    try:
        land(filled, mortal[0], mortal[1])
    except Died:
        died = True
    # then each batch is in one of the two, whole
    assert died == (commits <= {"quarantined": 2, "brought back": 3, "one for another": 3}[change])
    there = {row[0] for row in rows_in(table)}
    assert there | {sequence for sequence, _ in told(letters)} == {0, 1, 2}
    assert rows_in(table) == [row for row in filled.rows(0) if row[0] in there]
    # and landing again does the rest
    landed(filled, table)
    assert rows_in(table) == rows_without(filled, 0, *expected)
    assert told(letters) == [(sequence, "zeros") for sequence in expected]


def test_a_landing_that_is_killed_at_any_step_leaves_each_batch_as_rows_or_as_one_letter(tmp_path: Path) -> None:
    """Kill -9 before and after each file, each new table and each commit; then another process lands the range."""
    steps = steps_of("tests.spark.quarantine_deaths", tmp_path)

    rows, letter, table, commit = 1, 1, 1, 1
    assert steps == {
        "first": 2 * (rows + letter + table + commit + table + commit),
        "again": 2 * (rows + letter + table + commit + commit),
        "back": 2 * (rows + letter + commit + commit + letter + commit),
        "other": 2 * (rows + 2 * letter + commit + commit + letter + commit),
    }


@pytest.mark.parametrize("case", list(quarantine_deaths.CASES)[1:])
def test_a_range_that_vanished_is_seen_where_it_had_landed(case: quarantine_deaths.Case, tmp_path: Path) -> None:
    """Only a range that had never landed may have no rows."""
    case(two_ranges(tmp_path), tmp_path)
    quarantine_deaths.tables(tmp_path)[0].delta().delete()

    with pytest.raises(AssertionError):
        quarantine_deaths.check(case, tmp_path)


@pytest.mark.parametrize("change", ["quarantined", "brought back"])
def test_a_landing_that_began_before_a_change_does_not_commit_after_it(
    filled: Filled, table: LakeTable, letters: LakeTable, change: str
) -> None:
    if change == "brought back":
        quarantine(filled, 1)
    known = left_out(filled)
    if change == "brought back":
        bring_back(filled, 1)
    else:
        quarantine(filled, 1)
    landed(filled, table)
    before = rows_in(table), told(letters)

    error = failed(filled, table, known=known)

    assert isinstance(error, JobFailed), "which is tried again"
    assert "land it again" in str(error)
    assert (rows_in(table), told(letters)) == before


class Interrupted(LakeTable):
    """Lets something else happen right before its first write, when all has been asked that is asked."""

    meanwhile: Meanwhile | None = None

    def _write(self, *args: Any, **words: Any) -> Any:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super()._write(*args, **words)


@pytest.mark.parametrize("slow", ["entries", "dead_letters"])
@pytest.mark.parametrize("change", ["quarantined", "brought back"])
def test_a_change_between_the_last_question_and_the_write_is_seen(
    filled: Filled, table: LakeTable, letters: LakeTable, change: str, slow: str
) -> None:
    """Another landing that knows the change commits first, so this one has to ask again."""
    landed(filled, table)
    quarantine(filled, 1)
    landed(filled, table)
    if change == "quarantined":
        bring_back(filled, 1)

    def other() -> None:
        (quarantine if change == "quarantined" else bring_back)(filled, 1)
        landed(filled, table)

    slow_table, slow_letters = Interrupted(table.url), Interrupted(letters.url, DEAD_LETTERS)
    (slow_table if slow == "entries" else slow_letters).meanwhile = other

    error = failed(filled, slow_table, slow_letters)

    assert isinstance(error, JobFailed), error
    assert "brought back while it landed" in str(error)
    expected = [1] if change == "quarantined" else []
    assert rows_in(table) == rows_without(filled, 0, *expected)
    assert told(letters) == [(sequence, "zeros") for sequence in expected]


def test_two_at_once_leave_one_letter(filled: Filled, table: LakeTable, letters: LakeTable) -> None:
    quarantine(filled, 1)
    outcomes: list[Landed | Failed] = []
    both = [threading.Thread(target=lambda: outcomes.append(land(filled, table))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()

    assert [type(one) for one in outcomes] == [Landed, Landed]
    assert rows_in(table) == rows_without(filled, 0, 1)
    assert told(letters) == [(1, "zeros")]
