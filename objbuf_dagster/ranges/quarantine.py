"""Batches that ranges land without, because a person said so.

A batch that cannot be read stops its range, and the frontier with it. Recording it here lets the range land without it;
nothing else does. `<data prefix>/ranges/quarantine` is one small JSON object for the whole buffer: made if absent,
changed by compare-and-swap, deleted by nobody. An ack never touches it, nor does garbage collection, to which a
quarantined batch is one like any other of its range.

A batch that was brought back stays in the object as such: its range, when it lands next, knows by that to take its dead
letter away. Landings compare what they know of the object with what it says right before each of their commits, so
that one which began before a change does not commit after it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    InvalidInput,
    NotFound,
    StorageUnavailable,
    UnsupportedVersion,
    shown,
)
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.protocol.model import MAX_U64
from objbuf_dagster.protocol.range_object import RANGES_FOLDER, parse_json
from objbuf_dagster.store import Store, check_path

MAX_REASON = 1000
"""Characters."""

_VERSION = 1
_WHAT = "quarantine object"
_MAX_BYTES = 16 << 20
_MAX_LOCATION = 65_535
_I63 = 2**63
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A batch that somebody quarantined.

    at_ms: when. undone_at_ms: when it was brought back; None while it is quarantined.
    """

    sequence: int
    location: str
    reason: str
    at_ms: int
    undone_at_ms: int | None = None

    @property
    def active(self) -> bool:
        return self.undone_at_ms is None


