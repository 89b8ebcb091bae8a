"""The pipeline as a person runs it: from producers' processes to the table, through everything that may be killed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.deployment import Deployment
from tests.spark.processes import descendants, is_alive

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


def test_a_run_killed_while_it_lands_is_tried_again(deployed: Deployment) -> None:
    dagster = deployed.dagster
    with deployed.producing():
        killed = dagster.wait_until_a_run_lands()
        below = [pid for run in killed for pid in descendants(run)]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    deployed.settle()
    assert dagster.runs("FAILURE")
    assert [pid for pid in below if is_alive(pid)] == []  # its JVM and workers among them
    deployed.assert_exactly_once()


def test_a_daemon_killed_while_ranges_land_and_producers_go_on_loses_nothing(deployed: Deployment) -> None:
    dagster = deployed.dagster
    with deployed.producing():
        dagster.wait_until_a_run_lands()
        os.kill(dagster.daemon(), signal.SIGKILL)
    frontier, produced = dagster.frontier, dagster.next_sequence
    with deployed.producing():
        dagster.wait_until_it_ended()  # as it does when one of its processes dies; a run that lands may outlive it
        assert "dagster-daemon process shut down unexpectedly" in dagster.output
        dagster.start()
        dagster.wait_until("more came", lambda: dagster.next_sequence > produced)

    deployed.settle()
    assert dagster.frontier > frontier
    deployed.assert_exactly_once()


def test_ctrl_c_leaves_no_process_and_no_open_port(deployed: Deployment) -> None:
    dagster = deployed.dagster
    assert len(dagster.left()) > 3
    assert dagster.is_listening()

    assert dagster.stop() == 0

    assert dagster.left() == {}
    assert not dagster.is_listening()
