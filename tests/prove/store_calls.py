"""Every store call of a whole small pipeline goes wrong once, in every way, and after recovery nothing is amiss.

A run without faults counts the calls. Then there is a run for each of them, each way in which it can go wrong, and each
policy of retries: the error that comes out, if any, must be ours; at once, and after every further step, the frontier
may have passed only what landed, and nothing that is named may be deleted; and in the end the table must have what the
producers were told. A sensor's tick and a hook are tried in the same way (ticks.py). Writes and deletes also arrive
late: after their client gave up or repeated them, before and after the recovery from that.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import LakeTable
from tests.prove import lake_requests, ticks
from tests.prove.points import POLICIES, Point, ways
from tests.prove.proof import Proof, Size, timed
from tests.prove.small_pipeline import SmallPipeline, World
from tests.support.faults import AT_ONCE, Call, Fault

LATENESS = (0, 1, 4)
"""How many more attempts at steps end before a write arrives whose client gave up: none, so before the recovery; that
of the recovery; several, among them other owners' and producers'."""

_TOLD = 5
_FEW_LATE = 40


class Strike:
    """A script for all stores of a pipeline: what happens at one of their calls, counted over all of them."""

    def __init__(self, point: Point | None) -> None:
        self.point = point
        self.calls: list[Call] = []
        self.pipeline: SmallPipeline | None = None

    def __call__(self, call: Call) -> Fault | None:
        self.calls.append(call)
        if self.point is None or len(self.calls) != self.point.call:
            return None
        if self.pipeline is None:
            return None
        if self.point.kind == "overtaken":
            self.pipeline.append_meanwhile()
        elif self.point.kind == "taken over":
            self.pipeline.take_over_meanwhile()
        elif self.point.kind == "collected":
            self.pipeline.collect_meanwhile()
        else:
            return self.point.kind
        return None

    @property
    def hit(self) -> Call | None:
        """The call that went wrong, if it came to that."""
        reached = self.point is not None and len(self.calls) >= self.point.call
        return self.calls[self.point.call - 1] if self.point is not None and reached else None


@dataclass(frozen=True, slots=True)
class Trial:
    """A run to the end: what went wrong that may not, and which errors came out."""

    strike: Strike
    pipeline: SmallPipeline
    errors: list[ObjbufError]
    wrongs: list[str]


def run(point: Point | None, lake: Path) -> Trial:
    """The whole pipeline, with this fault or none, on to its end."""
    strike = Strike(point)
    pipeline = SmallPipeline(
        World(LakeTable(lake)),
        LakeTable(lake),
        strike,
        POLICIES[point.policy] if point else AT_ONCE,
        point.lateness if point else 0,
    )
    strike.pipeline = pipeline
    errors, wrongs = pipeline.run(pipeline.steps())
    return Trial(strike, pipeline, errors, wrongs)


@functools.cache
def calls() -> tuple[Call, ...]:
    """Of a run in which nothing goes wrong."""
    with _folder() as folder:
        return tuple(run(None, folder / "lake").strike.calls)


def points(size: Size) -> list[Point]:
    """All there are; small, every write whose answer is lost for good, and as many of the others."""
    every = [Point(number, *way) for number, call in enumerate(calls(), 1) for way in ways(call)]
    writes = {number for number, call in enumerate(calls(), 1) if call.method in ("put", "delete")}
    sure = [point for point in every if (point.kind, point.policy) == ("lost", "not repeated") and point.call in writes]
    others = [point for point in every if point not in sure]
    return size.pick([*sure, *size.chance("store calls").sample(others, len(sure))], every)


def late_points(size: Size) -> list[Point]:
    """Every put and delete, overdue by each lateness; small, a few, the manifest's among them."""
    writes = [number for number, call in enumerate(calls(), 1) if call.method in ("put", "delete")]
    every = [
        Point(number, "overdue", policy, lateness) for number in writes for policy in POLICIES for lateness in LATENESS
    ]
    return size.pick(size.chance("overdue calls").sample(every, _FEW_LATE), every)


def prove(size: Size) -> Iterator[Proof]:
    proof = _try_all(Proof("a store call goes wrong (produce, plan, land, ack, gc)", "points"), points(size))
    ticks.try_all(proof, size)
    yield proof
    yield from lake_requests.prove(size)
    yield _try_all(Proof("a write arrives after its client gave up or repeated it", "points"), late_points(size))


def _try_all(proof: Proof, tried: list[Point]) -> Proof:
    proof.wanted = len(tried)
    kinds: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    errors = doubtful = repeated = 0
    with timed(proof), _quiet():
        for point in tried:
            with _folder() as folder:
                try:
                    trial = run(point, folder / "lake")
                except Exception as error:  # noqa: BLE001, only errors of ours may come out
                    _blame(proof, point, [f"{type(error).__name__}: {error}"])
                    continue
                proof.compare(trial.pipeline.told, trial.pipeline.sent, trial.pipeline.world.rows())
            _blame(proof, point, trial.wrongs)
            if trial.strike.hit is not None:
                proof.tried += 1
                kinds[point.kind] += 1
                methods[trial.strike.hit.method] += 1
            errors += bool(trial.errors)
            doubtful += trial.pipeline.doubtful
            repeated += trial.pipeline.repeated
    proof.notes.append(f"{len(calls())} calls of a whole pipeline: {_counts(methods)}; ways: {_counts(kinds)}")
    proof.notes.append(
        f"{errors} runs met an error; {repeated} produce calls were surely not durable and repeated, "
        f"{doubtful} were in doubt and not repeated"
    )
    return proof


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """In memory where that can be had: what is proven is no matter of disks, and syncing them is slow."""
    memory = "/dev/shm"  # noqa: S108, a folder of its own is made below
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Garbage collection warns of each delete that fails."""
    log = logging.getLogger("objbuf_dagster")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _blame(proof: Proof, point: Point, wrongs: list[str]) -> None:
    proof.invented += len(wrongs)
    if wrongs and len(proof.notes) < _TOLD:
        proof.notes.append(f"{point}: {wrongs[0]}")


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
