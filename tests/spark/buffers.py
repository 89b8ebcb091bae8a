"""Buffers in the states that a read may meet: planned so far, acked so far."""

from __future__ import annotations

from objbuf_dagster.protocol import Manifest
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.store import Store
from tests.support.buffers import manifests

BY_TWO = Limits(max_batches=2, max_wait=0)


def ack(store: Store, through: int) -> None:
    """Take the entries up to this sequence out of the manifest."""

    def change(manifest: Manifest, _: bool) -> bool:
        return len(manifest.dequeue(through)) > 0

    manifests(store).update(change)


def plan_ranges(store: Store, ranges: int) -> None:
    """Plan so many ranges of two batches each."""
    plan(manifests(store), RangeLedger(store), BY_TWO, max_ranges=ranges)
