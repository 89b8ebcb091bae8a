"""Who owns the buffer: taking it over, being fenced, taking it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster._core.storage.tags import PARTITION_NAME_TAG

from objbuf_dagster.errors import Fenced, StorageUnavailable
from objbuf_dagster.orchestration import BufferResource, ack_materialised
from objbuf_dagster.orchestration.observations import held
from objbuf_dagster.store import MemoryStore
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import Deployment, deployment, lines_of
from tests.orchestration.sensing import Sensing, buffer_in, key, produce, sensing
from tests.support.faults import FaultStore


@pytest.fixture
def other(tmp_path: Path, buffer: BufferResource) -> Iterator[Deployment]:
    """Another deployment, with a lake of its own, on the same buffer."""
    with deployment(tmp_path / "home2", buffer, tmp_path / "lake2") as made:
        yield made


def epoch(sensor: Sensing) -> int:
    return sensor.buffer.peek().epoch


def test_the_first_tick_takes_the_epoch_and_nothing_else(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    before = {info.path for info in sensor.store.list()}
    # when
    first = sensor.tick()
    # then
    assert epoch(sensor) == sensor.state.epoch == 1
    assert held(sensor.instance, sensor.source, sensor.buffer.identity()).epoch == 1
    assert (first.runs, first.partitions) == ([], [])
    assert {info.path for info in sensor.store.list()} == before
    assert sensor.frontier == 0


def test_only_an_empty_cursor_takes_the_epoch(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    sensor.tick()
    # when
    for _ in range(3):
        sensor.tick()
        sensor.buffer.place()
        sensor.buffer.ledger()
        sensor.buffer.attach(1)
    # then
    assert epoch(sensor) == 1
    # when another one took it in between
    with sensing(sensor.store) as second:
        second.tick()
    sensor.cursor = ""
    sensor.tick()
    # then
    assert epoch(sensor) == 3


@pytest.mark.parametrize("batches", [0, 4], ids=["nothing planned", "ranges planned"])
def test_an_evaluation_that_nobody_keeps_does_not_fence_the_deployments_own_sensor(
    sensor: Sensing, batches: int
) -> None:
    # given
    produce(sensor.store, batches)
    sensor.tick()
    sensor.tick()
    kept = sensor.cursor
    # when: what `dagster sensor preview` does
    sensor.cursor = None
    previewed = sensor.evaluate()
    # then
    assert "goes on with epoch 1" in previewed.sentence
    sensor.cursor = kept
    sensor.tick()
    assert epoch(sensor) == 1


def test_a_reset_cursor_goes_on_with_the_epoch_that_is_held(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    sensor.tick()
    sensor.tick()
    sensor.land(key(0, 1))
    # when
    sensor.cursor = None
    sensor.tick()
    again = sensor.tick()
    # then
    assert (again.runs, again.partitions, sensor.frontier, epoch(sensor)) == ([], [], 2, 1)


def test_making_a_resource_takes_nothing(sensor: Sensing) -> None:
    # when
    buffer = buffer_in(sensor.store)
    buffer.peek()
    # then
    assert list(sensor.store.list()) == []


def test_ticks_that_fail_after_the_takeover_do_not_take_the_epoch_again(sensor: Sensing) -> None:
    # given a range object that nobody can read
    produce(sensor.store, 4)
    sensor.tick()
    sensor.store.put("ingest/ranges/" + "0" * 20, b"damaged")
    # when
    for _ in range(3):
        with pytest.raises(Exception, match="corrupt"):
            sensor.tick()
    # then
    assert epoch(sensor) == 1


def test_a_storage_that_fails_right_after_the_takeover_does_not_fail_the_tick() -> None:
    # given
    store = FaultStore(MemoryStore(), {})
    produce(store, 2)
    with sensing(store) as sensor:
        writes = sum(call.method == "put" for call in store.calls)
        # when nothing can be had once the epoch is written
        store.script = lambda call: (
            "unavailable" if sum(one.method == "put" for one in store.calls) > writes and call.method != "put" else None
        )
        sensor.tick()
        # then: the cursor has the epoch, and the next tick need not take it again
        store.script = {}
        sensor.tick()
        assert epoch(sensor) == sensor.state.epoch == 1


def test_a_storage_that_fails_before_the_takeover_takes_nothing() -> None:
    # given
    store = FaultStore(MemoryStore(), {})
    produce(store, 2)
    with sensing(store) as sensor:
        store.script = lambda call: "unavailable" if call.method == "list" else None
        # when
        with pytest.raises(StorageUnavailable):
            sensor.tick()
        # then
        store.script = {}
        assert epoch(sensor) == 0


def test_a_fenced_sensor_says_so_and_changes_nothing(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 4)
    sensor.tick()
    sensor.tick()
    with sensing(sensor.store) as second:
        second.tick()
    sensor.report(key(0, 1))
    produce(sensor.store, 2)
    before = {info.path: sensor.store.get(info.path).data for info in sensor.store.list()}
    # when
    for _ in range(2):
        with pytest.raises(Fenced, match=r"holds epoch 1, the manifest says 2.*reset the cursor.*buffer_sensor"):
            sensor.tick()
    with pytest.raises(Fenced):
        ack_materialised(sensor.instance, sensor.source, sensor.buffer)
    # then
    assert {info.path: sensor.store.get(info.path).data for info in sensor.store.list()} == before


def test_a_fenced_sensor_takes_the_buffer_back_when_its_cursor_is_reset(sensor: Sensing) -> None:
    # given: a second deployment planned and landed what the first one does not know
    produce(sensor.store, 4)
    sensor.tick()
    sensor.tick()
    with sensing(sensor.store) as second:
        second.tick()
        second.tick()
        second.land(key(0, 1))
        second.land(key(2, 3))
        produce(sensor.store, 4)
        second.tick()
        second.land(key(4, 5))
        second.tick()
        # when
        sensor.cursor = None
        sensor.tick()
        sensor.tick()
        # then
        assert sensor.partitions == [key(0, 1), key(2, 3), key(4, 5), key(6, 7)]
        assert sensor.frontier == 6
        runs = {run.tags[PARTITION_NAME_TAG] for run in sensor.instance.get_runs()}
        assert runs == {key(0, 1), key(2, 3), key(6, 7)}
        with pytest.raises(Fenced, match="holds epoch 2, the manifest says 3"):
            second.tick()


def test_two_deployments_lose_nothing_and_double_nothing(
    deployed: Deployment, other: Deployment, produce: Produce, lake: Path, tmp_path: Path
) -> None:
    # given: the first has landed two ranges and asked for two more
    produce(4)
    deployed.tick()
    deployed.tick()
    produce(4)
    asked = deployed.tick(launch=False)
    # when the second takes over, and the first one's runs end after that
    other.tick()
    late = deployed.launch(asked.requests[0])
    # then: it landed in its own lake, and acked nothing
    assert late.success
    assert deployed.frontier == 4
    with pytest.raises(Fenced):
        deployed.tick()
    # when the second goes on, and the first takes the buffer back
    other.tick()
    produce(2)
    with pytest.raises(Fenced):
        deployed.tick()
    deployed.cursor = None
    deployed.settle()
    with pytest.raises(Fenced):
        other.tick()
    # then
    assert deployed.frontier == 10
    first, second = lines_of(lake), lines_of(tmp_path / "lake2")
    assert len(first) == len(set(first))
    assert len(second) == len(set(second))
    batch = list(enumerate((b"a", b"b", b"c")))
    every = {f"{sequence}/{index}={entry!r}" for sequence in range(10) for index, entry in batch}
    assert set(first) | set(second) == every
    assert len(second) == 12, "ranges 4-5 and 6-7 were landed by the second one"
    for home in (deployed, other):
        assert home.partitions == sorted(home.partitions)
    assert len(deployed.materialised()) == len(set(deployed.materialised()))
