"""Retention: what stays after the ack, for how long, and what a range says that has expired."""

from __future__ import annotations

import contextlib

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector, GcReport
from objbuf_dagster.buffer.retention import Mark, Retention, read_retention, retention_path
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    InvalidInput,
    RangeExpired,
    UnsupportedVersion,
)
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.store import MemoryStore
from tests.buffer.collectors import DAY, T0, collector, paths, planned_and_acked
from tests.support.buffers import fill, manifest_of, manifests
from tests.support.clocked import ClockedStore
from tests.support.faults import Call, FaultStore


def test_batches_of_a_retained_range_stay_after_the_ack() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    before = paths(store)

    collector(store, 1000).collect_once()
    collector(store, 7 * DAY + 999).collect_once()

    assert paths(store) - before == {retention_path("ingest")}
    assert before - paths(store) == set()


def test_batches_go_once_the_retention_after_the_ack_is_over() -> None:
    store = MemoryStore()
    ranges = planned_and_acked(store)
    collector(store, 1000).collect_once()

    report = collector(store, 1000 + 7 * DAY).collect_once()

    assert len(report.deleted) == 6
    assert report.expired_ranges == 3
    assert collector(store, 1001 + 7 * DAY).collect_once().expired_ranges == 0
    assert not [path for path in paths(store) if path.endswith(".batch")]
    for expired in ranges:
        with pytest.raises(RangeExpired) as caught:
            RangeLedger(store).read(expired)
        assert caught.value.retention_seconds == 7 * DAY
        assert caught.value.since_ms == T0 + 1000 * (1000 + 7 * DAY)
        assert "2023-11-21T22:30:00+00:00" in str(caught.value)
        assert "604800 s" in str(caught.value)
    assert RangeLedger(store).list() == []


def test_range_objects_go_a_day_after_their_batches_and_the_newest_stays() -> None:
    """So that a planner who slept meanwhile cannot take their names, and the next one finds the end of the chain."""
    store = MemoryStore()
    planned_and_acked(store)
    collector(store, 0, retention=0).collect_once()
    before = paths(store, "ingest/ranges")
    collector(store, DAY - 1, retention=0).collect_once()
    assert paths(store, "ingest/ranges") == before

    collector(store, DAY, retention=0).collect_once()

    assert paths(store, "ingest/ranges") == {"ingest/ranges/00000000000000000004", retention_path("ingest")}


def test_each_range_says_when_it_expired_itself() -> None:
    store = MemoryStore()
    fill(store, 4, time_ms=T0)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    consumer = Consumer.open(store, gc_interval=None)
    for day, sequence in ((8, 1), (60, 3)):
        consumer.ack_through(sequence)
        collector(store, day * DAY, retention=0).collect_once()

    for wanted, day in ((SequenceRange(0, 1), 8), (SequenceRange(2, 3), 60)):
        with pytest.raises(RangeExpired) as caught:
            RangeLedger(store).read(wanted)
        assert caught.value.since_ms == T0 + day * DAY * 1000


def test_retention_counts_from_the_ack_and_not_from_planning() -> None:
    store = MemoryStore()
    fill(store, 4, time_ms=T0)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    collector(store, 1000).collect_once()
    consumer = Consumer.open(store, gc_interval=None)
    consumer.ack_through(1)
    collector(store, 30 * DAY).collect_once()
    consumer.ack_through(3)

    report = collector(store, 37 * DAY).collect_once()

    assert len(report.deleted) == 2
    assert [range_of(kept) for kept in RangeLedger(store).list()] == [SequenceRange(2, 3)]


def test_who_collects_by_hand_keeps_to_the_owners_retention() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    collector(store, 1000, retention=30 * DAY, epoch=manifest_of(store).epoch).collect_once()

    by_hand = GarbageCollector(store, clock=lambda: T0 / 1000 + 20 * DAY)

    assert by_hand.collect_once().deleted == ()
    assert read_retention(store, "ingest")[0].retention_seconds == 30 * DAY


def test_a_retention_given_by_hand_is_for_that_pass_alone() -> None:
    """Or one `objbuf gc --retention 0` would take away everybody's replays from then on."""
    store = MemoryStore()
    first, *_ = planned_and_acked(store)
    epoch = manifest_of(store).epoch
    collector(store, 1000, retention=30 * DAY, epoch=epoch).collect_once()

    report = collector(store, 1001, retention=0).collect_once()

    assert (report.expired_ranges, report.retention_seconds) == (3, 0)
    with pytest.raises(RangeExpired, match="replay_retention is 0 s"):  # which is what took it away
        RangeLedger(store).read(first)
    assert read_retention(store, "ingest")[0].retention_seconds == 30 * DAY
    assert GarbageCollector(store, clock=lambda: T0 / 1000 + 1002).collect_once().retention_seconds == 30 * DAY


