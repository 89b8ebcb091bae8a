"""Uploads side by side: slots for so many, backpressure beyond them, and the order of calls kept."""

from __future__ import annotations

import threading

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Producer
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store import MemoryStore
from tests.buffer.producers import NEVER, FirstIsSlowest, GateStore, landed
from tests.support.counting import CountingStore


def test_produce_blocks_when_too_many_calls_wait_for_a_slot() -> None:
    store = GateStore()
    producer = Producer(store, flush_interval=0.0, flush_size_bytes=1, max_buffered_inputs=3, max_in_flight=1)
    producer.produce([b"in the slot"])
    assert store.arrived.acquire(timeout=30)
    for n in range(3):
        producer.produce([b"%d" % n])

    blocked = threading.Thread(target=producer.produce, args=([b"one too many"],))
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive(), "backpressure"
    store.opened.set()
    blocked.join(30)
    assert not blocked.is_alive()
    producer.close()

    assert [entry for batch in landed(store) for entry in batch] == [b"in the slot", b"0", b"1", b"2", b"one too many"]


def test_closing_frees_those_who_are_blocked() -> None:
    store = GateStore()
    producer = Producer(store, flush_interval=0.0, flush_size_bytes=1, max_buffered_inputs=1, max_in_flight=1)
    producer.produce([b"a"])
    assert store.arrived.acquire(timeout=30)
    producer.produce([b"b"])
    outcome: list[BaseException] = []

    def blocked() -> None:
        try:
            producer.produce([b"c"])
        except InvalidInput as error:
            outcome.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    thread.join(0.1)
    closing = threading.Thread(target=producer.close)
    closing.start()
    thread.join(30)
    store.opened.set()
    closing.join(30)

    assert "closed" in str(outcome[0])
    assert [entry for batch in landed(store) for entry in batch] == [b"a", b"b"]


def test_uploads_go_on_side_by_side_and_their_batches_enter_in_order_with_one_write() -> None:
    """The first upload is the slowest: the others wait for it, and enter the manifest together with it."""
    store = FirstIsSlowest()
    counting = CountingStore(store)
    with Producer(counting, flush_interval=NEVER, flush_size_bytes=1, max_in_flight=4) as producer:
        store.others_are_there = lambda: [batch.uploaded for batch in producer._flying] == [False, True, True, True]
        handles = [producer.produce([b"%d" % n]) for n in range(4)]
        outcomes = [handle.await_durable(60) for handle in handles]

    assert [outcome.sequence for outcome in outcomes] == [0, 1, 2, 3]
    assert landed(store) == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert counting.count("put", path=DEFAULT_MANIFEST_PATH) == 1


def test_no_more_uploads_than_slots() -> None:
    store = GateStore()
    producer = Producer(store, flush_interval=NEVER, flush_size_bytes=1, max_in_flight=2)
    for n in range(5):
        producer.produce([b"%d" % n])
    assert store.arrived.acquire(timeout=30)
    assert store.arrived.acquire(timeout=30)
    assert not store.arrived.acquire(timeout=0.2)
    store.opened.set()
    producer.close()
    assert landed(store) == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]


def test_calls_collect_without_waiting_while_a_slot_is_free(store: MemoryStore) -> None:
    """To block them would stall callers until the flush, and keep batches small, with nothing to wait for."""
    with Producer(store, flush_interval=NEVER, max_buffered_inputs=3) as producer:
        for n in range(50):
            producer.produce([b"%d" % n])

    assert landed(store) == [[b"%d" % n for n in range(50)]]
