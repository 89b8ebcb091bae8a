"""Under pressure nothing new is started; what runs finishes, and is acked."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import (
    PARTITION_NAME_TAG,
)

from objbuf_dagster.orchestration import BufferResource, SensorSettings, SparkResource
from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.gate import Gate
from objbuf_dagster.ranges.regulator import Regulator
from tests.orchestration.deployments import Deployment, deployment
from tests.orchestration.gates import MANY, OF_ENTRIES, SMALL, Machine, backfill, numbers
from tests.orchestration.sensing import Sensing, key, keys, produce, sensing


@pytest.mark.parametrize(
    ("machine", "why"), [(Machine(used=0.8), "memory"), (Machine(free=11 << 30), "disk")], ids=["memory", "disk"]
)
def test_under_pressure_nothing_new_is_started_and_all_that_runs_is_acked(
    gated: Sensing, machine: Machine, why: str
) -> None:
    # given
    gated.host = machine
    # when one range lands, one runs, and others wait
    gated.land(key(0, 1))
    gated.begin(key(2, 3))
    held = gated.tick()
    # then
    assert (held.runs, held.partitions, gated.frontier) == ([], [], 2)
    assert numbers(held)["held"] == 1
    assert numbers(held)["pressure"] >= 0.8
    assert f"nothing new is started, the pressure of {why} is 0." in held.sentence
    assert "it goes on at 0.65, or below 0.8 when none of ours is in flight" in held.sentence
    # when it is over, and the one that ran has failed
    gated.fail(key(2, 3))
    gated.host = Machine()
    resumed = gated.tick()
    # then: what failed comes first
    assert keys(resumed) == [key(2, 3), key(4, 5)]
    assert numbers(resumed)["held"] == 0


def test_between_the_two_limits_it_stays_as_it_is(gated: Sensing) -> None:
    # given one range is still in flight
    gated.land(key(0, 1))
    for used, held in ((0.79, False), (0.8, True), (0.7, True), (0.66, True), (0.65, False), (0.79, False)):
        # when
        gated.host = Machine(used=used)
        gated.tick(launch=False)
        # then
        assert gated.state.regulation.gate.held == held


def test_a_machine_that_others_keep_busy_is_used_when_nothing_of_ours_runs(gated: Sensing) -> None:
    # given
    gated.host = Machine(used=0.85)
    gated.tick()
    gated.host = Machine(used=0.75)
    assert gated.tick().runs == []
    # when
    gated.land(key(0, 1))
    gated.land(key(2, 3))
    # then: with ranges of half the size, as long as it is like that
    assert keys(gated.tick()) == [key(4, 4), key(5, 5)]


def test_memory_that_others_keep_full_lets_one_range_at_a_time_through(gated: Sensing) -> None:
    # given
    gated.host = Machine(used=0.9)
    assert gated.tick().runs == []
    # when nothing of ours is in flight any more
    gated.land(key(0, 1))
    gated.land(key(2, 3))
    outcome = gated.tick()
    # then
    assert keys(outcome) == [key(4, 4)]
    assert "one range at a time is started, the pressure of memory is 0.90" in outcome.sentence
    assert (numbers(outcome)["held"], outcome.note) == (1, "")
    assert "catch_up_seconds" not in numbers(outcome), "nobody knows, while it is held"
    # when it runs
    gated.begin(key(4, 4))
    # then
    outcome = gated.tick()
    assert (outcome.runs, gated.state.regulation.gate.held) == ([], True)
    assert "nothing new is started, the pressure of memory is 0.90" in outcome.sentence
    # when it has landed
    gated.land(key(4, 4))
    assert keys(gated.tick()) == [key(5, 5)]


def test_a_full_disk_lets_nothing_through(gated: Sensing) -> None:
    # given
    gated.host = Machine(free=0, used=0.9)
    gated.tick()
    # when
    gated.land(key(0, 1))
    gated.land(key(2, 3))
    # then
    assert [gated.tick().runs for _ in range(3)] == [[], [], []]


def test_a_backfill_leaves_a_run_to_what_is_new() -> None:
    """Where one run fills the machine, one of what is acked long ago must not be the last."""
    regulator = Regulator.of("balanced", min_bytes=1, max_bytes=2000, expected_room=1.0)
    with sensing(settings=SensorSettings(regulator=regulator, retry_seconds=0)) as sensor:
        # given memory has no room for two, either
        sensor.host = Machine(used=0.7, limit=float(2 << 30))
        sensor.tick()
        backfill(sensor)
        backfill(sensor)
        produce(sensor.store, 1)
        sensor.later = 60
        # when
        outcome = sensor.tick()
        # then
        assert keys(outcome) == [key(0, 0)]
        # when one of ours is there
        produce(sensor.store, 1)
        sensor.later = 120
        outcome = sensor.tick()
        # then it is waited for, and that is what is said
        assert outcome.runs == []
        assert "1 batch waits: 3 runs go on, and more at once would only slow each other" in outcome.sentence


@pytest.mark.parametrize("used", [0.7, 0.85], ids=["below pause_above", "that others keep full"])
def test_a_backfill_does_not_keep_the_gate_closed_for_what_is_new(gated: Sensing, used: float) -> None:
    # given it closed, and only a backfill is left, with memory where it was before that
    backfill(gated, MANY)
    gated.host = Machine(used=0.9)
    gated.tick()
    gated.land(key(0, 1))
    gated.land(key(2, 3))
    gated.host = Machine(used=used)
    for hours in (1, 5, 23):
        gated.later = hours * 3600
        # when
        (started,) = keys(gated.tick())[:1]
        # then
        gated.begin(started)
        # when one of ours is there, a closed gate stays closed
        closed = gated.state.regulation.gate.held
        assert closed == (used >= 0.8)
        produce(gated.store, 2, size=989)
        if closed:
            assert gated.tick().runs == []
        for one in gated.partitions:
            if gated.is_running(one):
                gated.land(one)


def test_with_stop_above_at_pause_above_nothing_is_started_there_whatever_is_in_flight(gated: Sensing) -> None:
    # given
    gated.settings = dataclasses.replace(gated.settings, gate=Gate(stop_above=0.8))
    gated.host = Machine(used=0.82)
    told = gated.tick().note
    assert told.endswith("Until then, nothing is started at all. What runs finishes, and is acked")
    # when none of ours is in flight
    gated.land(key(0, 1))
    gated.land(key(2, 3))
    held = gated.tick()
    # then
    assert (held.runs, gated.frontier) == ([], 4)
    assert "nothing new is started, the pressure of memory is 0.82" in held.sentence
    # when memory is free again
    gated.host = Machine(used=0.79)
    assert keys(gated.tick()) != []


def test_what_waits_for_memory_says_so() -> None:
    with sensing(settings=SensorSettings(regulator=SMALL, retry_seconds=0)) as sensor:
        # given
        sensor.host = Machine(used=0.5, limit=float(2 << 30))
        produce(sensor.store, 6, size=989)
        sensor.tick()
        assert keys(sensor.tick()) == [key(0, 1)]
        # when
        outcome = sensor.tick()
        # then
        assert outcome.runs == []
        assert outcome.sentence.endswith("4 batches wait: memory has no room for one more run yet")


def test_pressure_that_moves_while_the_gate_is_closed_is_plotted(gated: Sensing) -> None:
    # given
    gated.host = Machine(used=0.9)
    gated.tick()
    told = []
    for used in (0.92, 0.94, 0.96, 0.97, 0.8):
        # when
        gated.host = Machine(used=used)
        told.append([numbers(outcome)["pressure"] for outcome in [gated.tick()] if outcome.observations])
    # then
    assert told == [[], [], [0.96], [], [0.8]]


def test_gauges_of_an_idle_sensor_are_of_now(gated: Sensing) -> None:
    # given all has landed
    gated.host = Machine(used=0.3)
    for one in (key(0, 1), key(2, 3), key(4, 5), key(6, 7)):
        while one not in gated.partitions:
            gated.tick()
        gated.land(one)
    gated.tick()
    gated.tick()
    # when
    gated.host = Machine(used=0.5)
    outcome = gated.tick()
    # then
    gauges = gated.kept.metrics.snapshot().gauges
    assert outcome.observations == []
    assert (gauges["regulator.pressure"], gauges["regulator.catch_up_seconds"]) == (0.5, 0)


def test_a_change_is_told_once(gated: Sensing) -> None:
    # when
    gated.host = Machine(used=0.9)
    told = [gated.tick().note for _ in range(3)]
    gated.host = Machine(used=0.1)
    told += [gated.tick().note for _ in range(3)]
    # then
    assert [bool(note) for note in told] == [True, False, False, True, False, False]
    assert told[0].startswith("nothing new is started: the pressure of memory is 0.90")
    assert told[3].startswith("new ranges are started")


def test_pressure_alone_is_not_worth_an_observation(gated: Sensing) -> None:
    # given
    gated.tick()
    # when
    gated.host = Machine(used=0.6)
    # then
    assert gated.tick().observations == []


def test_a_gate_that_is_closed_stays_closed_over_a_restart(gated: Sensing) -> None:
    # given
    gated.host = Machine(used=0.9)
    gated.tick()
    # when
    gated.host = Machine(used=0.7)
    again = gated.tick()
    # then
    assert gated.state.regulation.gate.held
    assert again.note == ""


def test_an_idle_sensor_opens_its_gate(gated: Sensing) -> None:
    # given it was closed when the last range landed
    gated.host = Machine(used=0.9)
    gated.tick()
    gated.host = Machine(used=0.1)
    gated.tick()
    for one in (key(0, 1), key(2, 3), key(4, 5), key(6, 7)):
        while one not in gated.partitions:
            gated.tick()
        gated.host = Machine(used=0.9)
        gated.tick()
        gated.land(one)
        gated.host = Machine(used=0.1)
    gated.host = Machine(used=0.9)
    gated.tick()
    # when
    gated.host = Machine(used=0.1)
    gated.tick()
    # then
    assert (gated.frontier, gated.state.regulation.gate.held) == (8, False)


def test_off_knows_no_gate(gated: Sensing) -> None:
    # given it is closed
    gated.host = Machine(used=0.99, free=0)
    gated.land(key(0, 1))
    assert gated.tick().runs == []
    # when
    gated.settings = SensorSettings(limits=Limits(max_batches=2, max_wait=0), max_in_flight=2)
    outcome = gated.tick()
    # then
    assert keys(outcome) == [key(4, 5)]
    assert numbers(outcome)["held"] == 0
    assert numbers(outcome)["pressure"] > 0.9, "which is told all the same"


@pytest.mark.parametrize("selection", [OF_ENTRIES, None], ids=["in the UI", "by dagster job backfill"])
def test_work_in_flight_that_others_started_is_pressure(
    gated: Sensing, selection: frozenset[dg.AssetKey] | None
) -> None:
    # given
    gated.land(key(0, 1))
    gated.tick()
    # when a person backfills what is acked long ago, with many runs
    for _ in range(8):
        gated.record({PARTITION_NAME_TAG: key(0, 1)}, selection)
    # then: those in the queue are none
    assert not gated.state.regulation.gate.held
    gated.tick()
    assert not gated.state.regulation.gate.held
    # when they run
    for _ in range(8):
        backfill(gated, selection=selection)
    outcome = gated.tick()
    # then
    assert outcome.note.startswith("nothing new is started: the pressure of ranges is")


@pytest.mark.parametrize("seconds", [120, 600])
def test_bytes_in_flight_are_pressure(seconds: float) -> None:
    # given a limit that plain work stays below, and batches that are larger than a range should be
    gate = Gate(max_bytes=10_000)
    with sensing(settings=SensorSettings(regulator=SMALL, gate=gate, max_in_flight=3)) as sensor:
        produce(sensor.store, 2, size=4500)
        sensor.tick()
        for one in keys(sensor.tick()):
            sensor.begin(one)
        # when
        produce(sensor.store, 1, size=1)
        sensor.later = seconds
        outcome = sensor.tick()
        # then
        assert outcome.note.startswith("nothing new is started: the pressure of bytes is 0.90")
        assert numbers(outcome)["in_flight_bytes"] == 2 * 4511


def test_a_change_is_in_the_log_once(
    tmp_path: Path, buffer: BufferResource, lake: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a machine of which one part in a hundred must be free, and a disk of which no one else could make room
    with buffer.producer() as producer:
        producer.produce([b"x"])
    gate = Gate(0.01, 0.0, max_ranges=1000, max_bytes=1 << 50, min_free_bytes=1 << 60)
    settings = SensorSettings(gate=gate)
    with deployment(tmp_path / "home", buffer, lake, settings=settings) as deployed:
        # when
        ticks = [deployed.tick() for _ in range(4)]
        # then
        assert [len(ticked.requests) for ticked in ticks] == [0, 0, 0, 0]
    log = re.sub(r"\s+", " ", capfd.readouterr().err)
    assert len(re.findall("nothing new is started[:,] the pressure of (memory|disk) is", log)) == 1


def test_the_whole_thing_regulates_itself(tmp_path: Path, buffer: BufferResource, lake: Path) -> None:
    # given a real deployment with real runs, on whatever machine this is
    settings = SensorSettings(gate=Gate(pause_above=1.0, resume_below=0.99))
    with deployment(tmp_path / "home", buffer, lake, settings=settings) as deployed:
        with buffer.producer() as producer:
            producer.produce([b"x" * 100])
        # when
        deployed.tick()
        deployed.tick()
        deployed.tick()
        # then
        assert deployed.frontier == 1
        assert deployed.state.regulation.state.counted == (0,)
        assert observed(deployed)["rho"] >= 0
        assert observed(deployed)["held"] == 0
        assert 0 < observed(deployed)["pressure"] < 1


def observed(deployed: Deployment) -> dict[str, Any]:
    (record,) = deployed.instance.fetch_observations(deployed.source.key, limit=1).records
    assert record.asset_observation is not None
    return {name: value.value for name, value in record.asset_observation.metadata.items()}


def test_a_backlog_starts_no_more_runs_than_memory_has_room_for() -> None:
    with sensing(settings=SensorSettings(regulator=SMALL, retry_seconds=0, max_in_flight=4)) as sensor:
        # given a container of 3 GiB, a quarter of it in use, and work for many runs
        sensor.host = Machine(used=0.25, limit=float(3 << 30))
        produce(sensor.store, 20, size=989)
        sensor.tick()
        # when: 2.4 GiB may be in use, and a run is expected to take one
        first = sensor.tick()
        # then
        assert keys(first) == [key(0, 1)], "one, and not four"
        # when it has not taken its memory yet, nor when it has
        sensor.begin(key(0, 1))
        sensor.later = 10
        assert keys(sensor.tick()) == []
        sensor.host = Machine(used=0.6, limit=float(3 << 30))
        sensor.later = 40
        assert keys(sensor.tick()) == []
        # when it turns out to take little
        sensor.host = Machine(used=0.4, limit=float(3 << 30))
        # then
        assert keys(sensor.tick()) == [key(2, 3)]
        # and what is not the gate's business: that it is no pressure
        assert not sensor.state.regulation.gate.held


def test_where_a_run_may_not_fit_one_is_tried() -> None:
    with sensing(settings=SensorSettings(regulator=SMALL, retry_seconds=0, max_in_flight=4)) as sensor:
        sensor.host = Machine(used=0.5, limit=float(1 << 30))
        produce(sensor.store, 20, size=989)
        sensor.tick()
        assert keys(sensor.tick()) == [key(0, 1)]


def test_memory_is_kept_for_as_much_as_the_driver_may_take() -> None:
    with sensing(settings=SensorSettings(regulator=SMALL, retry_seconds=0, max_in_flight=4)) as sensor:
        sensor.host = Machine(spark=SparkResource(spark_config={"spark.driver.memory": "10g"}), used=0.25)
        produce(sensor.store, 20, size=989)
        sensor.tick()
        assert len(sensor.tick().runs) == 3, "of 35 GiB that are left, 11 for each"