@dataclass(frozen=True, slots=True)
class Quarantine:
    """All batches that were ever quarantined, by rising sequence, each once."""

    batches: tuple[Quarantined, ...] = ()

    @property
    def active(self) -> tuple[Quarantined, ...]:
        """Those that ranges land without."""
        return tuple(one for one in self.batches if one.active)

    def get(self, sequence: int) -> Quarantined | None:
        return next((one for one in self.batches if one.sequence == sequence), None)

    def of(self, planned: RangeObject) -> tuple[Quarantined, ...]:
        """Those of a range, also those that were brought back.

        Raises BufferReplaced if one was recorded with another location: it is another buffer's.
        """
        found = tuple(one for one in self.batches if planned.start <= one.sequence <= planned.end)
        for one in found:
            location = planned.batches[one.sequence - planned.start].descriptor.location
            if location != one.location:
                raise BufferReplaced(
                    f"sequence {one.sequence} was quarantined as {shown(one.location)}, but is {shown(location)} in "
                    "its range"
                )
        return found

    def with_(self, changed: Quarantined) -> Quarantine:
        others = [one for one in self.batches if one.sequence != changed.sequence]
        return Quarantine(tuple(sorted([*others, changed], key=lambda one: one.sequence)))

    def to_bytes(self) -> bytes:
        batches = [
            {
                "sequence": one.sequence,
                "location": one.location,
                "reason": one.reason,
                "at_ms": one.at_ms,
                "undone_at_ms": one.undone_at_ms,
            }
            for one in self.batches
        ]
        return json.dumps({"version": _VERSION, "batches": batches}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Quarantine:
        """Raises UnsupportedVersion or CorruptData, and nothing else, whatever the bytes."""
        document = parse_json(data, _WHAT)
        if not isinstance(document, dict):
            raise CorruptData(_WHAT, "it is not an object")
        if type(document.get("version")) is not int or document["version"] != _VERSION:
            raise UnsupportedVersion(_WHAT, document.get("version"), _VERSION)
        batches = document.get("batches")
        if not isinstance(batches, list):
            raise CorruptData(_WHAT, "'batches' is not a list")
        found = tuple(_batch(item) for item in batches)
        if any(one.sequence >= after.sequence for one, after in pairwise(found)):
            raise CorruptData(_WHAT, "sequences do not rise")
        return cls(found)


def quarantine_path(data_prefix: str) -> str:
    """Among the ranges, so that it goes where they go; it is no name of a range."""
    return f"{data_prefix}/{RANGES_FOLDER}/quarantine"


class QuarantineLedger:
    """Access to the quarantine of one buffer. Holds no state: the object is the truth."""

    def __init__(
        self, store: Store, data_prefix: str = DEFAULT_DATA_PREFIX, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._path = quarantine_path(check_path(data_prefix))
        self._clock = clock

    def read(self) -> Quarantine:
        """What is recorded: one GET. Raises CorruptData, UnsupportedVersion."""
        return self._read()[0]

    def add(self, sequence: int, location: str, reason: str) -> tuple[Quarantined, bool]:
        """Quarantine a batch; returns what is recorded of it, and whether this call did it.

        One that is quarantined stays as it is, with its first reason. Safe to repeat, whatever happened, and from many
        at once. That the batch is one of the buffer's is for the caller to see to.

        Raises InvalidInput for a reason that is empty or too long, BufferReplaced if the sequence is recorded with
        another location.
        """
        reason = reason.strip()
        if not reason or len(reason) > MAX_REASON or not _is_unicode(reason):
            raise InvalidInput(f"a reason is a text of 1 to {MAX_REASON} characters")

        def change(before: Quarantined | None) -> Quarantined | None:
            if before is not None and before.location != location:
                raise BufferReplaced(
                    f"sequence {sequence} was quarantined as {shown(before.location)}, and now is {shown(location)}"
                )
            if before is not None and before.active:
                return None
            return Quarantined(sequence, location, reason, self._later_than(before))

        found, changed = self._change(sequence, change)
        if found is None:  # `change` adds one where there is none
            raise InvalidInput(f"sequence {sequence} was not recorded")
        return found, changed

    def undo(self, sequence: int) -> tuple[Quarantined | None, bool]:
        """Bring a batch back; returns what is recorded of it, and whether this call did it. Safe to repeat."""

        def change(before: Quarantined | None) -> Quarantined | None:
            if before is None or not before.active:
                return None
            return replace(before, undone_at_ms=self._later_than(before))

        return self._change(sequence, change)

    def _later_than(self, before: Quarantined | None) -> int:
        """Now; but a batch that comes and goes is never what it was before, whatever the clock says."""
        now = int(self._clock() * 1000)
        return now if before is None else max(now, before.at_ms + 1, (before.undone_at_ms or before.at_ms) + 1)

    def _read(self) -> tuple[Quarantine, str | None]:
        try:
            blob = self._store.get(self._path, max_bytes=_MAX_BYTES)
        except NotFound:
            return Quarantine(), None
        try:
            return Quarantine.from_bytes(blob.data), blob.version
        except CorruptData as error:
            raise CorruptData(
                _WHAT,
                f"{error.reason}. Nothing lands like this; once it is moved away, batches that were quarantined stop "
                "their ranges until they are so anew",
                offset=error.offset,
                path=self._path,
            ) from None

    def _change(
        self, sequence: int, change: Callable[[Quarantined | None], Quarantined | None]
    ) -> tuple[Quarantined | None, bool]:
        """Compare-and-swap until it holds; what somebody else recorded in the meantime stays."""
        mine: Quarantined | None = None
        for _ in range(_ATTEMPTS):
            known, version = self._read()
            before = known.get(sequence)
            changed = change(before)
            if changed is None:
                return before, before is not None and before == mine  # our own put, whose answer was lost
            mine = changed
            data = known.with_(changed).to_bytes()
            if len(data) > _MAX_BYTES:
                raise InvalidInput(
                    f"more than {_MAX_BYTES} bytes of quarantined batches: something is wrong with more than single "
                    "ones, find out what"
                )
            if self._store.put(self._path, data, if_version=version, if_absent=version is None) is None:
                return changed, True
        raise StorageUnavailable(f"others changed {self._path} {_ATTEMPTS} times in between: try again later")


def _batch(item: Any) -> Quarantined:
    if not isinstance(item, dict):
        raise CorruptData(_WHAT, "a batch is not an object")
    undone = None if item.get("undone_at_ms") is None else _whole(item, "undone_at_ms", -_I63, _I63 - 1)
    return Quarantined(
        _whole(item, "sequence", 0, MAX_U64),
        _text(item, "location", _MAX_LOCATION),
        _text(item, "reason", MAX_REASON),
        _whole(item, "at_ms", -_I63, _I63 - 1),
        undone,
    )


def _whole(fields: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not least <= value <= most:
        raise CorruptData(_WHAT, f"{key!r} is not a whole number from {least} to {most}")
    return value


def _text(fields: Mapping[str, Any], key: str, longest: int) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= longest or not _is_unicode(value):
        raise CorruptData(_WHAT, f"{key!r} is not a text of 1 to {longest} characters")
    return value


def _is_unicode(text: str) -> bool:
    """JSON can spell half a surrogate pair, which no table can take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
