"""The regulator against fixed limits and against the plain rule, in simulated time: `pytest -s` shows the numbers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.regulator import Observation, Regulator, State
from tests.ranges.simulation import (
    CLUSTER,
    FOUR,
    HEAD,
    MB,
    RULES,
    SCENARIOS,
    SMALL,
    Fixed,
    Outcome,
    Regulated,
    Rule,
    Scenario,
    Simulation,
    World,
    compare,
    flow,
    lines,
    seeds_of,
    slows_down,
    together,
)

BY_NAME = {one.name: one for one in SCENARIOS}
WORLDS = (SMALL, FOUR, CLUSTER)
ALL = [pytest.param(world, one, id=f"{one.name}, {world.name}") for one in SCENARIOS for world in WORLDS]
EVEN = {
    (FOUR, "burst of 20 times"): 1.03,
    (FOUR, "slow sink"): 1.06,
    (FOUR, "steady, 5 MB/s"): 1.07,
    (FOUR, "burst, 5 MB/s"): 1.03,
    (CLUSTER, "backlog, 5 MB/s"): 1.04,
}
"""Where fixed limits happen to fit, and lag is about the same: how much more it may be."""


@functools.cache
def compared(world: World, scenario: Scenario) -> dict[str, Outcome]:
    outcomes = compare(world, scenario)
    print("", HEAD, *lines(world, scenario, outcomes), sep="\n")
    return outcomes


PARTS = {
    SMALL: {
        "steady load": 0.44,
        "burst of 20 times": 0.24,
        "burst, batches too": 0.44,
        "backlog of a day": 0.55,
        "slow sink": 0.40,
        "slow sink, 3 times": 0.78,
        "trickle": 0.82,
        "steady, 5 MB/s": 0.44,
        "steady 8, 5 MB/s": 0.83,
        "burst, 5 MB/s": 0.54,
        "backlog, 5 MB/s": 0.98,
        "trickle, 5 MB/s": 0.82,
    },
    FOUR: {
        "steady load": 0.99,
        "burst of 20 times": 1.01,
        "burst, batches too": 0.99,
        "backlog of a day": 0.56,
        "slow sink": 1.04,
        "slow sink, 3 times": 0.80,
        "trickle": 0.77,
        "steady, 5 MB/s": 1.05,
        "steady 8, 5 MB/s": 0.77,
        "burst, 5 MB/s": 0.98,
        "backlog, 5 MB/s": 0.96,
        "trickle, 5 MB/s": 0.77,
    },
    CLUSTER: {
        "steady load": 0.90,
        "burst of 20 times": 0.88,
        "burst, batches too": 0.89,
        "backlog of a day": 0.55,
        "slow sink": 0.87,
        "slow sink, 3 times": 0.91,
        "trickle": 0.77,
        "steady, 5 MB/s": 0.86,
        "steady 8, 5 MB/s": 0.96,
        "burst, 5 MB/s": 0.88,
        "backlog, 5 MB/s": 1.02,
        "trickle, 5 MB/s": 0.77,
    },
}
"""Mean lag, in parts of the better one of the other rules: above 1, the regulator loses.

