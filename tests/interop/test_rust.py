"""The Rust client and we, both ways: what one writes, the other reads, exactly and in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import Consumer, Producer
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Compression, ConsumedBatch
from objbuf_dagster.store import LocalStore
from tests.interop.buffers import check_consumed, land_everything, produce
from tests.interop.cases import LARGE, SMALL, entries_of, payloads_in, payloads_of, rows_of
from tests.interop.rust_client import Refused, RustClient
from tests.spark.landing import rows_in
from tests.support.buffers import manifest_of
from tests.support.s3 import S3Location

pytestmark = pytest.mark.timeout(1800)  # the first one builds the client

both_compressions = pytest.mark.parametrize("compression", ["none", "zstd"])
EVERYTHING = [*SMALL, *LARGE]


@both_compressions
def test_what_rust_wrote_is_consumed_exactly_and_in_order(
    rust_client: RustClient, s3: S3Location, compression: Compression
) -> None:
    times = rust_client.produce(EVERYTHING, compression)

    check_consumed(s3.open(), EVERYTHING)
    found = [[item.ingestion_time_ms for item in entry.metadata] for entry in manifest_of(s3.open()).entries()]
    assert found == times


@both_compressions
def test_what_rust_wrote_is_landed_exactly(
    spark: SparkSession, rust_client: RustClient, s3: S3Location, table: LakeTable, compression: Compression
) -> None:
    rust_client.produce(EVERYTHING, compression)

    descriptors = land_everything(spark, s3.open(), table)

    assert rows_in(spark, table) == rows_of(descriptors, EVERYTHING)


@both_compressions
def test_what_we_wrote_is_consumed_by_rust_exactly_and_in_order(
    rust_client: RustClient, s3: S3Location, compression: Compression
) -> None:
    for calls in EVERYTHING:
        produce(s3.open(), calls, compression)
    written = list(manifest_of(s3.open()).entries())

    rust_client.open()

    for descriptor, calls in zip(written, EVERYTHING, strict=True):
        batch = rust_client.next_batch()
        assert batch == ConsumedBatch(entries_of(calls), descriptor.sequence, descriptor.location, descriptor.metadata)
        assert payloads_in(batch.metadata) == payloads_of(calls)
        rust_client.ack(batch.sequence)
    assert rust_client.next_batch() is None
    rust_client.close_consumer()
    left = manifest_of(s3.open())
    assert (left.entry_count, left.frontier) == (0, len(EVERYTHING))


def test_batches_that_we_appended_in_one_write_are_as_many_to_rust(rust_client: RustClient, s3: S3Location) -> None:
    with Producer(s3.open(), flush_size_bytes=1, max_in_flight=8) as producer:
        handles = [producer.produce([b"%d" % number], b"m%d" % number) for number in range(30)]
    durable = [handle.await_durable(60) for handle in handles]

    rust_client.open()
    descriptors = rust_client.next_descriptors(100)

    assert [found.sequence for found in descriptors] == list(range(30))
    assert descriptors == list(manifest_of(s3.open()).entries())
    assert [descriptors[one.sequence].location for one in durable] == [one.location for one in durable]
    assert [descriptors[one.sequence].metadata[0].payload for one in durable] == [b"m%d" % n for n in range(30)]


def test_rust_reads_on_after_what_we_acked_and_we_after_what_rust_acked(
    rust_client: RustClient, other_rust_client: RustClient, s3: S3Location
) -> None:
    rust_client.produce(SMALL, "zstd")
    with Consumer.open(s3.open(), gc_interval=None) as ours:
        ours.ack_through(1)

    rust_client.open()
    third = rust_client.next_batch()
    rust_client.ack_through(2)
    with Consumer.open(s3.open(), gc_interval=None) as ours:
        fourth = ours.next_batch()
    other_rust_client.open(last_acked=4)
    sixth = other_rust_client.next_batch()

    for batch, number in ((third, 2), (fourth, 3), (sixth, 5)):
        assert batch is not None
        assert (batch.sequence, list(batch.entries)) == (number, entries_of(SMALL[number]))
    assert manifest_of(s3.open()).frontier == 5


def test_rust_reads_in_a_manifest_of_ours_what_we_wrote(rust_client: RustClient, s3: S3Location) -> None:
    for calls in SMALL:
        produce(s3.open(), calls)
    with Consumer.open(s3.open(), gc_interval=None) as ours:
        ours.ack_through(2)
    manifest = manifest_of(s3.open())

    epoch, next_sequence, entries = rust_client.parse(manifest.to_bytes())

    assert (epoch, next_sequence) == (1, len(SMALL))
    assert entries == list(manifest.entries())


def test_in_a_local_folder_rust_starts_a_buffer_that_we_read_but_cannot_go_on(
    rust_program: Path, tmp_path: Path
) -> None:
    """Its local store can create a manifest and not replace one: everything else goes through S3 for that reason."""
    folder = tmp_path / "buffer"
    with RustClient.at_folder(rust_program, folder) as client:
        client.produce(SMALL[1:2], "zstd")
        with pytest.raises(Refused, match=r"(?i)not.*implemented") as refused:
            client.produce(SMALL[:1], "zstd")

    assert refused.value.kind == "storage"
    check_consumed(LocalStore(folder), SMALL[1:2])
