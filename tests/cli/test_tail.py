"""`objbuf tail`: shows the queue, and owns nothing."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.buffer.manifest_store import ManifestStore
from objbuf_dagster.protocol import Manifest, Metadata, encode_batch
from objbuf_dagster.store import LocalStore
from tests.cli.commands import (
    COMMAND,
    acked,
    error,
    eventually,
    files_in,
    fill,
    finish,
    manifest_of,
    ok,
    one_line,
    run,
    start,
)


def test_entries_are_printed_in_order_and_nothing_is_changed(tmp_path: Path) -> None:
    fill(tmp_path, [b"a", b"b"], [b"c"])
    before = files_in(tmp_path)

    assert ok("tail", tmp_path) == "a\nb\nc\n"
    assert files_in(tmp_path) == before


def test_from_and_limit_choose_entries(tmp_path: Path) -> None:
    fill(tmp_path, [b"a", b"b"], [b"c", b"d"], [b"e"])

    assert ok("tail", tmp_path, "--from", "1") == "c\nd\ne\n"
    assert ok("tail", tmp_path, "--from", "1", "--limit", "1") == "c\n"
    assert ok("tail", tmp_path, "--limit", "3") == "a\nb\nc\n"
    assert ok("tail", tmp_path, "--limit", "0") == ""
    assert ok("tail", tmp_path, "--from", "7") == ""


def test_json_tells_where_each_entry_stands(tmp_path: Path) -> None:
    fill(tmp_path, [b"a", b"\xff\x00"], metadata=b"\x01meta")

    first, second = map(json.loads, ok("tail", tmp_path, "--json").splitlines())

    assert list(first) == ["sequence", "index", "ingestion_time_ms", "metadata_base64", "entry"]
    assert (first["sequence"], first["index"], first["entry"]) == (0, 0, "a")
    assert base64.b64decode(first["metadata_base64"]) == b"\x01meta"
    assert first["ingestion_time_ms"] > 1_600_000_000_000
    assert (second["index"], second["entry_base64"]) == (1, base64.b64encode(b"\xff\x00").decode())
    assert "entry" not in second


def test_json_gives_each_entry_the_metadata_that_covers_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("ingest/x.batch", encode_batch([b"0", b"1", b"2", b"3"]))
    items = [Metadata(1, 11, b"p"), Metadata(3, 13, b"q")]

    def append(manifest: Manifest, _: bool) -> bool:
        manifest.append("ingest/x.batch", items)
        return True

    ManifestStore(store).update(append)

    found = [json.loads(line)["ingestion_time_ms"] for line in ok("tail", tmp_path, "--json").splitlines()]

    assert found == [None, 11, 11, 13]


def test_acked_sequences_are_skipped_with_a_note(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"])
    acked(store, 0)

    result = run("tail", tmp_path, "--from", "0")

    assert (result.exit_code, result.stdout) == (0, "b\n")
    assert "note: what lies between sequences 0 and 1 was acked" in one_line(result.stderr)
    assert ok("tail", tmp_path) == "b\n"


def test_owner_is_not_fenced(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"])
    with Consumer.open(store, gc_interval=None) as owner:
        ok("tail", tmp_path)

        assert owner.next_batch() is not None
        owner.ack_through(0)


def test_missing_batch_is_named_and_what_came_before_is_printed(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"])
    location = list(manifest_of(tmp_path).entries())[1].location
    (tmp_path / location).unlink()

    result = run("tail", tmp_path)

    assert (result.exit_code, result.stdout) == (1, "a\n")
    assert one_line(result.stderr).startswith(f"there is no object '{location}': sequence 1 names it")


def test_a_corrupt_batch_is_named_with_what_to_do(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"], [b"c"])
    location = list(manifest_of(tmp_path).entries())[1].location
    (tmp_path / location).write_bytes(b"xx")

    result = run("tail", tmp_path)

    assert (result.exit_code, result.stdout) == (1, "a\n")
    told = one_line(result.stderr)
    assert told.startswith(f"sequence 1, {location}: batch is corrupt")
    assert ". Restore the object, or go on behind it with --from 2; `objbuf quarantine` lets" in told
    assert ok("tail", tmp_path, "--from", "2") == "c\n"


def test_control_characters_of_a_location_do_not_reach_the_terminal(tmp_path: Path) -> None:
    def append(manifest: Manifest, _: bool) -> bool:
        manifest.append("ingest/\x1b[2J\nx.batch")
        return True

    ManifestStore(LocalStore(tmp_path)).update(append)

    message = error("tail", tmp_path)

    assert "\x1b" not in message
    assert "\\x1b[2J" in message


def test_follow_prints_what_comes_and_ends_well_with_ctrl_c(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    process = start("tail", tmp_path, "--follow", "--poll", "0.05")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"

    fill(tmp_path, [b"b"])
    assert process.stdout.readline() == b"b\n"

    process.send_signal(signal.SIGINT)
    assert finish(process) == (0, b"", "")


def test_follow_says_what_it_missed(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"])
    process = start("tail", tmp_path, "--follow", "--poll", "0.5", "--limit", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"

    fill(store, [b"b"])
    acked(store, 1)
    fill(store, [b"c"])
    code, out, err = finish(process)

    assert (code, out) in ((0, b"c\n"), (0, b"b\n"))  # the poll may have come before the ack
    assert out == b"b\n" or "was acked" in one_line(err)


def test_follow_refuses_a_buffer_that_was_made_anew(tmp_path: Path) -> None:
    fill(tmp_path / "old", [b"a"], [b"b"])
    fill(tmp_path / "new", [b"other"])
    process = start("tail", tmp_path / "old", "--follow", "--poll", "0.05")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    assert process.stdout.readline() == b"b\n"

    os.replace(tmp_path / "new" / "ingest" / "manifest", tmp_path / "old" / "ingest" / "manifest")
    code, _, err = finish(process)

    assert code == 1
    assert "deleted and made anew" in one_line(err)


def test_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 100] * 50_000)
    for more in ([], ["--json"]):
        with subprocess.Popen(
            [*COMMAND, "tail", str(tmp_path), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()

            assert process.wait(20) == 0
            assert process.stderr.read() == b""


def test_ctrl_c_without_follow_is_an_interruption(tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 1000] * 20_000)
    process = start("tail", tmp_path)  # fills the pipe, then waits for us
    assert process.stdout is not None
    assert process.stdout.readline()

    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)

    assert code == 130
    assert one_line(err) == "interrupted"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_told_in_one_line(tmp_path: Path, unbuffered: str) -> None:
    fill(tmp_path, [b"a"])
    with open("/dev/full", "wb") as full:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        code, _, err = finish(start("tail", tmp_path, stdout=full, env=env))

    assert code == 1
    assert one_line(err) == "cannot write the output: No space left on device"


def test_a_place_without_a_buffer_is_an_error(tmp_path: Path) -> None:
    assert error("tail", tmp_path).startswith(f"there is no manifest ingest/manifest in {tmp_path}")


def test_no_poll_is_longer_than_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses to sleep for as long as a number can say."""
    fill(tmp_path, [b"a"])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("objbuf_dagster.cli.tail.time.sleep", sleep)

    for poll in ("1e300", "0.2"):
        assert ok("tail", tmp_path, "--follow", "--poll", poll) == "a\n"

    assert slept == [3600, 0.2]


def test_follow_waits_for_a_buffer_to_appear(tmp_path: Path) -> None:
    process = start("tail", tmp_path, "--follow", "--poll", "0.05", "--limit", "1")
    assert process.stderr is not None
    process.stderr.readline()

    fill(tmp_path, [b"a"])

    eventually(lambda: process.poll() is not None)
    assert finish(process)[:2] == (0, b"a\n")
