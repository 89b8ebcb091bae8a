"""`objbuf ranges`: plan, list, show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from objbuf_dagster.buffer import peek
from objbuf_dagster.buffer.retention import Mark, Retention, retention_path
from objbuf_dagster.store import LocalStore
from tests.cli.commands import acked, error, files_in, fill, manifest_of, ok


def keys(root: Path, *more: str) -> list[str]:
    return [json.loads(line)["key"] for line in ok("ranges", "list", root, "--json", *more).splitlines()]


def test_plan_cuts_the_queue_and_list_shows_it(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"], [b"c"])

    planned = ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "2")
    acked(store, 0)
    listed = ok("ranges", "list", tmp_path)

    assert planned.splitlines()[-1] == "planned 2 ranges"
    head, first, second = listed.splitlines()
    assert head.split() == ["RANGE", "BATCHES", "SIZE", "PLANNED", "AT", "STATE"]
    assert first.split()[:4] == ["000000000000-000000000001", "2", "24", "bytes"]
    assert first.endswith("partly acked")
    assert second.split()[0] == "000000000002-000000000002"
    assert second.endswith("queued")


def test_plan_keeps_each_limit(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"], [b"c"], [b"d"])

    ok("ranges", "plan", tmp_path, "--max-bytes", "24", "--max-ranges", "1")
    assert keys(tmp_path) == ["000000000000-000000000001"]

    ok("ranges", "plan", tmp_path, "--max-batches", "1")
    assert keys(tmp_path, "--since", "2") == ["000000000002-000000000002", "000000000003-000000000003"]


def test_dry_run_tells_the_same_and_writes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"], [b"c"])
    before = files_in(tmp_path)

    rehearsed = ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "2", "--dry-run")

    assert files_in(tmp_path) == before
    assert rehearsed.splitlines()[-1] == "would plan 2 ranges"
    planned = ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "2")
    assert [line.split()[:4] for line in rehearsed.splitlines()[:-1]] == [
        line.split()[:4] for line in planned.splitlines()[:-1]
    ]


def test_plan_without_result_says_why(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"])

    assert ok("ranges", "plan", tmp_path) == (
        "planned 0 ranges: 1 batch waits for more, or for 10 s to pass; --max-wait 0 plans now\n"
    )
    ok("ranges", "plan", tmp_path, "--max-wait", "0")
    assert ok("ranges", "plan", tmp_path) == "planned 0 ranges: everything in the queue is planned\n"
    acked(store, 0)
    assert ok("ranges", "plan", tmp_path) == "planned 0 ranges: the queue is empty\n"


def test_plan_leaves_epoch_and_frontier_alone(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"])
    before = manifest_of(tmp_path).to_bytes()

    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    assert manifest_of(tmp_path).to_bytes() == before
    assert peek(store).epoch == 0


@pytest.mark.parametrize("command", [("plan",), ("list",), ("list", "--json")])
def test_a_place_without_a_buffer_is_an_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    assert error("ranges", name, tmp_path, *options).startswith("there is no manifest ingest/manifest in ")


def test_ranges_are_listed_though_the_manifest_is_gone(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")
    (tmp_path / "ingest" / "manifest").unlink()
    assert "000000000000-000000000000" in ok("ranges", "list", tmp_path)


def test_gap_left_by_an_ack_is_told(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"], [b"c"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "1", "--max-ranges", "1")
    acked(store, 1)

    assert error("ranges", "plan", tmp_path).startswith("sequences 1 to 1 left the manifest before they were planned")


def test_list_is_empty_where_nothing_is_planned(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    assert ok("ranges", "list", tmp_path) == "no ranges: `objbuf ranges plan` makes them\n"
    assert ok("ranges", "list", tmp_path, "--since", "5") == "no ranges from sequence 5 on\n"
    assert ok("ranges", "list", tmp_path, "--json") == ""


def test_list_json_has_stable_keys(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    document = json.loads(ok("ranges", "list", tmp_path, "--json"))

    planned_at = document.pop("planned_at_ms")
    assert planned_at > 1_600_000_000_000
    assert document == {
        "key": "000000000000-000000000000",
        "start": 0,
        "end": 0,
        "batches": 1,
        "bytes": 12,
        "missing": 0,
        "epoch": 0,
        "state": "queued",
    }


def test_missing_batches_are_shown(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    for batch in (tmp_path / "ingest").glob("*.batch"):
        batch.unlink()

    assert "queued, 1 batch missing" in ok("ranges", "plan", tmp_path, "--max-wait", "0")


def test_show_prints_the_batches_of_a_range(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"], metadata=b"m")
    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    document = json.loads(ok("ranges", "show", tmp_path, "000000000000-000000000001"))

    assert document["key"] == "000000000000-000000000001"
    assert [batch["sequence"] for batch in document["batches"]] == [0, 1]
    locations = [entry.location for entry in manifest_of(tmp_path).entries()]
    assert [batch["location"] for batch in document["batches"]] == locations
    assert document["batches"][0]["size"] == 12
    assert document["batches"][0]["metadata"][0]["payload_base64"] == "bQ=="


def test_unknown_ranges_are_refused_with_what_to_do(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"], [b"b"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")

    assert "`objbuf ranges list` shows them" in error("ranges", "show", tmp_path, "000000000005-000000000009")
    assert "the range that starts there is 000000000000-000000000001" in error(
        "ranges", "show", tmp_path, "000000000000-000000000009"
    )
    assert error("ranges", "show", tmp_path, "\x1b[2J").startswith("not a range: '\\x1b[2J'")


def test_expired_range_says_since_when(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    fill(store, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")
    store.put(retention_path("ingest"), Retention(60.0, expired=(Mark(0, 1),)).to_bytes())

    message = error("ranges", "show", tmp_path, "000000000000-000000000000")

    assert message.startswith("range 000000000000-000000000000 expired at 1970-01-01T00:00:00+00:00")
    assert ok("ranges", "list", tmp_path).startswith("no ranges")


def test_corrupt_range_object_is_one_line(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0")
    (tmp_path / "ingest" / "ranges" / f"{0:020d}").write_bytes(b"{")

    assert error("ranges", "list", tmp_path).startswith("range object is corrupt: not JSON")
