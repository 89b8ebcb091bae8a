"""A state while things fail and die: every request, two at once, kill -9, and readers in between."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from objbuf_dagster.errors import ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.lake import state as state_module
from objbuf_dagster.lake import state_run
from objbuf_dagster.lake.state import StateSnapshot, StateTable
from objbuf_dagster.lake.state_shadow import Shadow
from objbuf_dagster.store import RetryPolicy
from tests.lake.landings import SPAWN, run_all
from tests.lake.states import (
    QUICK,
    Accounts,
    World,
    apply_once,
    as_state,
    rows_of,
    some_entries,
    start_applying,
)
from tests.support.deaths import steps_of
from tests.support.proxy import Proxy, Request, Spoiling, proxied
from tests.support.s3 import S3Location

NO_PAUSE = RetryPolicy(base_seconds=0)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_PAUSE", NO_PAUSE)
    monkeypatch.setattr(state_run, "_PAUSE", NO_PAUSE)


@pytest.fixture
def proxy(s3: S3Location) -> Iterator[Proxy]:
    with proxied(s3) as found:
        yield found


def world_behind(proxy: Proxy) -> World:
    return World(proxy.location.url, settings={"options": proxy.location.options, "retry": QUICK})


def is_commit(request: Request) -> bool:
    return request.method == "PUT" and "/accounts/_delta_log/0" in request.object and request.object.endswith(".json")


class From:
    """Spoils the request to the state with this number, or all from it on."""

    def __init__(self, number: int, spoiling: Spoiling, *, lasting: bool) -> None:
        self.left = number
        self.spoiling = spoiling
        self.lasting = lasting

    def __call__(self, request: Request) -> Spoiling:
        if "/accounts" not in request.path:  # listings have it in their query
            return None
        self.left -= 1
        return self.spoiling if self.left == 0 or (self.lasting and self.left < 0) else None


@pytest.mark.parametrize("what", ["apply", "rebuild"])
def test_whatever_request_is_the_last_one_of_a_process_nothing_is_applied_twice_or_not(
    proxy: Proxy, what: Literal["apply", "rebuild"]
) -> None:
    """Everything fails from one request on, as if the process had died there; then another one goes on."""
    world = world_behind(proxy)
    rng = random.Random(11)
    start, number, died = world.land(0, some_entries(rng, 2)).end + 1, 0, True
    world.apply()
    start = world.land(start, some_entries(rng, 1)).end + 1
    version = world.state.load().version
    while died:
        number += rng.randint(1, 3)
        proxy.spoil = From(number, 403, lasting=True)
        try:
            world.apply() if what == "apply" else world.rebuild()
            died = False
        except ObjbufError:
            died = True
        proxy.spoil = lambda request: None
        snapshot = world.state.load()
        assert snapshot.cursor is not None
        if snapshot.version != version:  # it was committed: the next one has something to do again
            version = snapshot.version
            assert world.found() == world.expected(through=snapshot.cursor.next_sequence - 1), f"request {number}"
            assert snapshot.cursor.next_sequence == start
            start = world.land(start, some_entries(rng, 1)).end + 1
    assert number > 10
    world.apply()
    assert world.found() == world.expected()


@pytest.mark.parametrize("spoiling", [503, "lost", "twice", "late"])
def test_a_passing_failure_of_any_request_leaves_no_hole(proxy: Proxy, spoiling: Spoiling) -> None:
    world = world_behind(proxy)
    rng = random.Random(12)
    start, number, spoiled = 0, 0, True
    while spoiled:
        number += rng.randint(1, 4)
        start = world.land(start, some_entries(rng, 1)).end + 1
        proxy.spoil = spoil = From(number, spoiling, lasting=False)
        report = world.apply()
        spoiled = spoil.left <= 0
        proxy.spoil = lambda request: None
        proxy.deliver()
        assert report.cursor is not None
        assert report.cursor.next_sequence == start
        assert world.found() == world.expected(), f"after request {number}"
    assert number > 10


class Small(StateTable):
    """That folds every block at once, and writes all of it out: an attempt that fails has changed a lot by then."""

    def shadow(self, snapshot: StateSnapshot | None = None, **_: Any) -> Shadow:
        return super().shadow(snapshot, chunk_bytes=1, working_bytes=1)


class Outage:
    """All reads of a table's data fail from the one with this number on, until the client has given up."""

    def __init__(self, table: str, number: int) -> None:
        self.table = table
        self.number = number
        self.seen = 0

    def __call__(self, request: Request) -> Spoiling:
        if request.method != "GET" or self.table not in request.object or not request.object.endswith(".parquet"):
            return None
        self.seen += 1
        return 503 if self.number <= self.seen < self.number + QUICK.attempts else None


