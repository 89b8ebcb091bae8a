"""The regulator and the gate, on what the sensor sees: what is learned from ranges that landed, and what may start.

What there will be to learn from a range is known when it is planned: its bytes, and in what time they arrived. How long
it took is known when its runs have ended, and by then it may be acked and gone from sight. So ranges that have not
landed are remembered with the first half, and Dagster's runs are asked for the second, once, in the query that asks
for those in flight anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from objbuf_dagster.buffer.manifest_store import entry_time_ms
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.runs import Going, Runs, Span
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.ranges.gate import Gate, GateState, Pressure, memory_level
from objbuf_dagster.ranges.regulator import Decision, Observation, Regulator, State, Waiting, at_once

_MOST_FLIGHTS = 256
_MOST_SPANS = 64
_LARGEST = 1e18
_MOST_MS = 1 << 63
_MOVED = 0.05

_DEAD_SECONDS = 2 * 3600.0
_DEAD_BACKFILL_SECONDS = 24 * 3600.0
"""After which a run, and one that lands many ranges, is taken for dead: long enough that none that lives is, also when
the clock jumps by an hour. Only then does it take no memory any more."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A range that has not landed, and what is known of it before it has: see `Observation`."""

    of: SequenceRange
    size: int
    batches: int
    arrival_seconds: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered between ticks. A hint: losing it costs a few ranges of a poorer size.

    state, gate: theirs.
    flights: the ranges that have not landed, in order; of very many, the last ones.
    ended: when the runs of ranges that landed did run, as long as other runs go on that ran beside them.
    cut_ms: when the last range was planned.
    last_ms: when its last batch was produced.
    """

    state: State = field(default_factory=State)
    gate: GateState = field(default_factory=GateState)
    flights: tuple[Flight, ...] = ()
    ended: tuple[Span, ...] = ()
    cut_ms: int | None = None
    last_ms: int | None = None

    def with_planned(self, ranges: Iterable[RangeObject]) -> Memory:
        """The same, with these in flight too, in rising order.

        Those that are known already change nothing, nor do any before the newest that is known: they were dropped,
        since so many are not remembered, and what was cut before is not the last cut.
        """
        newest = max((*(flight.of.start for flight in self.flights), *self.state.counted), default=-1)
        memory = self
        for one in ranges:
            if one.start > newest:
                memory = memory._with(one)
        return memory

    def _with(self, one: RangeObject) -> Memory:
        first, last = (entry_time_ms(one.batches[number].descriptor) for number in (0, -1))
        if last is not None:
            last = min(last, one.planned_at_ms)  # a producer whose clock is ahead would be believed until then
        since = first if self.last_ms is None else self.last_ms
        arrival = 0.0 if last is None or since is None else min(max(0.0, (last - since) / 1000), _LARGEST)
        flight = Flight(range_of(one), one.size, len(one.batches), arrival)
        return replace(
            self,
            flights=(*self.flights, flight)[-_MOST_FLIGHTS:],
            cut_ms=_time_ms(one.planned_at_ms),
            last_ms=self.last_ms if last is None else _time_ms(min(max(last, self.last_ms or 0), one.planned_at_ms)),
        )

    def learned(self, regulator: Regulator, runs: Runs, landed: Iterable[SequenceRange], now: float) -> Memory:
        """The same after these ranges landed; what is still running of them is learned from when it has ended.

        What hangs is waited for as long as a run may live: to ask for it costs every tick two queries.
        """
        living, dead = _living(regulator, self.state, runs, now)
        gone = {one for one in landed if one not in runs.tries or not runs.tries[one].active or one in dead}
        going = [(one.since, now) for one in living if one.has_begun and one.since is not None]
        tried = {one: tries.spans for one, tries in runs.tries.items()}
        spans = [*self.ended, *(span for some in tried.values() for span in some), *going]
        beside = dict(zip(spans, at_once(spans), strict=True))
        observed = [
            _observation(flight, tried.get(flight.of, ()), beside) for flight in self.flights if flight.of in gone
        ]
        oldest = min((start for start, _ in going), default=math.inf)
        ended = [*self.ended, *(span for one in gone for span in tried.get(one, ()))]
        return replace(
            self,
            state=regulator.update(self.state, observed),
            flights=tuple(flight for flight in self.flights if flight.of not in gone),
            ended=tuple(sorted({span for span in ended if span[1] > oldest})[-_MOST_SPANS:]),
        )

    def bytes_of(self, ranges: Iterable[SequenceRange]) -> int:
        """Of those that are in flight."""
        sizes = {flight.of: flight.size for flight in self.flights}
        return sum(sizes.get(one, 0) for one in ranges)

    def to_json(self) -> dict[str, object]:
        """Values that `json.dumps` takes, and `from_json` gives back the same."""
        return {
            "state": self.state.to_json(),
            "gate": self.gate.to_json(),
            "flights": [[one.of.key, one.size, one.batches, one.arrival_seconds] for one in self.flights],
            "ended": [list(span) for span in self.ended],
            "cut_ms": self.cut_ms,
            "last_ms": self.last_ms,
        }

    @classmethod
    def from_json(cls, given: Any) -> Memory:
        """Raises InvalidInput for anything that was not written by `to_json`."""
        names = {"state", "gate", "flights", "ended", "cut_ms", "last_ms"}
        if not isinstance(given, dict) or given.keys() != names:
            raise InvalidInput("what the regulator remembers is not what is written")
        cut_ms, last_ms = given["cut_ms"], given["last_ms"]
        if any(one is not None and (type(one) is not int or not 0 <= one < _MOST_MS) for one in (cut_ms, last_ms)):
            raise InvalidInput("a time that the regulator remembers is none")
        return cls(
            State.from_json(given["state"]),
            GateState.from_json(given["gate"]),
            tuple(_flight(*row) for row in _rows(given["flights"], 4, _MOST_FLIGHTS)),
            tuple((_number(start), _number(end)) for start, end in _rows(given["ended"], 2, _MOST_SPANS)),
            cut_ms,
            last_ms,
        )


@dataclass(frozen=True, slots=True)
class Steering:
    """What a tick may start, and why.

    gate: from now on. note: a sentence for the log, if the gate has just closed or opened. passes: ranges that the gate
        lets through.
    is_regulated: whether the decision binds; without, the fixed limits and numbers of the sensor apply, and no gate.
    goes_on: when a closed gate opens, in words.
    is_idle: whether nothing waits and nothing is on its way: then a closed gate holds nothing back.
    """

    decision: Decision
    pressure: Pressure
    gate: GateState
    note: str
    passes: float
    is_regulated: bool
    goes_on: str = ""
    is_idle: bool = False

    @property
    def ranges(self) -> float:
        """That may be started, as far as this is about it."""
        if not self.is_regulated:
            return math.inf
        return min(self.passes, self.decision.ranges)

    @property
    def held(self) -> str:
        """That new ranges are held back and what for, in words; empty if they are not."""
        if not self.gate.held or self.is_idle:
            return ""
        why, level = self.pressure.worst()
        what = "one range at a time is started" if self.passes else "nothing new is started"
        return f"{what}, the pressure of {why} is {level:.2f}: {self.goes_on}"

    @property
    def busy(self) -> str:
        """Why an open gate lets nothing through, in words; empty if it does."""
        return self.decision.busy if self.is_regulated and not self.gate.held else ""

    def has_moved(self, observed: Mapping[str, int | float]) -> bool:
        """Whether a gate that is closed has something to tell: nothing else changes then, and the plots stand still."""
        moved = abs(self.pressure.worst()[1] - observed.get("pressure", math.inf)) >= _MOVED
        return self.gate.held and not self.is_idle and moved

    def numbers(self) -> dict[str, int | float]:
        """What is plotted: what is not known is not there."""
        decision = self.decision
        catch_up = None if self.gate.held else decision.catch_up_seconds
        found = {
            "budget_bytes": decision.budget,
            "rho": None if decision.rho is None else round(decision.rho, 3),
            "pressure": round(self.pressure.worst()[1], 3),
            "catch_up_seconds": None if catch_up is None else round(catch_up, 1),
        }
        return {name: value for name, value in found.items() if value is not None}


def steer(
    regulator: Regulator,
    gate: Gate,
    memory: Memory,
    waiting: Waiting,
    runs: Runs,
    active: Sequence[SequenceRange],
    *,
    now: float,
    memory_use: Sequence[tuple[float, float]],
    disk: tuple[int, int] | None,
    run_memory: int | None = None,
) -> Steering:
    """What may be started now. `active` are the ranges that run or are about to, of those that have not landed.

    A run that Dagster has queued counts as one that began just now: it takes a place, and is not stuck. One that takes
    far too long is not waited for, but the gate counts it: it may well live, and use its memory. One that is dead (its
    machine is gone, and nobody told Dagster) counts nowhere: it is no work, and never ends.
    """
    living, dead = _living(regulator, memory.state, runs, now)
    flying = [one for one in active if one not in dead]
    own, other = ([one for one in living if bool(one.ranges) == is_own] for is_own in (True, False))
    running, others = ([_seconds(one, now) for one in some] for some in (own, other))
    in_flight = memory.bytes_of(flying)
    pressure = gate.pressure(
        memory=memory_level(memory_use),
        ranges=max(len(flying), len(living)),
        size=in_flight,
        disk=disk,
    )
    cost = regulator.cost(memory.state)
    is_ours = bool(flying or own)
    state, changed = (
        gate.step(memory.gate, pressure, is_idle=not is_ours) if regulator.on else (GateState(), memory.gate.held)
    )
    decision = regulator.decide(
        memory.state,
        waiting,
        since_cut=None if memory.cut_ms is None or memory.cut_ms > now * 1000 else now - memory.cut_ms / 1000,
        running=[seconds / max(1, len(one.ranges)) for seconds, one in zip(running, own, strict=True)],
        others=others,
        in_flight=in_flight,
        pressure=pressure.worst()[1],
        room=gate.room(
            memory_use, running, others, driver=run_memory, starting=cost.fixed * cost.factor(max(1, len(living)))
        ),
    )
    note = gate.tell(state, pressure) if changed else ""
    is_idle = not waiting.batches and not runs.tries and not living
    passes = gate.passes(state, pressure, is_idle=not is_ours)
    return Steering(decision, pressure, state, note, passes, regulator.on, gate.goes_on(), is_idle)


def _living(regulator: Regulator, state: State, runs: Runs, now: float) -> tuple[list[Going], set[SequenceRange]]:
    """The runs that may still end, and the ranges that only others are about."""
    longest = max(_DEAD_SECONDS, regulator.stuck_after(state))
    limits = {True: max(_DEAD_BACKFILL_SECONDS, longest), False: longest}
    living = [one for one in runs.going if _seconds(one, now) < limits[one.is_backfill]]
    held = {one for run in living for one in run.ranges}
    return living, {one for run in runs.going for one in run.ranges} - held


def _seconds(one: Going, now: float) -> float:
    """How long it has been."""
    return 0.0 if one.since is None else max(0.0, now - one.since)


def _observation(flight: Flight, spans: Sequence[Span], beside: dict[Span, float]) -> Observation:
    """A range of several runs ran beside as many as each of them did, on average."""
    seconds = [max(0.0, end - start) for start, end in spans]
    total = sum(seconds)
    others = sum(beside[span] * some for span, some in zip(spans, seconds, strict=True)) / total if total > 0 else 1.0
    return Observation(flight.of.start, flight.size, flight.batches, total, flight.arrival_seconds, others)


def _time_ms(time_ms: int) -> int:
    return min(max(0, time_ms), _MOST_MS - 1)


def _rows(given: object, width: int, most: int) -> list[list[Any]]:
    if not isinstance(given, list) or len(given) > most:
        raise InvalidInput("a list that the regulator remembers is none, or too long")
    if any(not isinstance(row, list) or len(row) != width for row in given):
        raise InvalidInput("a list that the regulator remembers has something else in it")
    return given


def _flight(key: object, size: object, batches: object, arrival_seconds: object) -> Flight:
    if not isinstance(key, str):
        raise InvalidInput("a range that the regulator remembers has no key")
    return Flight(SequenceRange.from_key(key), int(_number(size)), int(_number(batches)), _number(arrival_seconds))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise InvalidInput("a number that the regulator remembers is none")
    return value
