"""When garbage was first seen, by a clock that nobody can set: for stores without a clock of their own.

A directory tells the time of the machine that writes it, which may jump by an hour and back while a batch is between
its upload and its append: no time that is told of the batch says then how old it is. What does is that an earlier pass
has seen it, and how long ago that was by the time since the machine started. A batch that was there a grace period ago
is not appended any more, since producers stop at half of that, by such a clock too. So each pass notes what it takes
for garbage, and only what was noted a grace period before goes.

Every note is true for good, as names of batches are never used again: two collectors who overwrite each other's, a note
that is lost, damaged or of another machine, or of before a restart, let garbage wait for longer, and never too short.
"""

from __future__ import annotations

import functools
import json
import math
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from objbuf_dagster.errors import CorruptData, NotFound
from objbuf_dagster.protocol.range_object import parse_json
from objbuf_dagster.store import Store

_WHAT = "note of garbage"
_MAX_BYTES = 256 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> float:
    """Seconds that only ever go on, in sleep too where the system can tell them."""
    return time.clock_gettime(_UPTIME)


@functools.cache
def boot() -> str:
    """What `uptime` counts from. Where the system has no name for it, a process believes its own notes only."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Sightings:
    """When each path was first seen, in seconds of `uptime` since this boot."""

    first: dict[str, float] = field(default_factory=dict)

    def with_these(self, paths: Iterable[str], now: float) -> Sightings:
        """What is seen now: these and no others, each since it was first seen."""
        return Sightings({path: min(self.first.get(path, now), now) for path in paths})

    def to_bytes(self) -> bytes:
        return json.dumps({"boot": boot(), "first": self.first}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Sightings:
        """Nothing, if they are of another boot or machine. Raises CorruptData, whatever the bytes."""
        found = parse_json(data, _WHAT)
        if not isinstance(found, dict) or not isinstance(first := found.get("first"), dict):
            raise CorruptData(_WHAT, "it is no object with what was first seen")
        if not all(type(seconds) is float and math.isfinite(seconds) for seconds in first.values()):
            raise CorruptData(_WHAT, "a time is no number")
        return cls(first) if found.get("boot") == boot() else cls()


def read_sightings(store: Store, path: str) -> Sightings:
    """Those that can be used: a damaged note is as good as none."""
    try:
        return Sightings.from_bytes(store.read(path, max_bytes=_MAX_BYTES))
    except (NotFound, CorruptData):
        return Sightings()
