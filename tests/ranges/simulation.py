"""The pipeline in the small: producers, a sensor that ticks, runs that cost what was measured, and a choice of rules.

`python -m tests.ranges.simulation` prints how the rules compare. Time is simulated and every seed is fixed, so the same
numbers come out everywhere.

Ranges are cut by the planner's own `cut`, and the size of what waits is found as the sensor finds it, from a few of the
batches. Memory and disk are not part of it: nothing is held back, and there is room for all. A run costs a fixed time
with some jitter, and time per byte and per batch; some runs fail half-way and are tried again. Runs share the machine:
with more runs than it has room for, all get an equal part of it. The regulator sees only how many there were on
average, and knows of no cost per batch, so it has to cope with being wrong.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from objbuf_dagster.protocol import BatchDescriptor, Metadata, PlannedBatch
from objbuf_dagster.ranges import Limits, cut
from objbuf_dagster.ranges.regulator import Observation, Regulator, State, Waiting

MB = 1e6
TICK = 5.0
MAX_IN_FLIGHT = 4
RETRY_SECONDS = 30.0

Arrivals = Callable[[random.Random], Iterator[tuple[float, int]]]


@dataclass(frozen=True, slots=True)
class World:
    """What runs are like.

    room: runs that go at full speed at the same time. One run wants 1.9 of the two cores that were measured.
    fixed, jitter: seconds of a run whatever it lands, and how far they differ.
    per_batch: seconds for each batch.
    failures: part of the runs that fail, somewhere on their way.
    hangs_at: the first run that begins then or later never ends, and uses nothing of the machine.
    """

    name: str
    room: float
    fixed: float = 20.0
    jitter: float = 0.15
    per_batch: float = 0.001
    failures: float = 0.02
    hangs_at: float = math.inf


SMALL = World("two cores", room=2 / 1.9)
FOUR = World("four cores", room=4 / 1.9)
CLUSTER = World("cluster", room=100.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """arrivals: time and size of batches, in order; `sink`: bytes per second of a run that begins at a time."""

    name: str
    arrivals: Arrivals
    sink: Callable[[float], float] = lambda _: 500 * MB


def flow(*phases: tuple[float, ...], size: float = 0.25 * MB, start: float = 0.0) -> Arrivals:
    """Batches of about a size, at random times, for phases of (seconds, bytes per second), some with their own size."""

    def arrivals(chance: random.Random) -> Iterator[tuple[float, int]]:
        begin = start
        for seconds, rate, *own in phases:
            each = own[0] if own else size
            now = begin + chance.expovariate(rate / each)
            while now < begin + seconds:
                yield now, max(1, int(each * chance.uniform(0.5, 1.5)))
                now += chance.expovariate(rate / each)
            begin += seconds

    return arrivals


def slows_down(now: float) -> float:
    return (500 if now < 900 else 8) * MB


def whole_pipeline(_: float) -> float:
    """Landing, decoding and a state in one run, as measured on two cores: 13.9 s and 0.197 s for each MB."""
    return 5 * MB


SCENARIOS = (
    Scenario("steady load", flow((2400, 3 * MB))),
    Scenario("burst of 20 times", flow((900, 1 * MB), (300, 20 * MB), (1200, 1 * MB))),
    Scenario("burst, batches too", flow((900, 1 * MB, 0.1 * MB), (300, 20 * MB, 2 * MB), (1200, 1 * MB, 0.1 * MB))),
    Scenario("backlog of a day", flow((86_400 + 1800, 0.25 * MB), start=-86_400.0)),
    Scenario("slow sink", flow((3600, 4 * MB), size=0.5 * MB), sink=slows_down),
    Scenario("slow sink, 3 times", flow((3600, 12 * MB), size=0.5 * MB), sink=slows_down),
    Scenario("trickle", flow((7200, 1_000), size=50_000)),
    Scenario("steady, 5 MB/s", flow((2400, 2 * MB)), sink=whole_pipeline),
    Scenario("steady 8, 5 MB/s", flow((2400, 8 * MB)), sink=whole_pipeline),
    Scenario("burst, 5 MB/s", flow((900, 0.2 * MB), (300, 4 * MB), (1200, 0.2 * MB)), sink=whole_pipeline),
    Scenario("backlog, 5 MB/s", flow((86_400 + 1800, 0.05 * MB), start=-86_400.0), sink=whole_pipeline),
    Scenario("trickle, 5 MB/s", flow((7200, 1_000), size=50_000), sink=whole_pipeline),
)


class Rule(Protocol):
    """Chooses limits, and how many ranges may be added."""

    def learn(self, landed: Iterable[Observation], /) -> None: ...

    def choose(self, waiting: Waiting, since_cut: float | None, running: list[float], /) -> tuple[Limits, int]: ...


class Fixed:
    """What there is without a regulator."""

    def learn(self, landed: Iterable[Observation], /) -> None:
        del landed

    def choose(self, _: Waiting, __: float | None, ___: list[float], /) -> tuple[Limits, int]:
        return Limits(), MAX_IN_FLIGHT


class Plain:
    """Below the target the budget grows by a step, above it is halved. It has the regulator's ceilings."""

    def __init__(self) -> None:
        self.budget = 64 << 20
        self.seconds = self.arrival = 0.0

    def learn(self, landed: Iterable[Observation]) -> None:
        for one in landed:
            self.seconds += (0.3 if self.seconds else 1.0) * (one.seconds - self.seconds)
            self.arrival += (0.3 if self.arrival else 1.0) * (one.arrival_seconds - self.arrival)
            rho = self.seconds / max(self.arrival, 1.0) / MAX_IN_FLIGHT
            wanted = self.budget // 2 if rho > 0.7 else self.budget + (32 << 20)
            self.budget = min(max(wanted, 1 << 20), 1 << 30)

    def choose(self, _: Waiting, __: float | None, ___: list[float], /) -> tuple[Limits, int]:
        return Limits(max_batches=4_000, max_bytes=self.budget), MAX_IN_FLIGHT


