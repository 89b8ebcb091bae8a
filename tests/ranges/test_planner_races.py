"""Planners that see different manifests, stores that refuse for no reason, sizes that are asked for side by side."""

from __future__ import annotations

import contextlib
import threading

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.errors import CorruptData, RangesOverlap, StorageUnavailable
from objbuf_dagster.protocol import Manifest, PlannedBatch, RangeObject
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.store import Conflict, MemoryStore, ObjectInfo, Payload, RetryPolicy
from tests.support.buffers import fill, manifest_of, manifests
from tests.support.faults import Call, FaultStore

ALL = Limits(max_wait=0)


def keys(ranges: list[RangeObject]) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in ranges]


def take_away_the_unused(store: MemoryStore, used: set[tuple[int, int]]) -> None:
    """Follow the error's advice until there is none; what somebody used never has to go."""
    while True:
        try:
            RangeLedger(store).list()
            RangeLedger(store).tail()
        except RangesOverlap as error:
            pair = {pair_of(error.earlier), pair_of(error.later)}
            assert len(pair & used) < 2, "only one of them was used"
            is_used = pair_of(error.unused) in used
            store.delete([error.other_path if is_used else error.path])
        else:
            return


def pair_of(key: str) -> tuple[int, int]:
    found = SequenceRange.from_key(key)
    return found.start, found.end


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("planned_before", [0, 2])
def test_of_ranges_that_overlap_only_one_is_used(at: int, planned_before: int, dies: bool) -> None:
    """Somebody acks what is not planned, and others go on behind it, at any moment of the first one's."""
    store = MemoryStore()
    fill(store, 10)
    ledger = RangeLedger(store)
    used: set[tuple[int, int]] = set()
    if planned_before:
        used |= set(keys(plan(manifests(store), ledger, Limits(max_batches=planned_before, max_wait=0), max_ranges=1)))

    def ack_and_plan(call: Call) -> None:
        if call.number >= at + 1 and dies:
            raise Gone
        if call.number == at:
            Consumer.open(store, gc_interval=None).ack_through(4)
            for limits in (Limits(max_batches=2, max_wait=0), ALL):
                with contextlib.suppress(RangesOverlap):
                    used.update(keys(plan(manifests(store), ledger, limits, max_ranges=1, on_gap="skip")))

    # Sizes are asked for side by side: only calls made one at a time are counted
    racing = FaultStore(store, ack_and_plan)
    with contextlib.suppress(StorageUnavailable, RangesOverlap, Gone):
        used |= set(keys(plan(manifests(racing), RangeLedger(racing), ALL, sizes=dict.fromkeys(range(10), 1))))

    take_away_the_unused(store, used)
    assert used <= set(keys(ledger.list()))
    plan(manifests(store), ledger, ALL, on_gap="skip")
    covered = [sequence for one in ledger.list() for sequence in range_of(one)]
    assert len(covered) == len(set(covered))
    assert set(range(5, 10)) <= set(covered)


class Gone(BaseException):
    """The process is."""


@pytest.fixture
def five_to_seven_unplanned() -> tuple[MemoryStore, Manifest]:
    """0-4 is planned, 5-7 are acked by hand; and the manifest before that."""
    store = MemoryStore()
    fill(store, 13)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=5, max_wait=0), max_ranges=1)
    old = manifest_of(store)
    Consumer.open(store, gc_interval=None).ack_through(7)
    return store, old


def plan_five_to_nine(store: MemoryStore, old: Manifest) -> list[tuple[int, int]]:
    limits = Limits(max_batches=5, max_wait=0)
    return keys(plan(manifests(store), RangeLedger(store), limits, manifest=old, max_ranges=1))


def test_an_overlap_that_a_dead_planner_left_is_refused_by_everybody(
    five_to_seven_unplanned: tuple[MemoryStore, Manifest],
) -> None:
    store, old = five_to_seven_unplanned

    def dies_behind_its_put(call: Call) -> None:
        if call.method == "put":
            assert plan_five_to_nine(store, old) == [(5, 9)]
        elif ("put", 1) in {(one.method, one.nth) for one in racing.calls}:
            raise Gone

    racing = FaultStore(store, dies_behind_its_put)
    with pytest.raises(Gone):
        plan(manifests(racing), RangeLedger(racing), ALL, on_gap="skip")
    fill(store, 3)

    advice = (
        r"ranges 000000000005-000000000009 and 000000000008-000000000012 hold the same .* Move the object "
        r"ingest/ranges/00000000000000000008 away, or, if .* has landed, ingest/ranges/00000000000000000005 instead"
    )
    with pytest.raises(RangesOverlap, match=advice):
        plan(manifests(store), RangeLedger(store), ALL, on_gap="skip")
    with pytest.raises(RangesOverlap, match=advice):
        RangeLedger(store).list()

    store.delete(["ingest/ranges/00000000000000000008"])
    assert keys(plan(manifests(store), RangeLedger(store), ALL, on_gap="skip")) == [(10, 15)]


