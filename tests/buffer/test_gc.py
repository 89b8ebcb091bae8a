"""Garbage collection: its conditions one by one, retention, fencing, and what a crash in the middle leaves."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.retention import Mark, Retention, read_retention, retention_path
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    Fenced,
    InvalidInput,
    ObjbufError,
    RangeExpired,
    StorageError,
    UnsupportedVersion,
)
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.store import MemoryStore, Store
from tests.support.buffers import append, batch_name, fill, manifest_of, manifests, put_batch
from tests.support.faults import Call, Delay, FaultStore

DAY = 24 * 3600.0
T0 = 1_700_000_000_000
"""Milliseconds at which these buffers begin."""


def paths(store: Store, prefix: str = "ingest") -> set[str]:
    return {info.path for info in store.list(prefix)}


def collector(store: Store, seconds: float, *, grace: float = 600, retention: float = 7 * DAY) -> GarbageCollector:
    """A collector whose clock stands `seconds` after T0."""
    return GarbageCollector(store, grace_seconds=grace, retention_seconds=retention, clock=lambda: T0 / 1000 + seconds)


def test_an_old_batch_that_nobody_names_goes(any_store: Store) -> None:
    orphan = put_batch(any_store, batch_name(T0))

    report = collector(any_store, 601).collect_once()

    assert report.deleted == (orphan,)
    assert report.bytes == 12
    assert paths(any_store) == set()


def test_a_batch_in_the_manifest_stays() -> None:
    store = MemoryStore()
    fill(store, 3, time_ms=T0)
    before = paths(store)

    collector(store, DAY).collect_once()

    assert paths(store) == before


def test_a_batch_not_older_than_the_oldest_entry_stays() -> None:
    """It may be on its way into the manifest."""
    store = MemoryStore()
    append(store, put_batch(store, batch_name(T0 + 5_000)))
    older, younger = put_batch(store, batch_name(T0 + 4_999)), put_batch(store, batch_name(T0 + 5_000))

    assert collector(store, DAY).collect_once().deleted == (older,)
    assert younger in paths(store)


def test_it_is_the_oldest_entry_that_counts() -> None:
    store = MemoryStore()
    for seconds in (9, 5, 7):
        append(store, put_batch(store, batch_name(T0 + seconds * 1000)))
    between = put_batch(store, batch_name(T0 + 6_000))

    assert collector(store, DAY).collect_once().deleted == ()
    assert between in paths(store)


def test_a_batch_that_is_planned_and_acked_while_it_collects_stays() -> None:
    """The manifest is read before the ranges: the other way round, it would be in neither."""
    store = MemoryStore()
    fill(store, 3, time_ms=T0)
    batches = {path for path in paths(store) if path.endswith(".batch")}
    done: list[bool] = []

    def land_meanwhile(call: Call) -> None:
        if call.number == 2 and not done:
            done.append(True)
            planned_and_acked_now(store)

    GarbageCollector(FaultStore(store, land_meanwhile), clock=lambda: T0 / 1000 + DAY).collect_once()

    assert done
    assert batches <= paths(store)


def planned_and_acked_now(store: Store) -> None:
    plan(manifests(store), RangeLedger(store), Limits(max_wait=0), clock=lambda: T0 / 1000)
    Consumer.open(store, gc_interval=None).ack_through(manifest_of(store).next_sequence - 1)


def test_with_an_empty_manifest_age_alone_decides() -> None:
    store = MemoryStore()
    append(store, put_batch(store, batch_name(T0)))
    late = put_batch(store, batch_name(T0 + 5_000))
    Consumer.open(store, gc_interval=None).ack_through(0)

    assert late in collector(store, DAY).collect_once().deleted


def test_a_batch_within_the_grace_period_stays() -> None:
    store = MemoryStore()
    put_batch(store, batch_name(T0))

    assert collector(store, 600).collect_once().deleted == ()
    assert len(collector(store, 600.1).collect_once().deleted) == 1


def test_what_is_not_named_as_a_batch_is_left_alone() -> None:
    store = MemoryStore()
    others = {
        "ingest/notes.txt",
        "ingest/not-a-ulid.batch",
        "ingest/8ZZZZZZZZZZZZZZZZZZZZZZZZZ.batch",
        f"{batch_name(T0)}.bak",
        f"ingest/sub/{batch_name(T0).removeprefix('ingest/')}",
        f"other/{batch_name(T0).removeprefix('ingest/')}",
        f"ingest2/{batch_name(T0).removeprefix('ingest/')}",
    }
    for path in others:
        store.put(path, b"")

    collector(store, DAY).collect_once()

    assert paths(store, "") == others


def test_entries_whose_names_tell_no_time_keep_everything() -> None:
    store = MemoryStore()
    append(store, "ingest/by-hand")
    put_batch(store, batch_name(T0))
    assert collector(store, DAY).collect_once().deleted == ()


def test_a_time_in_the_future_keeps_a_batch() -> None:
    store = MemoryStore()
    put_batch(store, batch_name(T0 + 10 * 3_600_000))
    assert collector(store, 3600).collect_once().deleted == ()


class Stubborn(MemoryStore):
    """Refuses to delete some objects."""

    def __init__(self, refused: set[str]) -> None:
        super().__init__()
        self.refused = refused

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = set(paths)
        return super().delete(wanted - self.refused) | {path: StorageError("held") for path in wanted & self.refused}


def test_one_failed_delete_does_not_stop_the_rest() -> None:
    store = Stubborn(set())
    batches = [put_batch(store, batch_name(T0 + n)) for n in range(5)]
    store.refused = {batches[2]}
    gc = collector(store, DAY)

    report = gc.collect_once()

    assert set(report.failed) == {batches[2]}
    assert paths(store) == {batches[2]}
    assert gc.metrics.counter(m.GC_FILES_DELETED) == 4
    assert gc.metrics.counter(m.GC_FILES_FAILED) == 1
    assert gc.metrics.snapshot().histograms[m.GC_DURATION_SECONDS].count == 1


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    put_batch(store, batch_name(T0 - 1))
    before = {path: store.get(path) for path in paths(store)}

    report = collector(store, 30 * DAY, retention=0).collect_once(dry_run=True)

    assert len(report.deleted) == 7
    assert {path: store.get(path) for path in paths(store)} == before


def test_a_fenced_collector_deletes_nothing() -> None:
    store = MemoryStore()
    old = Consumer.open(store, gc_interval=None)
    put_batch(store, batch_name(T0))
    Consumer.open(store, gc_interval=None)
    before = paths(store)

    with pytest.raises(Fenced):
        GarbageCollector(store, epoch=old.epoch, clock=lambda: T0 / 1000 + DAY).collect_once()

    assert paths(store) == before


def test_a_collector_that_is_fenced_in_the_middle_deletes_nothing() -> None:
    store = MemoryStore()
    old = Consumer.open(store, gc_interval=None)
    put_batch(store, batch_name(T0))
    before = paths(store)

    def taken_over(call: Call) -> None:
        if call.method == "list" and call.path == "ingest":
            Consumer.open(store, gc_interval=None)

    with pytest.raises(Fenced):
        GarbageCollector(FaultStore(store, taken_over), epoch=old.epoch, clock=lambda: T0 / 1000 + DAY).collect_once()

    assert paths(store) == before


def test_a_consumer_hands_its_settings_to_its_collector() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    with Consumer.open(store, gc_interval=0.01, gc_grace_period=5, replay_retention=123, clock=lambda: T0 / 1000 + 7):
        orphans = [put_batch(store, batch_name(T0 - 1)), put_batch(store, batch_name(T0 + 3_000))]
        deadline = time.monotonic() + 30
        while orphans[0] in paths(store) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert orphans[0] not in paths(store)
    assert orphans[1] in paths(store)
    assert read_retention(store, "ingest")[0].retention_seconds == 123


@pytest.mark.parametrize(
    "setting", [{"gc_interval": 0}, {"gc_interval": -1}, {"gc_grace_period": -1}, {"replay_retention": -1}]
)
def test_a_wrong_setting_fences_nobody(setting: dict[str, float]) -> None:
    store = MemoryStore()
    owner = Consumer.open(store, gc_interval=None)
    with pytest.raises(InvalidInput):
        Consumer.open(store, **setting)  # type: ignore[arg-type]
    owner.next_descriptors(1)


def test_closing_does_not_wait_for_a_long_pass() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    slow = FaultStore(store, lambda call: Delay(0.3) if call.method in ("read", "delete") else None)
    consumer = Consumer.open(slow, gc_interval=0.01)
    deadline = time.monotonic() + 30
    while not [call for call in slow.calls if call.method == "read"] and time.monotonic() < deadline:
        time.sleep(0.01)
    started = time.monotonic()
    consumer.close()
    assert time.monotonic() - started < 5


def test_what_is_no_range_object_does_not_stop_it() -> None:
    store = MemoryStore()
    planned_and_acked(store)
    orphan = put_batch(store, batch_name(T0 - 1))
    store.put("ingest/ranges/notes", b"not JSON")
    store.put("ingest/ranges/00000000000000000004.bak", b"")
    assert collector(store, DAY).collect_once().deleted == (orphan,)


def test_a_consumer_collects_in_the_background_until_it_is_closed() -> None:
    store = MemoryStore()
    put_batch(store, batch_name(T0))
    with Consumer.open(store, gc_interval=0.05):
        deadline = time.monotonic() + 30
        while paths(store) != {"ingest/manifest"} and time.monotonic() < deadline:
            time.sleep(0.02)
        assert paths(store) == {"ingest/manifest"}
    assert not [thread for thread in threading.enumerate() if thread.name == "objbuf-gc"]


def test_the_collecting_thread_outlives_failures_and_ends_when_fenced(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    faults = FaultStore(store, {("list", 1): "unavailable"})
    consumer = Consumer.open(faults, gc_interval=0.02)
    deadline = time.monotonic() + 30
    while len([call for call in faults.calls if call.method == "list"]) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "tried again" in caplog.text

    Consumer.open(store, gc_interval=None)
    while consumer._collecting is not None and consumer._collecting.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "garbage collection stops" in caplog.text
    consumer.close()


# Retention


def planned_and_acked(store: Store) -> list[SequenceRange]:
    """Six batches in three ranges, all acked, one after T0."""
    fill(store, 6, time_ms=T0)
    planned = plan(manifests(store), RangeLedger(store), Limits(max_batches=2), clock=lambda: T0 / 1000)
    Consumer.open(store, gc_interval=None).ack_through(5)
    return [range_of(one) for one in planned]


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
    collector(store, 1000, retention=30 * DAY).collect_once()

    by_hand = GarbageCollector(store, clock=lambda: T0 / 1000 + 20 * DAY)

    assert by_hand.collect_once().deleted == ()
    assert read_retention(store, "ingest")[0].retention_seconds == 30 * DAY


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
