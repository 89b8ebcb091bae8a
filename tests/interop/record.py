"""Record what the Go producer writes: `python -m tests.interop.record <the built Go program>`. Needs cargo, too."""

from __future__ import annotations

import sys
from pathlib import Path

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.protocol import Compression, Manifest
from objbuf_dagster.store import MemoryStore, Store
from tests.interop import go_producer, rust_client
from tests.interop.buffers import produce
from tests.interop.go_producer import BY_RUST, BY_US, PRODUCED, Recording
from tests.support.s3 import s3_server


def _ack(store: Store, through: int) -> None:
    with Consumer.open(store, gc_interval=None) as consumer:
        consumer.ack_through(through)


def _record(program: Path, name: str, compression: Compression, store: Store) -> None:
    stored = {info.path: store.read(info.path) for info in store.list()}
    start = stored.pop("ingest/manifest", None)
    named = {entry.location for entry in Manifest.from_bytes(start).entries()} if start else set()
    wrote = go_producer.produce(program, PRODUCED[name], compression, start)
    Recording(compression, start, {path: stored[path] for path in sorted(named)}, wrote).save(name)


def main(program: Path) -> None:
    for compression in ("none", "zstd"):
        _record(program, compression, compression, MemoryStore())
    ours = MemoryStore()
    for calls in BY_US:
        produce(ours, calls, "zstd")
    _ack(ours, 0)
    _record(program, "after-us", "zstd", ours)
    with s3_server() as root:
        place = root.fresh()
        store = place.open()
        with rust_client.RustClient.at_s3(rust_client.build(), place) as client:
            produce(store, BY_US[0])
            client.produce(BY_RUST[:1], "zstd")
            produce(store, BY_US[1], "zstd")
            client.produce(BY_RUST[1:], "none")
            client.open()
            client.ack_through(0)
        _ack(store, 1)
        _record(program, "after-us-and-rust", "none", store)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
