"""Planning, and the ledger's chain."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, Consumer
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    RangeNotPlanned,
    SequenceGap,
    StorageUnavailable,
    UnsupportedVersion,
)
from objbuf_dagster.protocol import Manifest, PlannedBatch, RangeObject
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.ranges.planner import waiting_bytes
from objbuf_dagster.store import MemoryStore, RetryingStore, Store
from tests.support.buffers import append, fill, manifest_of, manifests
from tests.support.counting import CountingStore
from tests.support.faults import AT_ONCE, Call, FaultStore

NOW_MS = 1_700_000_100_000
NOW = NOW_MS / 1000
ALL = Limits(max_wait=0)


def keys(ranges: list[RangeObject]) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in ranges]


def plan_all(store: Store, limits: Limits = ALL, max_ranges: int | None = None) -> list[tuple[int, int]]:
    return keys(plan(manifests(store), RangeLedger(store), limits, max_ranges=max_ranges, clock=lambda: NOW))


def test_planning_covers_the_queue_once(any_store: Store) -> None:
    locations = fill(any_store, 10)

    assert plan_all(any_store, Limits(max_batches=4, max_wait=0)) == [(0, 3), (4, 7), (8, 9)]
    assert plan_all(any_store) == []
    fill(any_store, 2)
    assert plan_all(any_store) == [(10, 11)]

    ledger = RangeLedger(any_store)
    stored = ledger.list()
    assert [b.descriptor for one in stored for b in one.batches] == list(manifest_of(any_store).entries())
    assert [b.size for one in stored for b in one.batches] == [12] * 12
    assert stored[0].planned_at_ms == NOW_MS
    assert ledger.read(SequenceRange(4, 7)).batches[0].descriptor.location == locations[4]


def test_a_backlog_costs_sizes_only_for_what_is_planned() -> None:
    store = MemoryStore()
    manifest = Manifest.empty()
    for n in range(100_000):
        manifest.append(f"ingest/{n}")
    store.put(DEFAULT_MANIFEST_PATH, manifest.to_bytes())
    counting = CountingStore(store)

    assert plan_all(counting, Limits(max_batches=50, max_wait=0), max_ranges=2) == [(0, 49), (50, 99)]

    assert counting.count("head") <= 100 + 32
    assert counting.count("get", path=DEFAULT_MANIFEST_PATH) == 1
    assert plan_all(counting, max_ranges=0) == []


def test_sizes_are_asked_for_once_while_batches_wait() -> None:
    store = MemoryStore()
    fill(store, 5, time_ms=NOW_MS)
    counting = CountingStore(store)
    sizes: dict[int, int | None] = {}
    ask = partial(plan, manifests(counting), RangeLedger(counting), Limits(max_wait=60), sizes=sizes)

    for _ in range(3):
        assert ask(clock=lambda: NOW) == []
    assert counting.count("head") == 5
    assert keys(ask(clock=lambda: NOW + 100)) == [(0, 4)]
    assert (counting.count("head"), sizes) == (5, {})


def test_the_bytes_that_wait_are_those_of_all_batches_where_they_are_few() -> None:
    store = MemoryStore()
    fill(store, 3)
    append(store, "ingest/gone")
    append(store, "../secret")
    counting = CountingStore(store)
    sizes: dict[int, int | None] = {}
    ask = partial(waiting_bytes, manifests(counting), RangeLedger(counting), manifest_of(store))

    assert ask(1, sizes) == 2 * 12 + 2 * 12, "those that cannot be asked count as the others do"
    assert counting.count("head", path="secret") == 0
    counting.reset()
    assert ask(1, sizes) == 4 * 12
    assert counting.count("head") == 0, "none twice, also of those that are not there"
    assert ask(5, sizes) == 0
    assert sizes == {1: 12, 2: 12, 3: None, 4: None}


@pytest.mark.parametrize("batches", [33, 64, 65, 10_000])
def test_the_bytes_that_wait_are_found_by_a_sample_where_they_are_many(batches: int) -> None:
    store = MemoryStore()
    manifest = Manifest.empty()
    for n in range(batches):
        manifest.append(f"ingest/{n}")
        store.put(f"ingest/{n}", b"x" * (1 if n < batches / 2 else 3))
    counting = CountingStore(store)

    found = waiting_bytes(manifests(counting), RangeLedger(counting), manifest, 0, {})

    assert found == pytest.approx(2 * batches, rel=0.1)
    assert counting.count("head") <= 32


def test_a_missing_batch_and_one_outside_the_buffer_are_planned_without_a_size() -> None:
    """Their range fails when it is landed, and says why; the queue behind it goes on."""
    store = MemoryStore()
    store.put("secret", b"secret")
    append(store, "ingest/gone")
    append(store, "../secret")
    counting = CountingStore(store)

    assert plan_all(counting) == [(0, 1)]
    assert [b.size for b in RangeLedger(store).read(SequenceRange(0, 1)).batches] == [None, None]
    assert counting.count("head", path="secret") == 0


def test_planning_begins_at_the_frontier() -> None:
    store = MemoryStore()
    fill(store, 5)
    Consumer.open(store, gc_interval=None).ack_through(2)
    assert plan_all(store) == [(3, 4)]


def test_planners_that_race_agree(any_store: Store) -> None:
    fill(any_store, 30)
    barrier = threading.Barrier(6)

    def work(planner: int) -> list[tuple[int, int]]:
        barrier.wait()
        return plan_all(any_store, Limits(max_batches=2 + planner, max_wait=0))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))

    chain = keys(RangeLedger(any_store).list())
    assert [sequence for start, end in chain for sequence in range(start, end + 1)] == list(range(30))


def test_the_loser_of_a_race_adopts_the_winner_and_goes_on_behind_it() -> None:
    store = MemoryStore()
    fill(store, 10)

    def script(call: Call) -> None:
        if (call.method, call.nth) == ("put", 1):
            plan_all(store, Limits(max_batches=3, max_wait=0), max_ranges=1)

    assert plan_all(FaultStore(store, script), Limits(max_batches=6, max_wait=0)) == [(0, 2), (3, 8), (9, 9)]
    assert keys(RangeLedger(store).list()) == [(0, 2), (3, 8), (9, 9)]


def test_a_planner_with_an_old_manifest_does_no_harm() -> None:
    store = MemoryStore()
    fill(store, 4)
    old = manifest_of(store)
    fill(store, 4)
    assert plan_all(store) == [(0, 7)]

    assert plan(manifests(store), RangeLedger(store), ALL, manifest=old, clock=lambda: NOW) == []


def test_a_lost_answer_does_not_plan_twice() -> None:
    store = MemoryStore()
    fill(store, 4)
    faulty = RetryingStore(FaultStore(store, {("put", 1): "lost"}), AT_ONCE)

    assert plan_all(faulty, Limits(max_batches=2, max_wait=0)) == [(0, 1), (2, 3)]


def test_what_was_planned_before_a_failure_stays_and_the_next_call_goes_on() -> None:
    store = MemoryStore()
    fill(store, 6)
    faults = FaultStore(store, {("put", 2): "unavailable"})
    with pytest.raises(StorageUnavailable):
        plan_all(faults, Limits(max_batches=2, max_wait=0))

    assert plan_all(store, Limits(max_batches=3, max_wait=0)) == [(2, 4), (5, 5)]


def test_sequences_that_left_unplanned_are_named() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    fill(store, 6)
    Consumer.open(store, gc_interval=None).ack_through(6)

    with pytest.raises(SequenceGap, match="sequences 4 to 6") as caught:
        plan_all(store)
    assert (caught.value.first, caught.value.last) == (4, 6)


def test_a_gap_can_be_skipped_on_purpose() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    fill(store, 6)
    Consumer.open(store, gc_interval=None).ack_through(6)

    added = plan(manifests(store), RangeLedger(store), ALL, on_gap="skip", clock=lambda: NOW)

    assert keys(added) == [(7, 9)]
    assert plan_all(store) == []
    assert keys(RangeLedger(store).list(since=5)) == [(7, 9)]


def test_a_dry_run_plans_the_same_and_writes_nothing() -> None:
    store = MemoryStore()
    fill(store, 5)
    limits = Limits(max_batches=2, max_wait=0)
    counting = CountingStore(store)

    would = plan(manifests(counting), RangeLedger(counting), limits, dry_run=True, clock=lambda: NOW)

    assert counting.count("put") == 0
    assert would == plan(manifests(store), RangeLedger(store), limits, clock=lambda: NOW)


def test_a_manifest_whose_sequences_went_back_stops_everything() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    store.delete([DEFAULT_MANIFEST_PATH])
    fill(store, 2)

    with pytest.raises(BufferReplaced, match="next sequence is 2"):
        plan_all(store)


def test_a_manifest_that_names_other_batches_stops_everything() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    store.delete([DEFAULT_MANIFEST_PATH])
    fill(store, 9)

    with pytest.raises(BufferReplaced, match="sequence 0 is ingest/"):
        plan_all(store)


def test_adopting_compares_what_both_know() -> None:
    store, other = MemoryStore(), MemoryStore()
    fill(store, 4)
    fill(other, 4)
    plan_all(other)
    (foreign,) = RangeLedger(other).list()
    ledger = RangeLedger(store)
    ledger.create(foreign)

    with pytest.raises(BufferReplaced):
        ledger.create(RangeObject(0, 3, 1, 0, tuple(PlannedBatch(entry, 1) for entry in manifest_of(store).entries())))


# The ledger


def test_ranges_from_a_sequence_on_include_the_one_that_holds_it() -> None:
    store = MemoryStore()
    fill(store, 20)
    plan_all(store, Limits(max_batches=5, max_wait=0))
    ledger = RangeLedger(store)

    assert keys(ledger.list(since=10)) == [(10, 14), (15, 19)]
    assert keys(ledger.list(since=12)) == [(10, 14), (15, 19)]
    assert keys(ledger.list(since=20)) == []
    assert keys(ledger.list(since=12, hint=SequenceRange(5, 9))) == [(10, 14), (15, 19)]
    assert keys(ledger.list(since=3, hint=SequenceRange(5, 9))) == [(0, 4), (5, 9), (10, 14), (15, 19)]


def test_a_hint_of_another_buffer_hides_nothing() -> None:
    store = MemoryStore()
    fill(store, 15)
    plan_all(store, Limits(max_batches=5, max_wait=0))
    assert keys(RangeLedger(store).list(since=8, hint=SequenceRange(7, 7))) == [(5, 9), (10, 14)]


def test_a_range_says_under_which_epoch_it_was_planned() -> None:
    store = MemoryStore()
    fill(store, 1)
    Consumer.open(store, gc_interval=None)
    Consumer.open(store, gc_interval=None)
    plan_all(store)
    assert RangeLedger(store).read(SequenceRange(0, 0)).epoch == 2


def test_the_tail_is_found_with_and_without_a_hint() -> None:
    store = MemoryStore()
    ledger = RangeLedger(store)
    assert ledger.tail() is None
    fill(store, 9)
    plan_all(store, Limits(max_batches=3, max_wait=0))

    for hint in (None, SequenceRange(0, 2), SequenceRange(6, 8), SequenceRange(100, 200)):
        tail = ledger.tail(hint)
        assert tail is not None
        assert range_of(tail) == SequenceRange(6, 8)


def test_a_range_that_is_not_planned_says_what_is_there() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    with pytest.raises(RangeNotPlanned, match="no range starts at 2"):
        RangeLedger(store).read(SequenceRange(2, 3))
    with pytest.raises(RangeNotPlanned, match="000000000000-000000000003"):
        RangeLedger(store).read(SequenceRange(0, 2))


def test_what_is_not_a_range_object_is_passed_over() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    for name in ("notes", "0", "\u0660" * 20, "000000000000000000004"):
        store.put(f"ingest/ranges/{name}", b"?")
    assert keys(RangeLedger(store).list()) == [(0, 3)]


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", CorruptData), (b"{}", UnsupportedVersion), (b"[" * 100_000, CorruptData),
     (b'{"version": 2}', UnsupportedVersion)],
)  # fmt: skip
def test_a_damaged_range_object_is_refused(data: bytes, error: type[Exception]) -> None:
    store = MemoryStore()
    store.put("ingest/ranges/00000000000000000000", data)
    with pytest.raises(error):
        RangeLedger(store).read(SequenceRange(0, 3))


def test_a_range_object_under_a_wrong_name_is_refused() -> None:
    store = MemoryStore()
    fill(store, 4)
    plan_all(store)
    store.put("ingest/ranges/00000000000000000004", store.read("ingest/ranges/00000000000000000000"))
    with pytest.raises(CorruptData, match="starts at 0"):
        RangeLedger(store).tail()


def test_a_tail_that_is_at_hand_saves_the_listing() -> None:
    store = CountingStore(MemoryStore())
    fill(store, 6)
    (first,) = plan(manifests(store), RangeLedger(store), Limits(max_batches=3, max_wait=0), max_ranges=1)
    store.reset()

    added = plan(manifests(store), RangeLedger(store), ALL, tail=first)

    assert keys(added) == [(3, 5)]
    assert store.count("list") == 2, "whether another range starts in the new one, before and after it is written"
    assert store.count("read") == 0


def test_a_tail_that_is_no_longer_the_last_neither_doubles_nor_skips() -> None:
    store = MemoryStore()
    fill(store, 9)
    by_three = Limits(max_batches=3, max_wait=0)
    first, second = plan(manifests(store), RangeLedger(store), by_three, max_ranges=2)

    assert keys(plan(manifests(store), RangeLedger(store), by_three, tail=first)) == [(3, 5), (6, 8)]

    Consumer.open(store, gc_interval=None).ack_through(6)
    assert keys(plan(manifests(store), RangeLedger(store), by_three, tail=first, on_gap="skip")) == []
    assert RangeLedger(store).starts() == [0, 3, 6]
    assert range_of(second) == SequenceRange(3, 5)
