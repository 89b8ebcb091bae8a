"""Sequences that somebody acked before they were planned."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from operator import add
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.errors import RangesOverlap, SequenceGap
from objbuf_dagster.orchestration.observations import held
from objbuf_dagster.protocol import PlannedBatch, RangeObject
from objbuf_dagster.protocol.range_object import range_path
from objbuf_dagster.store import MemoryStore
from tests.orchestration.sensing import PAIRS, Sensing, key, keys, produce, sensing
from tests.support.buffers import manifest_of
from tests.support.counting import CountingStore


def gaps(sensor: Sensing) -> list[dict[str, Any]]:
    """The observations that tell of one."""
    records = sensor.instance.fetch_observations(sensor.source.key, limit=100).records
    events = [record.asset_observation for record in records]
    said = [{name: value.value for name, value in event.metadata.items()} for event in events if event]
    return [one for one in said if "skipped_first" in one]


def ack_by_hand(sensor: Sensing, sequence: int) -> None:
    Consumer.attach(sensor.store, epoch=sensor.state.epoch).ack_through(sequence)


@pytest.fixture
def gapped(sensor: Sensing) -> Sensing:
    """0 and 1 landed; 2 to 4 were acked by hand; 5 and 6 wait."""
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    sensor.land(key(0, 1))
    sensor.tick()
    produce(sensor.store, 5)
    ack_by_hand(sensor, 4)
    return sensor


def test_a_gap_fails_the_tick_with_its_sequences_and_changes_nothing(gapped: Sensing) -> None:
    # given
    before = {info.path: gapped.store.get(info.path).data for info in gapped.store.list()}
    # when
    with pytest.raises(SequenceGap, match=r"sequences 2 to 4 left the manifest .* on_gap: skip") as caught:
        gapped.tick()
    # then
    assert (caught.value.first, caught.value.last) == (2, 4)
    assert {info.path: gapped.store.get(info.path).data for info in gapped.store.list()} == before
    assert gapped.partitions == [key(0, 1)]
    # when: nobody did anything
    with pytest.raises(SequenceGap):
        gapped.tick()


def test_a_gap_is_skipped_and_noted_once_if_that_is_wished(gapped: Sensing) -> None:
    # given
    gapped.settings = dataclasses.replace(gapped.settings, on_gap="skip")
    # when
    skipped = gapped.tick()
    gapped.tick()
    produce(gapped.store, 2)
    gapped.tick()
    # then
    assert keys(skipped) == [key(5, 6)]
    assert "; skipped sequences 2 to 4, which left the manifest unplanned; " in skipped.sentence
    assert gapped.partitions == [key(0, 1), key(5, 6), key(7, 8)]
    buffer = gapped.buffer.identity()
    assert gaps(gapped) == [{"buffer": buffer, "skipped_first": 2, "skipped_last": 4, "skipped_sequences": 3}]
    # when
    gapped.land(key(5, 6))
    gapped.tick()
    # then
    assert gapped.frontier == 7


@pytest.fixture
def tailless(sensor: Sensing) -> Sensing:
    """0 and 1 landed; 2 to 6 were acked by hand; nothing waits."""
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    sensor.land(key(0, 1))
    sensor.tick()
    produce(sensor.store, 5)
    ack_by_hand(sensor, 6)
    return sensor


def test_a_gap_with_nothing_behind_it_fails_every_tick(tailless: Sensing) -> None:
    for _ in range(2):
        with pytest.raises(SequenceGap, match=r"sequences 2 to 6 left the manifest .* on_gap: skip"):
            tailless.tick()


def test_a_gap_with_nothing_behind_it_is_noted_at_once_and_once(tailless: Sensing) -> None:
    # given
    tailless.settings = dataclasses.replace(tailless.settings, on_gap="skip")
    # when
    tailless.tick()
    # then
    assert [(one["skipped_first"], one["skipped_last"]) for one in gaps(tailless)] == [(2, 6)]
    # when
    idle = tailless.tick()
    produce(tailless.store, 2)
    tailless.tick()
    # then
    assert idle.sentence.endswith("nothing to do")
    assert len(gaps(tailless)) == 1
    assert tailless.partitions == [key(0, 1), key(7, 8)]


def expire_all(sensor: Sensing) -> None:
    """What two passes of garbage collection do, eight days apart."""
    for days in (0, 8):
        clock = partial(add, days * 86_400.0, time.time())
        GarbageCollector(sensor.store, retention_seconds=7 * 86_400, clock=clock).collect_once()
    assert sensor.buffer.ledger().retention().expired_before == sensor.frontier


def test_a_gap_that_has_expired_fails_every_tick_all_the_same(tailless: Sensing) -> None:
    expire_all(tailless)
    for _ in range(2):
        with pytest.raises(SequenceGap, match=r"sequences 2 to 6 left the manifest"):
            tailless.tick()


def test_a_gap_that_has_expired_is_noted_all_the_same(gapped: Sensing) -> None:
    # given
    gapped.settings = dataclasses.replace(gapped.settings, on_gap="skip")
    expire_all(gapped)
    # when
    gapped.tick()
    # then
    assert [(one["skipped_first"], one["skipped_last"]) for one in gaps(gapped)] == [(2, 4)]
    assert gapped.partitions == [key(0, 1), key(5, 6)]


def test_idle_ticks_behind_a_gap_that_was_noted_are_one_read() -> None:
    store = CountingStore(MemoryStore())
    with sensing(store, dataclasses.replace(PAIRS, on_gap="skip")) as sensor:
        # given
        produce(store, 2)
        sensor.tick()
        sensor.tick()
        sensor.land(key(0, 1))
        produce(store, 2)
        ack_by_hand(sensor, 3)
        sensor.tick()
        store.reset()
        # when
        sensor.tick()
        # then
        assert store.calls == {("unchanged", "ingest/manifest"): 1}


def test_a_gap_is_seen_though_nothing_may_be_planned(sensor: Sensing) -> None:
    # given: a range is in flight, and there is no room for another
    sensor.settings = dataclasses.replace(sensor.settings, max_in_flight=1)
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    produce(sensor.store, 4)
    ack_by_hand(sensor, 3)
    # then
    with pytest.raises(SequenceGap, match="sequences 2 to 3"):
        sensor.tick()


def test_what_left_before_the_first_plan_is_a_gap_too(sensor: Sensing) -> None:
    # given: taken over, and nothing planned yet
    produce(sensor.store, 4)
    ack_before = Consumer.open(sensor.store, gc_interval=None)
    ack_before.ack_through(0)
    ack_before.close()
    sensor.tick()
    ack_by_hand(sensor, 2)
    # then: what had left before this deployment came is none of its gaps
    with pytest.raises(SequenceGap, match="sequences 1 to 2"):
        sensor.tick()


def test_a_gap_that_a_dying_tick_skipped_is_noted_all_the_same(gapped: Sensing) -> None:
    # given
    gapped.settings = dataclasses.replace(gapped.settings, on_gap="skip")
    # when
    gapped.evaluate()
    gapped.tick()
    # then
    assert [(one["skipped_first"], one["skipped_last"]) for one in gaps(gapped)] == [(2, 4)]
    assert gapped.partitions == [key(0, 1), key(5, 6)]


def test_hooks_find_the_epoch_behind_the_note_of_a_gap(gapped: Sensing) -> None:
    # given
    gapped.settings = dataclasses.replace(gapped.settings, on_gap="skip")
    gapped.tick()
    # when
    note = dg.AssetObservation(gapped.source.key, description="somebody's note")
    gapped.instance.report_runless_asset_event(note)
    # then
    assert held(gapped.instance, gapped.source, gapped.buffer.identity()).epoch == gapped.state.epoch


def test_hooks_find_the_epoch_behind_many_notes_of_others(sensor: Sensing) -> None:
    # given
    sensor.tick()
    for number in range(30):
        note = dg.AssetObservation(sensor.source.key, metadata={"temperature": number})
        sensor.instance.report_runless_asset_event(note)
    # then
    assert held(sensor.instance, sensor.source, sensor.buffer.identity()).epoch == 1


@pytest.mark.parametrize("is_acked", [False, True])
def test_a_range_that_overlaps_with_one_that_ran_stops_the_sensor(sensor: Sensing, is_acked: bool) -> None:
    """A planner who died left it. Also once the other one is acked, and is not looked at any more."""
    # given
    produce(sensor.store, 5)
    sensor.settings = dataclasses.replace(sensor.settings, max_in_flight=1)
    sensor.tick()
    batches = tuple(PlannedBatch(one, 1) for one in manifest_of(sensor.store).entries(after=0, limit=2))
    assert keys(sensor.tick()) == [key(0, 1)]
    sensor.land(key(0, 1))
    if is_acked:
        ack_by_hand(sensor, 1)
    sensor.store.put(range_path("ingest", 1), RangeObject(1, 2, 0, 0, batches).to_bytes())
    # when
    with pytest.raises(RangesOverlap, match=f"Move the object {range_path('ingest', 1)} away"):
        sensor.tick()
    # then
    assert sensor.partitions == [key(0, 1)]
    # when a person does so
    sensor.store.delete([range_path("ingest", 1)])
    # then
    assert keys(sensor.tick()) == [key(2, 3)]
    assert sensor.frontier == 2
