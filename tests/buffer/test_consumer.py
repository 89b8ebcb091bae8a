"""The fenced consumer, call by call. The reference implementation's own scenarios are the minimum."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer, Producer, peek
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    Fenced,
    InvalidInput,
    NotFound,
    OutOfOrderAck,
    StorageUnavailable,
)
from objbuf_dagster.protocol import NO_EPOCH, BatchDescriptor, Manifest, Metadata
from objbuf_dagster.store import MemoryStore, RetryingStore, RetryPolicy, Store
from tests.support.buffers import append, batch_name, fill, manifest_of, manifests, put_batch
from tests.support.counting import CountingStore
from tests.support.faults import Call, Fault, FaultStore

AT_ONCE = RetryPolicy(attempts=3, base_seconds=0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def open_consumer(store: Store, last_acked: int | None = None) -> Consumer:
    return Consumer.open(store, last_acked=last_acked, gc_interval=None)


def sequences(consumer: Consumer, limit: int = 100) -> list[int]:
    return [found.sequence for found in consumer.next_descriptors(limit)]


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


def test_acks_must_come_in_order(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    consumer.ack(0)

    for wrong in (0, 2, 7):
        with pytest.raises(OutOfOrderAck) as caught:
            consumer.ack(wrong)
        assert (caught.value.expected, caught.value.got) == (1, wrong)

    consumer.ack(1)


def test_the_first_ack_is_the_first_entry(store: MemoryStore) -> None:
    fill(store, 5)
    open_consumer(store).ack_through(1)
    consumer = open_consumer(store)

    with pytest.raises(OutOfOrderAck):
        consumer.ack(4)
    consumer.ack(2)


def test_what_was_never_produced_cannot_be_acked(store: MemoryStore) -> None:
    fill(store, 3)
    consumer = open_consumer(store)

    with pytest.raises(OutOfOrderAck, match="never produced"):
        consumer.ack_through(3)

    assert manifest_of(store).entry_count == 3
    consumer.ack_through(2)


def test_every_hundredth_ack_dequeues(store: MemoryStore) -> None:
    fill(store, 250)
    counting = CountingStore(store)
    consumer = open_consumer(counting)
    counting.reset()

    for sequence in range(99):
        consumer.ack(sequence)
    assert (counting.count(), manifest_of(store).entry_count) == (0, 250)
    consumer.ack(99)
    assert (counting.count("put"), manifest_of(store).first_sequence) == (1, 100)
    for sequence in range(100, 250):
        consumer.ack(sequence)
    assert manifest_of(store).first_sequence == 200


def test_a_hundredth_ack_that_failed_can_be_repeated(store: MemoryStore) -> None:
    fill(store, 100)
    faults = FaultStore(store, {})
    consumer = open_consumer(faults)
    for sequence in range(99):
        consumer.ack(sequence)

    faults.script = lambda call: "unavailable"
    with pytest.raises(StorageUnavailable):
        consumer.ack(99)
    faults.script = {}
    consumer.ack(99)

    assert manifest_of(store).entry_count == 0


def test_flush_dequeues_what_is_acked(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    consumer.ack(0)
    consumer.ack(1)
    assert manifest_of(store).first_sequence == 0

    consumer.flush()

    assert manifest_of(store).first_sequence == 2


def test_closing_flushes_and_ends_the_consumer(store: MemoryStore) -> None:
    fill(store, 5)
    with Consumer.open(store, gc_interval=60) as consumer:
        consumer.ack(0)
    assert manifest_of(store).first_sequence == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "objbuf-gc"]

    consumer.close()
    for operation in (consumer.next_batch, consumer.flush, lambda: consumer.ack(1), lambda: consumer.ack_through(2)):
        with pytest.raises(InvalidInput, match="closed"):
            operation()


def test_closing_a_fenced_consumer_still_ends_its_garbage_collection(store: MemoryStore) -> None:
    fill(store, 2)
    consumer = Consumer.open(store, gc_interval=60)
    consumer.ack(0)
    open_consumer(store)

    with pytest.raises(Fenced):
        consumer.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "objbuf-gc"]


def test_ack_through_moves_the_frontier_with_one_read_and_one_write(store: MemoryStore) -> None:
    fill(store, 50)
    counting = CountingStore(store)
    consumer = open_consumer(counting)
    counting.reset()

    consumer.ack_through(41)

    assert counting.calls == {("get", DEFAULT_MANIFEST_PATH): 1, ("put", DEFAULT_MANIFEST_PATH): 1}
    assert manifest_of(store).first_sequence == 42
    assert consumer.metrics.counter(m.ACKS) == 42
    with pytest.raises(OutOfOrderAck):
        consumer.ack_through(41)
    consumer.ack(42)


def test_ack_through_leaves_state_alone_on_a_storage_failure(store: MemoryStore) -> None:
    fill(store, 10)
    faults = FaultStore(store, {})
    consumer = open_consumer(faults)

    faults.script = lambda call: "unavailable" if call.method == "put" else None
    with pytest.raises(StorageUnavailable):
        consumer.ack_through(4)
    assert consumer.metrics.counter(m.ACKS) == 0
    faults.script = {}
    consumer.ack_through(4)

    assert consumer.metrics.counter(m.ACKS) == 5
    assert manifest_of(store).first_sequence == 5


@pytest.mark.parametrize("fault", ["fail", "lost"])
def test_an_ack_whose_answer_was_lost_is_done_once(store: MemoryStore, fault: Fault) -> None:
    fill(store, 10)
    faults = FaultStore(store, {})
    consumer = open_consumer(RetryingStore(faults, AT_ONCE))

    faults.script = {("put", 2): fault}
    consumer.ack_through(4)

    assert manifest_of(store).first_sequence == 5
    assert consumer.metrics.counter(m.ACKS) == 5
    consumer.ack(5)


def test_two_consumers_never_hold_one_epoch_though_answers_are_lost(store: MemoryStore) -> None:
    """Both write the same bytes for the same next epoch: the one whose answer was lost must not believe it won."""
    faults = FaultStore(store, {("put", 1): "lost"})

    first = open_consumer(RetryingStore(faults, AT_ONCE))
    assert first.epoch == 2, "the epoch in doubt is left behind"

    second = open_consumer(store)
    with pytest.raises(Fenced):
        first.next_batch()
    assert second.epoch == 3


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


def test_a_buffer_made_anew_is_noticed(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    consumer.next_descriptors(5)
    again = Manifest.empty()
    again.take_epoch()
    store.put(DEFAULT_MANIFEST_PATH, again.to_bytes())

    with pytest.raises(BufferReplaced, match="next sequence is 0"):
        consumer.next_descriptors(1)


def test_peek_owns_nothing(store: MemoryStore) -> None:
    fill(store, 5, time_ms=1_000_000)
    owner = open_consumer(store)
    owner.ack_through(1)
    before = store.get(DEFAULT_MANIFEST_PATH)

    state = peek(store, clock=lambda: 1_010.0)

    assert (state.epoch, state.frontier, state.next_sequence, state.queue_length) == (1, 2, 5, 3)
    assert state.lag_seconds == pytest.approx(8.0)
    assert store.get(DEFAULT_MANIFEST_PATH) == before
    assert peek(store, clock=lambda: 0.0).lag_seconds == 0.0, "clocks that disagree give no negative lag"
    assert owner.peek().queue_length == 3


def test_without_metadata_the_name_of_the_oldest_batch_tells_the_lag(store: MemoryStore) -> None:
    append(store, batch_name(1_000_000))
    assert peek(store, clock=lambda: 1_005.0).lag_seconds == pytest.approx(5.0)


def test_an_empty_buffer_can_be_looked_at() -> None:
    state = peek(MemoryStore())
    assert (state.epoch, state.frontier, state.next_sequence, state.queue_length, state.lag_seconds) == (
        0,
        0,
        0,
        0,
        0.0,
    )


def test_length_is_as_of_the_last_read_or_write(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    assert (len(consumer), consumer.is_empty) == (5, False)

    consumer.ack_through(4)

    assert (len(consumer), consumer.is_empty) == (0, True)
    assert consumer, "an empty queue does not make its consumer false"


def test_the_conflict_rate_is_the_share_of_writes_that_lost_a_race(store: MemoryStore) -> None:
    fill(store, 5)
    consumer = open_consumer(store)
    assert consumer.conflict_rate == 0.0

    def somebody_is_faster(call: Call) -> None:
        if (call.method, call.nth) == ("put", 1):
            append(store, batch_name(0))

    attached = Consumer.attach(FaultStore(store, somebody_is_faster), epoch=consumer.epoch)
    attached.ack_through(3)

    assert attached.conflict_rate == pytest.approx(50.0)
    assert [entry.sequence for entry in manifest_of(store).entries()] == [4, 5]


def test_lag_is_kept_and_never_negative(store: MemoryStore) -> None:
    fill(store, 2, time_ms=1_000_000)
    now = [1_003.0]
    consumer = Consumer.open(store, gc_interval=None, clock=lambda: now[0])

    consumer.next_batch()
    assert consumer.metrics.snapshot().gauges[m.CONSUMER_LAG_SECONDS] == pytest.approx(3.0)
    now[0] = 0.0
    consumer.next_batch()
    assert consumer.metrics.snapshot().gauges[m.CONSUMER_LAG_SECONDS] == 0.0


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
