"""`objbuf gc` and `objbuf ack`: ask first, do exactly that, fence nobody."""

from __future__ import annotations

import os
import pty
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from objbuf_dagster.buffer import Consumer, GarbageCollector, peek
from objbuf_dagster.buffer.sightings import Sightings, read_sightings, uptime
from objbuf_dagster.cli.app import main
from objbuf_dagster.errors import StorageError
from objbuf_dagster.protocol.ulid import new_ulid
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.store import LocalStore
from tests.cli.commands import acked, entries_in, error, files_in, fill, finish, manifest_of, ok, one_line, run, start
from tests.support import buffers
from tests.support.buffers import manifests


def litter(root: Path, name: str | None = None) -> Path:
    """A batch that nobody names, of long ago, which a pass of garbage collection saw an hour ago."""
    file = root / "ingest" / f"{name or new_ulid(1_600_000_000_000)}.batch"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"12345")
    os.utime(file, (1_600_000_000, 1_600_000_000))
    store, note = LocalStore(root), "ingest/ranges/clock"
    noted = Sightings({**read_sightings(store, note).first, f"ingest/{file.name}": uptime() - 3600})
    store.put(note, noted.to_bytes())
    return file


def answer(text: bytes, *args: str | Path) -> tuple[int, str, str]:
    """Run the command at a terminal, and answer its question: exit code, stdout, and what the terminal showed."""
    terminal, theirs = pty.openpty()
    process = start(*args, stdin=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(terminal, 65536):
            seen += chunk
            if b"[y/N]" in seen and text:
                os.write(terminal, text)
                text = b""
    except OSError:
        pass  # the other end is closed
    code, out, _ = finish(process)
    os.close(terminal)
    return code, out.decode(), seen.decode()


def test_gc_dry_run_names_garbage_and_deletes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)
    before = files_in(tmp_path)

    out = ok("gc", tmp_path, "--dry-run")

    assert out == f"ingest/{garbage.name}\nwould delete 1 batch (5 bytes) (retention 7 d)\n"
    assert files_in(tmp_path) == before


def test_gc_deletes_garbage_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)
    other = litter(tmp_path, "not-a-ulid")

    out = ok("gc", tmp_path, "--yes")

    assert out == f"ingest/{garbage.name}\ndeleted 1 batch (5 bytes) (retention 7 d)\n"
    assert not garbage.exists()
    assert other.exists()
    assert entries_in(tmp_path) == [b"a"]


def test_gc_that_another_pass_overtook_says_which_ranges_it_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose clock was read before somebody acked lets nothing expire, whatever a person asked for."""
    store = LocalStore(tmp_path)
    buffers.fill(store, 4)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2))
    Consumer.open(store, gc_interval=None).ack_through(1)
    read, reads = GarbageCollector._read_ranges, 0

    def overtaken(collector: GarbageCollector, stop: threading.Event | None) -> object:
        nonlocal reads
        reads += 1
        if reads == 2:  # the first one was the rehearsal's
            Consumer.open(store, gc_interval=None).ack_through(3)
            GarbageCollector(store).collect_once()
        return read(collector, stop)

    monkeypatch.setattr(GarbageCollector, "_read_ranges", overtaken)

    out = CliRunner().invoke(main, ["gc", tmp_path.as_uri(), "--retention", "0", "--yes"]).stdout

    told = "deleted nothing; let 1 of the ranges shown be, for another pass came in between: run it again"
    assert out.startswith(told), out


def test_gc_keeps_what_was_written_just_now_whatever_its_name_says(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    fresh = litter(tmp_path)
    os.utime(fresh)

    assert ok("gc", tmp_path, "--yes") == "deleted nothing (retention 7 d)\n"
    assert fresh.exists()


def test_gc_of_a_directory_keeps_what_no_earlier_pass_has_seen(tmp_path: Path) -> None:
    """Its times are its machine's, whose clock may have been set since."""
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)
    (tmp_path / "ingest" / "ranges" / "clock").unlink()

    out = ok("gc", tmp_path, "--yes")

    assert "deleted nothing; kept 1 of those shown" in out
    assert "once a pass has seen them for the grace period" in out
    assert garbage.exists()
    assert f"ingest/{garbage.name}" in read_sightings(LocalStore(tmp_path), "ingest/ranges/clock").first


def test_gc_without_garbage_asks_nothing(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])

    assert ok("gc", tmp_path) == "deleted nothing (retention 7 d)\n"


def test_grace_and_retention_are_kept(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "1")
    acked(store, 1)

    assert ok("gc", tmp_path, "--dry-run", "--grace", "0") == "would delete nothing (retention 7 d)\n"  # retained
    assert ok("gc", tmp_path, "--dry-run", "--retention", "0").endswith(
        "0 batches (0 bytes) and 2 expired ranges (retention 0.0 s)\n"
    )
    assert error("gc", tmp_path, "--retention", "0").endswith("pass --yes if you are sure")
    assert ok("gc", tmp_path, "--grace", "0", "--retention", "0", "--yes").endswith(
        "deleted 2 batches (24 bytes) and 2 expired ranges (retention 0.0 s)\n"
    )


def test_a_retention_given_once_is_not_the_default_of_the_next_pass(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "1")
    acked(store, 0)
    ok("gc", tmp_path, "--grace", "0", "--retention", "0", "--yes")
    acked(store, 1)

    assert ok("gc", tmp_path, "--grace", "0", "--dry-run") == "would delete nothing (retention 7 d)\n"


