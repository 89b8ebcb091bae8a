"""How long acked ranges stay replayable, and since when they no longer are.

Range objects never change and an ack writes nothing but the manifest, so nobody notes when a range was acked. Garbage
collection does instead: each pass records the frontier it saw, with the time, in one small object among the ranges. A
frontier seen longer ago than the retention proves that everything before it was acked at least that long ago; then, and
before anything is deleted, the same object says what has expired, and since when.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from objbuf_dagster.errors import CorruptData, NotFound, UnsupportedVersion, naming
from objbuf_dagster.protocol.model import MAX_U64
from objbuf_dagster.protocol.range_object import RANGES_FOLDER, parse_json
from objbuf_dagster.store import Store

DEFAULT_RETENTION_SECONDS = 7 * 24 * 3600.0
_VERSION = 1
_WHAT = "retention object"
_MAX_BYTES = 1 << 20
_MARKS = 200
"""Marks kept of a kind; more would not make expiry noticeably more exact."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A frontier (first sequence not acked), and when garbage collection saw it, or let what is before it expire.

    retention_seconds: under which that expired, as far as it was noted: who collects by hand may give another one.
    """

    at_ms: int
    frontier: int
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """The frontiers that were seen and are not old enough, and those before which ranges have expired; both rising.

    `retention_seconds` is the setting of the owner who collected last, so that who collects by hand can keep to it.
    """

    retention_seconds: float = DEFAULT_RETENTION_SECONDS
    seen: tuple[Mark, ...] = ()
    expired: tuple[Mark, ...] = ()

    @property
    def expired_before(self) -> int:
        """Ranges that end before this sequence have expired."""
        return self.expired[-1].frontier if self.expired else 0

    @property
    def furthest(self) -> int:
        """The furthest frontier that was ever recorded."""
        return max(self.expired_before, self.seen[-1].frontier if self.seen else 0)

    def expiry_of(self, end: int) -> tuple[int, float]:
        """When a range with this last sequence expired (it must have), and under which retention."""
        mark = next(mark for mark in self.expired if end < mark.frontier)
        return mark.at_ms, self.retention_seconds if mark.retention_seconds is None else mark.retention_seconds

    def gone_before(self, now_ms: int, seconds: float) -> int:
        """Ranges that end before this sequence expired at least so many seconds ago."""
        return max((mark.frontier for mark in self.expired if mark.at_ms <= now_ms - seconds * 1000), default=0)

    def observe(
        self, frontier: int, now_ms: int, retention_seconds: float, *, latest_ms: int | None = None
    ) -> Retention:
        """What follows from seeing `frontier` now; an equal value if nothing does.

        Where clocks disagree it is between `now_ms` and `latest_ms`: marks are made by the latter and get old by the
        former, so that what either of them says wrongly lets nothing expire early.
        """
        latest_ms = now_ms if latest_ms is None else latest_ms
        # A clock that was ahead once must not keep everything for good: nothing was seen later than now.
        seen = tuple(replace(mark, at_ms=min(mark.at_ms, latest_ms)) for mark in self.seen)
        apart_ms = retention_seconds * 1000 / _MARKS
        if not seen or (frontier > seen[-1].frontier and latest_ms - seen[-1].at_ms >= apart_ms):
            seen = (*seen, Mark(latest_ms, frontier))
        due_ms = now_ms - retention_seconds * 1000 if retention_seconds else latest_ms  # no time needs no clock
        old = [mark for mark in seen if mark.at_ms <= due_ms]
        expired = self.expired
        if old:
            seen = tuple(mark for mark in seen if mark not in old[:-1])
            if old[-1].frontier > self.expired_before:
                expired = (*expired, Mark(latest_ms, old[-1].frontier, retention_seconds))
        if len(expired) > _MARKS:
            expired = expired[1:]  # what expired first is said to have expired with what came next
        return Retention(retention_seconds, seen, expired)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "version": _VERSION,
                "retention_seconds": self.retention_seconds,
                "seen": [[mark.at_ms, mark.frontier] for mark in self.seen],
                "expired": [
                    [mark.at_ms, mark.frontier, *([] if mark.retention_seconds is None else [mark.retention_seconds])]
                    for mark in self.expired
                ],
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Retention:
        """Raises UnsupportedVersion or CorruptData, and nothing else, whatever the bytes."""
        document = parse_json(data, _WHAT)
        if not isinstance(document, dict):
            raise CorruptData(_WHAT, "it is not an object")
        if type(document.get("version")) is not int or document["version"] != _VERSION:
            raise UnsupportedVersion(_WHAT, document.get("version"), _VERSION)
        try:
            return cls(_seconds(document["retention_seconds"]), _marks(document["seen"]), _marks(document["expired"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptData(_WHAT, f"a field is missing or of the wrong kind: {error!r}") from None


def _marks(found: Any) -> tuple[Mark, ...]:
    marks = tuple(
        Mark(_whole(at, -(2**63), 2**63 - 1), _whole(frontier, 0, MAX_U64), *map(_seconds, under))
        for at, frontier, *under in found
    )
    if any(one.frontier > following.frontier for one, following in pairwise(marks)):
        raise ValueError("frontiers must rise")
    return marks


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise TypeError("not a whole number in its bounds")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise TypeError("not a number of seconds")
    return float(value)


def retention_path(data_prefix: str) -> str:
    """Among the ranges, so that it goes where they go."""
    return f"{data_prefix}/{RANGES_FOLDER}/retention"


def read_retention(store: Store, data_prefix: str) -> tuple[Retention, str | None]:
    """What is recorded, and its version (None if nothing is)."""
    try:
        blob = store.get(retention_path(data_prefix), max_bytes=_MAX_BYTES)
    except NotFound:
        return Retention(), None
    with naming(retention_path(data_prefix)):
        return Retention.from_bytes(blob.data), blob.version
