"""Dry runs: all the way, with nothing committed, nothing acked, and what would have come of it in the log."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from objbuf_dagster.orchestration import BufferResource, BufferSource
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import DRY, Deployment, deployment, failure_of, lines_of, plain_asset, told


def planned(deployed: Deployment, produce: Produce, batches: int) -> list[str]:
    produce(batches)
    deployed.tick()
    deployed.tick(launch=False)
    return deployed.partitions


def land(deployed: Deployment, key: str) -> tuple[dg.ExecuteInProcessResult, str]:
    """A dry run of the whole job, and what it logged."""
    job = deployed.defs.resolve_job_def("land_buffer")
    run = job.execute_in_process(instance=deployed.instance, partition_key=key, run_config=DRY, raise_on_error=False)
    return run, "\n".join(told(deployed.instance, run.run_id))


def test_dry_run_changes_nothing_and_tells_what_it_would_have_done(
    deployed: Deployment, produce: Produce, lake: Path
) -> None:
    keys = planned(deployed, produce, 4)
    first = deployed.materialise(keys[0], config=DRY)
    second = deployed.materialise(keys[1], config=DRY)
    assert first.success
    assert second.success
    assert (deployed.materialised(), deployed.frontier, lines_of(lake)) == ([], 0, [])
    log = "\n".join(told(deployed.instance, first.run_id))
    assert f"range {keys[0]} would have been committed and materialised: {{'rows': 6}}" in log
    assert "the frontier would be 2, and wait for range" in log
    log = "\n".join(told(deployed.instance, second.run_id))
    assert f"the frontier would stay at 0, and wait for range {keys[0]}" in log


def test_dry_run_that_fails_fails(deployed: Deployment, produce: Produce, buffer: BufferResource) -> None:
    (key,) = planned(deployed, produce, 2)
    bad = buffer.ledger().list()[0].batches[0].descriptor
    buffer.store().put(bad.location, b"garbage")
    assert bad.location in failure_of(deployed.materialise(key, config=DRY))


def test_dry_run_of_a_deployment_that_owns_nothing_works(
    tmp_path: Path, deployed: Deployment, produce: Produce, lake: Path
) -> None:
    keys = planned(deployed, produce, 2)
    with deployment(tmp_path / "other", deployed.buffer, lake) as other:
        other.instance.add_dynamic_partitions(str(other.source.partitions.name), keys)
        assert other.materialise(keys[0], config=DRY).success
    assert deployed.buffer.peek().epoch == deployed.state.epoch


@pytest.mark.parametrize("gates", [["entries", "after"], ["entries"]])
def test_dry_run_of_several_assets_skips_those_downstream_and_counts_them(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce, gates: list[str]
) -> None:
    source = BufferSource(ack_after=gates)
    assets = [plain_asset(source), plain_asset(source, "after", deps=["entries"])]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=assets) as deployed:
        # given
        (key,) = planned(deployed, produce, 2)
        # when
        run, log = land(deployed, key)
        # then
        assert run.success, failure_of(run)
        assert "STEP_SKIPPED" in log
        assert (deployed.materialised(), lines_of(lake), lines_of(lake, "after"), deployed.frontier) == ([], [], [], 0)
        assert "else the frontier would be 2" in log


def test_dry_run_counts_only_assets_that_its_run_has(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    source = BufferSource(ack_after=["entries", "after"])
    assets = [plain_asset(source), plain_asset(source, "after", deps=["entries"])]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=assets) as deployed:
        # given
        (key,) = planned(deployed, produce, 2)
        # when
        run = deployed.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=deployed.instance, partition_key=key, run_config=DRY, asset_selection=[dg.AssetKey("entries")]
        )
        # then
        log = "\n".join(told(deployed.instance, run.run_id))
        assert f"else the frontier would stay at 0, and wait for range {key}" in log


def test_dry_run_does_not_promise_an_ack_that_is_left_to_others(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    with deployment(tmp_path / "home", buffer, lake, source=BufferSource(ack="manual")) as deployed:
        (key,) = planned(deployed, produce, 2)
        assert "else nothing would be acked: with ack='manual', your own code does" in land(deployed, key)[1]


def test_dry_run_of_a_fenced_deployment_says_that_it_is(deployed: Deployment, produce: Produce) -> None:
    (key,) = planned(deployed, produce, 2)
    deployed.buffer.consumer()
    _, log = land(deployed, key)
    assert "else nothing would be acked: another consumer took over: this one holds epoch 1, the manifest says 2" in log
