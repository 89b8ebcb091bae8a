"""Several decodings of one range, stopped or killed anywhere: no entry is in neither table."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import letters_with_rows
from objbuf_dagster.spark.decoding import DecodedRange, land_decoded
from objbuf_dagster.spark.decoding_worker import OnError
from objbuf_dagster.spark.landing import Failed
from objbuf_dagster.spark.redriving import Redriven, redrive
from tests.lake.mortal import Died
from tests.spark.decoding import Lake, Words, expected_letters, expected_words, letters_in, nothing_is_lost, words_in
from tests.spark.here import (
    MENDED,
    NEWER,
    OLDER,
    RANGE,
    TEXTS,
    Texts,
    decoded_by,
    has_exactly,
    here,
    lake_of,
    lake_there,
    land_texts,
)

ROOT = Path(__file__).parents[2]
BY: dict[str, Words] = {"dead_letter": NEWER, "skip": NEWER, "fail": MENDED}
"""What a range with letters of OLDER is decoded with, by `on_error`."""

Point = tuple[int, str]
POINTS: list[Point] = [(number, when) for number in (1, 2, 3) for when in ("asked", "after")]
"""Which commit of a decoding, and whether between its question and its write, or behind it."""


class Stopping(LakeTable):
    """Calls `reached` in the middle of each commit and behind it."""

    reached: Callable[[str], None]

    def commit(self, *args: object, **words: object) -> object:  # type: ignore[override]
        still = words["still"]

        def asked() -> None:
            still()  # type: ignore[operator]
            self.reached("asked")

        done = super().commit(*args, **{**words, "still": asked})  # type: ignore[arg-type]
        self.reached("after")
        return done


class Decoding:
    """A decoding of its own, which goes on to a point and waits there; `end` lets it go on, or kills it."""

    def __init__(self, lake: Lake, decoder: Words) -> None:
        self.decoder = decoder
        self.outcome: DecodedRange | Failed | None = None
        self._commits = 0
        self._until: Point | None = None
        self._killed = False
        self._paused, self._go = threading.Event(), threading.Event()
        tables = []
        for table in (lake.table, lake.dead_letters):
            one = Stopping(table.url, table.schema)
            one.reached = self._reached
            tables.append(one)
        self._run: Callable[[], DecodedRange | Failed] = lambda: next(
            land_decoded(here(), lake.entries, [RANGE], decoder, *tables)
        )
        self._thread = threading.Thread(target=self._work)

    def start(self, until: Point | None) -> None:
        self._until = until
        self._thread.start()
        self._paused.wait()

    def end(self, *, kill: bool = False) -> None:
        self._killed = kill
        self._go.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            self.outcome = self._run()
        except Died:
            pass
        finally:
            self._paused.set()

    def _reached(self, when: str) -> None:
        self._commits += when == "asked"
        if (self._commits, when) == self._until:
            self._until = None
            self._paused.set()
            self._go.wait()
            if self._killed:
                raise Died


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that the older version has decoded."""
    directory = tmp_path_factory.mktemp("decoded")
    decoded_by(OLDER, directory)
    return directory


@pytest.fixture
def copies(decoded: Path, tmp_path: Path) -> Callable[[], Lake]:
    """Gives a lake like that, each time another one."""
    numbers = iter(range(1000))

    def copy() -> Lake:
        place = tmp_path / str(next(numbers))
        shutil.copytree(decoded, place)
        return lake_there(place)

    return copy


STOPS: list[Point] = [(1, "asked"), (2, "asked"), (2, "after"), (3, "asked")]
OTHER_STOPS: list[Point | None] = [(1, "after"), (2, "asked"), (3, "asked"), None]


@pytest.mark.parametrize("kill", [False, True], ids=["slow", "killed"])
@pytest.mark.parametrize(("first", "second"), [(OLDER, NEWER), (NEWER, OLDER)], ids=["older first", "newer first"])
def test_two_versions_at_once_lose_nothing_wherever_they_stop(
    first: Words, second: Words, kill: bool, copies: Callable[[], Lake]
) -> None:
    """One stops, the other goes on, then the first does or is killed, then the other."""
    for stop, other_stop in product(STOPS if kill else STOPS[1::2], OTHER_STOPS):
        lake = copies()
        one, other = Decoding(lake, first), Decoding(lake, second)

        one.start(stop)
        other.start(other_stop)
        one.end(kill=kill)
        nothing_is_lost(OLDER, lake)
        other.end()

        nothing_is_lost(OLDER, lake)
        for each in (one, other):
            if isinstance(each.outcome, Failed):
                assert isinstance(each.outcome.error, JobFailed), "which is tried again"
        done = [each for each in (one, other) if isinstance(each.outcome, DecodedRange)]
        if not kill:
            assert any(has_exactly(each.decoder, lake) for each in done), (stop, other_stop)


