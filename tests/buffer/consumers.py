"""What tests of consumers share: one that collects no garbage behind their back, and what it hands out next."""

from __future__ import annotations

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.store import Store


def open_consumer(store: Store, last_acked: int | None = None) -> Consumer:
    return Consumer.open(store, last_acked=last_acked, gc_interval=None)


def sequences(consumer: Consumer, limit: int = 100) -> list[int]:
    return [found.sequence for found in consumer.next_descriptors(limit)]
