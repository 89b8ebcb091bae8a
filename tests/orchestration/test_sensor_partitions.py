"""Ranges that Dagster does not know of: a new DAGSTER_HOME on a buffer that others have worked on."""

from __future__ import annotations

import dataclasses
import time

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.orchestration.tick import TickResult
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.store import MemoryStore, Store
from tests.orchestration.sensing import Sensing, key, keys, produce, sensing
from tests.support.buffers import append, batch_name, manifests, put_batch

WEEK = 7 * 24 * 3600.0


@pytest.fixture
def worked_on() -> MemoryStore:
    """Ranges of two batches up to 9; those up to 5 were acked."""
    store = MemoryStore()
    produce(store, 10)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2, max_wait=0))
    ack(store, 5)
    return store


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("objbuf_dagster.orchestration.tick._ADDED_AT_ONCE", 2)
    return 2


def ack(store: Store, sequence: int) -> None:
    with Consumer.open(store, gc_interval=None) as consumer:
        consumer.ack_through(sequence)


def expire(store: Store, later: float) -> None:
    """A pass of garbage collection at this time."""
    GarbageCollector(store, retention_seconds=WEEK, clock=lambda: time.time() + later).collect_once()


def all_of(*pairs: tuple[int, int]) -> list[str]:
    return [key(*pair) for pair in pairs]


def ticks(sensor: Sensing, most: int = 20) -> list[TickResult]:
    """Until a tick adds no partition."""
    done = [sensor.tick(), sensor.tick()]
    while done[-1].partitions:
        assert len(done) < most
        done.append(sensor.tick())
    return done


def test_all_retained_ranges_become_partitions_and_only_open_ones_run(worked_on: MemoryStore) -> None:
    with sensing(worked_on) as sensor:
        # when
        sensor.tick()
        ticked = sensor.tick()
        # then
        assert sensor.partitions == all_of((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
        assert keys(ticked) == all_of((6, 7), (8, 9))
        assert sensor.tick().partitions == []


def test_many_unknown_ranges_take_several_ticks_in_order(worked_on: MemoryStore, few_at_once: int) -> None:
    with sensing(worked_on) as sensor:
        # when
        done = ticks(sensor)
        # then
        assert [len(one.partitions) for one in done] == [0, 2, 2, 1, 0]
        assert sensor.partitions == all_of((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
        assert [keys(one) for one in done] == [[], [], [], all_of((6, 7), (8, 9)), []]
        assert "more ranges are to be added as partitions, in the next tick" in done[1].sentence


def test_many_unknown_ranges_that_nobody_acked_take_several_ticks_too(few_at_once: int) -> None:
    # given ranges that a person planned
    store = MemoryStore()
    produce(store, 6)
    with sensing(store) as sensor:
        sensor.tick()
        plan(manifests(store), RangeLedger(store), Limits(max_batches=2, max_wait=0))
        # when
        first = sensor.tick()
        second = sensor.tick()
        # then
        assert ([one.key for one in first.partitions], first.runs) == (all_of((0, 1), (2, 3)), [])
        assert [one.key for one in second.partitions] == all_of((4, 5))
        assert keys(second) == sensor.partitions == all_of((0, 1), (2, 3), (4, 5))


def test_nothing_is_planned_before_all_ranges_are_known(worked_on: MemoryStore, few_at_once: int) -> None:
    # given
    produce(worked_on, 2)
    with sensing(worked_on) as sensor:
        # when
        sensor.tick()
        sensor.tick()
        # then
        assert sensor.buffer.ledger().starts() == [0, 2, 4, 6, 8]
        # when
        ticks(sensor)
        # then
        assert sensor.partitions[-1] == key(10, 11)
        assert sensor.partitions == sorted(sensor.partitions)


def test_hundreds_of_ranges_are_added_in_two_ticks() -> None:
    # given 501 acked ranges
    store = MemoryStore()
    location = put_batch(store, batch_name(1))
    for _ in range(501):
        append(store, location)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=1))
    ack(store, 500)
    with sensing(store) as sensor:
        # when
        done = ticks(sensor)
        # then
        assert [len(one.partitions) for one in done] == [0, 500, 1, 0]
        assert sensor.partitions == [key(n, n) for n in range(501)]


@pytest.mark.parametrize("limit", [500, 2], ids=["in one tick", "in several ticks"])
def test_expired_ranges_are_not_added(worked_on: MemoryStore, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: the objects of expired ranges stay for some time
    monkeypatch.setattr("objbuf_dagster.orchestration.tick._ADDED_AT_ONCE", limit)
    expire(worked_on, later=0)
    ack(worked_on, 7)
    expire(worked_on, later=WEEK + 60)
    ledger = RangeLedger(worked_on)
    assert ledger.retention().expired_before == 6
    assert ledger.starts()[0] == 0
    with sensing(worked_on) as sensor:
        # when
        ticks(sensor)
        # then
        assert sensor.partitions == all_of((6, 7), (8, 9))


def test_a_buffer_of_which_everything_expired_goes_on(worked_on: MemoryStore) -> None:
    # given
    ack(worked_on, 9)
    expire(worked_on, later=0)
    expire(worked_on, later=WEEK + 60)
    with sensing(worked_on) as sensor:
        sensor.tick()
        assert sensor.tick().partitions == []
        # when
        produce(worked_on, 2)
        ticked = sensor.tick()
        # then
        assert keys(ticked) == sensor.partitions == [key(10, 11)]


def test_a_home_that_was_away_while_all_it_knew_expired_comes_back(worked_on: MemoryStore) -> None:
    with sensing(worked_on) as sensor:
        # given: it knows ranges up to 9
        ticks(sensor)
        ack(worked_on, 9)
        produce(worked_on, 4)
        plan(manifests(worked_on), RangeLedger(worked_on), Limits(max_batches=2, max_wait=0))
        ack(worked_on, 11)
        expire(worked_on, later=0)
        for later in (WEEK + 60, 2 * WEEK + 120, 60 * WEEK):
            expire(worked_on, later)
        assert RangeLedger(worked_on).starts() == [12]
        # when
        sensor.cursor = None
        sensor.settings = dataclasses.replace(sensor.settings, on_gap="skip")
        sensor.tick()
        back = sensor.tick()
        # then: 10 and 11 were planned and landed elsewhere, which is no gap
        assert sensor.partitions == all_of((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (12, 13))
        assert not any("skipped_first" in event.metadata for event in back.observations)
