"""How long acked ranges stay replayable, and since when they no longer are.

Range objects never change and an ack writes nothing but the manifest, so nobody notes when a range was acked. Garbage
collection does instead: each pass records the frontier it saw, with the time, in one small object beside the ranges. A
frontier seen longer ago than the retention proves that everything before it was acked at least that long ago; then, and
before anything is deleted, the same object says what has expired, and since when.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from objbuf_dagster.errors import CorruptData, NotFound, UnsupportedVersion
from objbuf_dagster.protocol.range_object import parse_json
from objbuf_dagster.store import Store

DEFAULT_RETENTION_SECONDS = 7 * 24 * 3600.0
RANGES_FOLDER = "ranges"
_VERSION = 1
_WHAT = "retention object"
_MAX_BYTES = 1 << 20
_MARKS_PER_RETENTION = 200
"""Frontiers kept for one retention time; more would not make expiry noticeably more exact."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The frontier (first sequence not acked) that garbage collection saw at a time."""

    at_ms: int
    frontier: int


@dataclass(frozen=True, slots=True)
class Retention:
    """Ranges that end before `expired_before` have expired, the last of them at `expired_at_ms`.

    `retention_seconds` is the setting of whoever collected last, so that a person who collects by hand can keep to it.
    """

    expired_before: int = 0
    expired_at_ms: int = 0
    retention_seconds: float = DEFAULT_RETENTION_SECONDS
    marks: tuple[Mark, ...] = ()

    def observe(self, frontier: int, now_ms: int, retention_seconds: float) -> Retention:
        """What follows from seeing `frontier` now; the same value if nothing does."""
        marks = self.marks
        apart_ms = retention_seconds * 1000 / _MARKS_PER_RETENTION
        if not marks or (frontier > marks[-1].frontier and now_ms - marks[-1].at_ms >= apart_ms):
            marks = (*marks, Mark(now_ms, frontier))
        due = [mark for mark in marks if mark.at_ms <= now_ms - retention_seconds * 1000]
        if due:
            marks = tuple(mark for mark in marks if mark not in due[:-1])
        if due and due[-1].frontier > self.expired_before:
            return Retention(due[-1].frontier, now_ms, retention_seconds, marks)
        return Retention(self.expired_before, self.expired_at_ms, retention_seconds, marks)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "version": _VERSION,
                "expired_before": self.expired_before,
                "expired_at": self.expired_at_ms,
                "retention_seconds": self.retention_seconds,
                "marks": [[mark.at_ms, mark.frontier] for mark in self.marks],
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Retention:
        """Raises UnsupportedVersion or CorruptData."""
        document = parse_json(data, _WHAT)
        if not isinstance(document, dict):
            raise CorruptData(_WHAT, "it is not an object")
        if type(document.get("version")) is not int or document["version"] != _VERSION:
            raise UnsupportedVersion(_WHAT, document.get("version"), _VERSION)
        try:
            before, at, seconds, marks = (
                document[key] for key in ("expired_before", "expired_at", "retention_seconds", "marks")
            )
            return cls(
                _whole(before), _whole(at), float(seconds), tuple(Mark(_whole(at), _whole(seen)) for at, seen in marks)
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptData(_WHAT, f"a field is missing or of the wrong kind: {error!r}") from None


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def retention_path(data_prefix: str) -> str:
    return f"{data_prefix}/retention"


def read_retention(store: Store, data_prefix: str) -> tuple[Retention, str | None]:
    """What is recorded, and its version (None if nothing is)."""
    try:
        blob = store.get(retention_path(data_prefix), max_bytes=_MAX_BYTES)
    except NotFound:
        return Retention(), None
    return Retention.from_bytes(blob.data), blob.version
