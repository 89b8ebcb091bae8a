"""Where the sensor cuts, how much it plans, and what that costs."""

from __future__ import annotations

import dataclasses

from objbuf_dagster.orchestration import SensorSettings
from objbuf_dagster.ranges import Limits
from objbuf_dagster.store import MemoryStore
from tests.orchestration.sensing import Sensing, key, keys, produce, sensing
from tests.support.buffers import append, batch_name, put_batch
from tests.support.counting import CountingStore


def limits(sensor: Sensing, **values: float) -> None:
    sensor.settings = SensorSettings(limits=Limits(**values))  # type: ignore[arg-type]


def test_a_range_ends_with_its_last_allowed_batch(sensor: Sensing) -> None:
    # given
    limits(sensor, max_batches=3, max_wait=3600)
    produce(sensor.store, 7)
    # when
    sensor.tick()
    ticked = sensor.tick()
    # then: the seventh waits for company
    assert keys(ticked) == [key(0, 2), key(3, 5)]
    assert sensor.partitions == [key(0, 2), key(3, 5)]


def test_a_range_ends_before_it_is_too_large(sensor: Sensing) -> None:
    # given: batches of a bit more than 1000 bytes
    limits(sensor, max_bytes=2500, max_wait=3600)
    produce(sensor.store, 5, size=1000)
    # when
    sensor.tick()
    ticked = sensor.tick()
    # then
    assert keys(ticked) == [key(0, 1), key(2, 3)]


def test_a_batch_waits_until_it_is_old_enough_and_no_longer(sensor: Sensing) -> None:
    # given
    limits(sensor, max_batches=10, max_wait=60)
    produce(sensor.store, 1)
    sensor.tick()
    # when
    sensor.later = 50
    early = sensor.tick()
    sensor.later = 61
    due = sensor.tick()
    # then
    assert early.partitions == []
    assert early.runs == []
    assert early.sentence.endswith("; 1 batch waits for more, to be enough for a range")
    assert keys(due) == [key(0, 0)]


def test_no_more_is_planned_than_may_run(sensor: Sensing) -> None:
    # given
    sensor.settings = dataclasses.replace(sensor.settings, max_in_flight=3)
    produce(sensor.store, 20)
    # when
    sensor.tick()
    first = sensor.tick()
    full = sensor.tick()
    sensor.land(key(2, 3))
    room_for_one = sensor.tick()
    # then
    assert keys(first) == [key(0, 1), key(2, 3), key(4, 5)]
    assert (full.runs, full.partitions) == ([], [])
    assert full.sentence.endswith("; 3 ranges in flight; 14 batches wait for a range to land")
    assert keys(room_for_one) == [key(6, 7)]
    assert sensor.buffer.ledger().starts() == [0, 2, 4, 6]


def test_a_long_backlog_costs_few_heads() -> None:
    # given
    store = CountingStore(MemoryStore())
    backlog(store, 2000)
    settings = SensorSettings(limits=Limits(max_batches=5), max_in_flight=2)
    with sensing(store, settings) as sensor:
        sensor.tick()
        store.reset()
        # when
        ticked = sensor.tick()
        # then: what is planned, and what was asked for ahead of it in one go
        assert len(ticked.runs) == 2
        assert 10 <= store.count("head") <= 32
        # when there is no room
        store.reset()
        sensor.tick()
        # then
        assert store.count("head") == 0


def test_the_size_of_a_batch_is_asked_for_once() -> None:
    # given
    store = CountingStore(MemoryStore())
    produce(store, 3)
    with sensing(store, SensorSettings(limits=Limits(max_batches=5, max_wait=3600))) as sensor:
        # when
        for _ in range(4):
            sensor.tick()
        produce(store, 2)
        planned = sensor.tick()
        # then
        assert keys(planned) == [key(0, 4)]
        assert [store.count("head", path=at) for method, at in store.calls if method == "head"] == [1] * 5


def test_sizes_of_a_buffer_that_was_made_anew_are_not_remembered(sensor: Sensing) -> None:
    # given: a batch whose size was asked for, and which was never planned
    limits(sensor, max_batches=2, max_wait=3600)
    produce(sensor.store, 1, size=1000)
    sensor.tick()
    sensor.tick()
    # when
    sensor.store.delete([info.path for info in sensor.store.list()])
    produce(sensor.store, 2, size=1)
    sensor.cursor = None
    sensor.tick()
    sensor.tick()
    # then
    (planned,) = sensor.buffer.ledger().list()
    sizes = {sensor.store.head(batch.descriptor.location).size for batch in planned.batches}
    assert {batch.size for batch in planned.batches} == sizes


def test_a_batch_that_is_missing_does_not_stop_planning(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 1)
    append(sensor.store, batch_name(1))
    # when
    sensor.tick()
    ticked = sensor.tick()
    # then: its run will say what is wrong
    assert keys(ticked) == [key(0, 1)]


def backlog(store: CountingStore, batches: int) -> None:
    """All entries name one object: only their number matters."""
    location = put_batch(store, batch_name(1))
    for _ in range(batches):
        append(store, location)
