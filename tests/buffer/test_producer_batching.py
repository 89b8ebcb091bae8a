"""From calls to batches: what a producer accepts, which calls share a batch, and when it is flushed."""

from __future__ import annotations

import time

import pytest

from objbuf_dagster.buffer import Producer
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store import MemoryStore
from tests.buffer.producers import NEVER, landed
from tests.support.buffers import manifest_of
from tests.support.counting import CountingStore


def test_calls_share_a_batch_and_each_has_its_own_metadata(store: MemoryStore) -> None:
    with Producer(store, flush_interval=NEVER) as producer:
        handles = [producer.produce([b"a", b"b"], b"1"), producer.produce([b"c"], b"2"), producer.produce([b""], b"")]
        assert [handle.result() for handle in handles] == [None, None, None]
        producer.flush()

    (entry,) = manifest_of(store).entries()
    assert [(item.start_index, item.payload) for item in entry.metadata] == [(0, b"1"), (2, b"2"), (3, b"")]
    assert landed(store) == [[b"a", b"b", b"c", b""]]
    assert [handle.await_durable().start_index for handle in handles] == [0, 2, 3]


def test_small_and_large_calls_keep_their_order_in_a_batch(store: MemoryStore) -> None:
    calls = [[b"s%d" % n] for n in range(50)] + [[b"L" * 100_000]] + [[b"t%d" % n] * 1000 for n in range(500)]
    with Producer(store, flush_interval=NEVER, compression="zstd") as producer:
        for call in calls:
            producer.produce(call)

    assert landed(store) == [[entry for call in calls for entry in call]]


def test_a_batch_is_flushed_when_its_interval_has_passed(store: MemoryStore) -> None:
    with Producer(store, flush_interval=0.2) as producer:
        started = time.monotonic()
        handle = producer.produce([b"a"])
        time.sleep(0.05)
        producer.produce([b"b"])  # the interval counts from the first call
        assert handle.result() is None
        handle.await_durable(30)
        assert 0.19 < time.monotonic() - started < 5
        assert landed(store) == [[b"a", b"b"]]


def test_a_batch_is_flushed_when_it_is_large_enough(store: MemoryStore) -> None:
    with Producer(store, flush_interval=NEVER, flush_size_bytes=100) as producer:
        small = producer.produce([b"x" * 50], b"y" * 49)
        assert small.result() is None
        time.sleep(0.05)
        assert small.result() is None
        producer.produce([b"z"]).await_durable(30)
        assert small.result() is not None


def test_nothing_is_written_for_nothing(store: MemoryStore) -> None:
    counting = CountingStore(store)
    with Producer(counting, flush_interval=0.01) as producer:
        time.sleep(0.1)
        producer.flush()
    assert counting.count() == 0


@pytest.mark.parametrize("entries", [[], iter(()), ["text"], [None], [b"x", 3]])
def test_what_cannot_be_an_entry_is_refused_and_nothing_is_taken(store: MemoryStore, entries: list[bytes]) -> None:
    with Producer(store) as producer, pytest.raises(InvalidInput):
        producer.produce(entries)
    assert manifest_of(store).entry_count == 0


def test_entries_belong_to_the_caller_again_when_produce_returns(store: MemoryStore) -> None:
    with Producer(store, flush_interval=NEVER) as producer:
        mine = bytearray(b"before")
        producer.produce([mine])
        mine[:] = b"after!"
    assert landed(store) == [[b"before"]]


def test_a_buffer_of_wider_items_is_refused_because_its_length_is_not_its_bytes(store: MemoryStore) -> None:
    with Producer(store) as producer, pytest.raises(InvalidInput, match="wider"):
        producer.produce([b"ok", memoryview(b"12345678").cast("I")])


SETTINGS = [
    {"compression": "lz4"},
    {"flush_interval": -1},
    {"flush_size_bytes": 0},
    {"max_buffered_inputs": 0},
    {"max_in_flight": 0},
    {"data_prefix": "../up"},
    {"manifest_path": "/abs"},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: next(iter(setting)))
def test_settings_out_of_range_are_refused(store: MemoryStore, setting: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Producer(store, **setting)  # type: ignore[arg-type]
