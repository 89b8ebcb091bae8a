"""`make dev` in a fresh clone: the two-command promise of the README."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest
from deltalake import DeltaTable

from objbuf_dagster.buffer import peek
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.store import LocalStore
from tests.dev.launches import CODE, Launch
from tests.e2e.running import quick_spark
from tests.spark.processes import wait_until

pytestmark = pytest.mark.timeout(1800)

PROMISED_SECONDS = 120.0
BUSY = 2.0
"""How many times as long it may take here, where other tests run at the same time."""

LINEAGE = "{ assetNodes { assetKey { path } dependencyKeys { path } } }"


def lineage(port: int) -> dict[str, list[str]]:
    """What is upstream of each asset, as the UI asks for it."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        json.dumps({"query": LINEAGE}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310, loopback
        nodes = json.load(answer)["data"]["assetNodes"]
    return {
        "/".join(node["assetKey"]["path"]): ["/".join(key["path"]) for key in node["dependencyKeys"]] for node in nodes
    }


def test_partitions_fill_and_the_frontier_follows_until_ctrl_c(tmp_path: Path) -> None:
    shutil.copy(CODE / "workspace.yaml", tmp_path)
    store = LocalStore(tmp_path / ".data/buffer")
    with Launch(tmp_path, **quick_spark()) as launch:
        launch.wait_until_up()
        wait_until(lambda: peek(store).frontier > 0, seconds=PROMISED_SECONDS * BUSY)

        assert lineage(launch.port) == {
            "buffer": [],
            "entries": ["buffer"],
            "otel_logs": ["entries"],
            "dead_letters": ["otel_logs"],
            "service_latest": ["otel_logs"],
        }
        assert launch.end(signal.SIGINT) == 0

        assert "everything has ended" in launch.output

    before = peek(store)
    with Launch(tmp_path, **quick_spark()) as again:
        again.wait_until_up()
        wait_until(lambda: peek(store).frontier > before.frontier, seconds=PROMISED_SECONDS * BUSY)
        assert again.end(signal.SIGINT) == 0

    assert peek(store).epoch == before.epoch, "it went on where it was"
    ranges = RangeLedger(store).list()
    assert [one.start for one in ranges] == [0, *(one.end + 1 for one in ranges[:-1])]
    for table in ("entries", "otel_logs"):
        landed = DeltaTable(tmp_path / ".data/lake" / table).to_pyarrow_table(columns=["_odb_sequence"])
        assert set(range(peek(store).frontier)) <= set(landed["_odb_sequence"].to_pylist())
    entries = DeltaTable(tmp_path / ".data/lake/entries").to_pyarrow_table(
        columns=["_odb_sequence", "_odb_entry_index"]
    )
    places = list(zip(*(entries[name].to_pylist() for name in entries.column_names), strict=True))
    assert len(places) == len(set(places)), "something landed twice"
    assert not (tmp_path / ".data/lake/dead_letters").exists()