It gains nothing on four cores where the fixed limits happen to fit: see its module. There ratios of single seeds differ
by up to 0.09, and those of eight by a third of it.
"""


@pytest.mark.parametrize(
    ("world", "scenario", "part"),
    [
        pytest.param(world, BY_NAME[name], part, id=f"{name}, {world.name}")
        for world, parts in PARTS.items()
        for name, part in parts.items()
    ],
)
def test_lag_is_the_stated_part_of_the_better_one_of_the_other_rules(
    world: World, scenario: Scenario, part: float
) -> None:
    outcomes = compared(world, scenario)
    ours, others = outcomes["regulator"], (outcomes["fixed"], outcomes["plain rule"])
    assert ours.mean / min(one.mean for one in others) == pytest.approx(part, abs=0.02)
    assert ours.left == 0
    assert ours.largest <= 1 << 30


@pytest.mark.parametrize(("world", "scenario"), ALL)
def test_mean_lag_is_below_that_of_either_rule_but_where_fixed_limits_fit(world: World, scenario: Scenario) -> None:
    outcomes = compared(world, scenario)
    most = EVEN.get((world, scenario.name), 1.0)
    for name in RULES.keys() - {"regulator"}:
        assert outcomes["regulator"].mean < most * outcomes[name].mean, name


@pytest.mark.parametrize(("world", "scenario"), ALL)
def test_the_worst_twentieth_waits_a_quarter_longer_at_the_most(world: World, scenario: Scenario) -> None:
    outcomes = compared(world, scenario)
    for name in RULES.keys() - {"regulator"}:
        assert outcomes["regulator"].percentile(0.95) <= 1.25 * outcomes[name].percentile(0.95), name


def test_a_sink_that_slows_down_is_not_taken_for_runs_that_slow_each_other() -> None:
    """Seen of runs that were two at a time before and after, it looks the same; four times the lag came of it."""
    outcomes = compared(CLUSTER, BY_NAME["slow sink, 3 times"])
    assert outcomes["regulator"].mean < 1.02 * outcomes["fixed"].mean


def of_eight(world: World, scenario: Scenario, rule: Callable[[], Rule]) -> Outcome:
    return together(Simulation(world, scenario, rule(), seed).run() for seed in range(1, 9))


def test_near_the_limit_of_all_runs_a_sink_that_slows_down_is_learned_slowly() -> None:
    """What it costs: with more runs and a slower sink at the same moment, nobody can tell which it was."""
    scenario = Scenario("slow sink, 5 times", flow((3600, 20 * MB), size=0.5 * MB), sink=slows_down)
    fixed, ours = (of_eight(CLUSTER, scenario, rule) for rule in (Fixed, Regulated))
    assert 1.05 < ours.mean / fixed.mean < 1.25
    assert ours.left == 0


def test_at_nearly_all_that_runs_can_do_who_starts_fewer_of_them_is_later() -> None:
    """What it costs not to start all four on four cores, at 98 per cent of what they can land."""
    scenario = Scenario("steady 100", flow((2400, 100 * MB), size=8 * MB))
    fixed, ours = (of_eight(FOUR, scenario, rule) for rule in (Fixed, Regulated))
    assert 1.05 < ours.mean / fixed.mean < 1.35
    assert ours.left == 0


def test_every_scenario_is_stated_for_every_world() -> None:
    assert all(parts.keys() == BY_NAME.keys() for parts in PARTS.values())


def test_larger_batches_in_a_burst_make_larger_ranges() -> None:
    outcome = compared(SMALL, BY_NAME["burst, batches too"])["regulator"]
    assert outcome.largest > 500e6, "twenty seconds of it, and not as many batches as there were before"


@pytest.mark.parametrize(
    ("scenario", "part"),
    [
        ("steady load", 0.6),
        ("burst of 20 times", 0.4),
        ("burst, batches too", 0.6),
        ("slow sink", 0.6),
        ("trickle", 0.9),
    ],
)
def test_on_a_machine_that_one_run_fills_lag_falls_to_a_part(scenario: str, part: float) -> None:
    outcomes = compared(SMALL, BY_NAME[scenario])
    assert outcomes["regulator"].mean < part * outcomes["fixed"].mean
    if scenario != "trickle":  # there, what saves lag is not to wait for company that does not come
        assert outcomes["regulator"].runs < 0.9 * outcomes["fixed"].runs


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_backlog_of_a_day_lands_in_less_than_half_of_the_time(world: World) -> None:
    outcomes = compared(world, BY_NAME["backlog of a day"])
    assert outcomes["regulator"].caught_up < 0.5 * outcomes["fixed"].caught_up
    assert outcomes["regulator"].caught_up < 0.9 * outcomes["plain rule"].caught_up


@pytest.mark.parametrize("scenario", ["steady load", "burst of 20 times", "slow sink"])
def test_halving_ranges_when_behind_never_catches_up_where_the_fixed_cost_rules(scenario: str) -> None:
    outcomes = compared(SMALL, BY_NAME[scenario])
    assert outcomes["plain rule"].left > 0, "an hour after the last batch"
    assert outcomes["plain rule"].mean > 10 * outcomes["fixed"].mean


def test_after_a_burst_lag_is_back_where_it_was() -> None:
    outcome = compared(SMALL, BY_NAME["burst of 20 times"])["regulator"]
    landed = list(zip(outcome.arrived, outcome.lags, strict=True))
    before = [lag for arrived, lag in landed if arrived < 900]
    after = [lag for arrived, lag in landed if arrived > 1200 + 180]
    assert sum(after) / len(after) < 1.25 * sum(before) / len(before)


def test_off_is_the_fixed_limits_to_the_last_second() -> None:
    scenario = BY_NAME["burst of 20 times"]
    off = Simulation(SMALL, scenario, Regulated(Regulator(on=False, limits=Limits())), seed=3).run()
    assert off == Simulation(SMALL, scenario, Fixed(), seed=3).run()


NAMED = ("steady load", "burst of 20 times", "slow sink", "trickle", "steady, 5 MB/s")


@functools.cache
def of_profile(profile: str, world: World, scenario: str) -> Outcome:
    if profile == "balanced":
        return compared(world, BY_NAME[scenario])["regulator"]
    given = BY_NAME[scenario]
    return together(
        Simulation(world, given, Regulated(Regulator.of(profile)), seed).run() for seed in seeds_of(world, given)
    )


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("scenario", NAMED)
def test_throughput_has_far_fewer_runs_and_a_lag_that_stays_bounded(world: World, scenario: str) -> None:
    throughput, balanced = (of_profile(profile, world, scenario) for profile in ("throughput", "balanced"))
    assert throughput.runs < 0.8 * balanced.runs
    assert throughput.mean < 2.2 * balanced.mean


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("scenario", NAMED)
def test_low_latency_is_no_later_than_balanced(world: World, scenario: str) -> None:
    """But for chance: two per cent, over these seeds."""
    low, balanced = (of_profile(profile, world, scenario) for profile in ("low_latency", "balanced"))
    assert low.mean < 1.02 * balanced.mean


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_low_latency_is_sooner_in_a_burst_of_bytes_that_cost_much(world: World) -> None:
    low, balanced = (of_profile(profile, world, "burst, 5 MB/s") for profile in ("low_latency", "balanced"))
    assert low.mean < 0.98 * balanced.mean
    assert low.percentile(0.95) < balanced.percentile(0.95)
    assert low.runs > balanced.runs


def test_a_state_that_was_written_and_read_at_every_tick_decides_the_same() -> None:
    scenario = BY_NAME["slow sink"]
    kept = Simulation(SMALL, scenario, Regulated(), seed=2).run()
    assert Simulation(SMALL, scenario, Restarted(), seed=2).run() == kept


def test_a_run_that_hangs_holds_the_others_up_for_minutes_at_most() -> None:
    """Where one run at a time is right, one that never ends must not be the last."""
    world = replace(SMALL, failures=0.0, hangs_at=600.0)
    hung = Simulation(world, BY_NAME["steady load"], Regulated(), seed=1).run()
    landed = sorted(lag for arrived, lag in zip(hung.arrived, hung.lags, strict=True) if lag < 3600)
    assert len(landed) == len(hung.lags) - hung.left
    assert hung.left < 0.05 * len(hung.lags), "the range that hangs, and no more"
    assert landed[-1] < 400


def test_every_batch_lands_exactly_once_under_every_rule() -> None:
    for world in WORLDS:
        for outcome in compared(world, BY_NAME["trickle"]).values():
            assert outcome.left == 0
            assert len(set(outcome.arrived)) == len(outcome.arrived) == len(outcome.lags)


class Restarted(Regulated):
    def learn(self, landed: Iterable[Observation], /) -> None:
        super().learn(landed)
        self.state = State.from_json(json.loads(json.dumps(self.state.to_json())))
