"""`objbuf produce`: every line becomes durable once, whatever is in it and however it comes."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from objbuf_dagster.cli.lines import LineGroups
from objbuf_dagster.cli.produce import Pacer
from objbuf_dagster.store import LocalStore, local
from tests.cli.commands import (
    COMMAND,
    entries_in,
    environment,
    error,
    eventually,
    finish,
    manifest_of,
    ok,
    one_line,
    run,
    start,
)
from tests.support.faults import Call, Fault, FaultStore

SUMMARY = re.compile(
    r"produced (\d+) entr(?:y|ies) \((\d+) bytes?\) in (\d+) batch(?:es)?: (.*), conflict rate \d+\.\d%\n"
)


def test_summary_tells_entries_bytes_batches_and_sequences(tmp_path: Path) -> None:
    out = ok("produce", tmp_path, given=b"one\ntwo\n")

    assert out == "produced 2 entries (6 bytes) in 1 batch: sequence 0, conflict rate 0.0%\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"\n\na\n\n", [b"", b"", b"a", b""]),
        (b"a\r\nb\0\n", [b"a\r", b"b\0"]),
        (b"\xff\xfe\n\x80", [b"\xff\xfe", b"\x80"]),
    ],
)
def test_each_line_is_an_entry_byte_for_byte(tmp_path: Path, given: bytes, expected: list[bytes]) -> None:
    ok("produce", tmp_path, given=given)

    assert entries_in(tmp_path) == expected


def test_no_input_writes_nothing_and_says_so(tmp_path: Path) -> None:
    out = ok("produce", tmp_path / "buffer", given=b"")

    assert out == "produced 0 entries (0 bytes) in 0 batches: no sequence, conflict rate 0.0%\n"
    assert not (tmp_path / "buffer").exists()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_hostile_lines_come_back_from_tail_as_they_were(tmp_path: Path, compression: str) -> None:
    every_byte = bytes(byte for byte in range(256) if byte != ord("\n"))
    given = b"\n".join([every_byte, b"", b"x" * 3_000_000, b"", b"\x1b[2J", b"last"]) + b"\n"

    ok("produce", tmp_path, "--compression", compression, "--batch-lines", "2", given=given)

    assert run("tail", tmp_path).stdout_bytes == given


def test_lines_of_a_file_are_read_in_calls_of_the_size_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"%d\n" % i for i in range(25)))

    ok("produce", tmp_path / "buffer", source, "--batch-lines", "10", "--metadata", "from hëre")

    assert entries_in(tmp_path / "buffer") == [b"%d" % i for i in range(25)]
    items = [item for entry in manifest_of(tmp_path / "buffer").entries() for item in entry.metadata]
    assert {item.payload for item in items} == {"from hëre".encode()}
    assert len(items) == 3


def test_metadata_keeps_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    process = subprocess.run(
        [*COMMAND, "produce", str(tmp_path), "--metadata", b"\xff\x01"],
        input=b"x\n",
        capture_output=True,
        check=True,
    )

    assert process.stderr == b""
    (entry,) = manifest_of(tmp_path).entries()
    assert entry.metadata[0].payload == b"\xff\x01"


def test_settings_reach_the_buffer(tmp_path: Path) -> None:
    ok("produce", tmp_path, "--manifest-path", "m/manifest", "--data-prefix", "d", given=b"a\n")

    assert (tmp_path / "m" / "manifest").exists()
    assert len(list((tmp_path / "d").glob("*.batch"))) == 1


def test_rate_is_kept_on_average(tmp_path: Path) -> None:
    started = time.monotonic()
    ok("produce", tmp_path, "--rate", "100", given=b"x\n" * 80)

    assert 0.8 <= time.monotonic() - started < 3
    assert len(entries_in(tmp_path)) == 80


def test_pacer_neither_drifts_nor_bursts_after_a_pause() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 0.003  # as sleeps do, it takes longer

    pacer = Pacer(1000, clock=lambda: now, sleep=sleep)
    for _ in range(100):
        pacer.wait(100, lambda: False)
    assert now == pytest.approx(10, abs=0.02)

    now += 60  # nothing to read for a minute
    for _ in range(100):
        pacer.wait(100, lambda: False)
    assert now == pytest.approx(70 + 10 - 0.5, abs=0.02)


def test_lines_wait_for_a_full_group_only_as_long_as_patience_lasts() -> None:
    now = 0.0
    arrivals = iter([b"a\nb\nc", None, None, b"\n" + b"d\n" * 5, b"rest", b""])

    def read(timeout: float) -> bytes | None:
        nonlocal now
        chunk = next(arrivals)
        now += timeout if chunk is None else 0
        return chunk

    groups = LineGroups(read, max_lines=4, max_bytes=100, patience=1.0, heartbeat=0.6, clock=lambda: now)

    assert list(groups) == [[], [b"a", b"b"], [b"c", b"d", b"d", b"d"], [b"d", b"d", b"rest"]]


def test_group_is_handed_out_when_its_bytes_are_enough() -> None:
    arrivals = iter([b"x" * 60 + b"\n", b"y" * 60 + b"\nz\n", b""])

    groups = LineGroups(lambda _: next(arrivals), max_lines=1000, max_bytes=100)

    assert [len(group) for group in groups] == [3]


def test_slow_pipe_becomes_durable_within_about_a_second(tmp_path: Path) -> None:
    process = start("produce", tmp_path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()

    eventually((tmp_path / "ingest" / "manifest").exists, within=10)

    assert entries_in(tmp_path) == [b"first"]
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    assert SUMMARY.fullmatch(out.decode())


def test_endless_input_needs_bounded_memory_and_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    line = "x" * 200
    with subprocess.Popen(["yes", line], stdout=subprocess.PIPE) as endless:  # noqa: S607  wherever it is
        process = start("produce", tmp_path, stdin=endless.stdout)
        assert endless.stdout is not None
        endless.stdout.close()
        batches = (tmp_path / "ingest").glob
        eventually(lambda: sum(file.stat().st_size for file in batches("*.batch")) > 150 << 20, within=60)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())

        process.send_signal(signal.SIGINT)
        code, out, err = finish(process, 60)
        endless.kill()

    assert peak is not None
    assert int(peak[1]) < 450_000
    assert code == 130
    assert one_line(err) == "interrupted: what was read until then is durable"
    summary = SUMMARY.fullmatch(out.decode())
    assert summary is not None
    entries = entries_in(tmp_path)
    assert len(entries) == int(summary[1])
    assert set(entries) == {line.encode()}


def test_sigterm_stops_as_gently_as_ctrl_c(tmp_path: Path) -> None:
    process = start("produce", tmp_path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nunfinis")
    process.stdin.flush()
    eventually((tmp_path / "ingest" / "manifest").exists)

    process.send_signal(signal.SIGTERM)
    code = process.wait(20)
    finish(process)

    assert code == 143
    assert entries_in(tmp_path) == [b"one", b"two"]


def test_second_ctrl_c_does_not_wait_for_storage_that_hangs(tmp_path: Path) -> None:
    lock = tmp_path / "ingest" / "manifest.lock"
    lock.parent.mkdir()
    with lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start("produce", tmp_path, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        eventually(lambda: any(lock.parent.glob("*.batch")))

        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)

    assert (code, out) == (130, b"")
    assert one_line(err) == "interrupted twice: 0 entries are durable, 1 may be or not"


def test_lines_can_be_typed_at_a_terminal(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    process = start("produce", tmp_path, stdin=theirs)
    os.close(theirs)
    os.write(terminal, b"hello\nworld\n\x04")

    code, out, err = finish(process)
    os.close(terminal)

    assert code == 0
    assert "Ctrl-D" in one_line(err)
    assert SUMMARY.fullmatch(out.decode())
    assert entries_in(tmp_path) == [b"hello", b"world"]


def test_failed_write_tells_what_is_durable_and_where_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = 0

    def second_batch_fails(call: Call) -> Fault | None:
        nonlocal batches
        batches += call.method == "put" and call.path.endswith(".batch")
        return "unavailable" if batches == 2 and call.method == "put" and call.path.endswith(".batch") else None

    store = FaultStore(LocalStore(tmp_path), second_batch_fails)
    monkeypatch.setattr("objbuf_dagster.store.open_store", lambda *_, **__: store)

    message = error("produce", tmp_path, "--rate", "40", given=b"x\n" * 200)

    found = re.match(r"(\d+) of the (\d+) entries sent are durable, line (\d+) is the first that is not: put", message)
    assert found is not None, message
    durable, sent, missing = map(int, found.groups())
    assert durable == len(entries_in(tmp_path))
    assert 1 < missing <= sent < 200
    assert durable < sent


def test_a_write_in_doubt_is_not_called_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is replaced, and the disk fails before that is sure: no lines may be sent again unlooked."""
    sync = local._sync_folder

    def failing(directory: Path) -> None:
        if (directory / "manifest").exists():
            raise OSError(errno.EIO, "Input/output error")
        sync(directory)

    monkeypatch.setattr(local, "_sync_folder", failing)

    message = error("produce", tmp_path, given=b"a\nb\n")

    assert message.startswith(
        "0 of the 2 entries sent are durable, line 1 is the first that is not known to be; the others may be, too: "
    )
    assert entries_in(tmp_path) == [b"a", b"b"]