def test_gc_beside_a_manifest_that_a_typing_error_made_deletes_nothing(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"])
    Consumer.open(store, "ingest/manifset", gc_interval=None)
    litter(tmp_path)
    before = files_in(tmp_path)

    message = error("gc", tmp_path, "--manifest-path", "ingest/manifset", "--grace", "0", "--yes")

    assert message.endswith("never had an entry: is the manifest's path right? Nothing was deleted")
    assert files_in(tmp_path) == before


def test_gc_without_a_terminal_wants_yes(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)

    assert error("gc", tmp_path).endswith("pass --yes if you are sure")
    assert garbage.exists()


@pytest.mark.parametrize(("given", "gone"), [(b"y\n", True), (b"n\n", False), (b"\x04", False)])
def test_gc_does_what_the_person_answers(tmp_path: Path, given: bytes, gone: bool) -> None:
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)

    code, out, seen = answer(given, "gc", tmp_path)

    assert "Delete 1 batch (5 bytes) (grace 10 min, retention 7 d)? This cannot be undone. [y/N]" in seen
    assert garbage.exists() is not gone
    assert code == (0 if gone else 1)
    assert ("deleted 1 batch" in out) is gone
    assert ("objbuf: nothing was changed, as you wished" in seen) is not gone


def test_gc_beside_a_missing_or_foreign_manifest_deletes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)

    assert error("gc", tmp_path, "--manifest-path", "ingest/manifset", "--yes").endswith("Nothing was deleted")
    assert "of different buffers" in error("gc", tmp_path, "--data-prefix", "other", "--yes")
    assert garbage.exists()


def test_gc_that_cannot_delete_says_how_many_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, [b"a"])
    garbage = litter(tmp_path)
    refusal = {f"ingest/{garbage.name}": StorageError("no rights")}
    monkeypatch.setattr(LocalStore, "delete", lambda _, paths: refusal if list(paths) else {})

    result = run("gc", tmp_path, "--yes")

    assert result.exit_code == 1
    assert one_line(result.stderr) == (
        f"1 object could not be deleted, run it again; the first is ingest/{garbage.name}: no rights"
    )


def test_gc_leaves_the_epoch_alone(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"])
    with Consumer.open(store, gc_interval=None) as owner:
        ok("gc", tmp_path, "--yes")

        assert owner.next_batch() is not None


def test_ack_moves_the_frontier_and_does_not_fence_the_owner(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"], [b"c"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")
    with Consumer.open(store, gc_interval=None) as owner:
        out = ok("ack", tmp_path, "1", "--yes")

        assert out == "acked through 1: the frontier is 2, 1 batch in the queue\n"
        assert peek(store).epoch == owner.epoch
        owner.ack_through(2)
    assert peek(store).frontier == 3


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ("0", "sequence 0 is acked already: the frontier is 1. Nothing was changed"),
        ("2", "sequence 2 was never produced: the last one is 1. Nothing was changed, ack what is there"),
    ],
)
def test_ack_out_of_order_changes_nothing(tmp_path: Path, sequence: str, message: str) -> None:
    acked(fill(tmp_path, [b"a"], [b"b"]), 0)
    before = files_in(tmp_path)

    assert error("ack", tmp_path, sequence, "--yes") == message
    assert files_in(tmp_path) == before


def test_ack_of_an_empty_buffer_is_refused(tmp_path: Path) -> None:
    assert "this buffer is empty" in error("ack", tmp_path, "0", "--yes")
    assert list(tmp_path.iterdir()) == []


def test_ack_without_a_terminal_wants_yes(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    assert error("ack", tmp_path, "0").endswith("pass --yes if you are sure")
    assert peek(LocalStore(tmp_path)).frontier == 0


@pytest.mark.parametrize(("given", "frontier"), [(b"y\n", 2), (b"n\n", 0)])
def test_ack_does_what_the_person_answers(tmp_path: Path, given: bytes, frontier: int) -> None:
    fill(tmp_path, [b"a"], [b"b"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    _, __, seen = answer(given, "ack", tmp_path, "1")

    assert "Epoch 0, frontier 0: 2 batches, sequences 0 to 1, leave the queue whether they were landed or not." in seen
    assert manifest_of(tmp_path).frontier == frontier


def test_ack_of_what_is_in_no_range_warns(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"])

    result = run("ack", tmp_path, "1", "--yes")

    assert result.exit_code == 0
    assert "note: 2 batches in no range yet" in one_line(result.stderr)


def test_ack_while_another_consumer_takes_over_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")
    monkeypatch.setattr(
        "objbuf_dagster.cli.upkeep.ask", lambda *_, **__: Consumer.open(store, gc_interval=None).close()
    )

    message = error("ack", tmp_path, "0")

    assert message.startswith("another consumer took over in this moment (epoch 0, now 1). Nothing was changed")
    assert peek(store).frontier == 0


def test_ack_of_a_buffer_that_was_made_anew_meanwhile_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same epoch and sequences, and other batches than the person was asked about."""
    store = fill(tmp_path, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    def made_anew(*_: object, **__: object) -> None:
        store.delete(["ingest/manifest"])
        fill(store, [b"b"])

    monkeypatch.setattr("objbuf_dagster.cli.upkeep.ask", made_anew)

    assert "the buffer was deleted and made anew" in error("ack", tmp_path, "0")
    assert peek(store).frontier == 0