@pytest.mark.parametrize("ahead", [8 * DAY, -8 * DAY, 400 * DAY])
def test_a_clock_that_jumps_once_takes_no_range_before_its_time(ahead: float) -> None:
    """The store's own clock says otherwise."""
    now = T0 / 1000
    store = ClockedStore(lambda: now)
    ranges = planned_and_acked(store)

    def collect(ahead: float) -> GcReport:
        return GarbageCollector(store, clock=lambda: now + ahead).collect_once()

    collect(0)
    now += DAY
    collect(ahead)
    now += 3600
    assert collect(0).deleted == ()
    now = T0 / 1000 + 7 * DAY - 1
    collect(ahead)
    assert collect(0).deleted == ()
    for one in ranges:
        for batch in RangeLedger(store).read(one).batches:
            store.read(batch.descriptor.location)

    now = T0 / 1000 + 9 * DAY
    assert len(collect(0).deleted) == 6


def test_an_unacked_range_never_expires() -> None:
    store = MemoryStore()
    fill(store, 4, time_ms=T0)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    before = paths(store)
    for day in range(1, 40, 5):
        collector(store, day * DAY, retention=0).collect_once()
    assert before <= paths(store)


def test_a_planner_goes_on_behind_expired_ranges() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    collector(store, 30 * DAY, retention=0).collect_once()
    fill(store, 2, time_ms=T0)

    (added,) = plan(manifests(store), RangeLedger(store), Limits(max_wait=0))

    assert range_of(added) == SequenceRange(6, 7)


@pytest.mark.parametrize("step", range(1, 6))
def test_a_crash_between_any_two_steps_leaves_nothing_that_lies(step: int) -> None:
    """Whatever step fails: a range that can be read has its batches, one that has not says that it expired."""
    store = MemoryStore()
    ranges = planned_and_acked(store)
    collector(store, 1000).collect_once()
    writes = iter(range(1, 100))

    def script(call: object) -> None:
        if getattr(call, "method", "") in ("put", "delete") and next(writes) >= step:
            raise SystemExit  # the process is gone

    gc = GarbageCollector(FaultStore(store, script), clock=lambda: T0 / 1000 + 1000 + 7 * DAY)
    with contextlib.suppress(SystemExit):
        gc.collect_once()

    for one in ranges:
        try:
            found = RangeLedger(store).read(one)
        except RangeExpired:
            continue
        for batch in found.batches:
            store.read(batch.descriptor.location)
    collector(store, 1000 + 8 * DAY).collect_once()
    assert not [path for path in paths(store) if path.endswith(".batch")]


def test_collectors_that_race_agree_on_what_expired() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    collector(store, 1000).collect_once()

    def script(call: object) -> None:
        if getattr(call, "method", "") == "put":
            collector(store, 1000 + 7 * DAY).collect_once()

    GarbageCollector(FaultStore(store, script), clock=lambda: T0 / 1000 + 1001 + 7 * DAY).collect_once()

    assert read_retention(store, "ingest")[0].expired_before == 6
    assert not [path for path in paths(store) if path.endswith(".batch")]


def test_a_pass_that_another_one_overtook_does_not_date_back_what_that_one_saw() -> None:
    """It slept since it read the clocks: what was acked meanwhile was not acked before that."""
    now = T0 / 1000
    store = ClockedStore(lambda: now)
    fill(store, 4, time_ms=T0)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)

    def sleep(call: Call) -> None:
        nonlocal now
        if (call.method, call.path, now) == ("get", retention_path("ingest"), T0 / 1000):
            now += 10 * DAY
            Consumer.open(store, gc_interval=None).ack_through(1)
            collector(store, 10 * DAY).collect_once()

    collector(FaultStore(store, sleep), 0).collect_once()

    now += 1
    report = collector(store, 10 * DAY + 1).collect_once()

    assert (report.expired_ranges, report.deleted) == (0, ())
    assert read_retention(store, "ingest")[0].seen == (Mark(T0 + int(10 * DAY * 1000), 2),)