def test_unreadable_manifest_fails_with_nothing_durable(tmp_path: Path) -> None:
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest" / "manifest").write_bytes(b"garbage")

    message = error("produce", tmp_path, given=b"a\nb\n")

    assert message.startswith(
        "0 of the 2 entries sent are durable, line 1 is the first that is not: manifest is corrupt"
    )


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file or directory"), (".", "Is a directory")])
def test_unreadable_file_is_named(tmp_path: Path, name: str, reason: str) -> None:
    assert error("produce", tmp_path / "b", tmp_path / name) == f"cannot read {tmp_path / name}: {reason}"


def test_progress_is_drawn_on_a_terminal_and_taken_away(tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"x\n" * 30)
    terminal, theirs = pty.openpty()
    process = start("produce", tmp_path, source, "--rate", "50", stderr=theirs, env=environment(TERM="xterm"))
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(terminal, 65536):
            seen += chunk
    except OSError:
        pass  # the other end is closed
    os.close(terminal)
    code, out, _ = finish(process)

    assert code == 0
    assert SUMMARY.fullmatch(out.decode())
    assert re.search(rb"\r\[#*-*\] +\d+%  \d+ entries  \d+ bytes?  \d+ entries/s\x1b\[K", seen), seen
    assert seen.endswith(b"\r\x1b[K")


def test_no_progress_where_nobody_watches(tmp_path: Path) -> None:
    process = start("produce", tmp_path, "--rate", "50", stdin=subprocess.PIPE)

    out, err = process.communicate(b"x\n" * 20, timeout=30)

    assert err == b""
    assert SUMMARY.fullmatch(out.decode())


@pytest.mark.parametrize(("compression", "code"), [("none", 0), ("zstd", 1)])
def test_compression_is_the_batches(tmp_path: Path, compression: str, code: int) -> None:
    ok("produce", tmp_path, "--compression", compression, given=b"a\n")
    (entry,) = manifest_of(tmp_path).entries()
    assert LocalStore(tmp_path).read(entry.location)[-7] == code


def test_an_endpoint_that_is_no_url_ends_in_one_line() -> None:
    message = error("produce", "s3://bucket/x", "--option", "endpoint=localhost:9000", given=b"a\n")
    assert message == "endpoint must be a URL, as http://127.0.0.1:9000"


def test_memory_is_refused_however_it_is_written() -> None:
    assert "gone when this command ends" in error("produce", "MEMORY://x", given=b"a\n")
