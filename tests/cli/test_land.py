"""`objbuf land`: each range whole and once, what fails alone and by name, and acks only behind what landed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from objbuf_dagster.buffer import Consumer, peek
from objbuf_dagster.buffer.retention import Mark, Retention, retention_path
from objbuf_dagster.cli.land import MAX_BATCH_BYTES
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import DEFAULT_MAX_BYTES
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.landing import Failed, Landed, land_all
from objbuf_dagster.spark.shipping import ExecutorNotReady
from objbuf_dagster.store import LocalStore, Store
from tests.cli.commands import acked, error, eventually, files_in, fill, manifest_of, ok, one_line, run, start
from tests.cli.test_app import as_arguments
from tests.spark.processes import descendants, is_alive
from tests.support.buffers import append
from tests.support.s3 import S3Location

SUMS = ("batches", "rows", "bytes_read", "bytes_written", "files", "seconds")
NOTHING = {"landed": 0, "failed": 0, **dict.fromkeys(SUMS, 0)}
"""The sums of nothing, as --json prints them, but for the frontier."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A buffer with three batches."""
    fill(tmp_path / "buffer", [b"a", b"b"], [b"c"], [b"d", b"e", b"f"])
    return tmp_path / "buffer"


def key(first: int, last: int | None = None) -> str:
    return SequenceRange(first, first if last is None else last).key


def places(root: Path) -> list[str]:
    return ["--buffer", str(root), "--lake", str(root.parent / "lake")]


def table_of(root: Path) -> LakeTable:
    return LakeTable(root.parent / "lake" / "entries")


def entries(table: LakeTable) -> list[bytes]:
    rows = table.delta().to_pyarrow_table().sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")])
    found: list[bytes] = rows["entry"].to_pylist()
    return found


def batch_file(root: Path, sequence: int) -> Path:
    entry = manifest_of(root).entry(sequence)
    assert entry is not None
    return root / entry.location


def test_a_table_that_would_lie_in_the_buffer_is_refused(root: Path) -> None:
    before = files_in(root)

    message = error("land", "all", "--buffer", root, "--lake", root.parent, "--table", root.name)

    assert message == (
        f"the table at {root} and the buffer's ingest would lie one inside the other: give the table a place of its "
        "own, with another lake or another name of the table"
    )
    assert files_in(root) == before