def test_a_frontier_is_seen_when_it_was_read_and_not_when_its_pass_began() -> None:
    """In a store that tells no time as well: what was acked while the pass waited for the manifest is new."""
    store = MemoryStore()
    fill(store, 4, time_ms=T0)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    now = T0 / 1000

    def sleep(call: Call) -> None:
        nonlocal now
        if call.number == 1:
            now += 10 * DAY
            Consumer.open(store, gc_interval=None).ack_through(1)

    GarbageCollector(FaultStore(store, sleep), retention_seconds=7 * DAY, clock=lambda: now).collect_once()

    assert collector(store, 10 * DAY + 1).collect_once().expired_ranges == 0
    assert collector(store, 17 * DAY).collect_once().expired_ranges == 1


def test_a_clock_that_was_ahead_once_does_not_keep_everything_for_good() -> None:
    ahead = Retention().observe(10, T0 + 100 * 365 * 86_400_000, DAY)
    assert ahead.observe(10, T0, DAY).observe(10, T0 + 86_400_000, DAY).expired_before == 10


def test_a_clock_that_goes_back_expires_nothing_early() -> None:
    start = Retention().observe(10, T0, DAY)
    back = start.observe(20, T0 - 3_600_000, DAY)
    assert back.observe(20, T0 - 3_600_000 + 86_399_999, DAY).expired_before == 0
    assert back.observe(20, T0 - 3_600_000 + 86_400_000, DAY).expired_before == 10


def test_marks_stay_few_however_often_it_is_looked() -> None:
    seen = Retention()
    for minute in range(0, 14 * 24 * 60, 5):
        seen = seen.observe(minute, T0 + minute * 60_000, 7 * DAY)
    assert max(len(seen.seen), len(seen.expired)) <= 202
    assert 0 <= (7 * 24 * 60 - seen.expired_before) <= 70, "expiry lags by less than an hour or so"
    assert Retention.from_bytes(seen.to_bytes()) == seen


def test_a_later_frontier_is_recorded_even_if_it_came_soon_after_the_last_one() -> None:
    seen = Retention().observe(1, T0, DAY).observe(9, T0 + 1, DAY)
    assert seen.seen == (Mark(T0, 1),)
    assert seen.observe(9, T0 + 3_600_000, DAY).seen[-1] == Mark(T0 + 3_600_000, 9)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b'{"version":1}', b'{"version":true}',
     b'{"version":1,"retention_seconds":1,"seen":[[1]],"expired":[]}',
     b'{"version":1,"retention_seconds":1,"seen":[[1,2.0]],"expired":[]}',
     b'{"version":1,"retention_seconds":1,"seen":[[1,9],[2,3]],"expired":[]}',
     b'{"version":1,"retention_seconds":1,"seen":[],"expired":[[1,36893488147419103232]]}',
     b'{"version":1,"retention_seconds":1,"seen":[],"expired":[[1,-1]]}',
     b'{"version":1,"retention_seconds":-1,"seen":[],"expired":[]}',
     b'{"version":1,"retention_seconds":NaN,"seen":[],"expired":[]}',
     b'{"version":1,"retention_seconds":"7","seen":[],"expired":[]}',
     b'{"version":1,"retention_seconds":true,"seen":[],"expired":[]}'],
)  # fmt: skip
def test_a_damaged_retention_object_is_corrupt(data: bytes) -> None:
    with pytest.raises((CorruptData, UnsupportedVersion)):
        Retention.from_bytes(data)


def test_a_retention_object_of_another_buffer_deletes_nothing() -> None:
    """A buffer made anew, or a damaged number: what is not acked cannot have expired."""
    store = MemoryStore()
    fill(store, 4, time_ms=T0)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    store.put(retention_path("ingest"), Retention(seen=(Mark(0, 1000),)).to_bytes())
    before = paths(store)

    with pytest.raises(BufferReplaced, match="1000"):
        collector(store, 30 * DAY).collect_once()

    assert paths(store) == before


def test_negative_times_are_refused() -> None:
    with pytest.raises(InvalidInput):
        GarbageCollector(MemoryStore(), grace_seconds=-1)
    with pytest.raises(InvalidInput):
        GarbageCollector(MemoryStore(), retention_seconds=-1)


def test_a_buffer_without_ranges_gets_no_retention_object() -> None:
    store = MemoryStore()
    fill(store, 3, time_ms=T0)
    collector(store, DAY).collect_once()
    assert retention_path("ingest") not in paths(store)
    assert manifest_of(store).entry_count == 3
