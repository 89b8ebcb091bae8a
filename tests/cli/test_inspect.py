"""`objbuf stat` and `objbuf manifest dump`: what is there, told truly."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.errors import shown
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.store import LocalStore
from tests.cli.commands import acked, error, files_in, fill, ok, one_line, run
from tests.support.buffers import append, batch_name, put_batch
from tests.support.counting import CountingStore

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "manifest.json").read_bytes())
GOOD = [vector for vector in VECTORS if "error" not in vector]
BAD = [vector for vector in VECTORS if "error" in vector]
KEYS = [
    "url",
    "manifest_path",
    "data_prefix",
    "exists",
    "epoch",
    "frontier",
    "next_sequence",
    "queue_length",
    "lag_seconds",
    "conflict_rate",
    "ranges",
    "waiting_batches",
    "memory_in_use",
    "regulator",
    "quarantined",
    "objects",
]


def stat(root: Path, *more: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ok("stat", root, "--json", *more))
    return document


def test_one_screen_for_people(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"], [b"c"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "2")
    with Consumer.open(store, gc_interval=None) as owner:
        owner.ack_through(0)

    lines = ok("stat", tmp_path, "--objects").splitlines()

    assert lines[0] == f"buffer         {tmp_path} (ingest/manifest)"
    assert lines[1:5] == [
        "epoch          1",
        "frontier       1 (first sequence that is not acked)",
        "next sequence  3",
        "queue length   2 batches",
    ]
    assert lines[5].startswith("lag            ")
    assert lines[5].endswith(" s")
    assert lines[6:] == [
        "conflict rate  not known from here: each producer and consumer measures its own",
        "ranges         2 planned, 2 past the frontier (36 bytes)",
        "  first        000000000000-000000000001",
        "  last         000000000002-000000000002",
        "waiting        0 batches in no range yet",
        lines[11],
        "regulator      n/a: set DAGSTER_HOME to the pipeline's, which alone knows",
        "objects        3 batches, 36 bytes",
    ]


def test_what_is_planned_and_what_waits_is_told(tmp_path: Path) -> None:
    store = fill(tmp_path, *([b"x" * 10] for _ in range(7)))
    ok("ranges", "plan", tmp_path, "--max-wait", "3600", "--max-batches", "2")
    acked(store, 2)

    document = stat(tmp_path)

    assert (document["ranges"]["past_frontier"], document["waiting_batches"]) == (2, 1)
    size = sum(planned.size for planned in RangeLedger(store).list(3))
    assert document["ranges"]["past_frontier_bytes"] == size == 4 * 21
    # when all of it is acked
    acked(store, 6)
    assert stat(tmp_path)["ranges"]["past_frontier_bytes"] == stat(tmp_path)["waiting_batches"] == 0


def test_the_memory_is_this_machines_and_what_dagster_knows_is_not_guessed(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])

    document = stat(tmp_path)

    assert 0 < document["memory_in_use"] < 1
    assert document["regulator"] is None
    assert re.search(r"^memory +\d+% in use on this machine$", ok("stat", tmp_path), re.MULTILINE)


def test_json_has_stable_keys(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    time.sleep(0.01)

    document = stat(tmp_path)

    assert list(document) == KEYS
    assert document["queue_length"] == document["next_sequence"] == 1
    assert 0 < document["lag_seconds"] < 60
    assert document["conflict_rate"] is None
    assert document["objects"] is None
    assert document["ranges"] == {
        "planned": 0,
        "past_frontier": 0,
        "past_frontier_bytes": 0,
        "first": None,
        "last": None,
        "expired_before": 0,
        "next_start": 0,
    }
    assert stat(tmp_path, "--objects")["objects"] == {"count": 1, "bytes": 12}


def test_a_place_without_a_buffer_is_an_error(tmp_path: Path) -> None:
    """Zeros would look like a buffer that is well."""
    assert error("stat", tmp_path / "typo").startswith("there is no manifest ingest/manifest in ")

    result = run("stat", tmp_path / "typo", "--json")

    assert result.exit_code == 1
    assert "or the URL or --manifest-path is not right" in one_line(result.stderr)
    document = json.loads(result.stdout)
    assert list(document) == KEYS
    assert document["exists"] is False
    assert [document[key] for key in ("epoch", "frontier", "next_sequence", "queue_length", "lag_seconds")] == [0] * 5
    assert not (tmp_path / "typo").exists()


def test_empty_manifest_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("ingest/manifest", Manifest.empty().to_bytes())

    assert stat(tmp_path)["exists"] is True


def test_lag_is_unknown_where_the_oldest_batch_has_no_time(tmp_path: Path) -> None:
    manifest = Manifest.empty()
    manifest.append("ingest/x.batch")
    LocalStore(tmp_path).put("ingest/manifest", manifest.to_bytes())

    assert stat(tmp_path)["lag_seconds"] is None
    assert "lag            unknown: the oldest batch carries no time" in ok("stat", tmp_path)


def test_lag_is_known_where_only_the_name_of_the_oldest_batch_tells_its_time(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    append(store, put_batch(store, batch_name(int(time.time() * 1000) - 30_000)))

    assert 30 <= stat(tmp_path)["lag_seconds"] < 90


def test_ranges_are_counted_without_reading_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path, *([b"x"] for _ in range(12)))
    ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "2")
    acked(store, 6)
    counting = CountingStore(store)
    monkeypatch.setattr("objbuf_dagster.store.open_store", lambda *_, **__: counting)

    ranges = stat(tmp_path)["ranges"]

    assert (ranges["planned"], ranges["past_frontier"]) == (6, 3)
    assert (ranges["first"], ranges["last"]) == ("000000000000-000000000001", "000000000010-000000000011")
    assert counting.count("read") == 4, "the first, and those past the frontier"
    assert counting.count("get", path="ingest/manifest") == 1


def test_expired_ranges_are_not_counted(tmp_path: Path) -> None:
    store = fill(tmp_path, [b"a"], [b"b"], [b"c"])
    ok("ranges", "plan", tmp_path, "--max-wait", "0", "--max-batches", "1")
    acked(store, 1)
    ok("gc", tmp_path, "--retention", "0", "--yes")

    assert stat(tmp_path)["ranges"] == {
        "planned": 1,
        "past_frontier": 1,
        "past_frontier_bytes": 12,
        "first": "000000000002-000000000002",
        "last": "000000000002-000000000002",
        "expired_before": 2,
        "next_start": 3,
    }
    assert "  expired      before sequence 2" in ok("stat", tmp_path)


def test_control_characters_of_a_path_do_not_reach_the_terminal(tmp_path: Path) -> None:
    root = tmp_path / "a\x1b[31m\nb"
    fill(root, [b"a"])

    out = ok("stat", root)

    assert "\x1b" not in out
    assert out.splitlines()[0].endswith("a\\x1b[31m\\nb (ingest/manifest)")


@pytest.mark.parametrize("vector", GOOD, ids=[vector["name"] for vector in GOOD])
def test_dump_is_the_reference_implementations_json(tmp_path: Path, vector: dict[str, Any]) -> None:
    file = tmp_path / "manifest"
    file.write_bytes(bytes.fromhex(vector["hex"]))
    expected = {
        "version": 1,
        "epoch": vector["epoch"],
        "next_sequence": vector["next_sequence"],
        "entries": [
            {
                "sequence": entry["sequence"],
                "location": entry["location"],
                "metadata": [
                    {
                        "start_index": item["start_index"],
                        "ingestion_time_ms": item["ingestion_time_ms"],
                        "payload_base64": b64encode(bytes.fromhex(item["payload_hex"])).decode(),
                    }
                    for item in entry["metadata"]
                ],
            }
            for entry in vector["entries"]
        ],
    }

    assert ok("manifest", "dump", file) == json.dumps(expected, indent=2) + "\n"


def test_dump_takes_a_url_a_directory_and_a_file(tmp_path: Path) -> None:
    fill(tmp_path, [b"a"])
    before = files_in(tmp_path)

    dumps = {
        ok("manifest", "dump", source) for source in (tmp_path, f"file://{tmp_path}", tmp_path / "ingest" / "manifest")
    }

    assert len(dumps) == 1
    assert json.loads(dumps.pop())["next_sequence"] == 1
    assert files_in(tmp_path) == before


def test_dump_of_nothing_says_where_it_looked(tmp_path: Path) -> None:
    assert "there is no manifest ingest/manifest in" in error("manifest", "dump", tmp_path)
    assert error("manifest", "dump", tmp_path / "x").startswith("there is neither a buffer nor a manifest file at")


@pytest.mark.parametrize("vector", BAD, ids=[vector["name"] for vector in BAD])
def test_dump_stops_at_damage_and_says_which(tmp_path: Path, vector: dict[str, Any]) -> None:
    file = tmp_path / "manifest"
    file.write_bytes(bytes.fromhex(vector["hex"]))

    result = run("manifest", "dump", file)

    assert result.exit_code == 1
    told = one_line(result.stderr)
    assert {"corrupt": "is corrupt", "unsupported version": "has version"}[vector["error"]] in told
    assert vector["error"] != "corrupt" or told.endswith(f". Restore the object {shown(str(file))}, or move it away")


@pytest.mark.parametrize("command", [["stat"], ["tail"], ["manifest", "dump"], ["ranges", "plan"], ["ack"], ["gc"]])
def test_corrupt_manifest_is_one_line(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "ingest").mkdir()
    (tmp_path / "ingest" / "manifest").write_bytes(b"garbage")

    message = error(*command, tmp_path, *(["0"] if command == ["ack"] else []))

    assert message.startswith("manifest is corrupt: 7 bytes are fewer than the footer's 22. ")
    assert message.endswith(". Restore the object ingest/manifest, or move it away")
