"""What can be seen of a buffer while it runs: its state, which nobody needs to own, lag, conflicts and counters."""

from __future__ import annotations

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer, Producer, peek
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.store import MemoryStore
from tests.buffer.consumers import open_consumer
from tests.buffer.producers import NEVER
from tests.support.buffers import append, batch_name, fill, manifest_of
from tests.support.faults import Call, FaultStore


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


def test_lag_is_kept_and_never_negative(store: MemoryStore) -> None:
    fill(store, 2, time_ms=1_000_000)
    now = [1_003.0]
    consumer = Consumer.open(store, gc_interval=None, clock=lambda: now[0])

    consumer.next_batch()
    assert consumer.metrics.snapshot().gauges[m.CONSUMER_LAG_SECONDS] == pytest.approx(3.0)
    now[0] = 0.0
    consumer.next_batch()
    assert consumer.metrics.snapshot().gauges[m.CONSUMER_LAG_SECONDS] == 0.0


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


def test_conflicts_are_counted(store: MemoryStore) -> None:
    def script(call: Call) -> None:
        if (call.method, call.nth) == ("put", 2):
            append(store, batch_name(0))

    with Producer(FaultStore(store, script)) as producer:
        producer.produce([b"a"]).await_durable(30)
        assert producer.conflict_rate == pytest.approx(50.0)
        assert producer.metrics.counter(f"{m.MANIFEST_CONFLICTS}{{role=producer}}") == 1


def test_everything_is_counted(store: MemoryStore) -> None:
    with Producer(store, flush_interval=NEVER) as producer:
        producer.produce([b"abc", b"de"], b"meta")
        producer.flush()
        producer.produce([b"f"])
        producer.flush()
        seen = producer.metrics.snapshot()
        assert producer.conflict_rate == 0.0

    sizes = [store.head(entry.location).size for entry in manifest_of(store).entries()]
    assert seen.counters == {
        m.BATCHES_FLUSHED: 2,
        m.ENTRIES_FLUSHED: 3,
        m.BYTES_FLUSHED: 6,
        m.BYTES_WRITTEN: sum(sizes),
        f"{m.MANIFEST_WRITES}{{role=producer}}": 2,
    }
    assert seen.histograms[m.FLUSH_DURATION_SECONDS].count == 2
