"""The counters, gauges and histograms of PROTOCOL.md, each where it counts; and the protocol's defaults."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from objbuf_dagster.buffer import Consumer, GarbageCollector, Producer
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.retention import DEFAULT_RETENTION_SECONDS
from objbuf_dagster.store import MemoryStore
from tests.buffer.consumers import open_consumer
from tests.support.buffers import append, fill, put_batch

NAMES = {
    "counters": "batches_flushed entries_flushed bytes_flushed bytes_written manifest_writes manifest_conflicts "
    "batches_collected entries_collected bytes_collected descriptors_handed_out acks gc_files_deleted gc_files_failed",
    "gauges": "queue_length consumer_lag_seconds",
    "histograms": "flush_duration_seconds fetch_duration_seconds gc_duration_seconds",
}


def test_the_names_are_the_protocols() -> None:
    wanted = {f"buffer.{name}" for names in NAMES.values() for name in names.split()}
    found = {value for name, value in vars(m).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in found if name.startswith("buffer.")} == wanted
    assert {name.partition(".")[0] for name in found - wanted} == {"decode", "regulator"}, "which are ours"
    assert {name for name in found if name.startswith("regulator.")} == set(m.REGULATOR)


def test_fetching_handing_out_and_acking_are_counted(store: MemoryStore) -> None:
    append(store, put_batch(store, "ingest/a", [b"abc", b"d"]))
    fill(store, 4)
    size = store.head("ingest/a").size
    consumer = open_consumer(store)

    consumer.next_batch()
    consumer.next_descriptors(2)
    consumer.ack(0)
    consumer.ack_through(2)

    seen = consumer.metrics.snapshot()
    assert seen.counters == {
        m.BATCHES_COLLECTED: 1,
        m.ENTRIES_COLLECTED: 2,
        m.BYTES_COLLECTED: size,
        m.DESCRIPTORS_HANDED_OUT: 2,
        m.ACKS: 3,
        f"{m.MANIFEST_WRITES}{{role=consumer}}": 2,
    }
    assert seen.gauges[m.QUEUE_LENGTH] == 2
    assert seen.histograms[m.FETCH_DURATION_SECONDS].count == 1
    assert seen.histograms[m.FETCH_DURATION_SECONDS].largest > 0


def defaults(function: object) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def test_the_defaults_are_the_protocols() -> None:
    producer = defaults(Producer.__init__)
    assert producer["manifest_path"] == "ingest/manifest"
    assert producer["data_prefix"] == "ingest"
    assert producer["compression"] == "none"
    assert producer["flush_interval"] == 0.1
    assert producer["flush_size_bytes"] == 64 * 1024 * 1024
    assert producer["max_buffered_inputs"] == 1000
    consumer = defaults(Consumer.open)
    assert consumer["gc_interval"] == 300.0
    assert consumer["gc_grace_period"] == 600.0
    assert consumer["replay_retention"] == 7 * 24 * 3600.0 == DEFAULT_RETENTION_SECONDS
    assert consumer["max_bytes"] == 1 << 30
    assert defaults(GarbageCollector.__init__)["grace_seconds"] == 600.0


def test_the_documentation_has_every_setting() -> None:
    readme = (Path(__file__).parent.parent.parent / "docs" / "client.md").read_text()
    named = set(re.findall(r"`(\w+)`", readme))
    settings = {*defaults(Producer.__init__), *defaults(Consumer.open)} - {"metrics", "clock", "uptime", "last_acked"}
    assert settings - named == set()