@pytest.mark.usefixtures("spark")
def test_all_plans_and_lands_the_queue_and_leaves_the_frontier_alone(root: Path) -> None:
    before = manifest_of(root).to_bytes()

    head, first, second, total = ok("land", "all", *places(root), "--max-batches", "2").splitlines()

    assert head.split() == ["RANGE", "BATCHES", "ROWS", "READ", "WRITTEN", "FILES", "SECONDS", "SPEED"]
    assert first.split()[:5] == [key(0, 1), "2", "3", "29", "bytes"]
    assert second.split()[:5] == [key(2), "1", "3", "22", "bytes"]
    assert re.fullmatch(
        r"landed 2 ranges: 3 batches, 6 rows, 51 bytes read, \S+ KiB written to 2 files in \S+ s \(.*/s\)", total
    )
    assert entries(table_of(root)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert manifest_of(root).to_bytes() == before


@pytest.mark.usefixtures("spark")
def test_range_that_lands_again_replaces_itself_also_long_after_its_ack(root: Path) -> None:
    ok("land", "all", *places(root), "--max-batches", "1")
    acked(LocalStore(root), 2)
    version = table_of(root).version() or 0

    lines = ok("land", key(2), key(0), key(2), *places(root), "--json").splitlines()

    first, second, total = map(json.loads, lines)
    assert (first["range"], second["range"]) == (key(0), key(2))
    assert {**first, "bytes_written": 0, "seconds": 0} == {
        "range": key(0),
        "batches": 1,
        "rows": 2,
        "bytes_read": 17,
        "bytes_written": 0,
        "files": 1,
        "seconds": 0,
        "version": version + 1,
    }
    assert (total["landed"], total["failed"], total["rows"], total["frontier"]) == (2, 0, 5, None)
    assert entries(table_of(root)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert ok("land", "all", *places(root)) == "landed nothing: the queue is empty\n"
    assert json.loads(ok("land", "all", *places(root), "--json")) == {**NOTHING, "frontier": None}
    assert json.loads(ok("land", "all", *places(root), "--json", "--ack")) == {**NOTHING, "frontier": 3}


@pytest.mark.usefixtures("spark")
def test_ack_moves_the_frontier_once_and_fences_nobody(root: Path) -> None:
    store = LocalStore(root)

    out = ok("land", "all", *places(root), "--ack")

    assert out.splitlines()[-1] == "acked through 2: the frontier is 3, 0 batches in the queue"
    assert (peek(store).frontier, peek(store).epoch) == (3, 0)

    fill(root, [b"g"])
    with Consumer.open(store, gc_interval=None) as owner:
        assert error("land", "all", *places(root), "--ack").endswith("pass --yes if you are sure")
        assert peek(store).frontier == 3
        ok("land", "all", *places(root), "--ack", "--yes", "--json")
        assert owner.next_descriptors(10) == []
    assert peek(store).frontier == 4


@pytest.mark.usefixtures("spark")
def test_ack_of_a_range_behind_another_waits_for_that_one(root: Path) -> None:
    ok("ranges", "plan", root, "--max-batches", "1")

    out = ok("land", key(1), key(2), *places(root), "--ack")

    assert out.splitlines()[-1] == f"acked nothing, the frontier stays at 0: range {key(0)} has not landed in this run"
    assert ok("land", key(0), *places(root), "--ack").splitlines()[-1] == (
        "acked through 0: the frontier is 1, 2 batches in the queue"
    )


@pytest.mark.usefixtures("spark")
def test_takeover_while_landing_leaves_the_frontier_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    Consumer.open(store, gc_interval=None).close()
    monkeypatch.setattr("objbuf_dagster.cli.land.ask", lambda *_, **__: Consumer.open(store, gc_interval=None).close())

    result = run("land", "all", *places(root), "--ack")

    assert result.exit_code == 1
    message = one_line(result.stderr)
    assert message.startswith(
        "another consumer took over in the meantime (epoch 1, now 2): what landed is in the table"
    )
    assert peek(store).frontier == 0
    assert len(entries(table_of(root))) == 6
    assert result.stdout.splitlines()[-1].startswith("landed 1 range: 3 batches, 6 rows"), "what landed is told"


@pytest.mark.usefixtures("spark")
def test_why_landing_stopped_is_told_also_if_the_ack_fails_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    Consumer.open(store, gc_interval=None).close()
    monkeypatch.setattr("objbuf_dagster.cli.land.ask", lambda *_, **__: Consumer.open(store, gc_interval=None).close())

    def one_and_no_more(*args: Any, **options: Any) -> Iterator[Landed | Failed]:
        yield next(land_all(*args, **options))
        raise ExecutorNotReady("the executors went home")

    monkeypatch.setattr("objbuf_dagster.spark.landing.land_all", one_and_no_more)

    result = run("land", "all", *places(root), "--ack", "--max-batches", "2")

    assert result.exit_code == 1
    note, stopped = result.stderr.splitlines()
    assert note.startswith(
        "objbuf: note: nothing was acked: another consumer took over in the meantime (epoch 1, now 2)"
    )
    assert stopped == "objbuf: the executors went home"
    assert result.stdout.splitlines()[-1].startswith("landed 1 range: 2 batches, 3 rows")
    assert peek(store).frontier == 0


@pytest.mark.usefixtures("spark")
def test_ranges_that_fail_are_named_and_stop_neither_the_others_nor_pass_the_frontier(root: Path) -> None:
    store = LocalStore(root)
    append(store, "elsewhere/x.batch")
    fill(root, [b"last"])
    corrupt, missing = batch_file(root, 1), batch_file(root, 2)
    corrupt.write_bytes(b"\xff\xff\xff\x7f" + corrupt.read_bytes()[4:])
    missing.unlink()

    result = run("land", "all", *places(root), "--max-batches", "1", "--ack")

    assert result.exit_code == 1
    told = result.stderr.splitlines()
    assert len(told) == 3
    for line, sequence, location, reason in (
        (told[0], 1, f"ingest/{corrupt.name}", "is corrupt"),
        (told[1], 2, f"ingest/{missing.name}", "there is no object"),
        (told[2], 3, "elsewhere/x.batch", "it is outside the buffer's data prefix"),
    ):
        assert line.startswith(f"objbuf: range {key(sequence)} failed: ")
        assert f"sequence {sequence}" in line
        assert location in line
        assert reason in line
    *_, total, ack = result.stdout.splitlines()
    assert total.startswith("landed 2 ranges: 2 batches, 3 rows, ")
    assert total.endswith("; 3 ranges failed")
    assert ack == "acked through 0: the frontier is 1, 4 batches in the queue"
    assert list(table_of(root).ranges()) == [key(0), key(4)]


@pytest.mark.usefixtures("spark")
def test_json_has_ranges_that_failed_too(root: Path) -> None:
    batch_file(root, 1).unlink()

    result = run("land", "all", *places(root), "--max-batches", "1", "--json")

    assert result.exit_code == 1
    first, failed, last, total = map(json.loads, result.stdout.splitlines())
    assert (first["range"], last["range"]) == (key(0), key(2))
    assert failed.keys() == {"range", "error"}
    assert failed["range"] == key(1)
    assert "sequence 1 names it, so its data is lost or expired" in failed["error"]
    assert (total["landed"], total["failed"]) == (2, 1)


@pytest.mark.usefixtures("spark")
def test_batches_may_be_as_large_as_is_said(tmp_path: Path) -> None:
    root = tmp_path / "buffer"
    fill(root, [b"x" * 5000])

    result = run("land", "all", *places(root), "--max-batch-bytes", "4000")

    assert result.exit_code == 1
    assert "4000" in one_line(result.stderr)
    ok("land", "all", *places(root), "--max-batch-bytes", "6000")
    assert entries(table_of(root)) == [b"x" * 5000]
    assert MAX_BATCH_BYTES == DEFAULT_MAX_BYTES


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):  # it may end while we look
        return any(file.readlink() == path for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell which files a process has open")
@pytest.mark.usefixtures("spark")
def test_range_that_kills_its_worker_fails_alone(root: Path) -> None:
    ok("ranges", "plan", root, "--max-batches", "1")
    trap = batch_file(root, 1)
    over = threading.Event()

    def kill_who_reads_it() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), open(os.open(trap, os.O_WRONLY | os.O_NONBLOCK), "wb"):
                readers: list[int] = []
                while not readers and not over.wait(0.01):
                    readers = [pid for pid in descendants(os.getpid()) if _has_open(pid, trap)]
                for pid in readers:
                    os.kill(pid, signal.SIGKILL)
            over.wait(0.05)

    killer = threading.Thread(target=kill_who_reads_it)
    trap.unlink()
    os.mkfifo(trap)  # who opens it waits
    killer.start()
    try:
        result = run("land", "all", *places(root))
    finally:
        over.set()
        killer.join()

    assert result.exit_code == 1
    message = one_line(result.stderr)
    assert message.startswith(f"range {key(1)} failed: Spark ended the job: ")
    assert "\\n" not in message
    assert list(table_of(root).ranges()) == [key(0), key(2)]


@pytest.mark.usefixtures("spark")
def test_buckets_take_options_of_both_or_of_the_lake(s3: S3Location, tmp_path: Path) -> None:
    fill(s3.below("buffer").open(), [b"a"])
    buffer = ["--buffer", f"{s3.url}/buffer", *as_arguments(s3)]

    ok("land", "all", *buffer, "--lake", f"{s3.url}/lake", "--table", "raw/entries")
    ok("land", "all", *buffer, "--lake", tmp_path / "lake")
    fill(tmp_path / "buffer", [b"b"])
    of_lake = [part.replace("--option", "--lake-option") for part in as_arguments(s3)]
    ok("land", "all", "--buffer", tmp_path / "buffer", "--lake", f"{s3.url}/other", *of_lake)

    assert entries(LakeTable(f"{s3.url}/lake/raw/entries", options=s3.options)) == [b"a"]
    assert entries(LakeTable(tmp_path / "lake" / "entries")) == [b"a"]
    assert entries(LakeTable(f"{s3.url}/other/entries", options=s3.options)) == [b"b"]


def test_ctrl_c_ends_spark_and_keeps_and_acks_what_has_landed(tmp_path: Path) -> None:
    """The first 16 ranges are a job of their own; the last one's batch never comes."""
    root = tmp_path / "buffer"
    store = fill(root, *([b"x"] for _ in range(17)))
    ok("ranges", "plan", root, "--max-batches", "1")
    trap = batch_file(root, 16)
    trap.unlink()
    os.mkfifo(trap)
    with _terminal() as (theirs, shown), open(os.open(trap, os.O_RDWR), "wb", buffering=0):  # a read waits for bytes
        process = start("land", "all", *places(root), "--ack", stderr=theirs, start_new_session=True)
        try:
            eventually(lambda: len(table_of(root).ranges()) == 16, within=120)
            until_then = len(shown)
            eventually(lambda: "16 of 17 batches" in "".join(shown[until_then:]), within=60)  # the next job runs
            children = descendants(process.pid)
            os.killpg(process.pid, signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()

    text = "".join(shown)
    assert process.returncode == 130, text
    assert any("java" in command for command in children.values())
    eventually(lambda: not any(map(is_alive, children)))
    assert out.decode().splitlines()[-1] == "acked through 15: the frontier is 16, 1 batch in the queue"
    assert peek(store).frontier == 16
    assert len(table_of(root).ranges()) == 16
    assert text.startswith("\rstarting Spark\x1b[K")
    assert re.search(r"\r\[#+-*\] +\d+%  \d+ of 17 batches  \d+ bytes of 204 bytes", text)
    assert text.endswith("\r\x1b[Kobjbuf: interrupted\r\n")
    assert text.count("\n") == 1


@contextlib.contextmanager
def _terminal() -> Iterator[tuple[int, list[str]]]:
    """A terminal to write to, and what it showed once it is closed."""
    ours, theirs = pty.openpty()
    shown: list[str] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 65536):
                shown.append(chunk.decode())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, shown
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def test_spark_that_is_not_there_is_told_at_once(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    for flag, scheme in (("--remote", "sc"), ("--master", "spark")):
        assert error("land", "all", *places(root), flag, f"{scheme}://127.0.0.1:{port}") == (
            f"no Spark answers at {scheme}://127.0.0.1:{port} (Connection refused): start one there, or correct {flag}"
        )
    assert not (root.parent / "lake").exists()


def test_missing_java_is_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    process = start("land", "all", *places(root))
    _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert one_line(err.decode()).startswith("/nonexistent/bin/java (from JAVA_HOME) does not run: No such file")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "land: Missing argument 'RANGE...|all'"),
        (["all"], "land: Missing option '--buffer'"),
        (["all", "--buffer", "b"], "land: Missing option '--lake'"),
        (["all", key(0), "--buffer", "b", "--lake", "l"], "land: `all` has every range in it: give it alone, or only"),
        (
            ["all", "--buffer", "b", "--lake", "l", "--master", "local", "--remote", "sc://h"],
            "land: --master and --remote are two ways to a Spark: give one of them",
        ),
        (
            ["all", "--buffer", "b", "--lake", "l", "--conf", "hush-hush"],
            "land: Invalid value for '--conf': the first --conf is not KEY=VALUE, for example --conf spark.executor",
        ),
        (
            ["all", "--buffer", "b", "--lake", "l", "--lake-option", "region=x"],
            "land: options are for buckets: a lake in a directory has no settings",
        ),
    ],
)
def test_wrong_usage_is_told(args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert error("land", *args, code=2).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_master_that_spark_does_not_know_is_wrong_usage(root: Path) -> None:
    message = error("land", "all", *places(root), "--master", "nonsense", code=2)

    assert message.startswith(
        "land: a master is local[4], spark://host:7077, yarn, k8s://host or the like, not 'nonsen"
    )


def test_what_can_not_be_landed_is_told_before_spark_starts(root: Path) -> None:
    store: Store = LocalStore(root)
    ok("ranges", "plan", root, "--max-batches", "1", "--max-ranges", "2")
    store.put(retention_path("ingest"), Retention(60.0, expired=(Mark(0, 1),)).to_bytes())
    before = files_in(root)

    assert error("land", "7", *places(root)).startswith("not a range: '7'; a range is written as")
    assert "`objbuf ranges list` shows them" in error("land", key(2), *places(root))
    assert error("land", key(1), key(0), *places(root)).startswith(f"range {key(0)} expired at 1970-01-01T00:00:00")
    assert "unknown kind of store 'ftp'" in error("land", key(1), "--buffer", root, "--lake", "ftp://x")
    assert "s3:// needs a bucket" in error("land", key(1), "--buffer", root, "--lake", "s3://")
    assert "cannot be in memory" in error("land", key(1), "--buffer", root, "--lake", "memory://x")
    assert "must stay inside" in error("land", key(1), *places(root), "--table", "../x")
    assert files_in(root) == before
    assert not (root.parent / "lake").exists()


def test_missing_buffer_is_noted_and_nothing_lands(tmp_path: Path) -> None:
    result = run("land", "all", *places(tmp_path / "buffer"))

    assert (result.exit_code, result.stdout) == (0, "")
    assert one_line(result.stderr).startswith("note: there is no manifest ingest/manifest in ")
    result = run("land", "all", *places(tmp_path / "buffer"), "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {**NOTHING, "frontier": None})
    assert one_line(result.stderr).startswith("note: there is no manifest ingest/manifest in ")
    assert list(tmp_path.iterdir()) == []
