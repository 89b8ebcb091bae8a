"""What a consumer hands out: batches and descriptors in order, waited for, fetched anywhere, refused if damaged."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer
from objbuf_dagster.errors import CorruptData, NotFound
from objbuf_dagster.protocol import BatchDescriptor, Metadata
from objbuf_dagster.store import MemoryStore, Store
from tests.buffer.consumers import open_consumer, sequences
from tests.support.buffers import append, fill, put_batch
from tests.support.counting import CountingStore


def test_batches_come_in_order_with_their_metadata(store: MemoryStore) -> None:
    metadata = [Metadata(0, 5, b"first"), Metadata(1, 6, b"second")]
    append(store, put_batch(store, "ingest/a", [b"one", b"", b"three"]), metadata)
    append(store, put_batch(store, "ingest/b", [b"four"]))
    consumer = open_consumer(store)

    first, second, third = (consumer.next_batch() for _ in range(3))

    assert first is not None
    assert (list(first.entries), first.sequence, first.location) == ([b"one", b"", b"three"], 0, "ingest/a")
    assert list(first.metadata) == metadata
    assert second is not None
    assert second.sequence == 1
    assert third is None


def test_a_batch_that_could_not_be_fetched_is_handed_out_again(store: MemoryStore) -> None:
    location = fill(store, 2)[0]
    saved = store.get(location).data
    consumer = open_consumer(store)

    store.delete([location])
    with pytest.raises(NotFound, match="sequence 0"):
        consumer.next_batch()
    store.put(location, saved)

    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 0


def test_next_batch_reads_one_manifest_and_one_batch(store: MemoryStore) -> None:
    (location,) = fill(store, 1)
    counting = CountingStore(store)
    consumer = Consumer.attach(counting, epoch=open_consumer(store).epoch)

    consumer.next_batch()

    assert counting.calls == {("get", DEFAULT_MANIFEST_PATH): 1, ("read", location): 1}


def test_descriptors_are_contiguous_and_cost_one_manifest_read(store: MemoryStore) -> None:
    fill(store, 10)
    counting = CountingStore(store)
    consumer = Consumer.attach(counting, epoch=open_consumer(store).epoch)

    assert sequences(consumer, 4) == [0, 1, 2, 3]
    assert counting.calls == {("get", DEFAULT_MANIFEST_PATH): 1}
    assert sequences(consumer, 100) == [4, 5, 6, 7, 8, 9]
    assert sequences(consumer, 100) == []


def test_asking_for_no_descriptors_reads_nothing(store: MemoryStore) -> None:
    counting = CountingStore(store)
    consumer = Consumer.attach(counting, epoch=1)

    assert consumer.next_descriptors(0) == []
    assert counting.count() == 0


def test_lost_descriptors_are_found_again_only_by_reopening(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    consumer.next_descriptors(3)
    assert sequences(consumer) == [3, 4]

    assert sequences(open_consumer(store)) == [0, 1, 2, 3, 4]
    assert sequences(open_consumer(store, last_acked=1)) == [2, 3, 4]


def test_descriptors_wait_for_what_comes(store: MemoryStore) -> None:
    counting = CountingStore(store)
    consumer = open_consumer(counting)
    late = threading.Timer(0.3, fill, [store, 1])
    late.start()

    started = time.monotonic()
    found = consumer.next_descriptors(10, wait=20)

    assert [entry.sequence for entry in found] == [0]
    assert time.monotonic() - started < 5
    assert counting.count("get") < 15, "it must not spin"
    late.join()


def test_waiting_ends_when_the_time_is_up(store: MemoryStore) -> None:
    consumer = open_consumer(store)
    started = time.monotonic()

    assert consumer.next_descriptors(10, wait=0.2) == []
    assert 0.2 <= time.monotonic() - started < 5


def test_fetches_go_on_beside_the_owner_and_after_pickling(shared_store: Store) -> None:
    locations = fill(shared_store, 40)
    consumer = open_consumer(shared_store)
    descriptors = consumer.next_descriptors(40)
    handle = pickle.loads(pickle.dumps(consumer.fetch_handle()))

    with ThreadPoolExecutor(8) as pool:
        fetched = pool.map(handle.fetch, descriptors)
        consumer.ack_through(10)
        append(shared_store, put_batch(shared_store, "ingest/late"))
        batches = list(fetched)

    assert [(batch.sequence, list(batch.entries)) for batch in batches] == [(n, [f"{n}".encode()]) for n in range(40)]
    assert [batch.location for batch in batches] == locations
    assert sequences(consumer) == [40]


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "other/x.batch", "ingest/../x", "ingest", "", "ingest/\0"]
)
def test_a_location_outside_the_buffer_is_never_fetched(store: MemoryStore, location: str) -> None:
    store.put("other/x.batch", b"secret")
    counting = CountingStore(store)
    consumer = open_consumer(counting)

    with pytest.raises(CorruptData, match="location"):
        consumer.fetch_descriptor(BatchDescriptor(7, location))

    assert counting.count("read") == 0


def test_a_corrupt_batch_names_sequence_location_and_reason(store: MemoryStore) -> None:
    store.put("ingest/bad", b"\x05\x00\x00\x00hel\x00\x01\x00\x00\x00\x01\x00")
    append(store, "ingest/bad")

    with pytest.raises(CorruptData, match=r"sequence 0, ingest/bad: .*does not fit"):
        open_consumer(store).next_batch()


def test_a_batch_over_the_limit_is_not_even_read(store: MemoryStore) -> None:
    append(store, put_batch(store, "ingest/big", [b"x" * 2000]))

    with pytest.raises(CorruptData, match="1000"):
        Consumer.open(store, gc_interval=None, max_bytes=1000).next_batch()
