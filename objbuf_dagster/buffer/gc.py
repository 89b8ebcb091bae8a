"""Garbage collection: deletes the batches that nobody can ask for any more.

A batch may go only if all of this holds: its name is a ULID; no manifest entry names it; its time is before that of
the oldest manifest entry (with an empty manifest this falls away); it is older than the grace period; and no retained
range names it. The manifest is read first and the ranges after it: where ranges are planned, a batch leaves the
manifest only once its range is there, so whatever is not in the one is in the other.

A name tells its producer's clock, and both that and ours may be wrong: then a batch that is just on its way into the
manifest looks old. So what looks like garbage must also be older than the grace period by the store's own clock, and is
looked for in the manifest once more right before it goes. A store without a clock of its own, a directory, cannot say
that: there an earlier pass must have seen it, a grace period before (sightings.py). A producer of ours that took longer
than a few seconds looks whether its batch is still there before it says that it is durable; the default grace is for
those that do not. A range, too, expires only once both clocks, ours and the store's, say that its time is over; of a
directory they are one.

Beside a manifest that never had an entry, every batch looks like garbage: most likely its path is wrong, so nothing is.
What dead producers left before the first append goes after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH, ManifestStore
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.buffer.retention import Retention, read_retention, retention_path
from objbuf_dagster.buffer.sightings import Sightings, read_sightings, uptime
from objbuf_dagster.errors import (
    BufferReplaced,
    Fenced,
    InvalidInput,
    NotFound,
    ObjbufError,
    StorageUnavailable,
    naming,
)
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.protocol.range_object import MAX_RANGE_OBJECT_BYTES, RANGES_FOLDER, range_path, range_start
from objbuf_dagster.protocol.ulid import batch_time_ms
from objbuf_dagster.store import ObjectInfo, Store

DEFAULT_INTERVAL_SECONDS = 300.0
DEFAULT_GRACE_SECONDS = 600.0
_RANGE_OBJECTS_STAY_SECONDS = 24 * 3600.0
_CLOCK = f"{RANGES_FOLDER}/clock"
_READERS = 16
_DELETE_AT_ONCE = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a pass deleted and let expire, or (dry run) would have, and the retention that it kept to."""

    deleted: tuple[str, ...]
    bytes: int
    failed: dict[str, ObjbufError]
    expired_ranges: int
    retention_seconds: float


