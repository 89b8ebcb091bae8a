"""`objbuf quarantine`: what may be left out and what not, by whom and how often, and the way back."""

from __future__ import annotations

import json
import os
import pty
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer.retention import Mark, Retention, retention_path
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.ranges.quarantine import QuarantineLedger
from objbuf_dagster.store import LocalStore
from tests.cli.commands import acked, error, files_in, fill, finish, manifest_of, ok, run, start
from tests.cli.test_app import as_arguments
from tests.spark.decoding import letters_in
from tests.support.s3 import S3Location

KEY = SequenceRange(0, 2).key


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A buffer with three batches in a range, and one behind that is in none."""
    fill(tmp_path / "buffer", [b"a", b"b"], [b"c"], [b"d", b"e", b"f"])
    ok("ranges", "plan", tmp_path / "buffer", "--max-wait", "0")
    fill(tmp_path / "buffer", [b"g"])
    return tmp_path / "buffer"


def spoil(root: Path, sequence: int) -> Path:
    entry = manifest_of(root).entry(sequence)
    assert entry is not None
    (root / entry.location).write_bytes(b"\x00" * 16 + b"\x00\x09\x00\x00\x00\x01\x00")
    return root / entry.location


def active(root: Path) -> list[int]:
    return [one.sequence for one in QuarantineLedger(LocalStore(root)).read().active]


def expire(root: Path, before: int) -> None:
    expired = Retention(expired=(Mark(1, before),))
    LocalStore(root).put(retention_path("ingest"), expired.to_bytes())


def test_a_corrupt_batch_is_quarantined_without_a_question(root: Path) -> None:
    spoil(root, 1)
    before = manifest_of(root).to_bytes()

    out = ok("quarantine", root, "1", "--reason", "zeros, the producer lost it")

    assert out.startswith("quarantined sequence 1, ingest/")
    assert f": range {KEY} lands without it from now on; if it has landed already, land it again, then decode" in out
    assert active(root) == [1]
    assert manifest_of(root).to_bytes() == before


def test_a_batch_that_only_the_default_limit_refuses_needs_a_yes(root: Path) -> None:
    refused = run("quarantine", root, "1", "--reason", "large", "--max-batch-bytes", "1")
    assert refused.exit_code == 0, refused.output  # it is too large to be read
    ok("quarantine", root, "1", "--undo")

    assert "pass --yes if you are sure" in error("quarantine", root, "1", "--reason", "large")

    assert active(root) == []


def test_a_damaged_record_is_told_with_its_place_and_stat_shows_the_rest(root: Path) -> None:
    (root / "ingest/ranges/quarantine").write_bytes(b'{"version": 1, "batches": 5}')

    found = run("stat", root)

    assert found.exit_code == 0
    assert "quarantine object is corrupt: 'batches' is not a list" in found.stderr
    assert "Restore the object ingest/ranges/quarantine, or move it away" in found.stderr
    assert "quarantined    unknown, see the note" in found.stdout
    assert "next sequence  4" in found.stdout
    assert json.loads(run("stat", root, "--json").stdout)["quarantined"] is None
    assert "or move it away" in error("quarantine", root, "1", "--reason", "x")


def test_a_missing_batch_is_quarantined_without_a_question(root: Path) -> None:
    spoil(root, 1).unlink()

    ok("quarantine", root, "1", "--reason", "deleted by hand")

    assert active(root) == [1]


def test_a_batch_that_can_be_read_needs_a_yes(root: Path) -> None:
    before = files_in(root)

    assert error("quarantine", root, "1", "--reason", "x").endswith("pass --yes if you are sure")
    assert files_in(root) == before
    ok("quarantine", root, "1", "--reason", "x", "--yes")
    assert active(root) == [1]


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_a_person_is_asked_at_a_terminal(root: Path, answer: bytes, code: int) -> None:
    ours, theirs = pty.openpty()
    process = start("quarantine", root, "1", "--reason", "x", stdin=theirs)
    os.write(ours, answer)
    found, _, said = finish(process)
    os.close(ours)
    os.close(theirs)

    assert found == code, said
    assert "Sequence 1 can be read: its range would land without 1 record." in said
    assert active(root) == ([1] if code == 0 else [])


def test_repeating_it_keeps_the_first_reason(root: Path) -> None:
    spoil(root, 1)
    ok("quarantine", root, "1", "--reason", "first")
    before = files_in(root)

    out = ok("quarantine", root, "1", "--reason", "second")

    assert out.startswith("sequence 1 is quarantined since 20")
    assert out.endswith(": first\n")
    assert files_in(root) == before


def test_undo_brings_it_back_and_may_be_repeated(root: Path) -> None:
    spoil(root, 1)
    ok("quarantine", root, "1", "--reason", "zeros")

    out = ok("quarantine", root, "1", "--undo")

    assert out == (
        f"brought sequence 1 back: range {KEY} has it again when it lands next, and its dead letter goes; land it "
        "again, then decode it again (materialise the assets behind `entries` for that range) and rebuild states: "
        "until then they are as they were\n"
    )
    assert active(root) == []
    assert ok("quarantine", root, "1", "--undo") == "sequence 1 is not quarantined\n"
    ok("quarantine", root, "1", "--reason", "zeros all the same")
    assert active(root) == [1]


def test_undo_of_a_batch_that_is_gone_is_refused(root: Path) -> None:
    spoil(root, 1).unlink()
    ok("quarantine", root, "1", "--reason", "deleted")

    assert "the batch of sequence 1 is gone" in error("quarantine", root, "1", "--undo")
    assert active(root) == [1]


def test_what_has_expired_stays_as_it_is(root: Path) -> None:
    spoil(root, 1)
    ok("quarantine", root, "1", "--reason", "zeros")
    acked(LocalStore(root), 2)
    expire(root, 3)
    before = files_in(root)

    assert f"range {SequenceRange(1, 1)} expired at" in error("quarantine", root, "1", "--undo")
    assert "expired at" in error("quarantine", root, "2", "--reason", "zeros")
    assert files_in(root) == before


def test_a_range_that_was_acked_and_is_retained_may_land_without_a_batch(root: Path) -> None:
    spoil(root, 1)
    acked(LocalStore(root), 2)

    ok("quarantine", root, "1", "--reason", "zeros")

    assert active(root) == [1]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ("4", "sequence 4 was never produced in"),
        ("18446744073709551615", "was never produced in"),
        ("3", "`objbuf ranges plan` makes a range of it"),
    ],
)
def test_a_sequence_of_no_range_is_refused(root: Path, sequence: str, message: str) -> None:
    before = files_in(root)

    assert message in error("quarantine", root, sequence, "--reason", "zeros")
    assert files_in(root) == before


def test_a_sequence_that_left_the_manifest_unplanned_is_refused(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"])
    acked(store, 0)

    assert "left the manifest" in error("quarantine", tmp_path, "0", "--reason", "zeros")
    assert "was never produced" in error("quarantine", tmp_path / "typo", "0", "--reason", "zeros")
    assert not (tmp_path / "typo").exists()


def test_a_buffer_made_anew_is_noticed(root: Path) -> None:
    manifest = Manifest.empty()
    for _ in range(4):
        manifest.append("ingest/other.batch")
    (root / "ingest/manifest").write_bytes(manifest.to_bytes())

    assert "deleted and made anew" in error("quarantine", root, "1", "--reason", "zeros")
    assert active(root) == []


@pytest.mark.parametrize("args", [[], ["--undo", "--reason", "x"]])
def test_a_reason_or_an_undo_is_needed(root: Path, args: list[str]) -> None:
    assert "give --reason to quarantine a batch, or --undo" in error("quarantine", root, "1", *args, code=2)


@pytest.mark.parametrize("reason", ["", "x" * 1001])
def test_a_reason_is_a_text(root: Path, reason: str) -> None:
    spoil(root, 1)

    assert "a reason is a text" in error("quarantine", root, "1", "--reason", reason)


def test_two_people_at_once_both_count(root: Path) -> None:
    spoil(root, 0)
    spoil(root, 1)
    both = [start("quarantine", root, sequence, "--reason", "zeros") for sequence in ("0", "1", "1")]

    assert [finish(one)[0] for one in both] == [0, 0, 0]
    assert active(root) == [0, 1]


def test_stat_shows_what_is_quarantined(root: Path) -> None:
    assert json.loads(ok("stat", root, "--json"))["quarantined"] == []
    assert "quarantined" not in ok("stat", root)
    for sequence in (0, 1):
        spoil(root, sequence)
        ok("quarantine", root, str(sequence), "--reason", f"zeros \x1b{sequence}")

    first, second = json.loads(ok("stat", root, "--json"))["quarantined"]
    lines = [line for line in ok("stat", root).splitlines() if "since" in line]

    assert (first["sequence"], first["reason"], second["sequence"]) == (0, "zeros \x1b0", 1)
    assert first["location"] == manifest_of(root).entry(0).location  # type: ignore[union-attr]
    assert lines[0].startswith("quarantined    sequence 0 since 20")
    assert lines[0].endswith("Z: zeros \\x1b0")
    assert lines[1].startswith("               sequence 1 since 20")


def test_a_bucket_has_its_quarantine_too(s3: S3Location) -> None:
    fill(s3.open(), [b"a"])
    where = [s3.url, *as_arguments(s3)]
    ok("ranges", "plan", *where, "--max-wait", "0")

    ok("quarantine", *where, "0", "--reason", "zeros", "--yes")

    assert json.loads(ok("stat", *where, "--json"))["quarantined"][0]["sequence"] == 0
    ok("quarantine", *where, "0", "--undo")
    assert json.loads(ok("stat", *where, "--json"))["quarantined"] == []


def test_land_goes_without_it_and_with_it_again(spark: SparkSession, root: Path) -> None:
    lake = root.parent / "lake"
    where = ["--buffer", str(root), "--lake", str(lake)]
    letters = LakeTable(lake / "dead_letters", DEAD_LETTERS)
    shutil.copy(root / manifest_of(root).entry(1).location, root.parent / "saved")  # type: ignore[union-attr]
    spoiled = spoil(root, 1)
    stopped = run("land", KEY, *where, "--ack")
    assert stopped.exit_code == 1
    assert "sequence 1" in stopped.stderr
    assert manifest_of(root).frontier == 0

    ok("quarantine", root, "1", "--reason", "zeros")
    done = run("land", KEY, *where, "--ack")

    assert done.exit_code == 0
    assert "acked through 2" in done.stdout
    assert entries(lake) == [b"a", b"b", b"d", b"e", b"f"]
    ((*place, reason, _),) = letters_in(letters)
    assert (place, reason) == ([1, 0, "quarantine", 1], "zeros")
    listed = ok("dead-letters", "list", lake).splitlines()[1].split()
    assert listed == [KEY, "1", "0", "quarantine", "1", "zeros"]
    # and back
    shutil.copy(root.parent / "saved", spoiled)
    ok("quarantine", root, "1", "--undo")
    run("land", KEY, *where)
    assert entries(lake) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert letters_in(letters) == []


def entries(lake: Path) -> list[bytes]:
    rows = LakeTable(lake / "entries").delta().to_pyarrow_table()
    found: list[bytes] = rows.sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")])[
        "entry"
    ].to_pylist()
    return found
