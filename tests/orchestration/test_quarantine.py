"""Quarantined batches in Dagster: the asset goes without them and says so, the buffer's asset counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from objbuf_dagster.lake import CHECKS, LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.orchestration import BufferResource
from objbuf_dagster.orchestration.tick import TickResult
from objbuf_dagster.ranges.quarantine import QuarantineLedger, quarantine_path
from objbuf_dagster.store import MemoryStore
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import DRY, Deployment, failure_of, told
from tests.orchestration.sensing import key, sensing
from tests.orchestration.sensing import produce as produce_in
from tests.orchestration.test_entries import planned, rows, shown, table_checks
from tests.orchestration.test_range_checks import evaluations
from tests.spark.decoding import letters_in
from tests.support.counting import CountingStore

QUARANTINE = quarantine_path("ingest")


def numbers(outcome: TickResult) -> dict[str, Any]:
    (event,) = outcome.observations
    return {name: value.value for name, value in event.metadata.items()}


def test_the_asset_goes_without_it_and_says_so(
    deployed_on_spark: Deployment, produce: Produce, buffer: BufferResource, lake: Path
) -> None:
    # given a range with a batch that cannot be read
    table, letters = LakeTable(lake / "entries"), LakeTable(lake / "dead_letters", DEAD_LETTERS)
    (partition,) = planned(deployed_on_spark, produce, 2)
    (of,) = buffer.ledger().list()
    location = of.batches[1].descriptor.location
    saved = buffer.store().read(location)
    buffer.store().put(location, saved[:-9])
    stopped = deployed_on_spark.materialise(partition)
    assert not stopped.success
    assert "sequence 1" in failure_of(stopped)
    assert deployed_on_spark.frontier == 0
    # when it is quarantined
    records = QuarantineLedger(buffer.store())
    records.add(1, location, "cut off")
    tried = deployed_on_spark.materialise(partition, config=DRY)
    assert tried.success, failure_of(tried)
    assert not letters.exists()
    assert deployed_on_spark.frontier == 0
    run = deployed_on_spark.materialise(partition)
    # then
    assert run.success, failure_of(run)
    assert rows(table) == [(0, index) for index in range(3)]
    assert [letter[:5] for letter in letters_in(letters)] == [(1, 0, "quarantine", 1, "cut off")]
    (found,) = shown(deployed_on_spark).values()
    assert (found["quarantined"], found["quarantined_sequences"], found["batches"]) == (1, "1", 1)
    log = "\n".join(told(deployed_on_spark.instance, run.run_id))
    assert f"range {partition} landed without sequence 1, which is quarantined: cut off" in log
    assert {name: evaluations(deployed_on_spark, name)[0].passed for name in CHECKS} == dict.fromkeys(CHECKS, True)
    assert table_checks(deployed_on_spark) == {"no_holes": True, "no_overlaps": True}
    assert deployed_on_spark.frontier == 2
    (observed,) = deployed_on_spark.tick().observations
    assert observed.metadata["quarantined"].value == 1
    # and when it is brought back
    buffer.store().put(location, saved)
    records.undo(1)
    assert deployed_on_spark.materialise(partition).success
    assert rows(table) == [(sequence, index) for sequence in range(2) for index in range(3)]
    assert letters_in(letters) == []
    (found,) = shown(deployed_on_spark).values()
    assert found["quarantined"] == 0
    assert "quarantined_sequences" not in found


def test_ticks_that_have_nothing_to_tell_do_not_ask() -> None:
    store = CountingStore(MemoryStore())
    produce_in(store, 4)
    with sensing(store) as sensor:
        sensor.tick()
        sensor.tick()
        store.reset()
        # when nothing is new
        assert sensor.tick().observations == []
        assert store.count(path=QUARANTINE) == 0
        # and when something is
        location = sensor.buffer.ledger().at(0).batches[0].descriptor.location
        QuarantineLedger(store).add(0, location, "zeros")
        sensor.land(key(0, 1))
        store.reset()
        assert numbers(sensor.tick())["quarantined"] == 1
        assert store.count("get", path=QUARANTINE) == 1
        store.reset()
        sensor.tick()
        assert store.count(path=QUARANTINE) == 0


def test_the_count_goes_back_to_none() -> None:
    store = MemoryStore()
    produce_in(store, 4)
    with sensing(store) as sensor:
        sensor.tick()
        assert "quarantined" not in numbers(sensor.tick()), "a buffer that never had one has nothing to plot"
        location = sensor.buffer.ledger().at(0).batches[0].descriptor.location
        QuarantineLedger(store).add(0, location, "zeros")
        sensor.land(key(0, 1))
        assert numbers(sensor.tick())["quarantined"] == 1
        QuarantineLedger(store).undo(0)
        sensor.land(key(2, 3))
        assert numbers(sensor.tick())["quarantined"] == 0


def test_a_record_that_cannot_be_read_does_not_stop_the_sensor() -> None:
    store = MemoryStore()
    produce_in(store, 2)
    store.put(QUARANTINE, b"{")
    with sensing(store) as sensor:
        sensor.tick()
        ticked = sensor.tick()

        assert [one.key for one, _ in ticked.runs] == [key(0, 1)]
        assert "quarantined" not in numbers(ticked)


def test_an_acked_range_keeps_its_record(deployed: Deployment, produce: Produce, buffer: BufferResource) -> None:
    (partition,) = planned(deployed, produce, 2)
    (of,) = buffer.ledger().list()
    QuarantineLedger(buffer.store()).add(1, of.batches[1].descriptor.location, "zeros")
    before = buffer.store().read(QUARANTINE)

    assert deployed.materialise(partition).success

    assert deployed.frontier == 2
    assert buffer.store().read(QUARANTINE) == before