class Regulated:
    def __init__(self, regulator: Regulator | None = None) -> None:
        self.regulator = regulator or Regulator()
        self.state = State()
        self.budgets: list[int] = []

    def learn(self, landed: Iterable[Observation]) -> None:
        self.state = self.regulator.update(self.state, landed)

    def choose(self, waiting: Waiting, since_cut: float | None, running: list[float]) -> tuple[Limits, int]:
        decision = self.regulator.decide(self.state, waiting, since_cut=since_cut, running=running)
        self.budgets.append(decision.budget)
        return decision.limits, decision.ranges


@dataclass(slots=True, eq=False)
class Run:
    """A range on its way; `work` is what is left, in seconds of a run that has the machine to itself."""

    batches: tuple[PlannedBatch, ...]
    arrival_seconds: float
    work: float = 0.0
    fails: bool = False
    started: float = 0.0
    attempts: int = 0
    seconds: float = 0.0
    shared: float = 0.0
    again_at: float = 0.0
    hangs: bool = False

    @property
    def size(self) -> int:
        return sum(one.size or 0 for one in self.batches)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.

    arrived: when each batch did.
    lags: seconds from then, or from the start for those that were there before, until it landed.
    runs: the failed ones included.
    largest: bytes of a range.
    left: batches that had not landed when it was given up, an hour after the last arrival; their lag ends there.
    caught_up: seconds until what was there at the start had landed.
    """

    arrived: list[float]
    lags: list[float]
    runs: int
    largest: int
    left: int
    caught_up: float

    @property
    def mean(self) -> float:
        return sum(self.lags) / len(self.lags)

    def percentile(self, part: float) -> float:
        return sorted(self.lags)[min(len(self.lags) - 1, int(part * len(self.lags)))]


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several seeds."""
    each = list(outcomes)
    return Outcome(
        [time for one in each for time in one.arrived],
        [lag for one in each for lag in one.lags],
        sum(one.runs for one in each),
        max(one.largest for one in each),
        sum(one.left for one in each),
        max(one.caught_up for one in each),
    )


@dataclass(slots=True)
class Simulation:
    world: World
    scenario: Scenario
    rule: Rule
    seed: int = 1
    now: float = 0.0
    active: list[Run] = field(default_factory=list)
    resting: list[Run] = field(default_factory=list)
    landed: list[Observation] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    runs: int = 0
    largest: int = 0
    caught_up: float = 0.0

    def run(self) -> Outcome:
        chance = random.Random(f"runs {self.seed}")
        coming = _coming(self.scenario, self.seed)
        cut_to = arrived = 0
        last_cut: float | None = None
        horizon = _time(coming[-1]) + 3600
        while len(self.lags) < len(coming) and self.now < horizon:
            while arrived < len(coming) and _time(coming[arrived]) <= self.now:
                arrived += 1
            self.rule.learn(self.landed)
            self.landed.clear()
            for one in [one for one in self.resting if one.again_at <= self.now]:
                self.resting.remove(one)
                self._start(one, chance)
            if arrived > cut_to:
                size = _size_of(coming, cut_to, arrived)
                waiting = Waiting(arrived - cut_to, self.now - _time(coming[cut_to]), size)
                since = None if last_cut is None else self.now - last_cut
                limits, most = self.rule.choose(waiting, since, [self.now - one.started for one in self.active])
                most = min(most, MAX_IN_FLIGHT - len(self.active) - len(self.resting))
                for batches in _first(most, cut((coming[n] for n in range(cut_to, arrived)), limits, _ms(self.now))):
                    before = _time(coming[cut_to - 1]) if cut_to else _time(batches[0])
                    cut_to += len(batches)
                    last_cut = self.now
                    self._start(Run(batches, _time(batches[-1]) - before), chance)
            self._pass(TICK)
        left = coming[cut_to:] + [batch for one in (*self.active, *self.resting) for batch in one.batches]
        self._land(left)
        return Outcome(self.arrived, self.lags, self.runs, self.largest, len(left), self.caught_up)

    def _land(self, batches: Iterable[PlannedBatch]) -> None:
        for time in map(_time, batches):
            self.arrived.append(time)
            self.lags.append(self.now - max(time, 0.0))
            self.caught_up = self.now if time < 0 else self.caught_up

    def _start(self, one: Run, chance: random.Random) -> None:
        self.runs += 1
        one.attempts += 1
        self.largest = max(self.largest, one.size)
        fixed = self.world.fixed * chance.lognormvariate(0, self.world.jitter)
        per_byte = chance.uniform(0.8, 1.25) / self.scenario.sink(self.now)
        one.work = fixed + self.world.per_batch * len(one.batches) + per_byte * one.size
        one.fails = chance.random() < self.world.failures
        one.work *= chance.random() if one.fails else 1.0
        one.started = self.now
        one.hangs = self.now >= self.world.hangs_at and not any(other.hangs for other in self.active)
        self.active.append(one)

    def _pass(self, seconds: float) -> None:
        """Let runs work, each with its part of the machine, until the next tick."""
        end = self.now + seconds
        while working := [one for one in self.active if not one.hangs]:
            speed = min(1.0, self.world.room / len(working))
            soonest = min(one.work for one in working) / speed
            step = min(soonest, end - self.now)
            self.now += step
            for one in working:
                one.work -= step * speed
                one.seconds += step
                one.shared += step * len(self.active)
            for one in [one for one in working if one.work <= 1e-9]:
                self.active.remove(one)
                self._end(one)
            if self.now >= end:
                break
        self.now = end

    def _end(self, one: Run) -> None:
        if one.fails:
            one.again_at = self.now + RETRY_SECONDS * 2 ** (one.attempts - 1)
            self.resting.append(one)
            return
        self._land(one.batches)
        start = one.batches[0].descriptor.sequence
        at_once = one.shared / one.seconds
        self.landed.append(Observation(start, one.size, len(one.batches), one.seconds, one.arrival_seconds, at_once))


