"""Garbage collection: its conditions one by one, retention, fencing, and what a crash in the middle leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.retention import read_retention
from objbuf_dagster.errors import (
    CorruptData,
    Fenced,
    InvalidInput,
    NotFound,
    ObjbufError,
    StorageError,
    StorageUnavailable,
)
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.store import Blob, LocalStore, MemoryStore, Store
from tests.buffer.collectors import DAY, T0, collector, paths, planned_and_acked, planned_and_acked_now, used
from tests.buffer.conftest import ThreadsLeft
from tests.support.buffers import append, batch_name, fill, manifest_of, manifests, put_batch
from tests.support.clocked import ClockedStore
from tests.support.counting import CountingStore
from tests.support.faults import Call, Delay, FaultStore


def test_an_old_batch_that_nobody_names_goes(any_store: Store) -> None:
    used(any_store)
    orphan = put_batch(any_store, batch_name(T0))

    report = collector(any_store, 601, grace=0).collect_once()  # the stores' own clocks cannot be set

    assert report.deleted == (orphan,)
    assert report.bytes == 12
    assert orphan not in paths(any_store)


def test_a_batch_that_the_store_wrote_just_now_stays_whatever_its_name_and_our_clock_say(shared_store: Store) -> None:
    """Its producer's clock may be behind, or ours ahead, and it may be on its way into the manifest."""
    used(shared_store)
    orphan = put_batch(shared_store, batch_name(T0))

    assert collector(shared_store, DAY).collect_once().deleted == ()
    assert orphan in paths(shared_store)


def test_by_the_store_s_clock_too_a_batch_must_be_older_than_the_grace_period() -> None:
    now = 0.0
    store = ClockedStore(lambda: now)
    used(store)
    orphan = put_batch(store, batch_name(T0))
    now = 599.9
    assert collector(store, DAY).collect_once().deleted == ()
    now = 600
    assert collector(store, DAY).collect_once().deleted == (orphan,)


def test_a_batch_that_is_appended_while_it_is_found_to_be_old_stays() -> None:
    now = 0.0
    store = ClockedStore(lambda: now)
    used(store)
    late = put_batch(store, batch_name(T0))
    now = 3600

    def append_meanwhile(call: Call) -> None:
        if call.method == "put":
            append(store, late)

    report = GarbageCollector(FaultStore(store, append_meanwhile), clock=lambda: T0 / 1000 + DAY).collect_once()

    assert manifest_of(store).entry_count == 1
    assert report.deleted == ()
    assert late in paths(store)


def test_a_fenced_collector_does_not_ask_the_store_s_clock() -> None:
    store = ClockedStore(lambda: 0.0)
    used(store)
    old = Consumer.open(store, gc_interval=None)
    put_batch(store, batch_name(T0))

    def taken_over(call: Call) -> None:
        if call.method == "list" and call.path == "ingest":
            Consumer.open(store, gc_interval=None)

    faults = FaultStore(store, taken_over)
    with pytest.raises(Fenced):
        GarbageCollector(faults, epoch=old.epoch, clock=lambda: T0 / 1000 + DAY).collect_once()

    assert not [call for call in faults.calls if call.method == "put"]


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


def test_with_an_empty_manifest_age_alone_decides() -> None:
    store = MemoryStore()
    append(store, put_batch(store, batch_name(T0)))
    late = put_batch(store, batch_name(T0 + 5_000))
    Consumer.open(store, gc_interval=None).ack_through(0)

    assert late in collector(store, DAY).collect_once().deleted


def test_a_batch_within_the_grace_period_stays() -> None:
    store = MemoryStore()
    used(store)
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
    used(store)
    others.add("ingest/manifest")
    for path in others - {"ingest/manifest"}:
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
    used(store)
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
    used(store)
    batches = [put_batch(store, batch_name(T0 + n)) for n in range(5)]
    store.refused = {batches[2]}
    gc = collector(store, DAY)

    report = gc.collect_once()

    assert set(report.failed) == {batches[2]}
    assert paths(store) == {batches[2], "ingest/manifest"}
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
    used(store)
    old = Consumer.open(store, gc_interval=None)
    put_batch(store, batch_name(T0))
    Consumer.open(store, gc_interval=None)
    before = paths(store)

    with pytest.raises(Fenced):
        GarbageCollector(store, epoch=old.epoch, clock=lambda: T0 / 1000 + DAY).collect_once()

    assert paths(store) == before


