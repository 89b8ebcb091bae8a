"""Sequences that somebody acked before they were planned."""

from __future__ import annotations

import dataclasses
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.errors import SequenceGap
from objbuf_dagster.orchestration.observations import held
from tests.orchestration.sensing import Sensing, key, keys, produce


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
    assert gapped.partitions == [key(0, 1), key(5, 6), key(7, 8)]
    buffer = gapped.buffer.identity()
    assert gaps(gapped) == [{"buffer": buffer, "skipped_first": 2, "skipped_last": 4, "skipped_sequences": 3}]
    # when
    gapped.land(key(5, 6))
    gapped.tick()
    # then
    assert gapped.frontier == 7


def test_a_gap_with_nothing_behind_it_is_noted_with_the_next_range(sensor: Sensing) -> None:
    # given
    sensor.settings = dataclasses.replace(sensor.settings, on_gap="skip")
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    sensor.land(key(0, 1))
    produce(sensor.store, 2)
    ack_by_hand(sensor, 3)
    # when
    sensor.tick()
    sensor.tick()
    produce(sensor.store, 2)
    sensor.tick()
    # then
    assert [(one["skipped_first"], one["skipped_last"]) for one in gaps(sensor)] == [(2, 3)]


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
