"""What the sensor tells: numbers on the buffer's asset, and a sentence in each tick's log."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import ack_materialised
from objbuf_dagster.orchestration.observations import held
from objbuf_dagster.orchestration.tick import TickResult
from tests.orchestration.deployments import Deployment
from tests.orchestration.sensing import Sensing, key, produce


def numbers(outcome: TickResult) -> dict[str, Any]:
    (event,) = outcome.observations
    return {name: value.value for name, value in event.metadata.items() if not isinstance(value.value, str)}


def test_the_numbers_follow_the_buffer(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 5)
    sensor.later = 60
    sensor.settings = dataclasses.replace(sensor.settings, max_attempts=1)
    # when
    taken = numbers(sensor.tick())
    started = numbers(sensor.tick())
    sensor.land(key(0, 1))
    sensor.fail(key(2, 3))
    after = numbers(sensor.tick())
    # then
    assert taken["lag_seconds"] == pytest.approx(60, abs=10)
    expected: dict[str, float] = {
        "epoch": 1,
        "frontier": 0,
        "next_sequence": 5,
        "queue_length": 5,
        "in_flight": 0,
        "failed_ranges": 0,
    }
    expected |= {"in_flight_bytes": 0, "held": 0}
    assert taken == expected | {"lag_seconds": taken["lag_seconds"]}
    expected |= {"budget_bytes": 1 << 30, "catch_up_seconds": 0, "pressure": 0}
    size = 12  # of a batch with one byte
    assert started == expected | {"in_flight": 3, "in_flight_bytes": 5 * size, "lag_seconds": started["lag_seconds"]}
    assert after == expected | {
        "pressure": 0.125,
        "in_flight_bytes": size,
        "frontier": 2,
        "queue_length": 3,
        "in_flight": 1,
        "failed_ranges": 1,
        "conflict_rate": 0,
        "lag_seconds": after["lag_seconds"],
    }


def test_the_numbers_are_of_kinds_that_dagster_plots(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 1)
    # when
    (event,) = sensor.tick().observations
    # then
    assert event.asset_key == dg.AssetKey("buffer")
    whole = ("epoch", "frontier", "next_sequence", "queue_length", "in_flight", "failed_ranges", "held")
    assert all(isinstance(event.metadata[name], dg.IntMetadataValue) for name in whole)
    assert isinstance(event.metadata["lag_seconds"], dg.FloatMetadataValue)
    assert event.metadata["buffer"].value == sensor.buffer.identity()


def test_lag_alone_is_not_worth_an_observation(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    # when
    sensor.later = 3600
    # then
    assert sensor.tick().observations == []
    # when something else changed
    produce(sensor.store, 1)
    # then
    assert numbers(sensor.tick())["lag_seconds"] > 3500


def test_nothing_is_observed_while_nothing_changes(sensor: Sensing) -> None:
    # given
    sensor.tick()
    # then
    assert [sensor.tick().observations for _ in range(3)] == [[], [], []]


def test_an_observation_that_the_daemon_lost_comes_again(sensor: Sensing) -> None:
    # given
    sensor.tick()
    produce(sensor.store, 2)
    # when
    sensor.evaluate()
    # then
    assert len(sensor.tick().observations) == 1


def test_hooks_of_another_buffer_do_not_use_the_epoch(sensor: Sensing) -> None:
    # given
    sensor.tick()
    # then
    with pytest.raises(InvalidInput, match=r"sensor holds .*, not 'memory://other'.*Reload the code location"):
        held(sensor.instance, sensor.source, "memory://other")


def test_hooks_of_a_deployment_that_never_took_the_buffer_change_nothing(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 2)
    # then
    with pytest.raises(InvalidInput, match=r"has not taken the buffer .* turn its sensor on"):
        ack_materialised(sensor.instance, sensor.source, sensor.buffer)
    assert sensor.buffer.peek().epoch == 0


def test_each_tick_says_what_it_saw_and_did(sensor: Sensing) -> None:
    # given
    sensor.settings = dataclasses.replace(sensor.settings, max_attempts=2)
    produce(sensor.store, 3)
    said = []
    # when
    said.append(sensor.tick().sentence)
    said.append(sensor.tick().sentence)
    said.append(sensor.tick().sentence)
    sensor.land(key(0, 1))
    sensor.fail(key(2, 2))
    said.append(sensor.tick().sentence)
    sensor.fail(key(2, 2))
    said.append(sensor.tick().sentence)
    sensor.mark(key(2, 2))
    said.append(sensor.tick().sentence)
    said.append(sensor.tick().sentence)
    # then
    last, started = key(2, 2), f"{key(0, 1)} (attempt 1), {key(2, 2)} (attempt 1)"
    seen, then = "epoch 1, frontier 0, 3 batches queued", "epoch 1, frontier 2, 1 batch queued"
    assert said[:4] == [
        "took the buffer over with epoch 1: the frontier is 0, 3 batches in the queue",
        f"{seen}; added 2 partitions, the last is {last}; started 2 runs: {started}; 2 ranges in flight",
        f"{seen}; 2 ranges in flight",
        f"{then}; acked sequences 0 to 1; started 1 run: {last} (attempt 2); 1 range in flight",
    ]
    assert said[4].startswith(f"{then}; 1 range failed and waits for a person, the first is {last}: look at")
    assert said[5:] == [
        "epoch 1, frontier 3, 0 batches queued; acked sequences 2 to 2",
        "epoch 1, frontier 3, 0 batches queued; nothing to do",
    ]


def test_the_sentence_is_in_the_ticks_log(deployed: Deployment, capfd: pytest.CaptureFixture[str]) -> None:
    # given: Dagster shows a reason for ticks that start nothing only
    with deployed.buffer.producer() as producer:
        producer.produce([b"x"])
    # when
    deployed.tick()
    deployed.tick(launch=False)
    # then
    log = re.sub(r"\s+", " ", capfd.readouterr().err)
    assert "took the buffer over with epoch 1" in log
    assert "started 1 run: 000000000000-000000000000 (attempt 1)" in log
    assert deployed.seen[0].sentence.startswith("took the buffer over")