@pytest.mark.parametrize(("what", "table"), [("apply", "/lines/"), ("rebuild", "/entries/")])
def test_a_passing_failure_of_any_read_of_the_rows_folds_each_once(
    proxy: Proxy, what: Literal["apply", "rebuild"], table: str
) -> None:
    """Some rows of a range are folded by then, and their keys written out: it begins again from what was before."""
    world = world_behind(proxy)
    rng = random.Random(13)
    for start in (0, 2):
        lines = [f"{rng.choice('abc')}{rng.randrange(3)} put {rng.randrange(9)}" for _ in range(8)]
        one = world.land(start, [lines[:4], lines[4:]], entries=False)
        files = world._written(world.entries, one, rows_of(start, [lines[:4], lines[4:]]), 2)
        world.entries.commit(one.key, files, epoch=1)
    number, spoiled = 0, True
    while spoiled:
        number += rng.randint(2, 4)
        world.state = Small(f"{world.url}/accounts{number}", Accounts(), buckets=4, **world.settings)
        proxy.spoil = spoil = Outage(table, number)
        report = world.apply() if what == "apply" else world.rebuild()
        proxy.spoil = lambda request: None
        spoiled = spoil.seen >= number
        assert report.cursor is not None
        assert (report.cursor.next_sequence, report.cursor.rows) == (4, 16)
        assert world.found() == world.expected(), f"after read {number}"
    assert number > 5


def test_a_lasting_failure_stops_after_the_tries_that_are_stated(proxy: Proxy) -> None:
    world = world_behind(proxy)
    world.land(0, [["a1 put 1"]])
    world.apply()
    world.land(1, [["a1 put 2"]])
    proxy.spoil = lambda request: 503 if is_commit(request) else None
    proxy.requests.clear()

    with pytest.raises(StorageUnavailable, match="could not be committed in 3 tries") as raised:
        world.apply(tries=3)

    assert raised.value.in_doubt
    assert sum(map(is_commit, proxy.requests)) == 3 * QUICK.attempts
    proxy.spoil = lambda request: 503
    with pytest.raises(StorageUnavailable, match="storage failed in 2 tries"):
        world.apply(tries=2)
    proxy.spoil = lambda request: None
    assert world.found() == world.expected(through=0)
    assert world.apply().ranges == 1
    assert world.found() == world.expected()


def test_who_may_not_commit_is_told_at_once(proxy: Proxy) -> None:
    world = world_behind(proxy)
    world.land(0, [["a1 put 1"]])
    world.apply()
    world.land(1, [["a1 put 2"]])
    proxy.spoil = lambda request: 403 if is_commit(request) else None
    proxy.requests.clear()

    with pytest.raises(StorageError, match="access denied"):
        world.apply()
    assert sum(map(is_commit, proxy.requests)) == 1


@pytest.mark.parametrize("theirs", ["apply", "rebuild", "apply less"])
def test_who_finds_that_the_cursor_has_moved_does_nothing_wrong(
    proxy: Proxy, s3: S3Location, theirs: Literal["apply", "rebuild", "apply less"]
) -> None:
    """Right before the commit of the one, another one commits."""
    world = world_behind(proxy)
    other = World(s3.url, settings={"options": s3.options})
    world.land(0, [["a1 put 1"]])
    world.apply()
    world.land(1, [["a1 put 2", "a2 put 3"]])
    world.land(2, [["a2 close 0"]])
    raced = False

    def race(request: Request) -> Spoiling:
        nonlocal raced
        if is_commit(request) and not raced:
            raced = True
            if theirs == "rebuild":
                other.rebuild()
            else:
                other.apply(ranges_at_once=1 if theirs == "apply less" else 2)
        return None

    proxy.spoil = race
    report = world.apply(ranges_at_once=1)

    assert raced
    assert report.cursor is not None
    assert report.cursor.next_sequence == 3
    assert world.found() == world.expected()
    assert report.ranges == 0, "the other one has applied both"


def test_a_rebuild_goes_behind_what_others_have_committed(proxy: Proxy, s3: S3Location) -> None:
    world = world_behind(proxy)
    other = World(s3.url, settings={"options": s3.options})
    world.land(0, [["a1 put 1"]])
    world.apply()
    raced = False

    def race(request: Request) -> Spoiling:
        nonlocal raced
        if is_commit(request) and not raced:
            raced = True
            world.land(1, [["a1 put 2", "a2 put 3"]])
            other.apply()
        return None

    proxy.spoil = race
    report = world.rebuild()

    assert raced
    assert report.cursor is not None
    assert report.cursor.next_sequence == 1, "it was read before"
    assert world.found() == world.expected(through=0)
    assert world.apply().ranges == 1
    assert world.found() == world.expected()


