"""Acks: in order, dequeued by the hundred, by flush or in one stride, and done once though an answer is lost."""

from __future__ import annotations

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.errors import BufferReplaced, Fenced, OutOfOrderAck, StorageUnavailable
from objbuf_dagster.protocol import BatchDescriptor, Manifest
from objbuf_dagster.store import MemoryStore, RetryingStore
from tests.buffer.consumers import open_consumer
from tests.support.buffers import fill, manifest_of
from tests.support.counting import CountingStore
from tests.support.faults import AT_ONCE, Call, Fault, FaultStore


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


def test_nothing_is_acked_before_it_is_produced(store: MemoryStore) -> None:
    consumer = open_consumer(store)
    with pytest.raises(OutOfOrderAck, match="never produced"):
        consumer.ack(0)
    fill(store, 1)
    consumer.ack(0)
    consumer.flush()
    assert manifest_of(store).frontier == 1


def test_an_ack_that_names_its_batch_is_refused_in_a_buffer_made_anew(store: MemoryStore) -> None:
    """Epochs begin anew there, so the old owner's hook would not be fenced."""
    processed = fill(store, 4)
    old = open_consumer(store)
    store.delete([DEFAULT_MANIFEST_PATH])
    fill(store, 6)
    assert open_consumer(store).epoch == old.epoch

    with pytest.raises(BufferReplaced, match="sequence 3"):
        Consumer.attach(store, epoch=old.epoch).ack_through(3, location=processed[3])

    assert manifest_of(store).frontier == 0


def test_a_context_costs_no_more_than_its_ack(store: MemoryStore) -> None:
    fill(store, 4)
    counting = CountingStore(store)
    with Consumer.attach(counting, epoch=open_consumer(store).epoch) as consumer:
        consumer.ack_through(2)
    assert counting.calls == {("get", DEFAULT_MANIFEST_PATH): 1, ("put", DEFAULT_MANIFEST_PATH): 1}


def test_a_consumer_that_lags_behind_another_with_its_epoch_goes_on_at_the_frontier(store: MemoryStore) -> None:
    fill(store, 8)
    owner = open_consumer(store)
    Consumer.attach(store, epoch=owner.epoch).ack_through(5)
    owner.ack_through(3)
    owner.ack(6)


def test_an_ack_decided_from_the_manifest_costs_one_read_and_one_write(store: MemoryStore) -> None:
    fill(store, 5)
    counting = CountingStore(store)
    consumer = open_consumer(counting)
    counting.reset()

    manifest = consumer.ack_as(lambda now: now.entry(now.frontier + 2))

    assert (counting.count("get"), counting.count("put"), counting.count()) == (1, 1, 2)
    assert manifest.frontier == manifest_of(store).frontier == 3


def test_a_decision_for_nothing_writes_nothing(store: MemoryStore) -> None:
    fill(store, 5)
    counting = CountingStore(store)
    consumer = open_consumer(counting)
    counting.reset()

    assert consumer.ack_as(lambda now: None).frontier == 0

    assert (counting.count("get"), counting.count()) == (1, 1)


def test_a_decision_is_made_again_when_somebody_else_wrote(store: MemoryStore) -> None:
    fill(store, 2)
    consumer = open_consumer(store)
    seen: list[int] = []

    def last(now: Manifest) -> BatchDescriptor | None:
        seen.append(now.next_sequence)
        if len(seen) == 1:
            fill(store, 1)  # between the read and the write
        return now.entry(now.next_sequence - 1)

    assert consumer.ack_as(last).frontier == 3
    assert seen == [2, 3]


def test_a_fenced_consumer_is_not_even_asked_to_decide(store: MemoryStore) -> None:
    fill(store, 2)
    consumer = open_consumer(store)
    open_consumer(store)

    with pytest.raises(Fenced):
        consumer.ack_as(lambda now: pytest.fail("asked"))


def test_a_decision_for_another_buffers_batch_is_refused(store: MemoryStore) -> None:
    fill(store, 2)
    consumer = open_consumer(store)

    with pytest.raises(BufferReplaced):
        consumer.ack_as(lambda now: BatchDescriptor(1, "ingest/another"))

    assert manifest_of(store).frontier == 0


def test_ack_through_of_a_fenced_consumer_leaves_its_acks_and_its_cursor_alone(store: MemoryStore) -> None:
    fill(store, 6)
    consumer = open_consumer(store)
    consumer.next_descriptors(4)
    consumer.ack(0)
    other = open_consumer(store)
    before = (consumer._acked, consumer._dequeued, consumer._cursor, len(consumer), manifest_of(store).to_bytes())

    with pytest.raises(Fenced, match="Nothing was changed") as caught:
        consumer.ack_through(3)

    after = (consumer._acked, consumer._dequeued, consumer._cursor, len(consumer), manifest_of(store).to_bytes())
    assert after == before
    assert before[:3] == (1, 0, 4)
    assert not caught.value.in_doubt
    assert consumer.metrics.counter(m.ACKS) == 1
    other.ack(0)


def test_a_fenced_ack_whose_answer_was_lost_does_not_say_that_nothing_was_changed(store: MemoryStore) -> None:
    """It may have happened before the other consumer came; here it has."""
    fill(store, 4)
    owner = open_consumer(store)

    def script(call: Call) -> Fault | None:
        if (call.method, call.nth) == ("put", 1):
            return "lost"
        if (call.method, call.nth) == ("put", 2):
            open_consumer(store)
        return None

    attached = Consumer.attach(RetryingStore(FaultStore(store, script), AT_ONCE), epoch=owner.epoch)
    with pytest.raises(Fenced, match="may have happened, or not") as caught:
        attached.ack_through(2)

    assert caught.value.in_doubt
    assert (caught.value.held, caught.value.current) == (owner.epoch, owner.epoch + 1)
    assert "Nothing was changed" not in str(caught.value)
    assert manifest_of(store).frontier == 3
