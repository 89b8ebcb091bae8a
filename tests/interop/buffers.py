"""Our side: produce a batch, check what is consumed, land what is there."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace, Consumer, Producer
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import BatchDescriptor, Compression
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.spark.landing import land
from objbuf_dagster.store import Store
from tests.interop.cases import Calls, entries_of, payloads_in, payloads_of


def produce(store: Store, calls: Calls, compression: Compression = "none") -> None:
    """Write these calls as one batch, by our producer."""
    with Producer(store, compression=compression, flush_interval=3600) as producer:
        for call in calls:
            producer.produce(call.entries, call.metadata)


def check_consumed(store: Store, expected: Sequence[Calls]) -> None:
    """That our consumer gives exactly these batches, in this order, each call's metadata where it belongs."""
    with Consumer.open(store, gc_interval=None) as consumer:
        for calls in expected:
            batch = consumer.next_batch()
            assert batch is not None
            assert list(batch.entries) == entries_of(calls)
            assert payloads_in(batch.metadata) == payloads_of(calls)
        assert consumer.next_batch() is None


def land_everything(spark: SparkSession, store: Store, table: LakeTable) -> list[BatchDescriptor]:
    """Plan one range over the buffer, land it, and return what was in the manifest."""
    place = BufferPlace(store)
    (planned,) = plan(place.manifests(), RangeLedger(store), Limits(max_batches=1000, max_wait=0))
    land(spark, place, planned, table)
    return list(place.manifests().read().entries())
