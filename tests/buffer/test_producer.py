"""The producer: batching, order, backpressure, durability, and what lost answers may not do."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer, Durable, Producer
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer import producer as module
from objbuf_dagster.errors import InvalidInput, ObjbufError, StorageUnavailable, TimedOut
from objbuf_dagster.protocol import Compression, decode_batch
from objbuf_dagster.protocol.ulid import batch_time_ms
from objbuf_dagster.store import Conflict, MemoryStore, Payload, RetryingStore, RetryPolicy, Store
from tests.support.buffers import append, batch_name, manifest_of
from tests.support.counting import CountingStore
from tests.support.faults import Call, Delay, Fault, FaultStore

NEVER = 3600.0
AT_ONCE = RetryPolicy(attempts=3, base_seconds=0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def landed(store: Store) -> list[list[bytes]]:
    """The entries of each batch that the manifest names, in its order."""
    return [decode_batch(store.read(entry.location)) for entry in manifest_of(store).entries()]


class GateStore(MemoryStore):
    """Holds back puts to paths with this suffix until it is opened."""

    def __init__(self, suffix: str = ".batch") -> None:
        super().__init__()
        self.suffix = suffix
        self.opened = threading.Event()
        self.arrived = threading.Semaphore(0)

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        if path.endswith(self.suffix):
            self.arrived.release()
            assert self.opened.wait(30)
        return super().put(path, data, if_version=if_version, if_absent=if_absent)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_durable_means_the_batch_is_there_and_in_the_manifest(any_store: Store, compression: Compression) -> None:
    with Producer(any_store, compression=compression) as producer:
        handle = producer.produce([b"a", b"", b"c"], b"meta")
        durable = handle.await_durable(30)

        assert landed(any_store) == [[b"a", b"", b"c"]]
        (entry,) = manifest_of(any_store).entries()
        assert durable == Durable(0, entry.location, 0) == handle.result()
        assert batch_time_ms(entry.location) is not None
        assert [(item.start_index, item.payload) for item in entry.metadata] == [(0, b"meta")]
        assert entry.metadata[0].ingestion_time_ms == handle.ingestion_time_ms


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


def test_closing_makes_everything_durable_and_ends_the_threads(store: MemoryStore) -> None:
    producer = Producer(store, flush_interval=NEVER)
    handle = producer.produce([b"a"])
    producer.close()
    producer.close()

    assert isinstance(handle.result(), Durable)
    with pytest.raises(InvalidInput, match="closed"):
        producer.produce([b"b"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("objbuf-")]


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


class FirstIsSlowest(MemoryStore):
    """The batch with the entry `0` arrives only after three others have."""

    def __init__(self) -> None:
        super().__init__()
        self.others = threading.Semaphore(0)

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        is_batch = path.endswith(".batch")
        is_first = is_batch and decode_batch(data if isinstance(data, bytes) else b"".join(data)) == [b"0"]
        if is_first:
            assert all(self.others.acquire(timeout=30) for _ in range(3))
        try:
            return super().put(path, data, if_version=if_version, if_absent=if_absent)
        finally:
            if is_batch and not is_first:
                self.others.release()


def test_uploads_go_on_side_by_side_and_their_batches_enter_in_order_with_few_writes() -> None:
    """The first upload is the slowest: the others wait for it, and enter the manifest together with it."""
    store = FirstIsSlowest()
    counting = CountingStore(store)
    with Producer(counting, flush_interval=NEVER, flush_size_bytes=1, max_in_flight=4) as producer:
        handles = [producer.produce([b"%d" % n]) for n in range(4)]
        outcomes = [handle.await_durable(30) for handle in handles]

    assert [outcome.sequence for outcome in outcomes] == [0, 1, 2, 3]
    assert landed(store) == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert counting.count("put", path=DEFAULT_MANIFEST_PATH) <= 2, "one, or two if the last is not marked yet"


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


def test_many_threads_lose_nothing_and_each_keeps_its_order(any_store: Store) -> None:
    with Producer(any_store, flush_interval=0.01, flush_size_bytes=2_000, max_buffered_inputs=20) as producer:

        def work(worker: int) -> None:
            handles = [producer.produce([b"%d:%d" % (worker, n)]) for n in range(200)]
            for handle in handles:
                handle.await_durable(60)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

    entries = [entry for batch in landed(any_store) for entry in batch]
    for worker in range(8):
        mine = [entry for entry in entries if entry.startswith(b"%d:" % worker)]
        assert mine == [b"%d:%d" % (worker, n) for n in range(200)]
    assert len(entries) == 1600


def test_several_producers_on_one_manifest_lose_nothing(any_store: Store) -> None:
    def work(worker: int) -> None:
        with Producer(any_store, flush_interval=0.001) as producer:
            for n in range(15):
                producer.produce([b"%d:%d" % (worker, n)]).await_durable(60)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    entries = [entry for batch in landed(any_store) for entry in batch]
    assert sorted(entries) == sorted(b"%d:%d" % (worker, n) for worker in range(4) for n in range(15))


def test_a_timeout_leaves_the_write_going_on() -> None:
    store = GateStore()
    with Producer(store, flush_interval=0.0) as producer:
        handle = producer.produce([b"a"])
        with pytest.raises(TimedOut):
            handle.await_durable(0.05)
        store.opened.set()
        assert handle.await_durable(30).sequence == 0


@pytest.mark.parametrize("fault", ["fail", "lost"])
@pytest.mark.parametrize("put", [1, 2])
def test_a_write_whose_answer_was_lost_is_there_once(store: MemoryStore, fault: Fault, put: int) -> None:
    """Put 1 is the batch, put 2 the manifest."""
    faulty = RetryingStore(FaultStore(store, {("put", put): fault}), AT_ONCE)
    with Producer(faulty) as producer:
        assert producer.produce([b"a"]).await_durable(30).sequence == 0
    assert landed(store) == [[b"a"]]


def test_a_lost_answer_is_told_from_a_lost_race(store: MemoryStore) -> None:
    """Our write fails for good, somebody else's takes its sequence, and the repeated put meets a conflict in doubt."""

    def script(call: Call) -> Fault | None:
        if (call.method, call.nth) == ("put", 2):
            append(store, "ingest/somebody-else")
            return "fail"
        return None

    with Producer(RetryingStore(FaultStore(store, script), AT_ONCE)) as producer:
        assert producer.produce([b"a"]).await_durable(30).sequence == 1

    assert manifest_of(store).entry_count == 2


