"""The pipeline as a person runs it, from producers' processes to the table. What may be killed is in tests/prove."""

from __future__ import annotations

import pytest

from tests.e2e.deployment import Deployment

pytestmark = pytest.mark.timeout(1800)

BACKFILL = """mutation($of: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $of) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""


def test_what_producers_were_told_is_durable_is_in_the_table_exactly_once(deployed: Deployment) -> None:
    assert len(deployed.dagster.materialised()) > 1
    deployed.assert_exactly_once()
    assert deployed.dagster.failed_ticks() == []


def test_a_backfill_of_acked_ranges_lands_them_again_in_one_run_and_leaves_the_frontier(deployed: Deployment) -> None:
    dagster = deployed.dagster
    first, second, *others = dagster.materialised()
    before = {key: dagster.runs_of(key) for key in (first, second, *others)}
    frontier = dagster.frontier

    # What the UI sends for a selection of partitions.
    chosen = {"assetSelection": [{"path": ["entries"]}], "partitionNames": [first, second], "fromFailure": False}
    launched = dagster.query(BACKFILL, of=chosen)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    dagster.wait_until("both came again", lambda: all(dagster.runs_of(key) != before[key] for key in (first, second)))
    deployed.settle()

    (again,) = {tuple(run for run in dagster.runs_of(key) if run not in before[key]) for key in (first, second)}
    assert len(again) == 1
    assert {key: dagster.runs_of(key) for key in others} == {key: before[key] for key in others}
    assert dagster.frontier == frontier
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


def test_ctrl_c_leaves_no_process_and_no_open_port(deployed: Deployment) -> None:
    dagster = deployed.dagster
    assert len(dagster.left()) > 3
    assert dagster.is_listening()

    assert dagster.stop() == 0

    assert dagster.left() == {}
    assert not dagster.is_listening()