@pytest.mark.parametrize("point", POINTS[:3])
def test_a_decoding_of_entries_that_landed_anew_meanwhile_changes_nothing(point: Point, tmp_path: Path) -> None:
    lake = lake_of(tmp_path, TEXTS[:2])
    stale = Decoding(lake, OLDER)
    stale.start(point)
    land_texts(lake.entries, TEXTS)
    whole = Lake(Texts(TEXTS), lake.entries, lake.table, lake.dead_letters)
    whole.succeed(here(), OLDER)

    stale.end()

    assert isinstance(stale.outcome, Failed)
    with pytest.raises(JobFailed, match=r"landed anew .* decode it again|run it again"):
        raise stale.outcome.error
    assert has_exactly(OLDER, whole)


def test_a_slow_decoding_without_letters_is_refused_once_its_range_has_landed_anew(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, ["one"])
    stale = Decoding(lake, OLDER)
    stale.start((1, "asked"))  # its only commit
    land_texts(lake.entries, ["one", "two"])
    whole = Lake(Texts(["one", "two"]), lake.entries, lake.table, lake.dead_letters)
    whole.succeed(here(), OLDER)

    stale.end()

    assert isinstance(stale.outcome, Failed)
    with pytest.raises(JobFailed, match="landed anew while it was decoded: decode it again"):
        raise stale.outcome.error
    assert has_exactly(OLDER, whole)


_KILLED = """
import os, signal, sys
from tests.spark import test_decoding_races as races

_, place, command, number, when, on_error = sys.argv
commits = 0

def reached(now):
    global commits
    commits += now == "asked"
    if (str(commits), now) == (number, when):
        os.kill(os.getpid(), signal.SIGKILL)

lake = races.lake_there(races.Path(place))
tables = [races.Stopping(table.url, table.schema) for table in (lake.table, lake.dead_letters)]
for table in tables:
    table.reached = reached
if command == "decode":
    decoder = races.BY[on_error]
    list(races.land_decoded(races.here(), lake.entries, [races.RANGE], decoder, *tables, on_error=on_error))
else:
    list(races.redrive(races.here(), lake.entries, races.NEWER, *tables, new_letters=True))
"""


@pytest.mark.parametrize(
    ("command", "point"),
    [("decode", point) for point in POINTS if point[1] == "asked"]
    + [("redrive", point) for point in POINTS if point[1] == "after"],
)
def test_a_process_killed_at_any_commit_leaves_each_entry_as_rows_or_as_a_letter(
    command: str, point: Point, copies: Callable[[], Lake], tmp_path: Path
) -> None:
    lake = copies()
    arguments = [str(tmp_path / "0"), command, str(point[0]), point[1], "dead_letter"]

    ran = subprocess.run([sys.executable, "-c", _KILLED, *arguments], cwd=ROOT, timeout=120, check=False)

    assert ran.returncode == -signal.SIGKILL
    nothing_is_lost(OLDER, lake)
    kept, has_rows, settled = (POINTS.index(point) >= POINTS.index((number, "after")) for number in (1, 2, 3))
    by = NEWER if has_rows else OLDER
    assert words_in(lake.table) == expected_words(by, lake.filled.rows())
    letters = {letter[:2] for letter in letters_in(lake.dead_letters)}
    assert letters == ({(0, 2)} if settled else {(0, 1), (0, 2)} if kept else {(0, 1)})
    both = letters_with_rows(lake.dead_letters, lake.table, RANGE.key, "words")
    assert letters - both == {letter[:2] for letter in expected_letters(by, lake.filled.rows())}, "rows count"
    (again,) = redrive(here(), lake.entries, NEWER, lake.table, lake.dead_letters, new_letters=True)
    assert isinstance(again, Redriven)
    assert has_exactly(NEWER, lake)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_process_killed_where_nothing_new_is_kept_loses_no_earlier_letter_before_its_rows_are_there(
    on_error: OnError, point: Point, copies: Callable[[], Lake], tmp_path: Path
) -> None:
    lake, decoder = copies(), BY[on_error]
    arguments = [str(tmp_path / "0"), "decode", str(point[0]), point[1], on_error]

    ran = subprocess.run([sys.executable, "-c", _KILLED, *arguments], cwd=ROOT, timeout=120, check=False)

    assert ran.returncode == -signal.SIGKILL
    has_rows, settled = (POINTS.index(point) >= POINTS.index((number, "after")) for number in (2, 3))
    assert words_in(lake.table) == expected_words(decoder if has_rows else OLDER, lake.filled.rows())
    assert [letter[:2] for letter in letters_in(lake.dead_letters)] == ([] if settled else [(0, 1)])
    lake.succeed(here(), decoder, on_error=on_error)
    assert words_in(lake.table) == expected_words(decoder, lake.filled.rows())
    assert letters_in(lake.dead_letters) == []
