"""What is recorded of quarantined batches: by many at once, through lost answers, and whatever the bytes are."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.buffer import GarbageCollector
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    InvalidInput,
    StorageUnavailable,
    UnsupportedVersion,
)
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.ranges.quarantine import (
    MAX_REASON,
    Quarantine,
    Quarantined,
    QuarantineLedger,
    quarantine_path,
)
from objbuf_dagster.store import MemoryStore, RetryingStore, Store
from tests.support.buffers import fill, manifests
from tests.support.faults import AT_ONCE, FaultStore

PATH = "ingest/ranges/quarantine"


def ledger(store: Store, at: float = 1.0) -> QuarantineLedger:
    return QuarantineLedger(store, clock=lambda: at)


def test_a_batch_comes_and_goes_and_is_remembered(any_store: Store) -> None:
    added, done = ledger(any_store).add(5, "ingest/5.batch", " zeros ")
    assert (added, done) == (Quarantined(5, "ingest/5.batch", "zeros", 1000), True)
    assert ledger(any_store).read().active == (added,)

    undone, done = ledger(any_store, 2.0).undo(5)
    assert (undone, done) == (Quarantined(5, "ingest/5.batch", "zeros", 1000, 2000), True)
    assert ledger(any_store).read() == Quarantine((Quarantined(5, "ingest/5.batch", "zeros", 1000, 2000),))
    assert ledger(any_store).read().active == ()


def test_nothing_is_recorded_where_nobody_did() -> None:
    store = MemoryStore()

    assert ledger(store).read() == Quarantine()
    assert ledger(store).undo(5) == (None, False)
    assert list(store.list()) == []
    assert quarantine_path("ingest") == PATH


def test_repeating_changes_nothing_and_the_first_reason_stays() -> None:
    store = MemoryStore()
    first, _ = ledger(store).add(5, "ingest/5.batch", "zeros")
    before = store.read(PATH)

    assert ledger(store, 9.0).add(5, "ingest/5.batch", "another") == (first, False)
    assert store.read(PATH) == before
    ledger(store).undo(5)
    before = store.read(PATH)
    assert ledger(store, 9.0).undo(5)[1] is False
    assert store.read(PATH) == before


def test_one_that_comes_back_and_goes_again_is_never_what_it_was(any_store: Store) -> None:
    """Landings compare: a clock that stands, or goes back, must not make two different times look the same."""
    seen = [ledger(any_store, 5.0).add(5, "ingest/5.batch", "zeros")[0]]
    for at in (5.0, 1.0, 1.0, 1.0):
        seen.append(ledger(any_store, at).undo(5)[0])  # type: ignore[arg-type]
        seen.append(ledger(any_store, at).add(5, "ingest/5.batch", "zeros")[0])

    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("reason", ["", "  \n", "x" * (MAX_REASON + 1), "\ud800"])
def test_a_reason_is_a_text(reason: str) -> None:
    store = MemoryStore()

    with pytest.raises(InvalidInput, match="a reason"):
        ledger(store).add(5, "ingest/5.batch", reason)

    assert list(store.list()) == []


def test_another_batch_of_the_same_sequence_is_another_buffers() -> None:
    store = MemoryStore()
    ledger(store).add(5, "ingest/5.batch", "zeros")

    with pytest.raises(BufferReplaced, match=r"sequence 5 was quarantined as ingest/5\.batch"):
        ledger(store).add(5, "ingest/other.batch", "zeros")


def test_a_range_knows_its_own_and_refuses_another_buffers() -> None:
    store = MemoryStore()
    locations = fill(store, 6)
    first, second = plan(manifests(store), RangeLedger(store), Limits(max_batches=3, max_wait=0))
    ledger(store).add(1, locations[1], "one")
    ledger(store).add(4, "ingest/foreign.batch", "four")

    found = ledger(store).read()

    assert [one.sequence for one in found.of(first)] == [1]
    with pytest.raises(BufferReplaced, match=r"sequence 4 was quarantined as ingest/foreign\.batch"):
        found.of(second)


def test_many_at_once_all_count(any_store: Store) -> None:
    def both(sequence: int) -> None:
        ledger(any_store).add(sequence, f"ingest/{sequence}.batch", "zeros")
        if sequence % 2:
            ledger(any_store).undo(sequence)

    threads = [threading.Thread(target=both, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = ledger(any_store).read()
    assert [one.sequence for one in found.batches] == list(range(8))
    assert [one.sequence for one in found.active] == [0, 2, 4, 6]


def test_two_who_quarantine_the_same_batch_make_one_record(any_store: Store) -> None:
    done: list[tuple[Quarantined, bool]] = []
    threads = [
        threading.Thread(target=lambda n=n: done.append(ledger(any_store).add(5, "ingest/5.batch", f"reason {n}")))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(changed for _, changed in done) == [False, False, False, True]
    assert {one for one, _ in done} == set(ledger(any_store).read().batches)


@pytest.mark.parametrize("method", ["get", "put"])
@pytest.mark.parametrize("fault", ["fail", "lost", "twice"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_fault_at_any_call_records_it_once(method: str, fault: Any, nth: int) -> None:
    inner = MemoryStore()
    ledger(inner).add(1, "ingest/1.batch", "before")
    store = RetryingStore(FaultStore(inner, {(method, nth): fault}), AT_ONCE)

    added, changed = ledger(store).add(5, "ingest/5.batch", "zeros")
    undone, _ = ledger(store, 2.0).undo(5)

    assert changed
    assert added.active
    assert ledger(inner).read().batches == (Quarantined(1, "ingest/1.batch", "before", 1000), undone)


def test_a_store_that_does_not_answer_changes_nothing() -> None:
    inner = MemoryStore()
    store = FaultStore(inner, lambda call: "unavailable" if call.method == "put" else None)

    with pytest.raises(StorageUnavailable):
        ledger(store).add(5, "ingest/5.batch", "zeros")

    assert list(inner.list()) == []


def test_no_listing_takes_it_for_a_range_and_collection_spares_it_but_not_its_batch() -> None:
    store = MemoryStore()
    locations = fill(store, 4)
    chain = RangeLedger(store)
    planned = plan(manifests(store), chain, Limits(max_batches=2, max_wait=0))
    ledger(store).add(1, locations[1], "zeros")
    record = store.read(PATH)
    manifests(store).update(lambda manifest, _: bool(manifest.dequeue(3)))
    collector = GarbageCollector(store, grace_seconds=0, retention_seconds=0, clock=lambda: 1_900_000_000.0)

    assert chain.starts() == [0, 2]
    assert chain.tail() == planned[-1]
    assert chain.list() == planned
    collector.collect_once()
    gone = {*collector.collect_once().deleted}

    assert {info.path for info in store.list()}.isdisjoint(locations), gone
    assert store.read(PATH) == record
    assert ledger(store).read().get(1) is not None


def good(**changed: Any) -> dict[str, Any]:
    return {
        "sequence": 1,
        "location": "ingest/1.batch",
        "reason": "zeros",
        "at_ms": 5,
        "undone_at_ms": None,
    } | changed


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"version": 1},
        {"version": 1, "batches": {}},
        {"version": 1, "batches": [5]},
        {"version": 1, "batches": [good(sequence=-1)]},
        {"version": 1, "batches": [good(sequence=2**64)]},
        {"version": 1, "batches": [good(sequence=True)]},
        {"version": 1, "batches": [good(sequence="1")]},
        {"version": 1, "batches": [good(location="")]},
        {"version": 1, "batches": [good(location="x" * 65_536)]},
        {"version": 1, "batches": [good(location=None)]},
        {"version": 1, "batches": [good(location="\ud800")]},
        {"version": 1, "batches": [good(reason="x" * 1001)]},
        {"version": 1, "batches": [good(reason="\udfff")]},
        {"version": 1, "batches": [good(at_ms=1.5)]},
        {"version": 1, "batches": [good(at_ms=2**63)]},
        {"version": 1, "batches": [good(undone_at_ms="no")]},
        {"version": 1, "batches": [good(), good()]},
        {"version": 1, "batches": [good(sequence=2), good(sequence=1)]},
    ],
)
def test_hostile_documents_are_corrupt(document: Any) -> None:
    with pytest.raises(CorruptData):
        Quarantine.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 1.0])
def test_another_version_is_refused(version: Any) -> None:
    with pytest.raises(UnsupportedVersion):
        Quarantine.from_bytes(json.dumps({"version": version, "batches": []}).encode())


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_no_surprise(data: bytes) -> None:
    with pytest.raises((CorruptData, UnsupportedVersion)):
        Quarantine.from_bytes(data)


@given(
    st.dictionaries(
        st.integers(0, 2**64 - 1),
        st.tuples(
            st.text(min_size=1, max_size=20),
            st.text(min_size=1, max_size=20),
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=5,
    )
)
def test_what_was_written_is_read(records: dict[int, tuple[str, str, int, int | None]]) -> None:
    written = Quarantine(tuple(Quarantined(sequence, *fields) for sequence, fields in sorted(records.items())))

    assert Quarantine.from_bytes(written.to_bytes()) == written


def test_an_object_too_large_is_neither_read_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr("objbuf_dagster.ranges.quarantine._MAX_BYTES", 200)
    ledger(store).add(1, "ingest/1.batch", "zeros")

    with pytest.raises(InvalidInput, match="quarantined batches"):
        ledger(store).add(2, "ingest/2.batch", "zeros" * 20)
    assert len(ledger(store).read().batches) == 1
    store.put(PATH, b" " * 201)
    with pytest.raises(CorruptData, match="201 bytes"):
        ledger(store).read()
