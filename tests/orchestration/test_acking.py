"""The frontier moves behind what has materialised, whatever started the run, and behind nothing else."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from objbuf_dagster.errors import Fenced, InvalidInput
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    ack_materialised,
)
from objbuf_dagster.orchestration.acking import survey
from objbuf_dagster.orchestration.materialised import LAST_BATCH
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import (
    DRY,
    Deployment,
    deployment,
    lines_of,
    plain_asset,
    planned,
    told,
)


def test_ranges_that_finish_early_wait_for_the_hole(deployed: Deployment, produce: Produce) -> None:
    produce(6)
    first, second, third = planned(deployed)
    deployed.materialise(third)
    run = deployed.materialise(second)
    assert deployed.frontier == 0
    assert any(f"stays at 0, which waits for range {first}" in line for line in told(deployed.instance, run.run_id))
    deployed.materialise(first)
    assert deployed.frontier == 6


def test_frontier_waits_for_every_asset_of_ack_after(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    source = BufferSource(ack_after=["left", "right"])
    assets = [plain_asset(source, "left"), plain_asset(source, "right"), plain_asset(source, "beside")]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=assets) as deployed:
        produce(2)
        (key,) = planned(deployed)
        frontiers = []
        for name in ("beside", "left", "right"):
            assert _materialise_one(deployed, name, key).success
            frontiers.append(deployed.frontier)
    assert frontiers == [0, 0, 2]


def test_asset_outside_ack_after_never_moves_the_frontier(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    source = BufferSource()
    assets = [plain_asset(source), plain_asset(source, "beside")]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=assets) as deployed:
        produce(2)
        (key,) = planned(deployed)
        assert _materialise_one(deployed, "beside", key).success
        deployed.tick(launch=False)
        assert deployed.frontier == 0


def _materialise_one(deployed: Deployment, name: str, key: str) -> dg.ExecuteInProcessResult:
    return deployed.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=deployed.instance, partition_key=key, asset_selection=[dg.AssetKey(name)], raise_on_error=False
    )


def test_manual_ack_is_moved_by_nobody_else(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    source = BufferSource(ack="manual")
    with deployment(tmp_path / "home", buffer, lake, source=source) as deployed:
        # given: the second of two ranges is materialised
        produce(4)
        first, second = planned(deployed)
        deployed.materialise(second)
        # then: there is a hole before it
        stays = ack_materialised(deployed.instance, source, buffer)
        assert (stays.before, stays.after, str(stays.waits_for)) == (0, 0, first)
        # when
        deployed.materialise(first)
        deployed.tick()
        assert deployed.frontier == 0
        moved = ack_materialised(deployed.instance, source, buffer)
        # then
        assert (moved.before, moved.after, moved.waits_for) == (0, 4, None)
        assert deployed.frontier == 4
        assert ack_materialised(deployed.instance, source, buffer).before == 4


def test_fenced_deployment_leaves_the_frontier_alone(deployed: Deployment, produce: Produce) -> None:
    produce(2)
    (key,) = planned(deployed)
    with deployed.buffer.consumer() as other:
        run = deployed.materialise(key)
        assert run.success
        (said,) = [event for event in run.all_events if event.event_type_value == "HOOK_ERRORED"]
        assert "Fenced: another consumer took over: this one holds epoch 1, the manifest says 2" in str(
            said.event_specific_data
        )
        with pytest.raises(Fenced):
            ack_materialised(deployed.instance, deployed.source, deployed.buffer)
        assert (deployed.frontier, deployed.buffer.peek().epoch) == (0, other.epoch)


def test_deployment_that_never_took_the_buffer_acks_nothing_and_is_told(
    tmp_path: Path, deployed: Deployment, produce: Produce, lake: Path
) -> None:
    # given: a range that another deployment planned
    produce(2)
    (key,) = planned(deployed)
    with deployment(tmp_path / "other", deployed.buffer, lake) as other:
        other.instance.add_dynamic_partitions(str(other.source.partitions.name), [key])
        # when
        assert other.materialise(key).success
        # then: its events are its own, and the epoch is not its to use
        with pytest.raises(InvalidInput, match="has not taken the buffer"):
            ack_materialised(other.instance, other.source, other.buffer)
    assert deployed.frontier == 0
    assert deployed.buffer.peek().epoch == deployed.state.epoch


def test_acked_range_that_is_materialised_again_moves_nothing(
    deployed: Deployment, produce: Produce, lake: Path
) -> None:
    produce(4)
    deployed.settle()
    before = lines_of(lake)
    state = deployed.buffer.peek()
    assert deployed.materialise(deployed.partitions[0]).success
    assert lines_of(lake) == before
    assert deployed.buffer.peek() == state


def _report(deployed: Deployment, key: str, metadata: dict[str, str] | None = None) -> None:
    deployed.instance.report_runless_asset_event(dg.AssetMaterialization("entries", partition=key, metadata=metadata))


def test_materialisation_of_a_range_with_another_last_batch_does_not_count(
    deployed: Deployment, produce: Produce
) -> None:
    produce(2)
    (key,) = planned(deployed)
    _report(deployed, key, {LAST_BATCH: "ingest/01AAAAAAAAAAAAAAAAAAAAAAAA.batch"})
    assert ack_materialised(deployed.instance, deployed.source, deployed.buffer).after == 0
    (planned_range,) = deployed.buffer.ledger().list()
    _report(deployed, key, {LAST_BATCH: planned_range.batches[-1].descriptor.location})
    assert ack_materialised(deployed.instance, deployed.source, deployed.buffer).after == 2


def test_mark_of_a_person_counts_if_the_range_was_planned_by_then(deployed: Deployment, produce: Produce) -> None:
    # given: marks for two ranges, of which only the first is planned
    produce(2)
    planned(deployed)
    keys = ["000000000000-000000000001", "000000000002-000000000003"]
    for key in keys:
        _report(deployed, key)
    # when
    produce(2)
    deployed.tick(launch=False)
    deployed.tick(launch=False)
    # then
    assert deployed.partitions == keys
    assert deployed.frontier == 2
    _report(deployed, keys[1])
    deployed.tick(launch=False)
    assert deployed.frontier == 4


def test_dry_run_acks_not_even_what_others_have_materialised(deployed: Deployment, produce: Produce) -> None:
    # given: a range that is materialised, and that nobody has acked yet
    produce(4)
    first, second = planned(deployed)
    _report(deployed, first)
    # when
    assert deployed.materialise(second, config=DRY).success
    # then
    assert deployed.frontier == 0


def test_what_landed_after_the_manifest_was_read_is_left_for_the_next_ack(
    deployed: Deployment, produce: Produce
) -> None:
    produce(2)
    deployed.tick()
    old = deployed.buffer.place().manifests().read()
    deployed.settle()
    frontier = deployed.frontier
    produce(2)
    deployed.settle()

    seen = survey(deployed.instance, deployed.source, deployed.buffer.ledger(), old)

    assert seen.reached == frontier == old.next_sequence
    assert [one.end for one in seen.planned] == [1, 3]
