"""Durability: what a producer calls durable is in the queue exactly once, and what is not fails with its reason."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer, Durable, Producer
from objbuf_dagster.buffer import producer as module
from objbuf_dagster.errors import InvalidInput, ObjbufError, StorageUnavailable, TimedOut
from objbuf_dagster.protocol import Compression
from objbuf_dagster.protocol.ulid import batch_time_ms
from objbuf_dagster.store import Conflict, MemoryStore, ObjectInfo, Payload, RetryingStore, Store
from tests.buffer.conftest import ThreadsLeft
from tests.buffer.producers import NEVER, FirstIsSlowest, GateStore, landed
from tests.support.buffers import append, manifest_of
from tests.support.faults import AT_ONCE, Call, Delay, Fault, FaultStore


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


def test_closing_makes_everything_durable_and_ends_the_threads(store: MemoryStore, threads_left: ThreadsLeft) -> None:
    producer = Producer(store, flush_interval=NEVER)
    handle = producer.produce([b"a"])
    producer.close()
    producer.close()

    assert isinstance(handle.result(), Durable)
    with pytest.raises(InvalidInput, match="closed"):
        producer.produce([b"b"])
    assert threads_left() == []


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


def test_an_append_that_a_proxy_repeats_is_not_appended_twice(store: MemoryStore) -> None:
    """The answer is that of the second write: a conflict, with the first one."""
    faults = FaultStore(store, {("put", 2): "twice"})

    with Producer(faults) as producer:
        places = [producer.produce([entry]).await_durable(30).sequence for entry in (b"a", b"b")]

    assert faults.calls[2].path == DEFAULT_MANIFEST_PATH
    assert places == [0, 1]
    assert landed(store) == [[b"a"], [b"b"]]


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


def test_flush_and_close_raise_what_went_wrong(store: MemoryStore, threads_left: ThreadsLeft) -> None:
    faults = FaultStore(store, lambda call: "unavailable")
    producer = Producer(faults, flush_interval=NEVER)
    producer.produce([b"a"])
    with pytest.raises(StorageUnavailable):
        producer.flush()
    producer.produce([b"b"])
    with pytest.raises(StorageUnavailable):
        producer.close()
    assert threads_left() == []


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


def test_doubt_is_not_forgotten_when_the_next_read_fails(store: MemoryStore) -> None:
    """Or the caller would be told to repeat a write that happened."""
    faults = FaultStore(store, {("put", 2): "lost", ("get", 2): "unavailable"})
    producer = Producer(RetryingStore(faults, AT_ONCE))
    handle = producer.produce([b"a"])
    with pytest.raises(StorageUnavailable) as caught:
        handle.await_durable(30)
    with pytest.raises(StorageUnavailable):
        producer.close()

    assert caught.value.in_doubt
    assert landed(store) == [[b"a"]]


def test_every_flush_that_waited_for_a_failed_batch_raises(store: MemoryStore) -> None:
    gate = threading.Barrier(3)

    def script(call: Call) -> Fault | None:
        gate.wait(30)  # until both wait in flush, or are about to
        time.sleep(0.2)
        return "unavailable"

    producer = Producer(FaultStore(store, script), flush_interval=NEVER)
    producer.produce([b"a"])

    def flush() -> bool:
        gate.wait(30)
        try:
            producer.flush()
        except StorageUnavailable:
            return True
        return False

    with producer._work:
        producer._seal()
    with ThreadPoolExecutor(2) as pool:
        raised = [pool.submit(flush) for _ in range(2)]
        assert [one.result(30) for one in raised] == [True, True]
    producer.close()


class Panic(BaseException):
    """What a library in another language may raise: no Exception."""


@pytest.mark.parametrize("put", [1, 2])
def test_a_panic_below_leaves_nobody_waiting(store: MemoryStore, put: int) -> None:
    def script(call: Call) -> None:
        if (call.method, call.nth) == ("put", put):
            raise Panic

    producer = Producer(FaultStore(store, script))
    handle = producer.produce([b"a"])
    with pytest.raises(ObjbufError, match="Panic"):
        handle.await_durable(30)
    with pytest.raises(ObjbufError):
        producer.close()


def test_a_batch_collected_while_its_append_took_long_is_not_called_durable(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LATE_SECONDS", 0.2)

    def script(call: Call) -> Fault | None:
        if call.path == DEFAULT_MANIFEST_PATH and call.method == "put":
            store.delete([info.path for info in store.list("ingest") if info.path.endswith(".batch")])
            return Delay(0.4)
        return None

    producer = Producer(FaultStore(store, script))
    with pytest.raises(StorageUnavailable, match="collected as garbage"):
        producer.produce([b"a"]).await_durable(30)
    with pytest.raises(StorageUnavailable):
        producer.close()


def test_a_manifest_too_large_to_read_is_not_written(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objbuf_dagster.buffer.manifest_store._MAX_MANIFEST_BYTES", 1000)
    producer = Producer(store)
    producer.produce([b"a"]).await_durable(30)
    with pytest.raises(InvalidInput, match="more than the 1000"):
        producer.produce([b"b"], b"m" * 1000).await_durable(30)
    with pytest.raises(InvalidInput):
        producer.close()
    assert landed(store) == [[b"a"]]


@pytest.mark.parametrize("metadata", ["text", 3, None])
def test_metadata_that_is_not_bytes_is_refused(store: MemoryStore, metadata: bytes) -> None:
    with Producer(store) as producer, pytest.raises(InvalidInput, match="metadata must be bytes"):
        producer.produce([b"a"], metadata)


class Mute(GateStore):
    """Says nothing of single objects; manifest writes wait until it is opened."""

    def __init__(self, trouble: BaseException) -> None:
        super().__init__("manifest")
        self._trouble = trouble

    def head(self, path: str) -> ObjectInfo:  # noqa: ARG002  it looks at nothing
        raise self._trouble


@pytest.mark.parametrize("trouble", [StorageUnavailable("503"), Panic()])
def test_a_late_batch_that_the_store_says_nothing_of_is_durable_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    """It is in the manifest: whoever is told to produce it again has it twice."""
    monkeypatch.setattr(module, "_LATE_SECONDS", -1.0)
    store = Mute(trouble)
    producer = Producer(store, flush_interval=NEVER, flush_size_bytes=1)
    first = producer.produce([b"a"])
    assert store.arrived.acquire(timeout=30)
    second = producer.produce([b"b"])
    while not all(batch.uploaded for batch in producer._flying) or len(producer._flying) < 2:
        time.sleep(0.001)
    store.opened.set()

    assert [handle.await_durable(30).sequence for handle in (first, second)] == [0, 1]
    producer.close()
    assert landed(store) == [[b"a"], [b"b"]]


def test_a_batch_that_does_not_fit_keeps_out_none_that_is_appended_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objbuf_dagster.buffer.manifest_store._MAX_MANIFEST_BYTES", 2000)
    store = FirstIsSlowest()
    producer = Producer(store, flush_interval=NEVER, flush_size_bytes=1, max_in_flight=4)
    store.others_are_there = lambda: [batch.uploaded for batch in producer._flying] == [False, True, True, True]
    handles = [producer.produce([b"%d" % n], b"m" * 3000 if n == 2 else b"") for n in range(4)]

    with pytest.raises(InvalidInput, match="more than the 2000"):
        handles[2].await_durable(30)
    assert [handles[n].await_durable(30).sequence for n in (0, 1, 3)] == [0, 1, 2]
    with pytest.raises(InvalidInput):
        producer.close()
    assert landed(store) == [[b"0"], [b"1"], [b"3"]]


def test_batches_appended_together_are_there_once_though_the_answer_was_lost() -> None:
    store = FirstIsSlowest()
    written = 0

    def script(call: Call) -> Fault | None:
        nonlocal written
        if call.method == "put" and call.path == DEFAULT_MANIFEST_PATH:
            written += 1
            return "lost" if written == 1 else None
        return None

    with Producer(
        RetryingStore(FaultStore(store, script), AT_ONCE), flush_interval=NEVER, flush_size_bytes=1, max_in_flight=3
    ) as producer:
        store.others_are_there = lambda: [batch.uploaded for batch in producer._flying] == [False, True, True]
        handles = [producer.produce([b"%d" % n]) for n in range(3)]
        assert [handle.await_durable(30).sequence for handle in handles] == [0, 1, 2]

    assert landed(store) == [[b"0"], [b"1"], [b"2"]]
    assert manifest_of(store).next_sequence == 3