def test_a_range_that_another_one_follows_is_never_deleted(
    five_to_seven_unplanned: tuple[MemoryStore, Manifest],
) -> None:
    """Who finds the overlap cannot know that somebody planned behind its range before the other one came."""
    store, old = five_to_seven_unplanned
    late = RangeObject(5, 9, 0, 0, tuple(PlannedBatch(one, 1) for one in old.entries(after=4, limit=5)))

    def another_behind_it_and_then_the_late_one(call: Call) -> None:
        if call.method == "list" and racing.calls[-2].method == "put":
            fill(store, 3)
            assert keys(plan(manifests(store), RangeLedger(store), ALL)) == [(13, 15)]
            assert store.put("ingest/ranges/00000000000000000005", late.to_bytes(), if_absent=True) is None

    racing = FaultStore(store, another_behind_it_and_then_the_late_one)
    with pytest.raises(RangesOverlap) as caught:
        plan(manifests(racing), RangeLedger(racing), ALL, on_gap="skip")
    with pytest.raises(RangesOverlap):
        RangeLedger(store).create(late)

    assert caught.value.path == "ingest/ranges/00000000000000000005"
    store.delete([caught.value.path])
    assert keys(RangeLedger(store).list()) == [(0, 4), (8, 12), (13, 15)]


def test_a_range_stays_if_nobody_can_say_whether_it_is_alone() -> None:
    """Somebody may have planned behind it, and what is not known is no overlap."""
    store = MemoryStore()
    fill(store, 10)
    racing = FaultStore(store, {("list", 3): "unavailable"})

    with pytest.raises(StorageUnavailable):
        plan(manifests(racing), RangeLedger(racing), ALL)

    assert keys(RangeLedger(store).list()) == [(0, 9)]


def test_a_planner_that_left_out_sequences_tells_of_the_range_that_reaches_into_its_own() -> None:
    """It looked for the end of the chain before the other one, who saw an older manifest, had written."""
    store = MemoryStore()
    fill(store, 10)
    old = manifest_of(store)
    Consumer.open(store, gc_interval=None).ack_through(4)

    def plan_from_the_old_one(call: Call) -> None:
        if call.method == "put":
            plan(manifests(store), RangeLedger(store), ALL, manifest=old)

    racing = FaultStore(store, plan_from_the_old_one)
    with pytest.raises(RangesOverlap, match="Move the object ingest/ranges/00000000000000000005 away"):
        plan(manifests(racing), RangeLedger(racing), ALL)


def test_a_planner_that_sees_the_other_range_in_time_writes_nothing() -> None:
    store = MemoryStore()
    fill(store, 10)
    old = manifest_of(store)
    Consumer.open(store, gc_interval=None).ack_through(4)
    ledger = RangeLedger(store)
    plan(manifests(store), ledger, ALL)

    with pytest.raises(StorageUnavailable, match=r"would overlap with the one that starts at 5: .* Plan again"):
        ledger.create(RangeObject(0, 9, 0, 0, tuple(PlannedBatch(one, 1) for one in old.entries())))

    assert keys(ledger.list()) == [(5, 9)]


class Busy(MemoryStore):
    """Refuses a put for a request that comes to nothing, as S3 does with 409: so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        if "/ranges/" in path and self.times:
            self.times -= 1
            return Conflict()
        return super().put(path, data, if_version=if_version, if_absent=if_absent)


def test_a_range_that_is_refused_and_not_there_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objbuf_dagster.ranges.ledger._PUTS", RetryPolicy(attempts=3, base_seconds=0))
    for times, is_made in ((2, True), (3, False)):
        store = Busy(times)
        fill(store, 3)
        if is_made:
            assert keys(plan(manifests(store), RangeLedger(store), ALL)) == [(0, 2)]
        else:
            with pytest.raises(StorageUnavailable, match="try again"):
                plan(manifests(store), RangeLedger(store), ALL)


def test_a_damaged_range_object_is_named_with_what_to_do() -> None:
    store = MemoryStore()
    store.put("ingest/ranges/00000000000000000003", b"{")
    with pytest.raises(CorruptData, match=r"Restore the object ingest/ranges/00000000000000000003, or move it away"):
        RangeLedger(store).at(3)


def test_objects_in_folders_beside_the_ranges_are_none() -> None:
    """Somebody moved ranges away, as an error told them, and not far."""
    store = MemoryStore()
    fill(store, 3)
    ledger = RangeLedger(store)
    plan(manifests(store), ledger, ALL)
    store.put("ingest/ranges/old/00000000000000000007", b"anything")
    store.put("ingest/ranges/old/00000000000000000000", b"anything")
    fill(store, 1)

    assert keys(plan(manifests(store), ledger, ALL)) == [(3, 3)]
    assert list(ledger.starts()) == [0, 3]
    assert GarbageCollector(store).collect_once().failed == {}


def test_sizes_are_asked_for_side_by_side() -> None:
    """Each HEAD waits until 32 are under way: one after the other, none would ever come back."""
    together = threading.Barrier(32)

    class Slow(MemoryStore):
        def head(self, path: str) -> ObjectInfo:
            together.wait(30)
            return super().head(path)

    store = Slow()
    fill(store, 64)

    assert keys(plan(manifests(store), RangeLedger(store), ALL)) == [(0, 63)]
