"""A table on hdfs whose NameNode refuses, is silent, or loses an answer. A real one: tests/spark/test_hdfs.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from objbuf_dagster.errors import NotFound, StorageError, StorageUnavailable
from objbuf_dagster.lake import LakeTable, maintain, properties
from objbuf_dagster.lake.preview import head
from objbuf_dagster.store import RetryPolicy
from tests.lake.landings import REPOSITORY, key, land, sequences, tags, write
from tests.support.namenode import NameNode, Spoiling, name_node

QUICK = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.01)
ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def names() -> Iterator[NameNode]:
    with name_node() as found:
        yield found


def open_table(names: NameNode, *, timeout_seconds: float = 30.0, retry: RetryPolicy = QUICK) -> LakeTable:
    return LakeTable(f"{names.url}/lake/entries", retry=retry, timeout_seconds=timeout_seconds)


def is_commit(method: str, path: str) -> bool:
    return method == "rename2" and "/_delta_log/.0" in path


class Times:
    """Spoil the first `times` commits."""

    def __init__(self, times: int, spoiling: Spoiling) -> None:
        self.left = times
        self.spoiling = spoiling

    def __call__(self, method: str, path: str) -> Spoiling:
        if not is_commit(method, path) or not self.left:
            return None
        self.left -= 1
        return self.spoiling


def test_ranges_land_and_are_read_back(names: NameNode) -> None:
    table = open_table(names)

    land(table, key(0), b"first")
    land(table, key(1), b"other")
    land(table, key(0), b"second")

    assert (table.version(), sequences(table)) == (3, list(range(20)))
    assert tags(table, key(0)) == {b"second": 10}
    assert [row["entry"] for row in head(table, key(1), 2)] == [b"other"] * 2


@pytest.mark.parametrize("times", [1, 3], ids=["once", "each time"])
def test_a_commit_whose_answer_was_lost_is_found(names: NameNode, times: int) -> None:
    table = open_table(names)
    land(table, key(0), b"old")
    names.spoil = Times(times, "lost")

    commit = table.commit(key(0), write(table, key(0), b"new"), epoch=1)

    assert (commit.version, commit.added) == (2, 2)
    assert tags(table, key(0)) == {b"new": 10}
    assert table.version() == 2, "the range landed twice"


def test_a_table_made_without_an_answer_is_used(names: NameNode) -> None:
    table = open_table(names)
    names.spoil = Times(1, "lost")

    land(table, key(0))

    assert (table.version(), sequences(table)) == (1, list(range(10)))


def test_safe_mode_is_waited_for(names: NameNode) -> None:
    table = open_table(names)
    land(table, key(0))
    names.spoil = Times(3, ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Name node is in safe mode."))

    commit = table.commit(key(1), write(table, key(1)), epoch=1)

    assert commit.attempts > 1
    assert sequences(table) == list(range(20))


def test_a_silent_namenode_is_left_in_time(names: NameNode) -> None:
    patient = open_table(names)
    land(patient, key(0))
    file = patient.files()[0]
    files = write(patient, key(1))
    names.spoil = lambda method, path: "silent"
    table = open_table(names, timeout_seconds=0.3)

    uses: list[Callable[[], object]] = [
        table.version,
        table.ranges,
        lambda: maintain(table),
        lambda: table.filesystem({file.path: file.size}).open_input_file(file.path).read(),
        lambda: table.filesystem().open_input_file(file.path),
        lambda: table.commit(key(1), files, epoch=1),
    ]
    for ask in uses:
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match=r"no answer in 0\.[36] s") as caught:
            ask()
        assert time.monotonic() - began < 5
        assert not caught.value.in_doubt


def test_a_commit_without_an_answer_is_in_doubt(names: NameNode) -> None:
    table = open_table(names, timeout_seconds=5.0, retry=ONCE)
    land(table, key(0))
    files = write(table, key(1))
    names.spoil = lambda method, path: "silent" if is_commit(method, path) else None

    with pytest.raises(StorageUnavailable, match="no answer") as caught:
        table.commit(key(1), files, epoch=1, give_up_after=0.1)

    assert caught.value.in_doubt


def test_a_commit_that_happens_after_it_was_left_alone_is_found(names: NameNode) -> None:
    table = open_table(names, timeout_seconds=5.0, retry=ONCE)
    land(table, key(0), b"old")
    late = Late(3.0)
    names.spoil = late

    commit = table.commit(key(0), write(table, key(0), b"new"), epoch=1)
    late.done.wait(10)

    assert (commit.version, tags(table, key(0))) == (2, {b"new": 10})
    names.spoil = lambda method, path: None
    land(table, key(0), b"last")
    assert (table.version(), tags(table, key(0))) == (3, {b"last": 10})


def test_ctrl_c_is_heard_while_a_namenode_is_silent(names: NameNode) -> None:
    names.spoil = lambda method, path: "silent"
    code = "import sys\nfrom objbuf_dagster.lake import LakeTable\nLakeTable(sys.argv[1]).version()\n"
    command = [sys.executable, "-c", code, f"{names.url}/lake/entries"]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE) as process:
        while not names.calls:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)

    assert b"KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT


def test_a_namenode_that_is_not_there_may_come_back() -> None:
    table = LakeTable("hdfs://127.0.0.1:1/lake/entries", retry=QUICK)

    uses: list[Callable[[], object]] = [
        lambda: table.store.put("one", b"1"),
        table.version,
        lambda: table.commit(key(0), [], epoch=1),
    ]
    for use in uses:
        with pytest.raises(StorageUnavailable, match=r"check that it is up and reachable.*Connection refused"):
            use()


_HDFS, _IPC = "org.apache.hadoop.hdfs", "org.apache.hadoop.ipc"
_ROUTER = f"{_HDFS}.server.federation.router"


@pytest.mark.parametrize(
    "kind",
    [
        "java.io.IOException",
        "java.io.EOFException",
        "java.net.SocketTimeoutException",
        "java.net.ConnectException",
        "org.apache.hadoop.net.ConnectTimeoutException",
        f"{_IPC}.CallQueueManager$CallQueueOverflowException",
        f"{_IPC}.ObserverRetryOnActiveException",
        f"{_IPC}.RemoteException",
        f"{_IPC}.RetriableException",
        f"{_IPC}.StandbyException",
        f"{_HDFS}.protocol.RecoveryInProgressException",
        f"{_HDFS}.server.namenode.LeaseExpiredException",
        f"{_HDFS}.server.namenode.NotReplicatedYetException",
        f"{_HDFS}.server.namenode.SafeModeException",
        f"{_ROUTER}.RouterSafeModeException",
        f"{_ROUTER}.NoNamenodesAvailableException",
    ],
)
def test_what_may_pass_is_told_as_such_by_files_and_table(names: NameNode, kind: str) -> None:
    for error in refusals(names, (kind, "not now\n\tat org.apache.hadoop.security.AccessControlException.x(A.java:1)")):
        assert isinstance(error, StorageUnavailable)
        assert f"{kind.rpartition('.')[2].rpartition('$')[2]}: not now" in str(error)
        assert "check that it is up and reachable" in str(error)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("org.apache.hadoop.security.AccessControlException", "access denied, check HADOOP_USER_NAME"),
        (f"{_HDFS}.protocol.DSQuotaExceededException", "the directory's quota is full"),
        (f"{_HDFS}.protocol.NSQuotaExceededException", "the directory's quota of names is full"),
        (f"{_HDFS}.protocol.QuotaByStorageTypeExceededException", "the directory's quota is full"),
        (f"{_HDFS}.protocol.FSLimitException$MaxDirectoryItemsExceededException", "hdfs refused"),
        ("java.lang.IllegalArgumentException", "hdfs refused"),
        (f"{_HDFS}.server.namenode.UnsupportedActionException", "hdfs refused"),
    ],
)
def test_what_is_refused_for_good_is_told_as_such_by_files_and_table(names: NameNode, kind: str, says: str) -> None:
    told = "no: Retriable, SafeMode\n\tat java.io.IOException.x(IOException.java:1)\nCaused by: java.io.IOException: x"
    for error in refusals(names, (kind, told)):
        assert not isinstance(error, StorageUnavailable)
        assert says in str(error)
        assert f"{kind.rpartition('.')[2].rpartition('$')[2]}: no: Retriable, SafeMode" in str(error)
        assert "\n" not in str(error)
        assert "IOException.java" not in str(error)


def refusals(names: NameNode, spoiling: tuple[str, str]) -> Iterator[StorageError]:
    """What files and table say of it, when they are read and when they are written."""
    table = open_table(names, retry=ONCE)
    land(table, key(0))
    files = write(table, key(1))
    for spoil, use in (
        (lambda method, path: spoiling, lambda: table.store.put("one", b"1")),
        (lambda method, path: spoiling, lambda: table.store.read("one")),
        (lambda method, path: spoiling, lambda: list(table.store.list())),
        (lambda method, path: spoiling, table.version),
        (lambda method, path: spoiling, lambda: table.commit(key(1), files, epoch=1)),
        (
            lambda method, path: spoiling if is_commit(method, path) else None,
            lambda: table.commit(key(1), files, epoch=1, give_up_after=0.1),
        ),
    ):
        names.spoil = spoil
        with pytest.raises(StorageError) as caught:
            use()
        yield caught.value


def test_a_file_that_is_gone_is_told_as_such(names: NameNode) -> None:
    table = open_table(names)
    land(table, key(0))
    file = table.files()[0]
    table.store.delete([file.path])

    with pytest.raises(NotFound, match="deleted"):
        head(table, key(0), 1)


def test_upkeep_deletes_what_killed_commits_left_a_day_ago(names: NameNode) -> None:
    table = open_table(names)
    land(table, key(0))
    log = "/lake/entries/_delta_log"
    old = [f"{log}/.{7:020d}.json.tmp.1", f"{log}/._last_checkpoint.tmp.1", f"{log}/.{7:020d}.checkpoint.parquet.tmp.2"]
    new = [f"{log}/.{8:020d}.json.tmp.1"]
    for path in old:
        names.put(path, b"{", age_seconds=25 * 3600)
    for path in new:
        names.put(path, b"{", age_seconds=3600)

    report = maintain(table)

    assert report.log_files_deleted == len(old)
    assert not set(old) & set(names.files)
    assert set(new) <= set(names.files)
    assert sequences(table) == list(range(10))


def test_upkeep_with_a_longer_retention_is_remembered_by_the_table(names: NameNode) -> None:
    table = open_table(names)
    land(table, key(0))

    maintain(table, retention=timedelta(days=30))

    assert table.delta().metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 720 hours"
    assert (table.version(), sequences(table)) == (2, list(range(10)))


def test_upkeep_is_not_held_by_a_namenode_that_falls_silent_at_its_commit(names: NameNode) -> None:
    table = open_table(names, timeout_seconds=5.0, retry=ONCE)
    land(table, key(0))
    names.spoil = lambda method, path: "silent" if is_commit(method, path) else None

    with pytest.raises(StorageUnavailable, match="no answer in 5 s") as caught:
        maintain(table, retention=timedelta(days=30))

    assert caught.value.in_doubt


def test_upkeep_whose_process_is_killed_behind_its_commit_is_in_doubt(
    names: NameNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(names, retry=ONCE)
    land(table, key(0))
    killed = tmp_path / "python"
    killed.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nkill -9 $$\n')
    killed.chmod(0o755)
    monkeypatch.setattr(properties, "sys", SimpleNamespace(executable=str(killed)))

    with pytest.raises(StorageUnavailable, match="ended by signal 9") as caught:
        maintain(table, retention=timedelta(days=30))

    assert caught.value.in_doubt
    assert table.version() == 2


class Late:
    """The first commit waits so long before it happens."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._first = True
        self.done = threading.Event()

    def __call__(self, method: str, path: str) -> Spoiling:
        if self._first and is_commit(method, path):
            self._first = False
            time.sleep(self._seconds)
            self.done.set()
        return None
