"""DAGSTER_HOME: made once, used by one `make dev` at a time, and free of runs that nobody runs any more."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dev.settings import SetupError

if TYPE_CHECKING:
    from dagster import DagsterRun

_SETTINGS = "dagster.yaml"
_LOCK = ".make-dev.lock"
_SERVER_TAG = ".dagster/grpc_info"


def prepare(home: Path) -> None:
    """Make the directory, with our dagster.yaml if it has none. Raises SetupError."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / _SETTINGS).exists():
            half = home / f"{_SETTINGS}.new"
            shutil.copyfile(Path(__file__).parent / _SETTINGS, half)
            half.replace(home / _SETTINGS)
    except OSError as error:
        raise SetupError(f"cannot use {home} as DAGSTER_HOME: {error.strerror}") from error


@contextlib.contextmanager
def held(home: Path) -> Iterator[None]:
    """Hold the home; the kernel lets go of it when this process dies. Raises SetupError if another one holds it."""
    with (home / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise SetupError(
                f"make dev is running with {home} already, process {lock.read().strip() or 'unknown'}: end it first, "
                "or set DAGSTER_HOME to another directory"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def fail_lost_runs(home: Path) -> int:
    """Fail the runs whose code server is gone, and return how many there were.

    They were killed along with it, and nothing in Dagster looks after them then: each would be in progress for ever,
    and keep a place in the queue. Only for a home that no other machine uses.
    """
    if not (home / "history").exists():
        return 0
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    begun = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    with DagsterInstance.from_config(str(home)) as instance:
        lost = [run for run in instance.get_runs(RunsFilter(statuses=begun)) if not _has_server(run)]
        for run in lost:
            instance.report_run_failed(run, "This run's process was killed along with its code server.")
    return len(lost)


def _has_server(run: DagsterRun) -> bool:
    where = json.loads(run.tags.get(_SERVER_TAG, "{}"))
    try:
        if "socket" in where:
            with socket.socket(socket.AF_UNIX) as unix:
                unix.settimeout(1)
                unix.connect(where["socket"])
        elif "port" in where:
            socket.create_connection((where.get("host", "localhost"), where["port"]), timeout=1).close()
        else:
            return False
    except OSError:
        return False
    return True
