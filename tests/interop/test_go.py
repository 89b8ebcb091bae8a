"""What the Go producer writes, we read and land: always as recorded, and freshly made where its module can be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Compression, Manifest
from objbuf_dagster.store import LocalStore, MemoryStore
from tests.interop import go_producer
from tests.interop.buffers import check_consumed, land_everything
from tests.interop.cases import LARGE, SMALL, rows_of
from tests.interop.go_producer import HELD, PRODUCED, Recording
from tests.spark.landing import rows_in

pytestmark = pytest.mark.timeout(900)  # the last ones may build the producer

every_recording = pytest.mark.parametrize("name", PRODUCED)


@every_recording
def test_what_go_wrote_is_consumed_exactly_and_in_order(name: str) -> None:
    store = MemoryStore()
    Recording.load(name).put(store)

    check_consumed(store, [*HELD[name], *PRODUCED[name]])


@every_recording
def test_what_go_wrote_is_landed_exactly(spark: SparkSession, tmp_path: Path, table: LakeTable, name: str) -> None:
    store = LocalStore(tmp_path / "buffer")
    Recording.load(name).put(store)

    descriptors = land_everything(spark, store, table)

    assert rows_in(spark, table) == rows_of(descriptors, [*HELD[name], *PRODUCED[name]])


@every_recording
def test_our_append_gives_the_bytes_that_go_wrote(name: str) -> None:
    recorded = Recording.load(name)
    manifest = recorded.before

    for written in recorded.wrote.manifests:
        (*_, last) = Manifest.from_bytes(written).entries()
        manifest.append(last.location, last.metadata)

        assert manifest.to_bytes() == written
        manifest = Manifest.from_bytes(written)


@every_recording
def test_go_keeps_what_was_in_the_manifest_byte_for_byte(name: str) -> None:
    recorded = Recording.load(name)
    footer = len(Manifest.empty().to_bytes())
    before = recorded.before.to_bytes()

    for after in recorded.wrote.manifests:
        assert after.startswith(before[:-footer])
        found = Manifest.from_bytes(after)
        assert found.to_bytes() == after
        assert found.epoch == Manifest.from_bytes(before).epoch
        assert found.next_sequence == Manifest.from_bytes(before).next_sequence + 1
        before = after


def test_go_went_on_from_manifests_with_an_epoch_and_acked_entries() -> None:
    ours, ours_and_rusts = Recording.load("after-us").before, Recording.load("after-us-and-rust").before

    assert (ours.epoch, ours.frontier, ours.entry_count) == (1, 1, 1)
    assert (ours_and_rusts.epoch, ours_and_rusts.frontier, ours_and_rusts.entry_count) == (2, 2, 2)


def test_garbage_collection_leaves_the_batches_of_go_alone() -> None:
    recorded = Recording.load("zstd")
    store = MemoryStore()
    recorded.put(store)
    with Consumer.open(store, gc_interval=None) as consumer:
        consumer.ack_through(len(recorded.wrote.batches) - 1)

    report = GarbageCollector(store, grace_seconds=0, retention_seconds=0, clock=lambda: 4e9).collect_once()

    assert (report.deleted, report.failed) == ((), {})
    assert {info.path for info in store.list()} > set(recorded.wrote.batches)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_go_writes_now_is_consumed_and_landed_exactly(
    go_program: Path, spark: SparkSession, tmp_path: Path, table: LakeTable, compression: Compression
) -> None:
    store = LocalStore(tmp_path / "buffer")
    batches = [*SMALL, *LARGE]

    go_producer.produce(go_program, batches, compression, None).put(store)

    descriptors = land_everything(spark, store, table)
    assert rows_in(spark, table) == rows_of(descriptors, batches)
    check_consumed(store, batches)


@every_recording
def test_go_writes_the_same_now_as_when_it_was_recorded(go_program: Path, name: str) -> None:
    recorded = Recording.load(name)

    fresh = go_producer.produce(go_program, PRODUCED[name], recorded.compression, recorded.start)

    assert list(fresh.batches.values()) == list(recorded.wrote.batches.values())
    assert [len(data) for data in fresh.manifests] == [len(data) for data in recorded.wrote.manifests]
