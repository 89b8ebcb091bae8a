"""Under pressure, runs that take long hold back what is new, and runs that will never end do not."""

from __future__ import annotations

import dataclasses

import pytest

from objbuf_dagster.ranges.gate import Gate
from tests.orchestration.gates import MANY, Machine, backfill, numbers
from tests.orchestration.sensing import Sensing, key, keys


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_run_that_will_never_end_holds_nothing_back(gated: Sensing, has_begun: bool) -> None:
    # given both runs in flight lost their machine: one in its midst, one while Dagster started it
    for one in (key(0, 1), key(2, 3)):
        if has_begun:
            gated.begin(one)
        else:
            gated.starting(one)
    gated.settings = dataclasses.replace(gated.settings, max_in_flight=4)
    gated.host = Machine(used=0.9)
    assert gated.tick().runs == []
    # when
    gated.later += 10 * 3600
    outcome = gated.tick()
    # then they are no work, no pressure, and slow nobody
    assert keys(outcome) == [key(4, 4)]
    assert numbers(outcome)["pressure"] == 0.9
    gated.host = Machine()
    assert gated.tick(launch=False).note.startswith("new ranges are started")


@pytest.mark.parametrize("seconds", [79, 200, 3700], ids=["small ranges before", "a slow sink", "a clock that jumped"])
def test_a_run_that_takes_long_holds_back_what_is_new(gated: Sensing, seconds: float) -> None:
    # given
    for one in (key(0, 1), key(2, 3)):
        gated.begin(one)
    gated.settings = dataclasses.replace(gated.settings, max_in_flight=4)
    gated.host = Machine(used=0.9)
    gated.tick()
    # when
    gated.later += seconds
    # then
    assert [gated.tick().runs for _ in range(3)] == [[], [], []]


def test_beside_a_run_that_takes_long_another_one_needs_room(gated: Sensing) -> None:
    # given
    for one in (key(0, 1), key(2, 3)):
        gated.begin(one)
    gated.settings = dataclasses.replace(gated.settings, max_in_flight=4)
    gated.host = Machine(used=0.7, limit=float(2 << 30))
    # when
    gated.later += 600
    outcome = gated.tick()
    # then
    assert outcome.runs == []
    assert outcome.sentence.endswith("4 batches wait: memory has no room for one more run yet")
    # when there is
    gated.host = Machine(used=0.7)
    # then
    assert gated.tick().runs != []


def test_a_backfill_of_many_ranges_in_one_run_takes_hours_and_is_not_dead(gated: Sensing) -> None:
    # given nothing else runs, and a person lands again what is acked
    gated.settings = dataclasses.replace(gated.settings, gate=Gate(max_ranges=3))
    gated.land(key(0, 1))
    gated.land(key(2, 3))
    backfill(gated, MANY)
    gated.host = Machine(used=0.1)
    # when
    gated.later += 5 * 3600
    # then
    assert numbers(gated.tick(launch=False))["pressure"] == 0.333
    # when its machine is gone
    gated.later += 30 * 3600
    gated.tick(launch=False)
    # then
    assert gated.kept.metrics.snapshot().gauges["regulator.pressure"] == 0.1
