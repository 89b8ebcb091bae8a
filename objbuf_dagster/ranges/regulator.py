"""How large the next ranges are to be, how often to cut one, and how many to run at once.

**Is growing or shrinking right when behind?** A range costs `fixed + per_byte * bytes` seconds. Measured with Dagster
and Spark on two cores, `fixed` is about 20 s. Landing alone does 300 to 750 MB in each second more, landing, decoding
and a state in one run 5 MB. So a range of 10 MB costs nearly what one of 100 MB does, or a third. Whoever halves
ranges when behind doubles the number of fixed costs, falls further behind, and halves again. So: behind, *grow*.
Shrinking is right in two cases only. Where the bytes are the cost, a larger range lands no more per second, but its
first rows come later and a failure costs more: `max_seconds` bounds it, never below the size at which half of the time
is work. And where memory or disk run short: above `ease_above` of pressure, the ceiling is multiplied by
`ease_factor`; further up the gate (`gate.py`) starts nothing at all.

**Size and memory.** A run works in blocks of a few MiB and never holds a range: what it takes does not grow with the
range (`test_a_long_share_needs_no_more_memory_than_one_file` and the like in `tests/spark`). So memory asks for no
size. What limits it is `max_bytes`, and what the gate says of pressure and of room for another run.

**The size.** With `a` bytes arriving per second and room for `c` runs' work at a time, the bytes alone keep `a *
per_byte` of it busy. What they leave is for fixed costs: with ranges of `B` bytes they take `a / B * fixed`. The lag,
about `B / a + fixed + per_byte * B`, rises with B. So the best is the smallest B whose fixed costs take no more than
the target's part of what the bytes leave:

    B = a * fixed / (target * (c - a * per_byte))

Where the bytes leave nothing, it is the ceiling. The same as time, `interval = B / a`, is the better rule for when to
cut, since it hardly depends on `a`: a range is cut when the last cut is `interval` ago, and whatever waits goes into
it. So a batch that comes after a quiet hour does not wait for others that do not come, and a burst makes ranges large
instead of many. `max_wait` bounds what any batch waits. Bytes that take twice as long as a start do not wait while a
run is free: waiting on would save less than it idles.

With S waiting, more than B (a burst, a backlog), the budget grows until all of it fits: into as few ranges as land it
nearly as soon as any number of them, usually one. But of a large backlog the first rows would come late, so a range is
no larger than the one for which the mean time until S has landed, `S * (fixed + per_byte * B) / (c * B - a * (fixed +
per_byte * B)) / 2 + per_byte * B / 2`, is the least: `B + sqrt(c * S * fixed / per_byte) / (c - a * per_byte)`.

The target is near 1, and not the 0.7 that keeps other queues short. A queue of ranges is short without it: what comes
while all runs are busy goes into the next range, which costs hardly more for it, so a queue that grows makes the work
less. The price is runs: on a cluster up to 2.2 times as many as with fixed limits. Who would rather have few sets a
lower target, or takes the profile `throughput`.

**Runs at once.** `c` is not the number of runs. On two cores four runs at once take 70 to 80 s, four times as long as
one: all of the waiting, none of the speed. For how many there is room is learned (`regulator_cost.py`), and no more
are started than are needed for nine tenths of what `parallel` of them get done; twice as many while more waits than
the ceiling, since ranges can grow no more then and nothing is to idle until the next tick; and one more where that many
never slowed each other and more were not seen of late: whether there is room for it, only trying tells. A run that
takes far too long is not waited for. Runs that land acked ranges again (backfills) count, but never take the one run
that what is new may always have.

**Before anything is known** the bytes are taken to be slow, as in a whole pipeline: a first range that is too small
costs a start, one that is too large costs minutes. With a large backlog then, or bytes that keep a run busy, as many
runs start as with fixed limits, which also tells at once how they slow each other.

**Where it wins, and where not.** Mean lag in parts of the better one of fixed limits and the plain rule, for the five
loads of the table (`tests/ranges/test_regulator_simulation.py`), with a sink of 500 MB/s and with the 5 MB/s of the
whole pipeline. On two cores it is 0.2 to 0.6 for steady loads, bursts and a slow sink, 0.8 for a trickle, 0.5 for a
backlog at 500 MB/s and even at 5 MB/s. On a cluster 0.75 to 0.9, 0.5 to 0.6 for the fast backlog, and 1.02 for the
slow one. On four cores fixed limits happen to fit, and steady loads and bursts are about even; it loses 4 to 5 per
cent with a slow sink and with a steady load at 5 MB/s, since a third run is tried now and then; trickle and backlog
are won there, too. The law was chosen on the table's seeds; on eight others two cores win everywhere, four lose 4 and
6 per cent in these two, and a cluster 5 with the slow backlog and 11 with a slow sink under three times the load.

Further from what was measured it loses more: at 98 per cent of all that runs can do 20 per cent on four cores and 5 on
two, and 10 to 20 where a sink becomes sixty times slower while load is near what all runs of a cluster can take, until
ranges that ran in other company tell more runs and slower ones apart. In the table, the worst twentieth waits up to a
fifth longer.

**What is learned** is of what happened: how long the runs of finished ranges took, and in what time their batches
arrived. `rho` is the one, smoothed, over the other, smoothed, and over `c`: a figure to look at, which steers nothing,
since it cannot tell fixed costs from bytes. Everything here is a pure function. Whatever was observed, the budget
stays within `min_bytes` and `max_bytes`, and the wait within `min_wait` and `max_wait`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.ranges.planner import Limits
from objbuf_dagster.ranges.regulator_checks import check_is, check_number
from objbuf_dagster.ranges.regulator_cost import REMEMBERED as SAMPLES
from objbuf_dagster.ranges.regulator_cost import Cost, Sample, at_once, fit, plausible, seen_at_once
from objbuf_dagster.ranges.regulator_state import REMEMBERED, Observation, State

__all__ = ["Cost", "Decision", "Observation", "Profile", "Regulator", "State", "Waiting", "at_once"]

Profile = Literal["throughput", "balanced", "low_latency"]

_PROFILES: dict[str, dict[str, Any]] = {
    "throughput": {"target": 0.4, "min_wait": 30.0, "max_wait": 300.0, "max_seconds": 900.0, "max_bytes": 4 << 30},
    "balanced": {},
    "low_latency": {"target": 1.0},
}
"""`throughput` has a fifth to three quarters of the runs, and up to about twice the mean lag. `balanced` has nearly the
least lag there is: `low_latency` spends a few more runs and is the same within two per cent, but two to eight per cent
sooner in a burst of bytes that cost much."""

_ENOUGH = 0.9
"""Of what all runs at once get done: more runs than are needed for it only make each of them slower."""

_AS_SOON = 0.97
"""Of the time: what is gained by more parts than are needed for it is not worth their fixed costs."""

_WORTH = 2.0
"""Of the fixed cost: bytes that take so much longer than it are worth a run that would idle otherwise."""

_REMEMBERED_ROOM = 0.1
"""How far what is held of the room, whatever samples still tell of it, moves with each range to what they tell."""

_NEARLY, _MORE = 0.8, 1.15
"""Of the room: how many runs fill it, and how many are more than that. Both are averages over a run."""

_STUCK = 3.0
_WINDOW = 30.0
"""Seconds of arrivals after which what waits says as much of the rate as the ranges before."""

_QUIET = 3.0
"""Of what ranges before arrived in: what one more counts for at the most."""

_BATCH_SIZE = float(1 << 20)
_SPARE = 1.1
_LEEWAY = 1.5
"""Sizes are only estimated. So much more fits, in a part and in the whole, that no small rest is left over."""

_MOST_BYTES, _MOST_SECONDS, _MOST_RUNS = float(1 << 50), 1e7, 1000


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is in the manifest and in no range yet.

    batches: how many.
    seconds: how long the oldest has waited.
    size: their bytes, if known; estimated from the ranges before otherwise, since asking takes a HEAD for each.
    """

    batches: int = 0
    seconds: float = 0.0
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to plan with, and the figures that tell why.

    limits: for the planner; `limits.max_bytes` is the budget.
    ranges: that may be started now, besides those that run.
    interval: seconds between two cuts.
    rho: utilisation of late, 1 is all that the runs can do; to look at; None before anything was seen.
    rate: bytes that arrive in a second, as far as is known.
    cost: of a range, as far as is known.
    parallel: runs at once that are worth having.
    busy: why no range may be started now, in words; empty if one may.
    catch_up_seconds: until what waits and what is in flight has landed; 0 if it is no more than should be, None if it
        only gets more.
    """

    limits: Limits
    ranges: int
    interval: float
    rho: float | None
    rate: float
    cost: Cost
    parallel: int
    busy: str
    catch_up_seconds: float | None

    @property
    def budget(self) -> int:
        return self.limits.max_bytes


@dataclass(frozen=True, slots=True)
class Regulator:
    """The settings; `Regulator.of(profile)` gives those of a profile. Refused with InvalidInput if out of range.

    on: False: `limits` apply, exactly, and as many runs as `parallel` says; it goes on learning.
    limits: what applies if it is off.
    parallel: runs at once, at the most.
    target: part of the runs' time, of what bytes leave of it, that ranges' fixed costs may take, above 0, up to 1.
        Lower: fewer and larger ranges.
    min_bytes, max_bytes: of a range's budget.
    max_batches: in a range, at the most: the sensor asks for the size of each, within a tick.
    min_wait, max_wait: seconds that a batch waits to be planned, at the least and at the most.
    max_seconds: a range is made no larger than what lands in it, as long as half of that is work.
    smoothing: weight of the newest range in rho and in the rate, above 0, up to 1.
    forgetting: what is left, with each range, of what older ones say of the costs, from 0 to below 1.
    fixed_seconds, bytes_per_second, expected_room: costs that are expected before any are known; the last is how many
        runs go at full speed at the same time.
    tick_seconds: between two decisions; a cut is due at the one that is nearest to its time.
    ease_above, ease_factor: the pressure from which max_bytes is multiplied, and by what.
    """

    on: bool = True
    limits: Limits = field(default_factory=Limits)
    parallel: int = 4
    target: float = 0.95
    min_bytes: int = 1 << 20
    max_bytes: int = 1 << 30
    max_batches: int = 4_000
    min_wait: float = 0.0
    max_wait: float = 60.0
    max_seconds: float = 300.0
    smoothing: float = 0.3
    forgetting: float = 0.9
    fixed_seconds: float = 20.0
    bytes_per_second: float = 5e6
    expected_room: float = 2.0
    tick_seconds: float = 5.0
    ease_above: float = 0.65
    ease_factor: float = 0.5

    def __post_init__(self) -> None:
        check_is(self, "on", bool, "true or false")
        check_is(self, "limits", Limits, "Limits")
        check_number(self, "parallel", 1, _MOST_RUNS, whole=True)
        check_number(self, "min_bytes", 1, _MOST_BYTES, whole=True)
        check_number(self, "max_bytes", self.min_bytes, _MOST_BYTES, whole=True)
        check_number(self, "max_batches", 1, 1_000_000, whole=True)
        check_number(self, "min_wait", 0, _MOST_SECONDS)
        check_number(self, "max_wait", self.min_wait, _MOST_SECONDS)
        check_number(self, "max_seconds", 1, _MOST_SECONDS)
        check_number(self, "target", 0.01, 1)
        check_number(self, "smoothing", 0.01, 1)
        check_number(self, "forgetting", 0, 0.999)
        check_number(self, "fixed_seconds", 0.01, 86_400)
        check_number(self, "bytes_per_second", 1_000, 1e15)
        check_number(self, "expected_room", 1, _MOST_RUNS)
        check_number(self, "tick_seconds", 0, _MOST_SECONDS)
        check_number(self, "ease_above", 0, 1)
        check_number(self, "ease_factor", 0.01, 1)

    @classmethod
    def of(cls, profile: str = "balanced", **settings: Any) -> Regulator:
        """The settings of a profile, `throughput`, `balanced` or `low_latency`, with these changed."""
        if profile not in _PROFILES:
            raise InvalidInput(f"profile is {', '.join(_PROFILES)}, not {shown(str(profile))!r}")
        if unknown := settings.keys() - {one.name for one in fields(cls)}:
            raise InvalidInput(f"the regulator has no setting {', '.join(map(shown, sorted(unknown)))}")
        return cls(**{**_PROFILES[profile], **settings})

    def cost(self, state: State) -> Cost:
        """What a range costs, by all that is known."""
        return fit(
            state.samples,
            Cost(self.fixed_seconds, 1 / self.bytes_per_second, state.room or self.expected_room),
            self.forgetting,
        )

    def update(self, state: State, observations: Iterable[Observation]) -> State:
        """The state that has learned from these, in their order. Each range counts once: repeating changes nothing."""
        for one in observations:
            if one.is_usable() and not state.has_counted(one.start):
                state = self._learn(state, one)
        return state

    def decide(
        self,
        state: State,
        waiting: Waiting,
        *,
        since_cut: float | None = None,
        running: Sequence[float] = (),
        others: Sequence[float] = (),
        in_flight: float = 0.0,
        pressure: float = 0.0,
        room: float = math.inf,
    ) -> Decision:
        """What to plan now.

        `since_cut`: seconds since the last range was planned, None if there is none. `running`: for each run of what is
        not acked, how many seconds it has been, divided by its ranges; those that wait to be tried again are none. One
        that is stuck is not waited for, but may well need its memory: beside it one starts only if there is `room`.
        `others`: the same of runs that land acked ranges again. They use the machine as well, but however many they
        are, what is new gets one run.
        `in_flight`: bytes of what runs and is not acked. `pressure` and `room` (runs that fit into memory): the gate's.
        """
        cost, size = self.cost(state), _size(state, waiting)
        since = self.max_wait if since_cut is None else _within(since_cut, 0, _MOST_SECONDS)
        age = _within(waiting.seconds, 0, _MOST_SECONDS)
        rate = _rate(state, size, max(age, since))
        if not state.samples and cost.per_byte * max(rate * cost.fixed, size / self.parallel) > cost.fixed:
            cost = replace(cost, room=max(cost.room, float(self.parallel)))
        parallel = self._parallel(cost) if self.on else self.parallel
        capacity = cost.capacity(parallel)
        if self.on:
            ceiling = self._ceiling(cost, parallel, pressure)
            spare = self.target * (capacity - rate * cost.per_byte)
            enough = _within(rate * cost.fixed / spare if spare > 0 else ceiling, self.min_bytes, ceiling)
            interval = _within(cost.fixed / spare if spare > 0 else self.max_wait, self.min_wait, self.max_wait)
            drained = math.sqrt(capacity * size * cost.fixed / cost.per_byte) / spare if spare > 0 else ceiling
            most = min(ceiling, enough + drained)
            stuck = self.stuck_after(state)
            own, all_ = (sum(seconds < stuck for seconds in some) for some in (running, (*running, *others)))
            more = parallel if size > ceiling else int(_may_have_more_room(state, cost))
            wanted = min(parallel + more, self.parallel)
            free = int(min(max(0 if own else 1, wanted - all_), max(0 if running else 1, room)))
            busy = "" if free or not (waiting.batches or size) else _busy(all_, wanted)
            is_due = since + self.tick_seconds / 2 >= interval or cost.per_byte * size >= _WORTH * cost.fixed
            wait = self.min_wait if is_due else _within(age + interval - since, self.min_wait, self.max_wait)
            limits = Limits(self.max_batches, int(_split(size, enough, most, free, cost)), wait)
        else:
            limits, interval = self.limits, self.limits.max_wait
            ceiling = enough = float(limits.max_bytes)
            free, busy = max(0, parallel - len(running)), ""
        largest = min(ceiling, limits.max_batches * _batch_size(state))
        speed = capacity * largest / cost.seconds(largest)
        return Decision(
            limits=limits,
            ranges=free,
            interval=interval,
            rho=state.seconds / max(state.arrival_seconds, 1.0) / capacity if state.counted else None,
            rate=rate,
            cost=cost,
            parallel=parallel,
            busy=busy,
            catch_up_seconds=_catch_up(size, in_flight, _LEEWAY * enough, parallel, speed - rate, cost),
        )

    def stuck_after(self, state: State) -> float:
        """Seconds after which a run is not waited for any more: far more than the largest range takes."""
        cost = self.cost(state)
        return _STUCK * cost.seconds(self._ceiling(cost, self._parallel(cost), 0.0), self.parallel)

    def _learn(self, state: State, one: Observation) -> State:
        cost = self.cost(state)
        size = min(one.size, _MOST_BYTES)
        runs = _within(one.at_once, 1, _MOST_RUNS)
        seconds = plausible(min(one.seconds, _MOST_SECONDS), cost.seconds(size, runs))

        # A quiet night before a range is no reason to take the load for little all morning.
        quiet = _QUIET * max(state.arrival_seconds, self.tick_seconds, 1.0) if state.counted else _MOST_SECONDS

        def smooth(old: float, new: float) -> float:
            return old + self.smoothing * (new - old) if state.counted else new

        held = state.room or self.expected_room
        return State(
            seconds=smooth(state.seconds, seconds / cost.factor(runs)),
            arrival_seconds=smooth(state.arrival_seconds, _within(one.arrival_seconds, 0, quiet)),
            size=smooth(state.size, size),
            batches=smooth(state.batches, min(one.batches, _MOST_BYTES)),
            room=_within(held * (cost.room / held) ** _REMEMBERED_ROOM, 1, _MOST_RUNS),
            samples=(*state.samples, Sample(size, seconds, runs))[-SAMPLES:],
            counted=tuple(sorted({*state.counted, one.start})[-REMEMBERED:]),
        )

    def _parallel(self, cost: Cost) -> int:
        most = cost.capacity(self.parallel)
        return next((some for some in range(1, self.parallel) if cost.capacity(some) >= _ENOUGH * most), self.parallel)

    def _ceiling(self, cost: Cost, parallel: int, pressure: float) -> float:
        work = max(self.max_seconds / cost.factor(parallel) - cost.fixed, cost.fixed)
        eased = self.ease_factor if pressure >= self.ease_above else 1.0
        return _within(min(self.max_bytes * eased, work / cost.per_byte), self.min_bytes, self.max_bytes)


def _size(state: State, waiting: Waiting) -> float:
    size = waiting.batches * _batch_size(state) if waiting.size is None else waiting.size
    return _within(size, 0, _MOST_BYTES)


def _may_have_more_room(state: State, cost: Cost) -> bool:
    """Whether runs filled the room that there is said to be, and none remembered was more: nobody knows then."""
    return _NEARLY * cost.room <= seen_at_once(state.samples) <= _MORE * cost.room


def _batch_size(state: State) -> float:
    return state.size / state.batches if state.size > 0 and state.batches > 0 else _BATCH_SIZE


def _rate(state: State, size: float, window: float) -> float:
    """Of the ranges before, and of what came since; the longer that is, the more it says."""
    window = _within(window, 1, _MOST_SECONDS)
    now = size / max(window, _WINDOW / 3)
    if not state.counted:
        return now
    before = state.size / max(state.arrival_seconds, 1.0)
    return (before * _WINDOW + now * window) / (_WINDOW + window)


def _split(size: float, enough: float, most: float, free: int, cost: Cost) -> float:
    """The budget: enough, or what waits in as few parts as land it nearly as soon as any number would."""
    if size <= enough:
        return enough
    seconds = [cost.seconds(size / parts, parts) for parts in range(1, max(1, free) + 1)]
    parts = next(parts for parts, taken in enumerate(seconds, 1) if _AS_SOON * taken <= min(seconds))
    return _within((_SPARE if parts > 1 else _LEEWAY) * size / parts, enough, most)


def _busy(runs: int, worth: int) -> str:
    if runs >= worth:
        go_on = "run goes on" if runs == 1 else "runs go on"
        return f"{runs} {go_on}, and more at once would only slow each other"
    return "memory has no room for one more run yet"


def _catch_up(size: float, in_flight: float, usual: float, parallel: int, gain: float, cost: Cost) -> float | None:
    in_flight = _within(in_flight, 0, _MOST_BYTES)
    if size <= usual and in_flight <= parallel * usual:
        return 0.0
    return (size + in_flight) / gain + cost.fixed if gain > 0 else None


def _within(value: float, low: float, high: float) -> float:
    """Also for what is no number: the low end."""
    return min(max(low, value), high) if value == value else low  # noqa: PLR0124 - NaN alone differs from itself
