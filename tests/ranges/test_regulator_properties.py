"""Whatever is observed, floors and ceilings hold."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.ranges.regulator import Decision, Observation, Regulator, State, Waiting
from tests.protocol.hostile import REPEATABLE

ANY = st.one_of(
    st.floats(),
    st.floats(0, 1e3),
    st.floats(1e-300, 1e-3),
    st.sampled_from([0.0, -1.0, 1e308, math.inf, math.nan, 5e-324]),
)
COUNTS = st.one_of(st.integers(-1, 100), st.integers(0, 2**64))
OBSERVATIONS = st.lists(
    st.builds(Observation, st.integers(0, 500), st.one_of(ANY, COUNTS), COUNTS, ANY, ANY, ANY), max_size=40
)
LIKELY = st.lists(
    st.builds(
        Observation,
        st.integers(0, 10_000),
        st.floats(1, 4e9),
        st.integers(1, 5_000),
        st.floats(0.1, 4_000),
        st.floats(0, 1e5),
        st.floats(1, 8),
    ),
    max_size=60,
)
WAITING = st.builds(Waiting, st.integers(0, 2**40), ANY, st.one_of(st.none(), ANY))


@st.composite
def regulators(draw: st.DrawFn) -> Regulator:
    low, wait = draw(st.integers(1, 1 << 30)), draw(st.floats(0, 1e4))
    return Regulator.of(
        draw(st.sampled_from(["throughput", "balanced", "low_latency"])),
        parallel=draw(st.integers(1, 100)),
        target=draw(st.floats(0.01, 1)),
        min_bytes=low,
        max_bytes=draw(st.integers(low, 1 << 40)),
        max_batches=draw(st.integers(1, 100_000)),
        min_wait=wait,
        max_wait=draw(st.floats(wait, 1e5)),
        max_seconds=draw(st.floats(1, 1e5)),
        smoothing=draw(st.floats(0.01, 1)),
        forgetting=draw(st.floats(0, 0.999)),
        fixed_seconds=draw(st.floats(0.01, 1e4)),
        bytes_per_second=draw(st.floats(1e3, 1e12)),
        expected_room=draw(st.floats(1, 100)),
        ease_factor=draw(st.floats(0.01, 1)),
    )


def check(regulator: Regulator, decision: Decision) -> None:
    assert regulator.min_bytes <= decision.budget <= regulator.max_bytes
    assert regulator.min_wait <= decision.limits.max_wait <= regulator.max_wait
    assert regulator.min_wait <= decision.interval <= regulator.max_wait
    assert decision.limits.max_batches == regulator.max_batches
    assert 0 <= decision.ranges <= regulator.parallel
    assert 1 <= decision.parallel <= regulator.parallel
    assert decision.cost.fixed > 0
    assert decision.cost.per_byte > 0
    assert 1 <= decision.cost.room <= 1200, "a step above the most that anybody may have seen"
    figures = (decision.rate, decision.cost.fixed, decision.cost.per_byte, decision.rho, decision.catch_up_seconds)
    assert all(one is None or (math.isfinite(one) and one >= 0) for one in figures)


@settings(REPEATABLE, max_examples=200)
@given(
    regulators(), st.one_of(OBSERVATIONS, LIKELY), WAITING, st.one_of(st.none(), ANY), st.lists(ANY, max_size=5), ANY
)
def test_whatever_is_observed_limits_hold_and_every_figure_is_a_number(
    regulator: Regulator,
    observations: list[Observation],
    waiting: Waiting,
    since_cut: float | None,
    running: list[float],
    pressure: float,
) -> None:
    state = regulator.update(State(), observations)
    given_: dict[str, Any] = {"since_cut": since_cut, "running": running, "pressure": pressure}
    check(regulator, regulator.decide(state, waiting, **given_))
    check(regulator, regulator.decide(state, waiting, **given_, others=running, in_flight=pressure, room=0))
    text = json.dumps(state.to_json(), allow_nan=False)
    assert State.from_json(json.loads(text)) == state
    assert regulator.update(state, observations) == state


@settings(REPEATABLE, max_examples=50)
@given(LIKELY, LIKELY, st.floats(0, 1e12))
def test_with_nothing_in_flight_there_is_always_room_for_a_range(
    before: list[Observation], after: list[Observation], size: float
) -> None:
    regulator = Regulator()
    state = regulator.update(regulator.update(State(), before), after)
    decision = regulator.decide(state, Waiting(size=size, seconds=regulator.max_wait), since_cut=regulator.max_wait)
    check(regulator, decision)
    assert decision.ranges >= 1
    beside = regulator.decide(state, Waiting(size=size), others=[5.0] * 9, room=0)
    assert (beside.ranges, beside.busy) == (1, ""), "whatever else runs"
    assert decision.limits.max_wait == regulator.min_wait, "and nothing that is due waits on"


@settings(REPEATABLE, max_examples=50)
@given(LIKELY, st.floats(0, 1e12), st.floats(0, 1e4))
def test_more_that_waits_never_makes_a_range_smaller_than_what_is_enough(
    observations: list[Observation], size: float, seconds: float
) -> None:
    """Behind is never a reason to shrink: with twice as much waiting, a range is at least as large, but for a split."""
    regulator = Regulator(parallel=1)
    state = regulator.update(State(), observations)
    less, more = (
        regulator.decide(state, Waiting(size=much, seconds=seconds), since_cut=5.0) for much in (size, 2 * size)
    )
    assert more.budget >= less.budget