def test_a_collector_that_is_fenced_in_the_middle_deletes_nothing() -> None:
    store = MemoryStore()
    used(store)
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


def test_a_consumer_collects_in_the_background_until_it_is_closed(threads_left: ThreadsLeft) -> None:
    store = MemoryStore()
    used(store)
    put_batch(store, batch_name(T0))
    with Consumer.open(store, gc_interval=0.05):
        deadline = time.monotonic() + 30
        while paths(store) != {"ingest/manifest"} and time.monotonic() < deadline:
            time.sleep(0.02)
        assert paths(store) == {"ingest/manifest"}
    assert threads_left() == []


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


def test_a_range_that_is_listed_and_cannot_be_read_ends_the_pass() -> None:
    """Its batches would be garbage to whoever takes "not found" for an answer."""
    store = MemoryStore()
    locations = fill(store, 3)
    plan(manifests(store), RangeLedger(store), Limits(max_wait=0))
    Consumer.open(store, gc_interval=None).ack_through(2)

    class Blind(CountingStore):
        def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
            if "/ranges/0" in path:
                raise NotFound(path)
            return super().read(path, max_bytes=max_bytes)

    collector = GarbageCollector(Blind(store), grace_seconds=0)
    with pytest.raises(StorageUnavailable, match="is listed, and reading it finds nothing"):
        collector.collect_once()
    assert {info.path for info in store.list("ingest")} >= set(locations)


def test_what_was_named_since_the_pass_looked_stays() -> None:
    """A late append between the second look and the delete: the manifest is read once more before each chunk."""
    store = MemoryStore()
    used(store)
    orphan = put_batch(store, batch_name(1_000))

    class Slow(CountingStore):
        reads = 0

        def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
            self.reads += 1
            if self.reads == 3:  # the pass has looked twice
                append(store, orphan)
            return super().get(path, max_bytes=max_bytes)

    report = GarbageCollector(Slow(store), grace_seconds=0).collect_once()

    assert report.deleted == ()
    assert store.head(orphan).size > 0


def test_beside_a_manifest_that_never_had_an_entry_nothing_is_garbage(caplog: pytest.LogCaptureFixture) -> None:
    """One letter wrong in its path, and every batch of a buffer in use would be."""
    store = MemoryStore()
    fill(store, 3, time_ms=T0)
    before = paths(store)

    with Consumer.open(store, "ingest/manifset", gc_interval=0.01, clock=lambda: T0 / 1000 + DAY):
        deadline = time.monotonic() + 30
        while "is the manifest's path right?" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"ingest/manifset never had an entry: .* Nothing was deleted"):
            GarbageCollector(store, "ingest/manifset").collect_once(dry_run=dry_run)

    assert "ingest/manifset never had an entry" in caplog.text
    assert paths(store) == before | {"ingest/manifset"}


def test_an_empty_place_is_collected_without_a_word() -> None:
    store = MemoryStore()
    Consumer.open(store, gc_interval=None)
    put_batch(store, batch_name(T0))  # of a producer that is just at work

    assert collector(store, 600).collect_once().deleted == ()


@pytest.mark.parametrize("name", ["00000000000000000000", "retention"])
def test_a_damaged_object_among_the_ranges_is_named_with_what_to_do(name: str) -> None:
    store = MemoryStore()
    planned_and_acked(store)
    store.put(f"ingest/ranges/{name}", b"{")

    with pytest.raises(CorruptData, match=f"Restore the object ingest/ranges/{name}, or move it away"):
        collector(store, DAY).collect_once()


def test_it_tidies_below_its_own_folder_only(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    fill(store, 1)
    name = f".tmp-{'0' * 32}"
    (tmp_path / "other").mkdir()
    for folder in ("ingest", "other"):
        (tmp_path / folder / name).write_bytes(b"half")
        os.utime(tmp_path / folder / name, (0, 0))

    GarbageCollector(store).collect_once()

    assert [folder for folder in ("ingest", "other") if (tmp_path / folder / name).exists()] == ["other"]
