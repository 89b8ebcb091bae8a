"""The Rust client and we take a buffer from each other: who lost it sees it, and changes nothing any more."""

from __future__ import annotations

import pytest

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.errors import Fenced
from tests.interop.cases import SMALL, entries_of
from tests.interop.rust_client import Refused, RustClient
from tests.support.buffers import manifest_of
from tests.support.s3 import S3Location

pytestmark = pytest.mark.timeout(1800)  # the first one builds the client


def test_rust_takes_the_buffer_from_us_and_we_are_fenced(rust_client: RustClient, s3: S3Location) -> None:
    rust_client.produce(SMALL, "zstd")
    store = s3.open()
    ours = Consumer.open(store, gc_interval=None)
    assert ours.next_batch() is not None

    rust_client.open()

    taken = manifest_of(store).to_bytes()
    for attempt in (ours.next_batch, lambda: ours.next_descriptors(1), lambda: ours.ack_through(0)):
        with pytest.raises(Fenced) as fenced:
            attempt()
        assert (fenced.value.held, fenced.value.current) == (1, 2)
    assert manifest_of(store).to_bytes() == taken
    batch = rust_client.next_batch()
    assert batch is not None
    assert batch.entries == entries_of(SMALL[0])
    rust_client.ack_through(0)
    assert manifest_of(store).frontier == 1


def test_we_take_the_buffer_from_rust_and_it_is_fenced(rust_client: RustClient, s3: S3Location) -> None:
    rust_client.produce(SMALL, "none")
    store = s3.open()
    rust_client.open()
    assert rust_client.next_batch() is not None
    rust_client.ack(0)

    with Consumer.open(store, gc_interval=None) as ours:
        taken = manifest_of(store).to_bytes()
        for attempt in (
            rust_client.next_batch,
            lambda: rust_client.next_descriptors(1),
            lambda: rust_client.ack_through(1),
            rust_client.flush,
        ):
            with pytest.raises(Refused) as refused:
                attempt()
            assert refused.value.kind == "fenced"
        assert manifest_of(store).to_bytes() == taken

        ours.ack_through(0)
        assert manifest_of(store).frontier == 1


def test_the_buffer_goes_back_and_forth(rust_client: RustClient, other_rust_client: RustClient, s3: S3Location) -> None:
    rust_client.produce(SMALL, "zstd")
    store = s3.open()

    rust_client.open()
    rust_client.ack_through(0)
    first = Consumer.open(store, gc_interval=None)
    first.ack_through(1)
    other_rust_client.open()
    other_rust_client.ack_through(2)
    with Consumer.open(store, gc_interval=None) as second:
        second.ack_through(3)

        for rust in (rust_client, other_rust_client):
            with pytest.raises(Refused) as refused:
                rust.ack_through(4)
            assert refused.value.kind == "fenced"
        with pytest.raises(Fenced):
            first.ack_through(4)
        batch = second.next_batch()
    assert batch is not None
    assert (batch.sequence, list(batch.entries)) == (4, entries_of(SMALL[4]))
    manifest = manifest_of(store)
    assert (manifest.epoch, manifest.frontier, manifest.next_sequence) == (4, 4, len(SMALL))


def test_a_fenced_consumer_does_not_keep_producers_of_either_kind_from_appending(
    rust_client: RustClient, s3: S3Location
) -> None:
    store = s3.open()
    rust_client.produce(SMALL[:1], "none")
    ours = Consumer.open(store, gc_interval=None)
    rust_client.open()

    rust_client.produce(SMALL[1:2], "zstd")

    with pytest.raises(Fenced):
        ours.next_batch()
    assert [rust_client.next_batch() is not None for _ in range(3)] == [True, True, False]