class GarbageCollector:
    """Collects one buffer, for the consumer that holds `epoch`; with `epoch=None`, for whoever asks (a person).

    grace_seconds: the age below which a batch is never garbage.
    retention_seconds: how long acked ranges stay; None: what the last owner used, 7 days if there was none. What a
        person gives is for this collector alone.
    """

    def __init__(
        self,
        store: Store,
        manifest_path: str = DEFAULT_MANIFEST_PATH,
        data_prefix: str = DEFAULT_DATA_PREFIX,
        *,
        epoch: int | None = None,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        retention_seconds: float | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = uptime,
    ) -> None:
        if grace_seconds < 0 or (retention_seconds or 0) < 0:
            raise InvalidInput("gc_grace_period and replay_retention must not be negative")
        self.metrics = metrics or Metrics()
        self._store = store
        self._manifest = ManifestStore(store, manifest_path, "consumer", self.metrics)
        self._prefix = data_prefix
        self._clock_path = f"{data_prefix}/{_CLOCK}"
        self.epoch = epoch
        self._grace_ms = grace_seconds * 1000
        self._retention_seconds = retention_seconds
        self._clock = clock
        self._uptime = uptime
        self._named: dict[int, tuple[int, frozenset[str]]] = {}  # what was read: range objects never change
        self._is_dated = False  # whether the store says when the ranges were written

    def collect_once(self, *, dry_run: bool = False, stop: threading.Event | None = None) -> GcReport:
        """One pass; `stop` ends it early. A dry run changes nothing, not even what is recorded of retention.

        Raises Fenced, with nothing (more) deleted, if another consumer took the buffer over, BufferReplaced if what is
        recorded of retention is not of this buffer, and InvalidInput for batches beside a manifest that never had any.
        """
        started = time.perf_counter()
        now_ms = int(self._clock() * 1000)
        manifest = self._read_manifest()
        ranges = self._read_ranges(stop)
        noted = None if self._store.has_own_clock else read_sightings(self._store, self._clock_path)
        store_ms = self._store_clock_ms(noted, stop) if self._is_dated and not dry_run else None
        # The later one was read after the manifest: its frontier may have been acked while this pass waited for it.
        clocks_ms = (now_ms, int(self._clock() * 1000) if store_ms is None else store_ms)
        before, retention = self._expire(manifest, clocks_ms, dry_run) if ranges else (0, Retention())
        garbage = self._garbage(self._store.list(self._prefix), manifest, ranges, retention, now_ms)
        if garbage and not manifest.next_sequence:
            raise InvalidInput(
                f"there are old batches below {self._prefix}/, but {self._manifest.path} never had an entry: is the "
                "manifest's path right? Nothing was deleted"
            )
        if dry_run:
            garbage = [info for info in garbage if self._is_old(info, now_ms)]
        elif garbage:
            up = self._uptime()
            seen = None if noted is None else noted.with_these((info.path for info in garbage), up)
            if seen is not None or (store_ms is None and any(info.modified_ms is not None for info in garbage)):
                store_ms = self._store_clock_ms(seen, stop)
            garbage = [info for info in garbage if self._is_old(info, store_ms)]
            if seen is not None:
                garbage = [info for info in garbage if (up - seen.first[info.path]) * 1000 >= self._grace_ms]
        if garbage and not dry_run:
            manifest, ranges = self._read_manifest(), self._read_ranges(stop)
            garbage = self._garbage(garbage, manifest, ranges, retention, now_ms)
        # The newest range stays for good: planners find the end of the chain by it. The others stay for some time after
        # their batches went, so that a planner who slept that long cannot take their names.
        gone_before = retention.gone_before(min(clocks_ms), _RANGE_OBJECTS_STAY_SECONDS)
        expired = [
            range_path(self._prefix, start) for start, (end, _) in sorted(ranges.items())[:-1] if end < gone_before
        ]
        gone, failed = (garbage, {}) if dry_run else self._delete(garbage, expired, stop)
        self.metrics.observe(m.GC_DURATION_SECONDS, time.perf_counter() - started)
        newly = sum(1 for end, _ in ranges.values() if before <= end < retention.expired_before)
        kept = self._retention_to_keep(retention)
        return GcReport(tuple(info.path for info in gone), sum(info.size for info in gone), failed, newly, kept)

    def run(self, stop: threading.Event, interval_seconds: float = DEFAULT_INTERVAL_SECONDS) -> None:
        """A pass per interval until `stop`, or until fenced. One that fails is logged, and the next one tries again."""
        while not stop.wait(interval_seconds):
            try:
                report = self.collect_once(stop=stop)
                _log.debug("garbage collection deleted %d batches", len(report.deleted))
            except Fenced as error:
                _log.warning("garbage collection stops: %s", error)
                return
            except _Stopped:
                return
            except BaseException as error:  # noqa: BLE001  a panic below is no Exception; the thread outlives it
                _log.warning("garbage collection failed, it is tried again in %g s: %r", interval_seconds, error)

    def _read_manifest(self) -> Manifest:
        manifest = self._manifest.read()
        if self.epoch is not None and manifest.epoch != self.epoch:
            raise Fenced(self.epoch, manifest.epoch)
        return manifest

    def _still_owned(self, stop: threading.Event | None) -> Manifest:
        """The manifest, before each write: a pass can take long, and who was fenced meanwhile changes nothing."""
        if stop is not None and stop.is_set():
            raise _Stopped
        return self._read_manifest()

    def _garbage(
        self,
        candidates: Iterable[ObjectInfo],
        manifest: Manifest,
        ranges: Mapping[int, tuple[int, frozenset[str]]],
        retention: Retention,
        now_ms: int,
    ) -> list[ObjectInfo]:
        spared = {entry.location for entry in manifest.entries()}
        for end, locations in ranges.values():
            if end >= retention.expired_before:
                spared |= locations
        oldest_ms = _oldest_ms(manifest)
        return [
            info for info in candidates if self._is_garbage(info.path, oldest_ms, now_ms) and info.path not in spared
        ]

    def _store_clock_ms(self, seen: Sightings | None, stop: threading.Event | None) -> int | None:
        """What time it is for the store: that of a note which it has just written. None if it does not say."""
        self._still_owned(stop)
        self._store.put(self._clock_path, b"" if seen is None else seen.to_bytes())
        return self._store.head(self._clock_path).modified_ms

    def _is_old(self, info: ObjectInfo, store_ms: int | None) -> bool:
        """By the store's clock; what it tells no time of is as old as its name says."""
        if info.modified_ms is None:
            return True
        return store_ms is not None and store_ms - info.modified_ms >= self._grace_ms

    def _is_garbage(self, path: str, oldest_ms: float | None, now_ms: int) -> bool:
        time_ms = batch_time_ms(path)
        if time_ms is None or "/" in path[len(self._prefix) + 1 :]:
            return False
        return (oldest_ms is None or time_ms < oldest_ms) and now_ms - time_ms > self._grace_ms

    def _read_ranges(self, stop: threading.Event | None) -> dict[int, tuple[int, frozenset[str]]]:
        """All range objects that are there, by their start: their last sequence and what they name."""
        starts = self._starts()

        def read(start: int) -> tuple[int, frozenset[str]] | None:
            if stop is not None and stop.is_set():
                raise _Stopped
            try:
                data = self._store.read(range_path(self._prefix, start), max_bytes=MAX_RANGE_OBJECT_BYTES)
            except NotFound:
                return None  # deleted by another collector since we listed it
            with naming(range_path(self._prefix, start)):
                found = RangeObject.from_bytes(data)
            return found.end, frozenset(batch.descriptor.location for batch in found.batches)

        new = [start for start in starts if start not in self._named]
        with ThreadPoolExecutor(_READERS) as pool:
            read_now = dict(zip(new, pool.map(read, new), strict=True))
        self._named |= {start: found for start, found in read_now.items() if found is not None}
        if missing := {start for start, found in read_now.items() if found is None}:
            # What one knows nothing of would be garbage: so whoever answers "not found" must also list it no more.
            still = sorted(missing & set(self._starts()))
            if still:
                path = range_path(self._prefix, still[0])
                raise StorageUnavailable(
                    f"{path} is listed, and reading it finds nothing: nothing was deleted, try again later"
                )
        self._named = {start: self._named[start] for start in starts if start in self._named}
        return self._named

    def _starts(self) -> list[int]:
        listed = [
            (start, info)
            for info in self._store.list(f"{self._prefix}/{RANGES_FOLDER}")
            if (start := range_start(self._prefix, info.path)) is not None
        ]
        self._is_dated = any(info.modified_ms is not None for _, info in listed)
        return [start for start, _ in listed]

    def _expire(self, manifest: Manifest, clocks_ms: tuple[int, int], dry_run: bool) -> tuple[int, Retention]:
        """Record what this pass saw; return before which sequence ranges had expired until now, and what holds now."""
        recorded, version = read_retention(self._store, self._prefix)
        if recorded.furthest > manifest.frontier:
            manifest = self._read_manifest()
            if recorded.furthest > manifest.frontier:
                raise BufferReplaced(
                    f"its ranges were acked up to {recorded.furthest}, but {manifest.frontier} is its frontier"
                )
            # Another pass saw a later frontier: our clocks were read before that was acked, and would date it back.
            return recorded.expired_before, recorded
        kept = self._retention_to_keep(recorded)
        seen = recorded.observe(manifest.frontier, min(clocks_ms), kept, latest_ms=max(clocks_ms))
        if self.epoch is None:  # a person, whose wish is not the owner's setting
            seen = replace(seen, retention_seconds=recorded.retention_seconds)
        if seen == recorded or dry_run:
            return recorded.expired_before, seen
        self._still_owned(None)
        conflict = self._store.put(
            retention_path(self._prefix), seen.to_bytes(), if_version=version, if_absent=version is None
        )
        # Somebody else recorded at the same time: only what is in the object counts.
        return recorded.expired_before, read_retention(self._store, self._prefix)[0] if conflict else seen

    def _retention_to_keep(self, recorded: Retention) -> float:
        return recorded.retention_seconds if self._retention_seconds is None else self._retention_seconds

    def _delete(
        self, garbage: list[ObjectInfo], expired: list[str], stop: threading.Event | None
    ) -> tuple[list[ObjectInfo], dict[str, ObjbufError]]:
        """What is gone of the garbage, and what could not be deleted."""
        sizes = {info.path: info for info in garbage}
        asked: list[str] = []
        failed: dict[str, ObjbufError] = {}
        for some in (*_chunks(list(sizes)), *_chunks(expired)):
            named = {entry.location for entry in self._still_owned(stop).entries()}
            chosen = [path for path in some if path not in named]
            asked += chosen
            try:
                failed |= self._store.delete(chosen)
            except ObjbufError as refused:
                failed |= dict.fromkeys(chosen, refused)
        self._store.tidy(self._prefix)
        gone = [sizes[path] for path in asked if path in sizes and path not in failed]
        self.metrics.count(m.GC_FILES_DELETED, len(gone))
        self.metrics.count(m.GC_FILES_FAILED, sum(path in sizes for path in failed))
        for path, error in failed.items():
            _log.warning("garbage collection could not delete %s: %s", path, error)
        return gone, failed


class _Stopped(Exception):
    """The consumer is closing: leave the rest to the next one."""


def _chunks(paths: list[str]) -> Iterator[list[str]]:
    return (paths[start : start + _DELETE_AT_ONCE] for start in range(0, len(paths), _DELETE_AT_ONCE))


def _oldest_ms(manifest: Manifest) -> float | None:
    """The time of the oldest entry, None for an empty manifest. If no entry's name tells one, nothing is old enough."""
    if not manifest.entry_count:
        return None
    times = (batch_time_ms(entry.location) for entry in manifest.entries())
    return min((time_ms for time_ms in times if time_ms is not None), default=float("-inf"))
