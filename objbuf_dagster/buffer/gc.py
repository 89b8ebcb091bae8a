"""Garbage collection: deletes the batches that nobody can ask for any more.

A batch may go only if all of this holds: its name is a ULID; no manifest entry names it; its time is before that of
the oldest manifest entry (with an empty manifest this falls away); it is older than the grace period; and no retained
range names it. The manifest is read first and the ranges after it: where ranges are planned, a batch leaves the
manifest only once its range is there, so whatever is not in the one is in the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH, ManifestStore
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.buffer.retention import (
    RANGES_FOLDER,
    Retention,
    read_retention,
    retention_path,
)
from objbuf_dagster.errors import BufferReplaced, Fenced, InvalidInput, NotFound, ObjbufError
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.protocol.ulid import batch_time_ms
from objbuf_dagster.store import LocalStore, ObjectInfo, Store

DEFAULT_INTERVAL_SECONDS = 300.0
DEFAULT_GRACE_SECONDS = 600.0
_MAX_RANGE_BYTES = 1 << 30
_DELETE_AT_ONCE = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a pass deleted, or (dry run) would have."""

    deleted: tuple[str, ...]
    bytes: int
    failed: dict[str, ObjbufError]
    expired_ranges: int


class GarbageCollector:
    """Collects one buffer, for the consumer that holds `epoch`; with `epoch=None`, for whoever asks (a person).

    grace_seconds: the age below which a batch is never garbage.
    retention_seconds: how long acked ranges stay; None: what the last collector used, 7 days if there was none.
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
    ) -> None:
        if grace_seconds < 0 or (retention_seconds or 0) < 0:
            raise InvalidInput("gc_grace_period and replay_retention must not be negative")
        self.metrics = metrics or Metrics()
        self._store = store
        self._manifest = ManifestStore(store, manifest_path, "consumer", self.metrics)
        self._prefix = data_prefix
        self._epoch = epoch
        self._grace_ms = grace_seconds * 1000
        self._retention_seconds = retention_seconds
        self._clock = clock
        self._named: dict[str, tuple[int, frozenset[str]]] = {}  # range objects never change: end and locations by path

    def collect_once(self, *, dry_run: bool = False) -> GcReport:
        """One pass. A dry run changes nothing, not even what is recorded of retention.

        Raises Fenced, with nothing deleted, if another consumer took the buffer over.
        """
        started = time.perf_counter()
        now_ms = int(self._clock() * 1000)
        manifest = self._manifest.read()
        if self._epoch is not None and manifest.epoch != self._epoch:
            raise Fenced(self._epoch, manifest.epoch)
        ranges = self._read_ranges()
        expired_before = self._expire(manifest.frontier, now_ms, dry_run) if ranges else 0
        spared = {entry.location for entry in manifest.entries()}
        oldest_ms = _oldest_ms(manifest)
        for end, locations in ranges.values():
            if end >= expired_before:
                spared |= locations
        garbage = [
            info
            for info in self._store.list(self._prefix)
            if self._is_garbage(info.path, oldest_ms, now_ms) and info.path not in spared
        ]
        # The newest range stays for good: planners find the end of the chain by it.
        expired = [path for path, (end, _) in sorted(ranges.items())[:-1] if end < expired_before]
        failed = {} if dry_run else self._delete(garbage, expired)
        self.metrics.observe(m.GC_DURATION_SECONDS, time.perf_counter() - started)
        gone = [info for info in garbage if info.path not in failed]
        return GcReport(tuple(info.path for info in gone), sum(info.size for info in gone), failed, len(expired))

    def run(self, stop: threading.Event, interval_seconds: float = DEFAULT_INTERVAL_SECONDS) -> None:
        """A pass per interval until `stop`, or until fenced. One that fails is logged, and the next one tries again."""
        while not stop.wait(interval_seconds):
            try:
                report = self.collect_once()
                _log.debug("garbage collection deleted %d batches", len(report.deleted))
            except Fenced as error:
                _log.warning("garbage collection stops: %s", error)
                return
            except Exception as error:  # noqa: BLE001  the thread must outlive whatever a store does
                _log.warning("garbage collection failed, it is tried again in %g s: %s", interval_seconds, error)

    def _is_garbage(self, path: str, oldest_ms: float | None, now_ms: int) -> bool:
        time_ms = batch_time_ms(path)
        if time_ms is None or "/" in path[len(self._prefix) + 1 :]:
            return False
        return (oldest_ms is None or time_ms < oldest_ms) and now_ms - time_ms > self._grace_ms

    def _read_ranges(self) -> dict[str, tuple[int, frozenset[str]]]:
        """All range objects that are there: their last sequence and what they name."""
        paths = [info.path for info in self._store.list(f"{self._prefix}/{RANGES_FOLDER}")]
        for path in paths:
            if path not in self._named:
                try:
                    found = RangeObject.from_bytes(self._store.read(path, max_bytes=_MAX_RANGE_BYTES))
                except NotFound:
                    continue  # expired by another collector since we listed it
                self._named[path] = found.end, frozenset(batch.descriptor.location for batch in found.batches)
        self._named = {path: self._named[path] for path in paths if path in self._named}
        return self._named

    def _expire(self, frontier: int, now_ms: int, dry_run: bool) -> int:
        """Record what this pass saw, and return the sequence before which ranges have expired."""
        recorded, version = read_retention(self._store, self._prefix)
        if recorded.expired_before > frontier:
            raise BufferReplaced(
                f"ranges before {recorded.expired_before} are expired, but {frontier} is not acked yet"
            )
        kept = recorded.retention_seconds if self._retention_seconds is None else self._retention_seconds
        seen = recorded.observe(frontier, now_ms, kept)
        if seen == recorded or dry_run:
            return seen.expired_before
        conflict = self._store.put(
            retention_path(self._prefix), seen.to_bytes(), if_version=version, if_absent=version is None
        )
        return _recorded_after_race(self._store, self._prefix) if conflict else seen.expired_before

    def _delete(self, garbage: list[ObjectInfo], expired: list[str]) -> dict[str, ObjbufError]:
        failed: dict[str, ObjbufError] = {}
        paths = [info.path for info in garbage]
        for start in range(0, len(paths), _DELETE_AT_ONCE):
            some = paths[start : start + _DELETE_AT_ONCE]
            try:
                failed |= self._store.delete(some)
            except ObjbufError as refused:
                failed |= dict.fromkeys(some, refused)
        self._store.delete(expired)
        if isinstance(self._store, LocalStore):
            self._store.tidy()
        self.metrics.count(m.GC_FILES_DELETED, len(paths) - len(failed))
        self.metrics.count(m.GC_FILES_FAILED, len(failed))
        for path, error in failed.items():
            _log.warning("garbage collection could not delete %s: %s", path, error)
        return failed


def _recorded_after_race(store: Store, data_prefix: str) -> int:
    """Somebody else recorded at the same time: only what is in the object counts."""
    recorded: Retention = read_retention(store, data_prefix)[0]
    return recorded.expired_before


def _oldest_ms(manifest: Manifest) -> float | None:
    """The time of the oldest entry, None for an empty manifest. If no entry's name tells one, nothing is old enough."""
    if not manifest.entry_count:
        return None
    times = (batch_time_ms(entry.location) for entry in manifest.entries())
    return min((time_ms for time_ms in times if time_ms is not None), default=float("-inf"))
