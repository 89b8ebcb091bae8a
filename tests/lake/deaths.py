"""Processes that kill themselves at the so-manyeth step of a landing, a decoding, a redrive, a quarantine or of what
moves a state, for a test to run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

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
from tests.spark.decoding import Words, nothing_is_lost
from tests.spark.here import MENDED, NEWER, OLDER, decoded_by, has_exactly, here, lake_there
from tests.support.dying import die_at_each_step, in_child

RANGES: dict[int, Entries] = {
    0: [["a1 put 1|b1 put 2", "c1 put 3"], ["damaged"]],
    2: [["a1 add 4", "b1 close 0"], ["c2 put 5|a2 noise 6"]],
}


QUARANTINED: list[list[tuple[int, bool, str]]] = [
    [],
    [(1, True, "it is damaged")],
    [(1, False, "it is damaged")],
    [(1, False, "it is damaged"), (2, True, "it is, too")],
]
"""What is recorded once so many of the three acts have returned."""


def prepare(root: Path) -> None:
    """A state that has applied the first range, with the second one due, and an export of it."""
    world = World(str(root / "lake"))
    for start, batches in RANGES.items():
        world.land(start, batches)
        if start == 0:
            world.apply()
    export_table(world.state, root / "export")
    land(LakeTable(root / "entries"), key(0), b"old")
    decoded_by(OLDER, root / "words")


def move(what: str, root: Path) -> None:
    if what in ("decode", "redrive"):
        lake = lake_there(root / "words")
        if what == "decode":
            lake.succeed(here(), NEWER)
        else:
            list(redrive(here(), lake.entries, MENDED, lake.table, lake.dead_letters))
        return
    if what == "quarantine":
        records = QuarantineLedger(LocalStore(root / "buffer"))
        acts: list[Callable[[], object]] = [
            lambda: records.add(1, "ingest/1.batch", "it is damaged"),
            lambda: records.undo(1),
            lambda: records.add(2, "ingest/2.batch", "it is, too"),
        ]
        for act in acts:
            act()
            with (root / "returned").open("a") as note:
                note.write("x")
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
    lake = lake_there(root / "words")
    nothing_is_lost(decoder, lake)
    move(what, root)
    assert has_exactly(decoder, lake)


def check_quarantined(root: Path) -> None:
    """What is recorded is all that has returned, and whole what was under way, or nothing of that."""
    records = QuarantineLedger(LocalStore(root / "buffer"))
    found = records.read()
    told = [(one.sequence, one.active, one.reason) for one in found.batches]
    note = root / "returned"
    returned = len(note.read_text()) if note.exists() else 0
    assert told in QUARANTINED[returned : returned + 2], (returned, told)
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


if __name__ == "__main__":
    place = Path(sys.argv[1])
    assert in_child(lambda: prepare(place / "made")) == 0
    for kind in ("land", "decode", "redrive", "quarantine", "apply", "rebuild", "import"):
        doing, checking = functools.partial(move, kind), functools.partial(check, kind)
        print(kind, die_at_each_step(doing, checking, place / "made", place), flush=True)
