"""DAGSTER_HOME: our settings are valid, mean what they say, and are the person's own after the first time."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.instance.config import PoolGranularity
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.scheduler.instigation import TickStatus
from dagster_shared.yaml_utils import load_yaml_from_path

from dev import home
from dev.settings import SetupError


@dg.op
def nothing() -> None:
    """A job needs something to do."""


@dg.job
def idle() -> None:
    nothing()


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    home.prepare(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def instance(prepared: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(prepared)) as opened:
        yield opened


def test_every_setting_reaches_what_it_sets(instance: dg.DagsterInstance) -> None:
    queue = instance.run_coordinator
    assert isinstance(queue, QueuedRunCoordinator)
    assert (queue.dequeue_interval_seconds, queue.dequeue_use_threads, queue.dequeue_num_workers) == (1, True, 4)
    concurrency = instance.get_concurrency_config()
    assert concurrency.run_queue_config is not None
    assert concurrency.run_queue_config.max_concurrent_runs == 2
    assert concurrency.pool_config.pool_granularity is PoolGranularity.RUN
    assert concurrency.pool_config.default_pool_limit == 2
    assert instance.get_settings("sensors") == {"use_threads": True, "num_workers": 4, "num_submit_workers": 4}
    assert instance.get_settings("backfills") == {"use_threads": True, "num_workers": 2, "num_submit_workers": 4}
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_poll_interval_seconds == 10
    assert instance.run_monitoring_start_timeout_seconds == 120
    assert instance.run_monitoring_cancel_timeout_seconds == 30
    assert instance.run_monitoring_max_runtime_seconds == 21600
    kept = instance.get_tick_retention_settings(InstigatorType.SENSOR)
    assert [kept[status] for status in (TickStatus.SKIPPED, TickStatus.SUCCESS, TickStatus.FAILURE)] == [1, 7, 30]
    assert instance.code_server_process_startup_timeout == 300
    assert instance.code_server_reload_timeout == 300
    assert instance.wait_for_local_code_server_processes_on_shutdown
    assert instance.python_log_level == "INFO"
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled


def test_no_setting_is_left_out_of_the_test_above(prepared: Path) -> None:
    def leaves(value: Any) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    assert leaves(load_yaml_from_path(str(prepared / "dagster.yaml"))) == 26


def test_settings_that_are_there_stay(prepared: Path) -> None:
    (prepared / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    home.prepare(prepared)
    assert (prepared / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"
    assert [path.name for path in prepared.iterdir()] == ["dagster.yaml"]


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="as DAGSTER_HOME: Not a directory"):
        home.prepare(tmp_path / "file" / "home")


def test_a_home_is_held_once_and_let_go(prepared: Path) -> None:
    with home.held(prepared), pytest.raises(SetupError, match="end it first"), home.held(prepared):
        pass
    with home.held(prepared):
        pass


def test_runs_whose_code_server_is_gone_are_failed_and_no_others(prepared: Path, instance: dg.DagsterInstance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = {"host": "127.0.0.1", "port": server.getsockname()[1]}
        gone = {"host": "localhost", "socket": str(prepared / "socket")}

        def made(status: dg.DagsterRunStatus, where: dict[str, Any]) -> str:
            tags = {".dagster/grpc_info": json.dumps(where)}
            return instance.create_run_for_job(idle, status=status, tags=tags).run_id

        lost = [made(dg.DagsterRunStatus.STARTED, gone), made(dg.DagsterRunStatus.STARTING, gone)]
        kept = [
            made(dg.DagsterRunStatus.STARTED, here),
            made(dg.DagsterRunStatus.NOT_STARTED, gone),
            made(dg.DagsterRunStatus.SUCCESS, gone),
        ]
        assert home.fail_lost_runs(prepared) == 2
    found = {run.run_id: run.status for run in instance.get_runs()}
    assert {found[run] for run in lost} == {dg.DagsterRunStatus.FAILURE}
    assert dg.DagsterRunStatus.FAILURE not in {found[run] for run in kept}


def test_a_new_home_has_no_lost_runs(prepared: Path) -> None:
    assert home.fail_lost_runs(prepared) == 0
    assert [path.name for path in prepared.iterdir()] == ["dagster.yaml"]
