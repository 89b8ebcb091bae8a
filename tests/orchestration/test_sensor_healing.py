"""Hooks that failed, daemons that died, planners that raced: the next tick makes it good."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from dagster._core.storage.tags import PARTITION_NAME_TAG

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.errors import StorageUnavailable
from objbuf_dagster.orchestration import SensorSettings
from objbuf_dagster.ranges import RangeLedger, plan
from objbuf_dagster.store import MemoryStore, Store
from tests.orchestration.sensing import PAIRS, Sensing, key, keys, produce, sensing
from tests.support.buffers import manifests
from tests.support.faults import Call, FaultStore


def plan_all(store: Store, max_ranges: int | None = None) -> None:
    """What `objbuf ranges plan --skip-gap` does, or a sensor that died right after."""
    plan(manifests(store), RangeLedger(store), PAIRS.limits, max_ranges=max_ranges, on_gap="skip")


def test_a_hook_that_never_ran_is_made_good(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    sensor.tick()
    sensor.tick()
    # when
    sensor.land(key(0, 1))
    healed = sensor.tick()
    # then
    assert sensor.frontier == 2
    assert "acked sequences 0 to 1" in healed.sentence


def test_a_range_that_a_person_marked_is_passed(sensor: Sensing) -> None:
    # given a range that can never land
    produce(sensor.store, 4)
    sensor.tick()
    sensor.tick()
    sensor.fail(key(0, 1))
    # when
    sensor.mark(key(0, 1))
    passed = sensor.tick()
    # then
    assert sensor.frontier == 2
    assert key(0, 1) not in keys(passed)


def test_the_frontier_stays_where_acks_are_somebody_elses(sensor: Sensing) -> None:
    # given
    sensor.source = type(sensor.source)(ack="manual")
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    # when
    sensor.land(key(0, 1))
    sensor.tick()
    # then
    assert sensor.frontier == 0


def test_runs_that_a_dead_daemon_never_started_are_asked_for_again(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    sensor.tick()
    asked = sensor.tick(launch=False)
    # when
    again = sensor.tick()
    # then: with the same run keys, so that a run that was started after all is not started twice
    assert again.runs == asked.runs
    assert again.partitions == []
    assert sensor.tick().runs == []


@pytest.mark.parametrize("reported", [True, False], ids=["partitions added", "nothing done"])
def test_a_tick_whose_cursor_was_lost_is_repeated_without_harm(sensor: Sensing, reported: bool) -> None:
    # given
    produce(sensor.store, 6)
    sensor.tick()
    before = sensor.cursor
    # when
    if reported:
        sensor.tick(launch=False)
    else:
        sensor.evaluate()
    sensor.cursor = before
    produce(sensor.store, 2)
    again = sensor.tick()
    # then
    assert keys(again) == [key(0, 1), key(2, 3), key(4, 5), key(6, 7)]
    assert sensor.partitions == sorted(sensor.partitions) == keys(again)
    assert sensor.tick().runs == []


def test_a_lost_cursor_does_not_undo_an_ack(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    sensor.tick()
    sensor.tick()
    before = sensor.cursor
    sensor.land(key(0, 1))
    sensor.tick()
    # when
    sensor.cursor = before
    again = sensor.tick()
    # then
    assert sensor.frontier == 2
    assert again.runs == []


def test_a_range_that_a_dying_tick_wrote_is_run(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 6)
    sensor.tick()
    # when
    plan_all(sensor.store, max_ranges=1)
    ticked = sensor.tick()
    # then
    assert keys(ticked) == [key(0, 1), key(2, 3), key(4, 5)]
    assert sensor.partitions == keys(ticked)


def test_ranges_that_a_person_planned_run_no_more_at_a_time_than_others(sensor: Sensing) -> None:
    # given
    sensor.settings = SensorSettings(limits=PAIRS.limits, max_in_flight=2)
    produce(sensor.store, 8)
    sensor.tick()
    plan_all(sensor.store)
    # when
    first = sensor.tick()
    sensor.land(key(0, 1))
    second = sensor.tick()
    # then
    assert keys(first) == [key(0, 1), key(2, 3)]
    assert keys(second) == [key(4, 5)]


SCENES = pytest.mark.parametrize("scene", ["an empty chain", "with an ack", "with a gap"])
"""What a tick finds when something happens in it."""


@contextmanager
def staged(scene: str) -> Iterator[tuple[Sensing, FaultStore, MemoryStore]]:
    """A sensor in this scene, with its store and the one within, which others use."""
    inner = MemoryStore()
    store = FaultStore(inner, {})
    settings = SensorSettings(limits=PAIRS.limits, max_in_flight=9, on_gap="skip")
    with sensing(store, settings) as sensor:
        sensor.tick()
        if scene != "an empty chain":
            produce(store, 2)
            sensor.tick()
        if scene in ("with an ack", "with a gap"):
            sensor.land(key(0, 1))
        if scene == "with a gap":
            sensor.tick()
            produce(store, 1)
            Consumer.attach(store, epoch=1).ack_through(2)
        produce(store, 4)
        store.calls.clear()
        yield sensor, store, inner


def assert_all_is_well(sensor: Sensing) -> None:
    """All ranges are partitions in order, each has one run, and together they hold all that is to be landed."""
    planned = sensor.buffer.ledger().list()
    assert sensor.partitions == [key(one.start, one.end) for one in planned]
    runs = [run.tags[PARTITION_NAME_TAG] for run in sensor.instance.get_runs()]
    assert sorted(runs) == sensor.partitions
    held = {sequence for one in planned for sequence in range(one.start, one.end + 1)}
    assert held >= set(range(sensor.frontier, sensor.buffer.peek().next_sequence))


@SCENES
def test_a_storage_that_fails_at_any_call_leaves_no_hole(scene: str) -> None:
    for moment in count(1):
        with staged(scene) as (sensor, store, _):
            # when
            store.script = lambda call: "unavailable" if call.number == moment else None  # noqa: B023  used at once
            if moment == 1:
                with pytest.raises(StorageUnavailable):
                    sensor.tick()
            else:
                with contextlib.suppress(StorageUnavailable):
                    sensor.tick()
            reached = len(store.calls) >= moment
            store.script = {}
            sensor.tick()
            # then
            assert_all_is_well(sensor)
        if not reached:
            return


@SCENES
def test_another_planner_at_any_call_leaves_no_hole(scene: str) -> None:
    for moment in count(1):
        with staged(scene) as (sensor, store, inner):
            # when another planner is there in between, and knows of more than we do
            def interfere(call: Call) -> None:
                if call.number == moment:  # noqa: B023  used at once
                    produce(inner, 2)
                    plan_all(inner)
                    produce(inner, 2)

            store.script = interfere
            sensor.tick()
            reached = len(store.calls) >= moment
            store.script = {}
            sensor.tick()
            # then
            assert_all_is_well(sensor)
        if not reached:
            return