_ASKED = 32


def _size_of(coming: list[PlannedBatch], start: int, end: int) -> float:
    """As `waiting_bytes` finds it: by some of the batches, where they are many."""
    step = max(1, -(-(end - start) // _ASKED))
    asked = [coming[number].size or 0 for number in range(end - 1, start - 1, -step)]
    return sum(asked) / len(asked) * (end - start)


_START_MS = 1_700_000_000_000


@functools.lru_cache(maxsize=2)
def _coming(scenario: Scenario, seed: int) -> list[PlannedBatch]:
    return [
        PlannedBatch(BatchDescriptor(number, f"b/{number}", (Metadata(0, _ms(time), b""),)), size)
        for number, (time, size) in enumerate(scenario.arrivals(random.Random(f"arrivals {seed}")))
    ]


def _ms(time: float) -> int:
    return _START_MS + int(time * 1000)


def _time(batch: PlannedBatch) -> float:
    return (batch.descriptor.metadata[0].ingestion_time_ms - _START_MS) / 1000


def _first(most: int, ranges: Iterator[tuple[PlannedBatch, ...]]) -> Iterator[tuple[PlannedBatch, ...]]:
    if most > 0:
        for number, one in enumerate(ranges, 1):
            yield one
            if number == most:
                return


RULES: dict[str, Callable[[], Rule]] = {"fixed": Fixed, "plain rule": Plain, "regulator": Regulated}


CLEAR = ("backlog of a day", "slow sink, 3 times", "steady 8, 5 MB/s")


def seeds_of(world: World, scenario: Scenario) -> range:
    """More of them where rules are nearly even."""
    return range(1, 9) if world == FOUR and scenario.name not in CLEAR else range(1, 5)


def compare(world: World, scenario: Scenario) -> dict[str, Outcome]:
    """One scenario under every rule, for every seed."""
    found: dict[str, list[Outcome]] = {name: [] for name in RULES}
    for seed in seeds_of(world, scenario):  # what arrives is made once for all rules
        for name, rule in RULES.items():
            found[name].append(Simulation(world, scenario, rule(), seed).run())
    return {name: together(outcomes) for name, outcomes in found.items()}


HEAD = (
    f"{'world':10} {'scenario':18} {'rule':11} {'mean lag':>9} {'p50':>8} {'p95':>8} {'p99':>8} {'runs':>6} "
    f"{'max MB':>7} {'left':>7} {'caught up':>9}"
)


def lines(world: World, scenario: Scenario, outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Of the table: one for each rule."""
    for name, one in outcomes.items():
        percentiles = " ".join(f"{one.percentile(part):8.1f}" for part in (0.5, 0.95, 0.99))
        yield (
            f"{world.name:10} {scenario.name:18} {name:11} {one.mean:9.1f} {percentiles} {one.runs:6d} "
            f"{one.largest / MB:7.1f} {one.left:7d} {one.caught_up:9.0f}"
        )


if __name__ == "__main__":
    print(HEAD)
    for scenario in SCENARIOS:
        for world in (SMALL, FOUR, CLUSTER):
            print("\n".join(lines(world, scenario, compare(world, scenario))), flush=True)
