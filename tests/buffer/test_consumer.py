"""Who may consume: epochs, fencing, joining, and where a consumer begins and ends.

The reference implementation's own scenarios are the minimum, here, in test_consumer_reads.py and in
test_consumer_acks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer, Producer
from objbuf_dagster.errors import BufferReplaced, Fenced, InvalidInput
from objbuf_dagster.protocol import NO_EPOCH, Manifest
from objbuf_dagster.store import MemoryStore, RetryingStore, Store
from tests.buffer.conftest import ThreadsLeft
from tests.buffer.consumers import open_consumer, sequences
from tests.support.buffers import fill, manifest_of, manifests
from tests.support.counting import CountingStore
from tests.support.faults import AT_ONCE, FaultStore


def test_opening_takes_the_next_epoch(store: MemoryStore) -> None:
    assert open_consumer(store).epoch == 1
    assert open_consumer(store).epoch == 2
    assert manifest_of(store).epoch == 2


def test_the_epoch_wraps_past_the_one_that_is_never_used(store: MemoryStore) -> None:
    manifest = Manifest.empty()
    manifest.epoch = NO_EPOCH - 1
    store.put(DEFAULT_MANIFEST_PATH, manifest.to_bytes())

    assert open_consumer(store).epoch == 0


def ack_all(consumer: Consumer) -> None:
    for sequence in range(100):
        consumer.ack(sequence)


def ack_and_flush(consumer: Consumer) -> None:
    consumer.ack(0)
    consumer.flush()


def ack_and_close(consumer: Consumer) -> None:
    consumer.ack(0)
    consumer.close()


OPERATIONS: dict[str, Callable[[Consumer], object]] = {
    "next_batch": Consumer.next_batch,
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "ack at the 100th": ack_all,
    "ack_through": partial(Consumer.ack_through, sequence=3),
    "flush with acks": ack_and_flush,
    "close with acks": ack_and_close,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_fenced_consumer_fails_and_changes_nothing(
    store: MemoryStore, operation: Callable[[Consumer], object]
) -> None:
    fill(store, 120)
    old = open_consumer(store)
    open_consumer(store)
    before = store.get(DEFAULT_MANIFEST_PATH)

    with pytest.raises(Fenced) as caught:
        operation(old)

    assert (caught.value.held, caught.value.current) == (1, 2)
    assert store.get(DEFAULT_MANIFEST_PATH) == before


def test_a_consumer_that_never_took_an_epoch_is_always_fenced(store: MemoryStore) -> None:
    fill(store, 2)
    nobody = Consumer.attach(store, epoch=NO_EPOCH)

    for operation in (nobody.next_batch, lambda: nobody.next_descriptors(1), lambda: nobody.ack_through(0)):
        with pytest.raises(Fenced):
            operation()


def test_an_attached_consumer_joins_without_fencing_and_without_reading(store: MemoryStore) -> None:
    fill(store, 5)
    owner = open_consumer(store)
    counting = CountingStore(store)

    attached = Consumer.attach(counting, epoch=owner.epoch)
    assert counting.count() == 0
    attached.ack_through(2)

    assert counting.calls == {("get", DEFAULT_MANIFEST_PATH): 1, ("put", DEFAULT_MANIFEST_PATH): 1}
    assert sequences(owner) == [3, 4]


def test_an_attached_consumer_may_ack_what_is_acked_already(store: MemoryStore) -> None:
    fill(store, 5)
    owner = open_consumer(store)
    owner.ack_through(3)
    before = store.get(DEFAULT_MANIFEST_PATH)

    Consumer.attach(store, epoch=owner.epoch).ack_through(1)

    assert store.get(DEFAULT_MANIFEST_PATH) == before


def test_two_consumers_never_hold_one_epoch_though_answers_are_lost(store: MemoryStore) -> None:
    """Both write the same bytes for the same next epoch: the one whose answer was lost must not believe it won."""
    faults = FaultStore(store, {("put", 1): "lost"})

    first = open_consumer(RetryingStore(faults, AT_ONCE))
    assert first.epoch == 2, "the epoch in doubt is left behind"

    second = open_consumer(store)
    with pytest.raises(Fenced):
        first.next_batch()
    assert second.epoch == 3


def test_opening_after_a_sequence_dequeues_through_it_and_reads_on(store: MemoryStore) -> None:
    fill(store, 5)
    counting = CountingStore(store)

    consumer = open_consumer(counting, last_acked=2)

    assert counting.count("put") == 1, "one write takes the epoch and dequeues"
    assert manifest_of(store).first_sequence == 3
    assert sequences(consumer) == [3, 4]


def test_opening_after_a_sequence_that_never_was_is_refused_with_nothing_changed(store: MemoryStore) -> None:
    fill(store, 5)
    before = store.get(DEFAULT_MANIFEST_PATH)

    with pytest.raises(InvalidInput, match="another buffer"):
        open_consumer(store, last_acked=5)

    assert store.get(DEFAULT_MANIFEST_PATH) == before


def test_opening_behind_what_is_dequeued_says_what_is_not_read_again(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, 5)
    open_consumer(store).ack_through(3)

    consumer = open_consumer(store, last_acked=0)

    assert sequences(consumer) == [4]
    assert "everything before 4 is dequeued" in caplog.text


def test_closing_flushes_and_ends_the_consumer(store: MemoryStore, threads_left: ThreadsLeft) -> None:
    fill(store, 5)
    with Consumer.open(store, gc_interval=60) as consumer:
        consumer.ack(0)
    assert manifest_of(store).first_sequence == 1
    assert threads_left() == []

    consumer.close()
    for operation in (consumer.next_batch, consumer.flush, lambda: consumer.ack(1), lambda: consumer.ack_through(2)):
        with pytest.raises(InvalidInput, match="closed"):
            operation()


def test_closing_a_fenced_consumer_still_ends_its_garbage_collection(
    store: MemoryStore, threads_left: ThreadsLeft
) -> None:
    fill(store, 2)
    consumer = Consumer.open(store, gc_interval=60)
    consumer.ack(0)
    open_consumer(store)

    with pytest.raises(Fenced):
        consumer.close()

    assert threads_left() == []


def test_a_buffer_made_anew_is_noticed(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    consumer.next_descriptors(5)
    again = Manifest.empty()
    again.take_epoch()
    store.put(DEFAULT_MANIFEST_PATH, again.to_bytes())

    with pytest.raises(BufferReplaced, match="next sequence is 0"):
        consumer.next_descriptors(1)


def test_a_consumer_reads_what_a_producer_wrote(any_store: Store) -> None:
    with Producer(any_store, compression="zstd") as producer:
        producer.produce([b"a", b"", b"c"], b"meta").await_durable(30)
        producer.produce([b"d"]).await_durable(30)
    with Consumer.open(any_store) as consumer:
        first, second = consumer.next_batch(), consumer.next_batch()
        assert first is not None
        assert second is not None
        consumer.ack_through(second.sequence)
    assert (list(first.entries), first.metadata[0].payload) == ([b"a", b"", b"c"], b"meta")
    assert list(second.entries) == [b"d"]
    assert manifests(any_store).read().entry_count == 0
