"""Counters, gauges and histograms of one producer, consumer, decoding or sensor, by the names of PROTOCOL.md.

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
REGULATOR_BUDGET_BYTES = "regulator.budget_bytes"
REGULATOR_RHO = "regulator.rho"
REGULATOR_PRESSURE = "regulator.pressure"
REGULATOR_HELD = "regulator.held"
REGULATOR_IN_FLIGHT = "regulator.in_flight"
REGULATOR_IN_FLIGHT_BYTES = "regulator.in_flight_bytes"
REGULATOR_CATCH_UP_SECONDS = "regulator.catch_up_seconds"

REGULATOR = (
    REGULATOR_BUDGET_BYTES,
    REGULATOR_RHO,
    REGULATOR_PRESSURE,
    REGULATOR_HELD,
    REGULATOR_IN_FLIGHT,
    REGULATOR_IN_FLIGHT_BYTES,
    REGULATOR_CATCH_UP_SECONDS,
)
"""The sensor's gauges; its observations have the same names without what is before the dot. Not a number: not known."""


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

    def conflict_rate(self, role: str) -> float | None:
        """Percent of this role's manifest writes that met a conflict; None if there was no write."""
        writes, conflicts = (self.counter(f"{name}{{role={role}}}") for name in (MANIFEST_WRITES, MANIFEST_CONFLICTS))
        return min(100.0, 100.0 * conflicts / writes) if writes else None

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(dict(self._counters), dict(self._gauges), dict(self._histograms))
