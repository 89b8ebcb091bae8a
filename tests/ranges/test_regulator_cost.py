"""Costs found out from few, equal, wild and contradicting samples."""

from __future__ import annotations

import random
from itertools import repeat

import pytest

from objbuf_dagster.ranges.regulator import Observation, Regulator, State, at_once
from objbuf_dagster.ranges.regulator_cost import Cost, fit

MB = 1e6
REGULATOR = Regulator()


def cost_after(*samples: tuple[float, float, float]) -> Cost:
    """Of (bytes, seconds, runs at once)."""
    seen = [Observation(n, size, 1, seconds, 1.0, runs) for n, (size, seconds, runs) in enumerate(samples)]
    return REGULATOR.cost(REGULATOR.update(State(), seen))


def test_without_samples_the_expectation_holds() -> None:
    expected = Cost(20.0, 1 / (400 * MB), 2.5)
    assert fit((), expected, 0.9) == expected


def test_one_sample_moves_the_fit_towards_it() -> None:
    assert 20 < cost_after((10 * MB, 30.0, 1.0)).fixed <= 30.1


def test_samples_of_equal_small_size_are_mostly_fixed_cost() -> None:
    cost = cost_after(*repeat((10 * MB, 45.0, 1.0), 30))
    assert 30 < cost.fixed <= 45
    assert cost.seconds(10 * MB) == pytest.approx(45, rel=0.02)


def test_samples_of_equal_large_size_that_take_long_are_mostly_bytes() -> None:
    cost = cost_after(*repeat((1000 * MB, 320.0, 1.0), 30))
    assert cost.seconds(1000 * MB) == pytest.approx(320, rel=0.05)
    assert cost.fixed < 60


def test_larger_ranges_that_took_less_time_cost_nothing_below_the_floor() -> None:
    cost = cost_after(*[(10 * MB, 60.0, 1.0), (900 * MB, 15.0, 1.0)] * 10)
    assert cost.per_byte == pytest.approx(0.001 / (5 * MB))
    assert 15 < cost.fixed < 60


def test_a_fixed_cost_below_nothing_is_kept_at_its_floor() -> None:
    cost = cost_after(*[(100 * MB, 1.0, 1.0), (200 * MB, 60.0, 1.0)] * 10)
    assert cost.fixed >= 2.0
    assert cost.per_byte > 0


def test_one_outlier_moves_the_fit_a_little_and_a_lasting_change_moves_it_all() -> None:
    usual = [(100 * MB, 20.0, 1.0)] * 20
    once = cost_after(*usual, (100 * MB, 5_000.0, 1.0))
    assert once.seconds(100 * MB) < 27
    for_good = [cost_after(*usual, *[(100 * MB, 200.0, 1.0)] * many).seconds(100 * MB) for many in (3, 10, 40)]
    assert 30 < for_good[0] < 90 < for_good[1] < for_good[2]
    assert for_good[2] == pytest.approx(200, rel=0.1)


def test_a_sink_that_became_slow_is_noticed_within_a_few_ranges() -> None:
    sizes = [50 * MB, 200 * MB, 100 * MB, 150 * MB] * 5
    before = [(size, 20 + size / (500 * MB), 1.0) for size in sizes]
    after = [(size, 20 + size / (8 * MB), 1.0) for size in sizes]
    known = [1 / cost_after(*before, *after[:many]).per_byte for many in (0, 4, 12, 20)]
    assert known[0] > 250 * MB
    assert known[1] < 40 * MB
    assert known[2:] == pytest.approx([8 * MB] * 2, rel=0.6)


@pytest.mark.parametrize("room", [1.05, 1.6, 2.1, 3.2])
def test_how_many_runs_there_is_room_for_is_told_from_what_they_cost_alone(room: float) -> None:
    chance = random.Random(2)
    samples = []
    for runs in [1.0, 2.0, 4.0, 3.0, 1.5] * 8:
        size = chance.uniform(20, 100) * MB
        samples.append((size, (20 + size / (400 * MB)) * max(1.0, runs / room) * chance.uniform(0.9, 1.1), runs))
    cost = cost_after(*samples)
    assert cost.room == pytest.approx(room, rel=0.15)
    assert cost.fixed == pytest.approx(20, rel=0.25)


def test_what_was_learned_of_runs_together_is_kept_while_they_are_alone() -> None:
    """Samples of it fade, since sinks change; the machine hardly does."""
    together = [(50 * MB, 20.0 * 4, 4.0), (50 * MB, 20.0, 1.0)] * 10
    assert cost_after(*together).room < 1.1
    later = cost_after(*together, *[(50 * MB, 20.0, 1.0)] * 60)
    assert later.room < 1.1
    assert later.fixed == pytest.approx(20, rel=0.05)


def test_what_was_learned_of_runs_together_changes_with_the_machine() -> None:
    small = [(50 * MB, 20.0 * 4, 4.0), (50 * MB, 20.0, 1.0)] * 10
    larger = [(50 * MB, 20.0 * 4 / 3, 4.0), (50 * MB, 20.0, 1.0)] * 15
    assert cost_after(*small, *larger).room == pytest.approx(3, rel=0.15)


def test_runs_that_were_never_more_than_two_say_nothing_of_three() -> None:
    assert cost_after(*[(50 * MB, 20.0, 2.0), (50 * MB, 20.0, 1.0)] * 20).room == 2.0, "as was expected"
    assert cost_after(*[(50 * MB, 20.0, 4.0), (50 * MB, 20.0, 1.0)] * 20).room >= 4.0


def test_runs_at_once_are_counted_by_how_long_they_overlap() -> None:
    assert at_once([(0.0, 10.0)]) == [1.0]
    assert at_once([(0.0, 10.0), (5.0, 15.0), (20.0, 30.0)]) == [1.5, 1.5, 1.0]
    assert at_once([(0.0, 10.0)] * 4) == [4.0] * 4
    assert at_once([(0.0, 10.0), (0.0, float("inf"))]) == [2.0, 1.0]
    assert at_once([(5.0, 5.0), (9.0, 3.0)]) == [1.0, 1.0], "a clock that went back is no run"