def test_a_lost_answer_that_was_consumed_since_is_reported_in_doubt_and_not_repeated(store: MemoryStore) -> None:
    def script(call: Call) -> Fault | None:
        if (call.method, call.nth) == ("put", 2):
            return "lost"
        if (call.method, call.nth) == ("put", 3):  # the repeated one: by now a consumer has had it
            Consumer.open(store, gc_interval=None).ack_through(0)
        return None

    producer = Producer(RetryingStore(FaultStore(store, script), AT_ONCE))
    handle = producer.produce([b"a"])
    with pytest.raises(StorageUnavailable, match="may be durable") as caught:
        handle.await_durable(30)
    with pytest.raises(StorageUnavailable):
        producer.close()

    assert caught.value.in_doubt
    assert manifest_of(store).next_sequence == 1, "appending it again would have made it twice"


def test_a_delayed_write_that_arrives_after_the_next_attempt_began_is_found(store: MemoryStore) -> None:
    """The first put hangs and reports failure; it lands just before the second put does, which is a clean conflict."""

    class Late(MemoryStore):
        puts = 0

        def put(
            self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
        ) -> Conflict | None:
            if path == DEFAULT_MANIFEST_PATH:
                Late.puts += 1
                if Late.puts == 1:
                    self.delayed = data
                    return Conflict(in_doubt=True)
                if Late.puts == 2:
                    super().put(path, self.delayed, if_absent=True)
            return super().put(path, data, if_version=if_version, if_absent=if_absent)

    late = Late()
    with Producer(late) as producer:
        assert producer.produce([b"a"]).await_durable(30).sequence == 0
    assert landed(late) == [[b"a"]]


def test_a_failed_upload_fails_its_own_calls_and_no_others(store: MemoryStore) -> None:
    faults = FaultStore(store, {("put", 1): "unavailable"})
    producer = Producer(faults, flush_interval=NEVER, flush_size_bytes=1, max_in_flight=1)
    bad, good = producer.produce([b"bad"]), producer.produce([b"good"])

    with pytest.raises(StorageUnavailable):
        bad.await_durable(30)
    assert isinstance(bad.result(), ObjbufError)
    assert good.await_durable(30).sequence == 0
    with pytest.raises(StorageUnavailable):
        producer.close()

    assert landed(store) == [[b"good"]]


def test_who_ignores_the_handles_learns_of_a_failure_when_flushing(store: MemoryStore) -> None:
    faults = FaultStore(store, {("put", 1): "unavailable"})
    with Producer(faults, flush_interval=0.0) as producer:
        producer.produce([b"a"])
        while producer._flying or producer._open or not faults.calls:
            time.sleep(0.01)
        with pytest.raises(StorageUnavailable):
            producer.flush()
        producer.flush()


def test_flush_and_close_raise_what_went_wrong(store: MemoryStore) -> None:
    faults = FaultStore(store, lambda call: "unavailable")
    producer = Producer(faults, flush_interval=NEVER)
    producer.produce([b"a"])
    with pytest.raises(StorageUnavailable):
        producer.flush()
    producer.produce([b"b"])
    with pytest.raises(StorageUnavailable):
        producer.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("objbuf-")]


def test_a_broken_store_leaves_nobody_waiting(store: MemoryStore) -> None:
    def script(call: Call) -> None:
        raise RuntimeError("not one of ours")

    producer = Producer(FaultStore(store, script))
    handle = producer.produce([b"a"])
    with pytest.raises(ObjbufError, match="not one of ours"):
        handle.await_durable(30)
    with pytest.raises(ObjbufError):
        producer.close()


def test_a_batch_old_enough_to_be_collected_is_not_appended(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that slept between upload and append must not name a batch that garbage collection may have taken."""
    monkeypatch.setattr(module, "_TOO_OLD_SECONDS", 0.1)
    faults = FaultStore(store, lambda call: Delay(0.3) if call.method == "get" else None)
    producer = Producer(faults)

    with pytest.raises(StorageUnavailable, match="produce it again"):
        producer.produce([b"a"]).await_durable(30)
    with pytest.raises(StorageUnavailable):
        producer.close()

    assert manifest_of(store).entry_count == 0


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


def test_conflicts_are_counted(store: MemoryStore) -> None:
    def script(call: Call) -> None:
        if (call.method, call.nth) == ("put", 2):
            append(store, batch_name(0))

    with Producer(FaultStore(store, script)) as producer:
        producer.produce([b"a"]).await_durable(30)
        assert producer.conflict_rate == pytest.approx(50.0)
        assert producer.metrics.counter(f"{m.MANIFEST_CONFLICTS}{{role=producer}}") == 1
