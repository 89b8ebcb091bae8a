"""What the regulator decides, learns, keeps and refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.regulator import Decision, Observation, Regulator, State, Waiting
from objbuf_dagster.ranges.regulator_state import REMEMBERED, VERSION

MB = 1e6
GIB = 1 << 30
BALANCED = Regulator()


def landed(
    *sizes: float, rate: float = MB, fixed: float = 20.0, speed: float = 400 * MB, at_once: Sequence[float] = (1.0,)
) -> list[Observation]:
    """Ranges of these sizes, that arrived at a rate and cost what they should."""
    found = []
    for number, size in enumerate(sizes):
        seconds = fixed + size / speed
        runs = at_once[number % len(at_once)]
        found.append(Observation(number * 10, size, 10, seconds * max(1.0, runs / 1.05), size / rate, runs))
    return found


def learned(*sizes: float, regulator: Regulator = BALANCED, **given: Any) -> State:
    return regulator.update(State(), landed(*sizes, **given))


ALONE = learned(*[60 * MB, 90 * MB] * 10, rate=3 * MB)
CROWDED = learned(*[60 * MB, 90 * MB, 70 * MB] * 10, rate=3 * MB, at_once=(1.0, 4.0))


# Deciding


def test_the_budget_is_the_smallest_that_keeps_the_target() -> None:
    decision = BALANCED.decide(ALONE, Waiting(size=0.0), since_cut=1.0)
    cost, capacity = decision.cost, decision.cost.capacity(decision.parallel)
    rho = cost.seconds(decision.budget) / (capacity * decision.budget / decision.rate)
    assert rho == pytest.approx(0.95, rel=0.01)
    assert decision.interval == pytest.approx(decision.budget / decision.rate, rel=0.01)


def test_a_lower_target_makes_larger_ranges() -> None:
    usual = BALANCED.decide(ALONE, Waiting(size=0.0), since_cut=1.0)
    fewer = replace(BALANCED, target=0.4).decide(ALONE, Waiting(size=0.0), since_cut=1.0)
    assert fewer.budget > 1.5 * usual.budget
    assert fewer.interval > 1.5 * usual.interval


def test_behind_it_grows_up_to_the_ceiling() -> None:
    budgets = [
        BALANCED.decide(CROWDED, Waiting(size=size, seconds=60), since_cut=20.0).budget
        for size in (0.0, 200 * MB, 500 * MB, 50 * GIB)
    ]
    assert budgets == sorted(budgets)
    assert budgets[0] < 200 * MB < budgets[1] < budgets[2] < budgets[3] == BALANCED.max_bytes


def test_more_than_can_be_kept_up_with_asks_for_the_ceiling_and_says_that_it_gets_more() -> None:
    flood = learned(*[GIB] * 5, rate=2_000 * MB)
    decision = BALANCED.decide(flood, Waiting(size=100 * GIB, seconds=50), since_cut=5.0)
    assert decision.budget == BALANCED.max_bytes
    assert decision.catch_up_seconds is None
    assert decision.rho is not None
    assert decision.rho > 1


def test_a_slow_sink_bounds_a_range_by_its_time_but_never_so_that_the_fixed_cost_rules() -> None:
    slow = learned(*[100 * MB, 50 * MB, 200 * MB, 80 * MB] * 8, speed=1 * MB, rate=0.5 * MB)
    waiting = Waiting(size=10 * GIB, seconds=3600)
    long, short = (
        replace(BALANCED, max_seconds=seconds).decide(slow, waiting, since_cut=60.0) for seconds in (300.0, 1.0)
    )
    assert long.cost.seconds(long.budget, long.parallel) == pytest.approx(300, rel=0.05)
    assert short.cost.per_byte * short.budget == pytest.approx(short.cost.fixed, rel=0.05)


def test_of_a_backlog_ranges_land_one_after_the_other_once_bytes_cost_more_than_starts() -> None:
    """Of all sizes, that of the least mean time until a batch of the backlog has landed, when nothing else comes."""
    slow = learned(*[100 * MB, 50 * MB, 200 * MB, 80 * MB] * 8, speed=5 * MB, rate=0.001 * MB)
    decision = BALANCED.decide(slow, Waiting(size=4_000 * MB, seconds=86_400), since_cut=60.0)
    capacity = decision.cost.capacity(decision.parallel)

    def mean(size: float) -> float:
        return decision.cost.seconds(size) * (4_000 * MB / size / capacity + 1) / 2

    least = min(map(mean, (number * MB for number in range(20, 2_000, 5))))
    assert mean(decision.budget) < 1.01 * least
    assert decision.budget < 900 * MB


def test_while_nothing_is_known_a_backlog_gets_as_many_runs_as_fixed_limits_would_give_it() -> None:
    large = BALANCED.decide(State(), Waiting(size=50 * GIB, seconds=86_400))
    small = BALANCED.decide(State(), Waiting(size=1 * MB, seconds=5))
    assert (large.ranges, small.ranges) == (4, 2)
    assert BALANCED.decide(State(), Waiting(size=4 * GIB, seconds=86_400)).budget < GIB // 2, "a sink may be slow"


def test_bytes_that_cost_more_than_a_start_do_not_wait_while_a_run_idles() -> None:
    slow = learned(*[100 * MB, 50 * MB, 200 * MB, 80 * MB] * 8, speed=5 * MB, rate=20 * MB)
    much, little = (
        BALANCED.decide(slow, Waiting(size=size, seconds=6.0), since_cut=6.0).limits.max_wait
        for size in (300 * MB, 30 * MB)
    )
    assert much == 0 < little


def test_pressure_halves_the_ceiling() -> None:
    waiting = Waiting(size=50 * GIB, seconds=600)
    assert BALANCED.decide(ALONE, waiting, pressure=0.64).budget == GIB
    assert BALANCED.decide(ALONE, waiting, pressure=0.65).budget == GIB // 2


def test_what_comes_after_a_pause_is_cut_at_once_and_what_follows_waits() -> None:
    after_an_hour = BALANCED.decide(ALONE, Waiting(1, 0.5), since_cut=3600.0)
    assert after_an_hour.limits.max_wait == 0
    soon_after = BALANCED.decide(ALONE, Waiting(1, 0.5), since_cut=2.0)
    assert soon_after.limits.max_wait == pytest.approx(0.5 + soon_after.interval - 2)
    assert BALANCED.decide(State(), Waiting(1, 0.5)).limits.max_wait == 0, "nor does the first of all"


def test_nothing_waits_longer_than_max_wait() -> None:
    patient = replace(BALANCED, min_wait=50.0, target=0.01)
    decision = patient.decide(ALONE, Waiting(5, 59.0), since_cut=1.0)
    assert decision.interval == decision.limits.max_wait == BALANCED.max_wait


def test_runs_that_only_slow_each_other_are_not_started_together() -> None:
    small, large = Waiting(size=10 * MB, seconds=20), Waiting(size=100 * GIB, seconds=600)
    assert BALANCED.decide(CROWDED, small).parallel == 1
    assert [BALANCED.decide(CROWDED, small, running=[5.0] * runs).ranges for runs in range(3)] == [1, 0, 0]
    at_the_ceiling = [BALANCED.decide(CROWDED, large, running=[5.0] * runs).ranges for runs in range(3)]
    assert at_the_ceiling == [2, 1, 0], "ranges that cannot grow: one is ready for when the other has ended"


def test_runs_that_do_not_slow_each_other_use_all_there_is() -> None:
    apart = [replace(one, at_once=runs) for one, runs in zip(landed(*[60 * MB] * 20), [1.0, 3.0] * 10, strict=True)]
    state = BALANCED.update(State(), apart)
    assert [BALANCED.decide(state, Waiting(size=10 * MB), running=[5.0] * runs).ranges for runs in (2, 3)] == [2, 1]
    few = BALANCED.decide(state, Waiting(size=900 * MB, seconds=900), since_cut=30.0)
    assert few.budget < 900 * MB, "a backlog that all of them share lands soonest"


def test_one_more_run_is_tried_where_as_many_as_there_are_never_slowed_each_other() -> None:
    def after(*at_once: float) -> int:
        seen = [replace(one, at_once=runs) for one, runs in zip(landed(*[60 * MB] * 70), at_once, strict=False)]
        seen = [replace(one, seconds=20.15 * max(1.0, one.at_once / 2)) for one in seen]
        return BALANCED.decide(BALANCED.update(State(), seen), Waiting(size=10 * MB), running=[5.0, 5.0]).ranges

    assert after(*[1.9] * 20) == 1
    assert after(*[1.9] * 15, 2.9, 2.9, 1.9) == 0, "it was tried, and slowed the others"
    assert after(*[1.9] * 10, 2.9, 2.9, *[1.9] * 28) == 0, "which is remembered for a while"
    assert after(2.9, 2.9, *[1.9] * 61) == 1, "and tried again now and then"
    assert after(*[1.0] * 20) == 0, "where one was enough, nobody needs a third"


def test_a_hundred_runs_that_do_not_slow_each_other_are_not_taken_for_sixteen() -> None:
    wide = replace(BALANCED, parallel=100, expected_room=100.0)
    many = [
        Observation(n * 10, size, 10, 20 + size / (400 * MB), 10.0, runs)
        for n, (size, runs) in enumerate(zip([60 * MB, 900 * MB] * 20, [40.0, 30.0, 60.0, 50.0] * 10, strict=True))
    ]
    decision = wide.decide(wide.update(State(), many), Waiting(size=10 * MB))
    assert decision.parallel > 50
    assert decision.cost.fixed == pytest.approx(20, rel=0.1)
    assert 1 / decision.cost.per_byte == pytest.approx(400 * MB, rel=0.3)


def test_a_quiet_night_before_a_range_does_not_hide_the_load_of_the_day() -> None:
    before = BALANCED.decide(ALONE, Waiting(), since_cut=1.0)
    night = Observation(10_000, 60 * MB, 10, 20.0, 8 * 3600.0)
    morning = BALANCED.decide(BALANCED.update(ALONE, [night]), Waiting(), since_cut=1.0)
    assert morning.rho is not None
    assert before.rho is not None
    assert morning.rho > 0.4 * before.rho
    assert morning.rate > 0.4 * before.rate


def test_what_one_run_lands_as_soon_is_not_split() -> None:
    apart = replace(BALANCED, expected_room=16.0, bytes_per_second=400 * MB)
    assert apart.decide(State(), Waiting(size=50 * MB, seconds=9), since_cut=30.0).budget > 50 * MB


def test_a_run_that_takes_far_too_long_does_not_count() -> None:
    assert BALANCED.decide(CROWDED, Waiting(10, 5), running=[50.0]).ranges == 0
    assert BALANCED.decide(CROWDED, Waiting(10, 5), running=[50_000.0]).ranges == 1


def test_why_nothing_may_start_is_told() -> None:
    some = Waiting(10, 5)
    assert BALANCED.decide(CROWDED, some).busy == ""
    assert BALANCED.decide(CROWDED, some, running=[5.0]).busy.startswith("1 run goes on, and more at once")
    assert BALANCED.decide(CROWDED, some, running=[5.0], others=[5.0]).busy.startswith("2 runs go on")
    assert BALANCED.decide(ALONE, some, running=[5.0], room=0).busy.startswith("memory has no room")
    assert BALANCED.decide(CROWDED, Waiting(), running=[5.0]).busy == "", "where nothing waits, nothing is missed"


def test_what_is_in_flight_is_to_be_caught_up_with() -> None:
    nothing, little = Waiting(), Waiting(size=1 * MB, seconds=1)
    assert BALANCED.decide(ALONE, nothing, since_cut=1.0, in_flight=1 * MB).catch_up_seconds == 0
    for waiting in (nothing, little):
        found = BALANCED.decide(ALONE, waiting, since_cut=1.0, in_flight=20 * GIB).catch_up_seconds
        assert found is not None
        assert found > 20 * GIB / (400 * MB) / 4


def test_time_to_catch_up_is_told() -> None:
    assert BALANCED.decide(ALONE, Waiting(size=1 * MB, seconds=1), since_cut=1.0).catch_up_seconds == 0
    near, far = (
        BALANCED.decide(CROWDED, Waiting(size=size, seconds=86_400), since_cut=1.0).catch_up_seconds
        for size in (10 * GIB, 20 * GIB)
    )
    assert near is not None
    assert far is not None
    assert 10 * GIB / (60 * MB) < near < 300
    assert far == pytest.approx(2 * near, rel=0.1)


def test_waiting_batches_are_taken_to_be_as_large_as_those_before() -> None:
    known = BALANCED.decide(ALONE, Waiting(size=100 * 7.5 * MB, seconds=30), since_cut=30.0)
    estimated = BALANCED.decide(ALONE, Waiting(100, 30), since_cut=30.0)
    assert estimated.budget == pytest.approx(known.budget, rel=0.1)


def test_off_gives_the_fixed_limits_whatever_it_knows() -> None:
    limits = Limits(7, 8_000, 9.0)
    off = Regulator(on=False, limits=limits, parallel=3)
    for state in (State(), ALONE, CROWDED):
        for waiting in (Waiting(), Waiting(10**6, 10**6)):
            decision = off.decide(state, waiting, since_cut=1.0, running=[1.0], pressure=0.7)
            assert decision.limits == limits
            assert decision.ranges == 2


# Learning


def test_costs_are_learned_from_what_happened() -> None:
    cost = BALANCED.cost(learned(*[50 * MB, 900 * MB, 200 * MB] * 10, fixed=35.0, speed=40 * MB))
    assert cost.fixed == pytest.approx(35, rel=0.05)
    assert 1 / cost.per_byte == pytest.approx(40 * MB, rel=0.05)


def test_rho_is_processing_over_arrival_both_smoothed() -> None:
    one, other = Observation(0, 60 * MB, 10, 20.0, 20.0), Observation(10, 60 * MB, 10, 40.0, 40.0)
    state = BALANCED.update(State(), [one, other])
    assert state.seconds == state.arrival_seconds == pytest.approx(20 + 0.3 * 20)
    rho = BALANCED.decide(state, Waiting()).rho
    capacity = BALANCED.cost(state).capacity(BALANCED.decide(state, Waiting()).parallel)
    assert rho == pytest.approx(1 / capacity)


def test_a_range_counts_once_however_often_it_is_told() -> None:
    told = landed(*[60 * MB] * 3)
    once = BALANCED.update(State(), told)
    assert BALANCED.update(once, told) == once
    assert BALANCED.update(once, reversed(told)) == once


def test_a_backfill_of_long_ago_says_nothing() -> None:
    state = BALANCED.update(State(), [replace(one, start=one.start + 1_000) for one in landed(*[MB] * 200)])
    assert len(state.counted) == REMEMBERED
    assert BALANCED.update(state, [Observation(3, GIB, 1, 900.0, 1.0)]) == state


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": 0.0},
        {"seconds": -5.0},
        {"seconds": float("nan")},
        {"size": 0},
        {"batches": 0},
        {"arrival_seconds": float("inf")},
        {"at_once": float("nan")},
    ],
)
def test_a_measurement_that_cannot_be_changes_nothing(damage: dict[str, Any]) -> None:
    assert BALANCED.update(ALONE, [replace(Observation(9_999, MB, 1, 20.0, 1.0), **damage)]) == ALONE


def test_a_clock_that_went_back_leaves_a_decision_to_make() -> None:
    state = BALANCED.update(State(), [Observation(n, 60 * MB, 10, 20.0, -100.0) for n in range(5)])
    decision = BALANCED.decide(state, Waiting(10, -50.0), since_cut=-3.0, running=[-1.0])
    assert BALANCED.min_bytes <= decision.budget <= BALANCED.max_bytes


# Settings


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("on", "yes"),
        ("limits", None),
        ("parallel", 0),
        ("parallel", 2.5),
        ("target", 0.0),
        ("target", 1.1),
        ("target", float("nan")),
        ("min_bytes", 0),
        ("max_bytes", 1000),
        ("max_batches", 0),
        ("min_wait", -1.0),
        ("max_wait", float("inf")),
        ("max_seconds", 0.0),
        ("smoothing", 0.0),
        ("smoothing", 1.5),
        ("forgetting", 1.0),
        ("fixed_seconds", 0.0),
        ("bytes_per_second", 0.0),
        ("expected_room", 0.5),
        ("tick_seconds", -1.0),
        ("ease_above", -0.1),
        ("ease_factor", 0.0),
        ("target", "0.7"),
        ("max_bytes", True),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(setting: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=rf"regulator's {setting} must be"):
        Regulator.of("balanced", **{setting: value})


def test_floors_above_ceilings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="max_bytes must be a whole number from 2097152"):
        Regulator(min_bytes=2 << 20, max_bytes=1 << 20)
    with pytest.raises(InvalidInput, match="max_wait must be a number from 30"):
        Regulator(min_wait=30, max_wait=29)


def test_an_unknown_profile_or_setting_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="throughput, balanced, low_latency"):
        Regulator.of("fast")
    with pytest.raises(InvalidInput, match="no setting budget"):
        Regulator.of("balanced", budget=1)


def test_profiles_can_be_changed_in_every_number() -> None:
    assert Regulator.of() == Regulator.of("balanced") == Regulator()
    changed = Regulator.of("throughput", max_wait=90.0)
    assert (changed.max_wait, changed.target) == (90.0, Regulator.of("throughput").target)


def reached(**settings: Any) -> Decision:
    regulator = Regulator(**settings)
    state = learned(*[60 * MB, 90 * MB] * 10, rate=3 * MB, regulator=regulator, at_once=(1.0, 2.0, 3.0))
    return regulator.decide(state, Waiting(size=80 * MB, seconds=3.0), since_cut=4.0, running=[10.0], pressure=0.7)


@pytest.mark.parametrize(
    "change",
    [
        {"on": False},
        {"parallel": 1, "max_bytes": 1 << 26},
        {"target": 0.3},
        {"min_bytes": 1 << 29},
        {"max_bytes": 1 << 21},
        {"max_batches": 17},
        {"min_wait": 30.0},
        {"max_wait": 2.0},
        {"max_seconds": 1.0, "bytes_per_second": 1_000.0, "forgetting": 0.0},
        {"smoothing": 1.0},
        {"forgetting": 0.1},
        {"fixed_seconds": 2.0},
        {"bytes_per_second": 1e5},
        {"expected_room": 16.0},
        {"tick_seconds": 60.0},
        {"ease_above": 0.9, "max_bytes": 1 << 26},
        {"ease_factor": 0.01},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_reaches_what_it_sets(change: dict[str, Any]) -> None:
    base = {name: value for name, value in change.items() if name != next(iter(change))}
    assert reached(**change) != reached(**base)


# The state


@pytest.mark.parametrize("state", [State(), ALONE, CROWDED], ids=["empty", "alone", "crowded"])
def test_a_state_comes_back_as_it_was_written(state: State) -> None:
    assert State.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_no_state_is_the_empty_one() -> None:
    assert State.from_json(None) == State()


def test_a_state_of_an_older_format_is_learned_anew() -> None:
    assert State.from_json({"version": 1, "seconds": 20.0, "sums": [0.0] * 9}) == State()
    without_room = {name: value for name, value in ALONE.to_json().items() if name != "room"}
    assert State.from_json({**without_room, "version": 2}) == State()


@pytest.mark.parametrize("version", [0, VERSION + 1, "2", None, True, 2.0, [2]])
def test_a_state_of_another_release_is_refused_with_what_to_do(version: object) -> None:
    with pytest.raises(InvalidInput, match=r"another release.*Reset the sensor's cursor"):
        State.from_json({**ALONE.to_json(), "version": version})


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": -1.0},
        {"size": float("nan")},
        {"size": 10**400},
        {"batches": "10"},
        {"arrival_seconds": None},
        {"seconds": True},
        {"samples": [[1.0, 1.0]]},
        {"samples": [[1.0, 1.0, float("inf")]]},
        {"samples": [[1.0, 0.0, 1.0]]},
        {"samples": [[1.0, 5e-324, 100.0]]},
        {"samples": [[1.0, 1.0, 1e30]]},
        {"samples": [[1.0, 1.0, 0.5]]},
        {"samples": [[1.0, 1.0, 1.0]] * 61},
        {"samples": {"a": 1}},
        {"room": 0.5},
        {"room": 1e9},
        {"counted": None},
        {"counted": [1.5]},
        {"counted": [3, 2]},
        {"counted": [-1]},
        {"counted": list(range(REMEMBERED + 1))},
        {"another": 1},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused_with_what_to_do(damage: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"damaged \(.*Reset the sensor's cursor"):
        State.from_json({**ALONE.to_json(), **damage})


@pytest.mark.parametrize("given", [[], "x", 3, {"version": VERSION}])
def test_what_is_no_state_at_all_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="Reset the sensor's cursor"):
        State.from_json(given)
