"""Buffers with a past, and a collector whose clock stands where a test wants it."""

from __future__ import annotations

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.store import Store
from tests.support.buffers import append, fill, manifest_of, manifests

DAY = 24 * 3600.0
T0 = 1_700_000_000_000
"""Milliseconds at which these buffers begin."""


def paths(store: Store, prefix: str = "ingest") -> set[str]:
    return {info.path for info in store.list(prefix)}


def collector(
    store: Store, seconds: float, *, grace: float = 600, retention: float = 7 * DAY, epoch: int | None = None
) -> GarbageCollector:
    """A collector whose clock stands `seconds` after T0."""
    return GarbageCollector(
        store, epoch=epoch, grace_seconds=grace, retention_seconds=retention, clock=lambda: T0 / 1000 + seconds
    )


def used(store: Store) -> None:
    """A buffer whose manifest had an entry: beside one that never had, nothing is garbage."""
    append(store, "ingest/first")
    Consumer.open(store, gc_interval=None).ack_through(0)


def planned_and_acked(store: Store) -> list[SequenceRange]:
    """Six batches in three ranges, all acked, one after T0."""
    fill(store, 6, time_ms=T0)
    planned = plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    Consumer.open(store, gc_interval=None).ack_through(5)
    return [range_of(one) for one in planned]


def planned_and_acked_now(store: Store) -> None:
    plan(manifests(store), RangeLedger(store), Limits(max_wait=0), clock=lambda: T0 / 1000)
    Consumer.open(store, gc_interval=None).ack_through(manifest_of(store).next_sequence - 1)
