"""The sensor in a deployment: real runs, real hooks, a real instance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from objbuf_dagster.orchestration import BufferResource, BufferSource, SensorSettings
from objbuf_dagster.ranges import SequenceRange
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import AT_ONCE, Deployment, deployment, lines_of


@pytest.fixture
def impatient(tmp_path: Path, buffer: BufferResource, lake: Path) -> Iterator[Deployment]:
    """Gives a range two attempts."""
    settings = SensorSettings(limits=AT_ONCE, retry_seconds=0, max_attempts=2, max_in_flight=2)
    with deployment(tmp_path / "home", buffer, lake, settings=settings) as made:
        yield made


def test_everything_lands_once_and_is_acked(deployed: Deployment, produce: Produce, lake: Path) -> None:
    # given
    produce(5)
    # when
    deployed.settle()
    # then
    assert len(lines_of(lake)) == 15
    assert deployed.frontier == 5
    assert deployed.materialised() == deployed.partitions
    assert len(deployed.partitions) == 3


def test_a_broken_range_waits_for_a_person_while_others_land(
    impatient: Deployment, produce: Produce, lake: Path
) -> None:
    # given
    produce(4)
    impatient.tick()
    store, entry = impatient.buffer.store(), impatient.buffer.place().manifests().read().entry(0)
    assert entry is not None
    batch = store.get(entry.location).data
    store.put(entry.location, b"damaged")
    # when
    impatient.settle()
    # then
    broken = SequenceRange(0, 1).key
    tried = [request.run_key for ticked in impatient.seen for request in ticked.requests]
    assert [one for one in tried if one and one.startswith(broken)] == [f"{broken}:1", f"{broken}:2"]
    assert impatient.frontier == 0
    assert impatient.materialised() == [SequenceRange(2, 3).key]
    assert f"waits for a person, the first is {broken}" in impatient.seen[-1].sentence
    # when a person has mended it
    store.put(entry.location, batch)
    assert impatient.materialise(broken).success
    # then
    assert impatient.frontier == 4
    assert len(lines_of(lake)) == 12


def test_what_was_landed_without_a_hook_is_acked_by_the_sensor(
    tmp_path: Path, deployed: Deployment, buffer: BufferResource, produce: Produce, lake: Path
) -> None:
    # given a run of a release whose asset has no hook
    produce(2)
    deployed.tick()
    deployed.tick(launch=False)
    with deployment(tmp_path / "home", buffer, lake, source=BufferSource(ack="manual")) as without_hook:
        assert without_hook.materialise(SequenceRange(0, 1).key).success
    assert deployed.frontier == 0
    # when
    healed = deployed.tick()
    # then
    assert deployed.frontier == 2
    assert healed.requests == []


def test_a_restart_of_everything_goes_on_where_it_was(
    tmp_path: Path, buffer: BufferResource, produce: Produce, lake: Path
) -> None:
    # given
    produce(2)
    with deployment(tmp_path / "home", buffer, lake) as before:
        before.settle()
        cursor = before.cursor
    # when
    produce(2)
    with deployment(tmp_path / "home", buffer, lake) as after:
        after.cursor = cursor
        after.settle()
        # then
        assert after.frontier == 4
        assert after.buffer.peek().epoch == 1
        assert after.materialised() == [SequenceRange(0, 1).key, SequenceRange(2, 3).key]


def test_a_partition_that_somebody_deleted_does_not_stop_the_sensor(
    deployed: Deployment, produce: Produce, lake: Path
) -> None:
    # given: planned, and deleted in the UI before it ran
    produce(4)
    deployed.tick()
    deployed.tick(launch=False)
    first, second = deployed.partitions
    deployed.instance.delete_dynamic_partition(str(deployed.source.partitions.name), first)
    # when
    deployed.settle()
    # then
    assert deployed.frontier == 4
    assert deployed.partitions == [second, first], "Dagster's list goes by when a key was added"
    assert len(lines_of(lake)) == 12
    # when the cursor is reset, and more comes
    deployed.cursor = None
    produce(2)
    deployed.settle()
    # then: it went on behind the last range, not behind the last of the list
    assert deployed.frontier == 6
    assert deployed.partitions == [second, first, SequenceRange(4, 5).key]
    assert len(lines_of(lake)) == 18
