"""Processes that kill themselves at the so-manyeth step of a landing, a decoding, a redrive, a quarantine or of what
moves a state, for a test to run.

Forked from one that has imported everything and used nothing: deltalake hangs in children of one that has.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake.transaction  # noqa: F401
import numpy  # noqa: F401, ICN001  before the forks, as those below: importing takes longest
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet  # noqa: F401

import objbuf_dagster.store.cloud  # noqa: F401
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.delta import DeltaPlace
from objbuf_dagster.lake.failures import NoTable
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.lake.transfer import export_table, import_table
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.ranges.quarantine import QuarantineLedger
from objbuf_dagster.spark.redriving import redrive
from objbuf_dagster.store import LocalStore
from tests.lake.landings import key, land, sequences, tags
from tests.lake.states import Accounts, Entries, World
from tests.spark.decoding import (
    Lake,
    Words,
    expected_letters,
    expected_words,
    lake_at,
    letters_in,
    nothing_is_lost,
    words_in,
)
from tests.spark.here import Texts, here, lake_of

RANGES: dict[int, Entries] = {
    0: [["a1 put 1|b1 put 2", "c1 put 3"], ["damaged"]],
    2: [["a1 add 4", "b1 close 0"], ["c2 put 5|a2 noise 6"]],
}
TEXTS = ("one two", "bad apple", "three", "")
OLDER, NEWER, MENDED = Words(version=1), Words(version=2, bad=("three",)), Words(version=3, bad=())
"""What is a letter of the first is rows of the second, and the other way round; the last takes all."""
MOST_STEPS = 200


def in_child(do: Callable[[], object]) -> int:
    """What became of a child that did it: 0, the number of the signal that ended it with a minus, or 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(last: int) -> None:
    """From now on every write to a store and every commit is two steps, before it and after; this is the last one."""
    left = last

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def instead(*given: Any, **named: Any) -> Any:
            step()
            done = call(*given, **named)
            step()
            return done

        return instead

    for owner, name in ((LocalStore, "put"), (LocalStore, "delete"), (DeltaPlace, "_write"), (DeltaPlace, "make")):
        setattr(owner, name, dying(getattr(owner, name)))


def prepare(root: Path) -> None:
    """A state that has applied the first range, with the second one due, and an export of it."""
    world = World(str(root / "lake"))
    for start, batches in RANGES.items():
        world.land(start, batches)
        if start == 0:
            world.apply()
    export_table(world.state, root / "export")
    land(LakeTable(root / "entries"), key(0), b"old")
    lake_of(root / "words", TEXTS).succeed(here(), OLDER)


def words_at(root: Path) -> Lake:
    return lake_at(root / "words", Texts(TEXTS), OLDER)


def move(what: str, root: Path) -> None:
    if what in ("decode", "redrive"):
        lake = words_at(root)
        if what == "decode":
            lake.succeed(here(), NEWER)
        else:
            list(redrive(here(), lake.entries, MENDED, lake.table, lake.dead_letters))
        return
    if what == "quarantine":
        records = QuarantineLedger(LocalStore(root / "buffer"))
        records.add(1, "ingest/1.batch", "it is damaged")
        records.undo(1)
        records.add(2, "ingest/2.batch", "it is, too")
        return
    if what == "land":
        land(LakeTable(root / "entries"), key(0), b"new")
        land(LakeTable(root / "entries"), key(1), b"new")
        land(LakeTable(root / "first"), key(0), b"new")
        return
    world = World(str(root / "lake"))
    if what == "import":
        place = StateTable(root / "lake" / "again", Accounts(), buckets=4)
        import_table(root / "export", place, fold=Accounts(), trust=True)
    elif what == "rebuild":
        world.rebuild()
    else:
        world.apply(ranges_at_once=1)


def check(what: str, root: Path) -> None:
    """Nothing is there by halves; doing it again, then going on, gives what it should."""
    if what in ("decode", "redrive"):
        check_decoded(root, NEWER if what == "decode" else MENDED, what)
        return
    if what == "quarantine":
        check_quarantined(root)
        return
    if what == "land":
        check_landed(root)
        return
    landed = {SequenceRange(start, start + len(batches) - 1): batches for start, batches in RANGES.items()}
    world = World(str(root / "lake"), landed=landed)
    if what == "import":
        world.state = StateTable(root / "lake" / "again", Accounts(), buckets=4)
    before = world.state.cursor()
    if before is not None or what != "import":
        assert before is not None
        assert world.found() == world.expected(through=before.next_sequence - 1)
        assert before.ranges == (1 if before.next_sequence == 2 else 2)
    move(what, root)
    world.apply()
    after = world.state.cursor()
    assert after is not None
    assert (after.next_sequence, after.ranges) == (4, 2)
    assert world.found() == world.expected()


def check_decoded(root: Path, decoder: Words, what: str) -> None:
    lake = words_at(root)
    nothing_is_lost(decoder, lake)
    move(what, root)
    rows = lake.filled.rows()
    assert words_in(lake.table) == expected_words(decoder, rows)
    assert letters_in(lake.dead_letters) == expected_letters(decoder, rows)


def check_quarantined(root: Path) -> None:
    """What is recorded is what was there before some step or after it, whole."""
    records = QuarantineLedger(LocalStore(root / "buffer"))
    found = records.read()
    told = [(one.sequence, one.active, one.reason) for one in found.batches]
    assert told in (
        [],
        [(1, True, "it is damaged")],
        [(1, False, "it is damaged")],
        [(1, False, "it is damaged"), (2, True, "it is, too")],
    ), told
    move("quarantine", root)
    after = records.read()
    assert [(one.sequence, one.active) for one in after.batches] == [(1, False), (2, True)]


def check_landed(root: Path) -> None:
    entries, first = LakeTable(root / "entries"), LakeTable(root / "first")
    assert tags(entries, key(0)) in ({b"old": 10}, {b"new": 10})
    assert tags(entries, key(1)) in ({}, {b"new": 10})
    assert not there(first) or tags(first, key(0)) in ({}, {b"new": 10})
    move("land", root)
    assert tags(entries, key(0)) == tags(entries, key(1)) == tags(first, key(0)) == {b"new": 10}
    assert (sequences(entries), sequences(first)) == (list(range(20)), list(range(10)))


def there(place: DeltaPlace) -> bool:
    try:
        place.open_delta()
    except NoTable:
        return False
    return True


def die_at_each_step(what: str, made: Path, root: Path) -> int:
    """How many steps it has. Ends with an error if one of them is a bad one to die at."""
    for last in range(1, MOST_STEPS):
        copy = root / str(last)
        shutil.copytree(made, copy)

        def dying(last: int = last, copy: Path = copy) -> None:
            die_at(last)
            move(what, copy)

        ended = in_child(dying)
        assert ended in (0, -signal.SIGKILL), f"step {last} ended with {ended}"
        assert in_child(functools.partial(check, what, copy)) == 0, f"step {last} of {what}"
        shutil.rmtree(copy)
        if ended == 0:
            return last - 1
    raise AssertionError(f"{what} has more than {MOST_STEPS} steps")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    assert in_child(lambda: prepare(place / "made")) == 0
    for kind in ("land", "decode", "redrive", "quarantine", "apply", "rebuild", "import"):
        print(kind, die_at_each_step(kind, place / "made", place), flush=True)
