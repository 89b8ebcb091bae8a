"""The pipeline as a person runs it, from producers' processes to the table. What may be killed is in tests/prove."""

from __future__ import annotations

import pytest

from objbuf_dagster.buffer import GarbageCollector
from objbuf_dagster.buffer.manifest_store import ManifestStore
from objbuf_dagster.ranges import Limits, RangeLedger, plan, range_of
from tests.e2e.deployment import Deployment

pytestmark = pytest.mark.timeout(1800)


def test_what_producers_were_told_is_durable_is_in_the_table_exactly_once(deployed: Deployment) -> None:
    assert len(deployed.dagster.materialised()) > 1
    deployed.assert_exactly_once()
    assert deployed.dagster.failed_ticks() == []


def test_a_backfill_of_acked_ranges_lands_them_again_in_one_run_and_leaves_the_frontier(deployed: Deployment) -> None:
    dagster = deployed.dagster
    first, second, *others = dagster.materialised()
    before = {key: dagster.runs_of(key) for key in (first, second, *others)}
    frontier = dagster.frontier

    dagster.backfill(first, second)
    dagster.wait_until("both came again", lambda: all(dagster.runs_of(key) != before[key] for key in (first, second)))
    deployed.settle()

    (again,) = {tuple(run for run in dagster.runs_of(key) if run not in before[key]) for key in (first, second)}
    assert len(again) == 1
    assert {key: dagster.runs_of(key) for key in others} == {key: before[key] for key in others}
    assert dagster.frontier == frontier
    deployed.assert_exactly_once()


def test_a_backfill_of_ranges_that_are_not_acked_acks_them_without_the_sensor(deployed: Deployment) -> None:
    dagster = deployed.dagster
    frontier = dagster.frontier
    with dagster.sensor_off():
        deployed.produce_a_few_ranges()
        store = dagster.buffer_at.open()
        new = [range_of(one).key for one in plan(ManifestStore(store), RangeLedger(store), Limits(max_wait=0))]
        for key in new:
            dagster.add_partition(key)
        assert dagster.frontier == frontier
        dagster.backfill(*new, assets=("entries", "otel_logs"))
        dagster.wait_until("they are acked", lambda: dagster.frontier == dagster.next_sequence)
    deployed.settle()
    assert dagster.frontier > frontier
    deployed.assert_exactly_once()


def test_a_backfill_by_dagsters_command_lands_each_range_in_a_run_of_its_own(deployed: Deployment) -> None:
    dagster = deployed.dagster
    first, second, *others = dagster.materialised()
    before = {key: dagster.runs_of(key) for key in (first, second, *others)}
    frontier = dagster.frontier

    dagster.command("job", "backfill", "-j", "land_buffer", "--from", first, "--to", second, "--noprompt")
    dagster.wait_until("both came again", lambda: all(dagster.runs_of(key) != before[key] for key in (first, second)))
    deployed.settle()

    again = [set(dagster.runs_of(key)) - set(before[key]) for key in (first, second)]
    assert [len(runs) for runs in again] == [1, 1]
    assert again[0] != again[1]
    assert {key: dagster.runs_of(key) for key in others} == {key: before[key] for key in others}
    assert dagster.frontier == frontier
    deployed.assert_exactly_once()


def test_a_backfill_of_an_expired_range_fails_with_the_clear_error(deployed: Deployment) -> None:
    dagster = deployed.dagster
    first = dagster.materialised()[0]
    before, frontier, failed = dagster.runs_of(first), dagster.frontier, dagster.runs("FAILURE")
    for _ in range(2):  # the first pass sees the frontier, and for the second one it is old enough
        GarbageCollector(dagster.buffer_at.open(), grace_seconds=0, retention_seconds=0).collect_once()

    dagster.backfill(first)
    dagster.wait_until("the run failed", lambda: len(dagster.runs("FAILURE")) > len(failed))

    (run,) = set(dagster.runs("FAILURE")) - set(failed)
    said = dagster.failures_of(run)
    assert f"range {first} expired at " in said
    assert "Its rows are in the lake; to replay more next time, set a longer replay_retention" in said
    deployed.settle()
    assert (dagster.runs_of(first), dagster.frontier) == (before, frontier)
    assert deployed.rows()


def test_ctrl_c_leaves_no_process_and_no_open_port(deployed: Deployment) -> None:
    dagster = deployed.dagster
    assert len(dagster.left()) > 3
    assert dagster.is_listening()

    assert dagster.stop() == 0

    assert dagster.left() == {}
    assert not dagster.is_listening()