def test_a_rebuild_whose_answer_was_lost_is_found(proxy: Proxy) -> None:
    world = world_behind(proxy)
    world.land(0, [["a1 put 1"]])
    version = world.apply().version
    assert version is not None
    lost = 0

    def lose(request: Request) -> Spoiling:
        nonlocal lost
        lost += is_commit(request)
        return "lost" if is_commit(request) and lost <= QUICK.attempts else None

    proxy.spoil = lose
    assert world.rebuild().version == version + 1
    proxy.spoil = lambda request: None
    assert world.state.load().version == version + 1
    assert world.found() == world.expected()


def test_many_processes_at_once_apply_each_range_once(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    rng = random.Random(4)
    start = 0
    for _ in range(6):
        start = world.land(start, some_entries(rng, 2)).end + 1
    barrier = SPAWN.Barrier(3)

    run_all([SPAWN.Process(target=apply_once, args=(world.url, barrier)) for _ in range(3)])

    assert world.found() == world.expected()
    cursor = world.state.cursor()
    assert cursor is not None
    assert (cursor.ranges, cursor.next_sequence) == (6, start)
    assert world.state.load().version == 6, "a range was committed twice"


@pytest.mark.parametrize("what", ["apply", "rebuild"])
def test_a_killed_process_leaves_the_state_of_its_cursor(tmp_path: Path, what: str) -> None:
    world = World(str(tmp_path))
    rng = random.Random(9)
    start = 0
    for _ in range(3):
        with start_applying(world.url, what) if start else _nobody() as process:
            for _ in range(3):
                start = world.land(start, some_entries(rng, 2)).end + 1
            if process is not None and process.stdout is not None:
                for _ in range(rng.randint(1, 3)):
                    assert process.stdout.readline() == b"go\n"
                time.sleep(rng.uniform(0, 0.3))
                process.kill()
        cursor = world.state.cursor()
        through = cursor.next_sequence - 1 if cursor else -1
        assert world.found() == world.expected(through=through)
    assert world.apply().cursor is not None
    assert world.found() == world.expected()


def test_a_process_that_is_killed_at_any_step_leaves_whole_ranges_and_a_whole_state(tmp_path: Path) -> None:
    """Kill -9 before and after each write and each commit of landing, decoding, redriving and quarantining, and of
    applying, rebuilding and importing; the last before a commit is between a range's last data file and the log. Then
    all is done."""
    steps = steps_of("tests.lake.deaths", tmp_path)

    rows, letters, table, commit, record, bucket, cursor = 1, 1, 1, 1, 1, 1, 1
    assert steps == {
        "land": 2 * (3 * (2 * rows + commit) + table),
        "decode": 2 * (rows + 2 * letters + commit + commit + letters + commit),
        "redrive": 2 * (rows + letters + commit + commit + letters + commit),
        "quarantine": 2 * 3 * record,
        "apply": 2 * (bucket + cursor + commit),
        "rebuild": 2 * (2 * bucket + cursor + commit),
        "import": 2 * (3 * bucket + cursor + commit),
    }


class _nobody:  # noqa: N801  stands for a process
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def test_readers_never_see_half_of_a_rebuild(tmp_path: Path) -> None:
    """Every line adds to two keys of different buckets, so their sums are always the same."""
    world = World(str(tmp_path), buckets=16)
    keys = [f"a{number}" for number in range(30)]
    for start in range(4):
        world.land(start, [["|".join(f"{key} put {start + 1}" for key in keys)]])
    world.apply()
    ended = threading.Event()
    seen: list[int] = []

    def look() -> None:
        reader = World(world.url, buckets=16)
        while not ended.is_set():
            snapshot = reader.state.snapshot()
            assert snapshot is not None
            assert snapshot.cursor is not None
            rows = as_state(reader.state.rows(snapshot).to_pylist())
            totals = {total for total, *_ in rows.values()}
            through = snapshot.cursor.next_sequence - 1
            if sorted(rows) != sorted(keys) or totals != {sum(range(1, through + 2))}:
                seen.append(-1)
                return
            seen.append(through)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for start in range(4, 8):
            world.land(start, [["|".join(f"{key} put {start + 1}" for key in keys)]])
            world.rebuild()
            world.apply()
    finally:
        ended.set()
        thread.join()

    assert -1 not in seen
    assert len(set(seen)) > 2, "who looks once, or at one state alone, sees no half of another"
