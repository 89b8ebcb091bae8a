"""Counters, gauges and histograms of one producer, consumer or decoding, by the names of PROTOCOL.md.

Held in memory and read as a snapshot; whoever exports them (an observation in Dagster, a log line, Prometheus) decides
when. A histogram keeps count, sum and largest value.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

BATCHES_FLUSHED = "buffer.batches_flushed"
ENTRIES_FLUSHED = "buffer.entries_flushed"
BYTES_FLUSHED = "buffer.bytes_flushed"
BYTES_WRITTEN = "buffer.bytes_written"
MANIFEST_WRITES = "buffer.manifest_writes"
MANIFEST_CONFLICTS = "buffer.manifest_conflicts"
BATCHES_COLLECTED = "buffer.batches_collected"
ENTRIES_COLLECTED = "buffer.entries_collected"
BYTES_COLLECTED = "buffer.bytes_collected"
DESCRIPTORS_HANDED_OUT = "buffer.descriptors_handed_out"
ACKS = "buffer.acks"
GC_FILES_DELETED = "buffer.gc_files_deleted"
GC_FILES_FAILED = "buffer.gc_files_failed"
QUEUE_LENGTH = "buffer.queue_length"
CONSUMER_LAG_SECONDS = "buffer.consumer_lag_seconds"
FLUSH_DURATION_SECONDS = "buffer.flush_duration_seconds"
FETCH_DURATION_SECONDS = "buffer.fetch_duration_seconds"
GC_DURATION_SECONDS = "buffer.gc_duration_seconds"
DECODED_ROWS = "decode.rows"
DECODED_DEAD_LETTERS = "decode.dead_letters"
DECODED_SKIPPED = "decode.skipped"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a histogram has seen."""

    count: int = 0
    total: float = 0.0
    largest: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values at one moment. A label is part of the name: `buffer.manifest_writes{role=producer}`."""

    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Summary] = field(default_factory=dict)


class Metrics:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: defaultdict[str, int] = defaultdict(int)
        self._gauges: dict[str, float] = {}
        self._histograms: defaultdict[str, Summary] = defaultdict(Summary)

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counters[name] += by

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        with self._lock:
            seen = self._histograms[name]
            self._histograms[name] = Summary(seen.count + 1, seen.total + value, max(seen.largest, value))

    def counter(self, name: str) -> int:
        with self._lock:
            return self._counters.get(name, 0)

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(dict(self._counters), dict(self._gauges), dict(self._histograms))
