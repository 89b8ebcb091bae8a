"""Garbage collection and upkeep as jobs, and when they run by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from objbuf_dagster.lake import LakeTable
from objbuf_dagster.orchestration import BufferResource
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import Deployment, failure_of, told

UPKEEP = "upkeep_buffer_tables"

AT_ONCE = {"retention_seconds": 0.0, "grace_seconds": 0.0}
"""Nothing is kept that was acked."""


def run(deployed: Deployment, op: str, **config: Any) -> dg.ExecuteInProcessResult:
    return deployed.defs.resolve_job_def(f"{op}_job").execute_in_process(
        instance=deployed.instance, run_config={"ops": {op: {"config": config}}}, raise_on_error=False
    )


def batches(buffer: BufferResource) -> list[str]:
    return [info.path for info in buffer.store().list(buffer.data_prefix) if info.path.endswith(".batch")]


def acked(deployed: Deployment, produce: Produce) -> list[str]:
    """Four batches in two acked ranges, and one that waits."""
    produce(4)
    deployed.settle()
    there = batches(deployed.buffer)
    produce(1)
    return there


def test_collecting_deletes_what_is_acked_and_past_its_retention(
    deployed: Deployment, produce: Produce, buffer: BufferResource
) -> None:
    old = acked(deployed, produce)
    kept = set(batches(buffer)) - set(old)
    done = [run(deployed, "collect_buffer", **AT_ONCE) for _ in range(2)]
    assert all(one.success for one in done)
    assert set(batches(buffer)) == kept
    log = "\n".join(line for one in done for line in told(deployed.instance, one.run_id))
    assert "deleted 4 batches" in log
    assert f"deleted {old[0]}" in log


def test_collecting_keeps_what_can_be_replayed(deployed: Deployment, produce: Produce, buffer: BufferResource) -> None:
    acked(deployed, produce)
    there = batches(buffer)
    for _ in range(2):
        assert run(deployed, "collect_buffer", grace_seconds=0.0).success
    assert batches(buffer) == there


def test_dry_run_of_collecting_deletes_nothing_and_tells_what_it_would(
    deployed: Deployment, produce: Produce, buffer: BufferResource
) -> None:
    old = acked(deployed, produce)
    there = [info.path for info in buffer.store().list()]
    done = run(deployed, "collect_buffer", **AT_ONCE, dry_run=True)
    assert done.success
    assert [info.path for info in buffer.store().list()] == there
    assert f"would delete {old[0]}" in told(deployed.instance, done.run_id)


def test_fenced_deployment_collects_nothing_and_says_so(
    deployed: Deployment, produce: Produce, buffer: BufferResource
) -> None:
    acked(deployed, produce)
    there = batches(buffer)
    with buffer.consumer():
        for _ in range(2):
            assert "Fenced" in failure_of(run(deployed, "collect_buffer", **AT_ONCE))
    assert batches(buffer) == there


def test_deployment_that_never_took_the_buffer_collects_nothing_and_says_so(
    deployed: Deployment, produce: Produce, buffer: BufferResource
) -> None:
    produce(2)
    with buffer.consumer():
        assert "has not taken the buffer" in failure_of(run(deployed, "collect_buffer", **AT_ONCE))
    assert len(batches(buffer)) == 2


def test_upkeep_of_tables_that_are_not_there_yet_succeeds(deployed: Deployment) -> None:
    assert run(deployed, UPKEEP).success


def test_upkeep_writes_a_checkpoint_and_a_dry_run_writes_nothing(deployed: Deployment, lake: Path) -> None:
    table = LakeTable(lake / "entries")
    table.commit("000000000000-000000000001", [], epoch=1)
    before = sorted(lake.rglob("*"))
    dry = run(deployed, UPKEEP, dry_run=True)
    assert dry.success
    assert sorted(lake.rglob("*")) == before
    assert "entries: would delete 0 files, 0 bytes, and 0 files of its log" in told(deployed.instance, dry.run_id)
    assert run(deployed, UPKEEP, retention_hours=24.0).success
    assert list(lake.rglob("*.checkpoint.parquet"))


def test_retention_below_an_hour_is_refused_before_anything_runs(deployed: Deployment) -> None:
    assert not run(deployed, UPKEEP, retention_hours=0.5).success


def test_only_what_deletes_data_is_off_by_default(deployed: Deployment) -> None:
    found = {one.job_name: one for one in deployed.defs.schedules or [] if isinstance(one, dg.ScheduleDefinition)}
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    assert {name: one.default_status for name, one in found.items()} == {
        "collect_buffer_job": stopped,
        f"{UPKEEP}_job": running,
        "check_buffer_tables_job": running,
    }
