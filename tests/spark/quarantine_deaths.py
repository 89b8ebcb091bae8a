"""Landings of a range with a quarantined batch that kill themselves at the so-manyeth step, for a test to run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.spark.landing import Landed, land_all
from tests.spark.here import here
from tests.spark.landing import Filled
from tests.spark.quarantining import bring_back, quarantine, rows_in, rows_without, spoil, told, two_ranges, two_there
from tests.support.dying import die_at_each_step, in_child


def tables(root: Path) -> tuple[LakeTable, LakeTable]:
    return LakeTable(root / "lake/entries"), LakeTable(root / "lake/dead_letters", DEAD_LETTERS)


def land(filled: Filled, root: Path) -> None:
    """The driver and, since the session is here, its tasks."""
    (outcome,) = land_all(here(), filled.place, filled.ranges[:1], tables(root)[0], verify=True)
    assert isinstance(outcome, Landed), outcome


def first(filled: Filled, _: Path) -> None:
    """It has never landed, because of that batch."""
    spoil(filled, 1)
    quarantine(filled, 1)


def again(filled: Filled, root: Path) -> None:
    """It was damaged later."""
    land(filled, root)
    spoil(filled, 1)
    quarantine(filled, 1)


def back(filled: Filled, root: Path) -> None:
    quarantine(filled, 1)
    land(filled, root)
    bring_back(filled, 1)


def other(filled: Filled, root: Path) -> None:
    """It was not that batch but the next one."""
    back(filled, root)
    spoil(filled, 2)
    quarantine(filled, 2)


Case = Callable[[Filled, Path], None]

ALL = {0, 1, 2}
CASES: dict[Case, tuple[set[int], list[int]]] = {
    first: (set(), [1]),
    again: (ALL, [1]),
    back: ({0, 2}, []),
    other: ({0, 2}, [2]),
}
"""The batches that have rows before, and those that are left out in the end."""


def prepare(root: Path) -> None:
    for case in CASES:
        case(two_ranges(root / case.__name__), root / case.__name__)


def move(root: Path) -> None:
    land(two_there(root), root)


def check(case: Case, root: Path) -> None:
    """Each batch is rows, whole, or a letter; landing again makes it what it should be, each once."""
    before, left_out = CASES[case]
    filled, (entries, letters) = two_there(root), tables(root)
    there, letter = {row[0] for row in rows_in(entries)}, [sequence for sequence, _ in told(letters)]
    assert rows_in(entries) == [row for row in filled.rows(0) if row[0] in there]
    assert len(letter) == len(set(letter))
    assert there in (before, ALL - set(left_out))
    assert not there or there | set(letter) == ALL
    move(root)
    assert rows_in(entries) == rows_without(filled, 0, *left_out)
    assert told(letters) == [(sequence, "zeros") for sequence in left_out]
    if left_out:
        (row,) = letters.delta().to_pyarrow_table().to_pylist()
        assert row["_odb_data_path"] == filled.batches[row["_odb_sequence"]].descriptor.location
        assert (row["_odb_entry_index"], row["entry"]) == (0, b"")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    assert in_child(lambda: prepare(place / "made")) == 0
    for case in CASES:
        checking = functools.partial(check, case)
        steps = die_at_each_step(move, checking, place / "made" / case.__name__, place / case.__name__)
        print(case.__name__, steps, flush=True)
