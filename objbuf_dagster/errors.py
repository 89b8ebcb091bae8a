"""One tree of exceptions: catch `ObjbufError` and nothing of this package escapes you.

A subclass exists only where a caller acts differently. The last word of each docstring says how: *retry* (the same
call, later), *restart* (open the consumer again), or *give up* (a person or other input is needed). Errors carry
typed attributes and survive pickling, since Spark carries them between processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_SHOWN = 200


def shown(text: str) -> str:
    """Text from outside, fit for a message: on one line, printable, and not too long."""
    part = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return part if part.isprintable() else repr(part)[1:-1][: 2 * _SHOWN]


class ObjbufError(Exception):
    """Base of every error that this package raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ObjbufError], args: tuple[Any, ...], state: dict[str, Any]) -> ObjbufError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidInput(ObjbufError):
    """The caller asked for something that can never work; nothing was changed. Correct the call: give up."""


class CorruptData(ObjbufError):
    """Bytes are not what the format says. Reading them again will not help: give up.

    path: of the object, where whoever found the damage knows it.
    """

    def __init__(self, what: str, reason: str, *, offset: int | None = None, path: str | None = None) -> None:
        where = "" if offset is None else f" at byte {offset}"
        remedy = "" if path is None else f". Restore the object {shown(path)}, or move it away"
        super().__init__(f"{what} is corrupt{where}: {reason}{remedy}")
        self.what = what
        self.reason = reason
        self.offset = offset
        self.path = path


@contextlib.contextmanager
def naming(path: str | None) -> Iterator[None]:
    """Around the decoding of this object: damage is told with its path, if that is known."""
    try:
        yield
    except CorruptData as error:
        if path is None or error.path is not None:
            raise
        raise CorruptData(error.what, error.reason, offset=error.offset, path=path) from None


class UnsupportedVersion(ObjbufError):
    """A newer (or unknown) format version. This release cannot read it; upgrade: give up."""

    def __init__(self, what: str, version: object, supported: int) -> None:
        number = version if isinstance(version, int) else f"of type {type(version).__name__}"
        super().__init__(
            f"{what} has version {shown(str(number))}, this release reads version {supported}: "
            "upgrade objbuf-dagster, or find out who wrote it"
        )
        self.what = what
        self.version = version if isinstance(version, int) else None


class UnsupportedCompression(ObjbufError):
    """A compression code that this release does not know. Upgrade: give up."""

    def __init__(self, code: int) -> None:
        super().__init__(
            f"batch has compression {code}, this release reads 0 (none) and 1 (zstd): "
            "upgrade objbuf-dagster, or find out who wrote it"
        )
        self.code = code


class NotFound(ObjbufError):
    """There is no object at this path: give up."""

    def __init__(self, path: str, hint: str = "") -> None:
        super().__init__(f"there is no object '{shown(path)}'" + (f": {hint}" if hint else ""))
        self.path = path


class StorageError(ObjbufError):
    """The storage refused for a reason that will not pass by itself (rights, names, a full disk): give up.

    With `in_doubt` a write may have happened although nobody said so. Repeating it is safe where the call's contract
    says so.
    """

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt


class StorageUnavailable(StorageError):
    """The storage did not answer, or not well, and went on so for every attempt: retry."""


class Fenced(ObjbufError):
    """Another consumer took the buffer over; nothing was changed. Open again if this one should have it: restart.

    With `in_doubt` a write of the same call, before the other one took over, got no answer and may have happened.
    """

    def __init__(
        self,
        held: int,
        current: int,
        remedy: str = "Open a new consumer only if this process should own the buffer",
        *,
        in_doubt: bool = False,
    ) -> None:
        changed = (
            "What this call wrote before that may have happened, or not: its answer was lost"
            if in_doubt
            else "Nothing was changed"
        )
        super().__init__(
            f"another consumer took over: this one holds epoch {held}, the manifest says {current}. {changed}. {remedy}"
        )
        self.held = held
        self.current = current
        self.in_doubt = in_doubt


class OutOfOrderAck(ObjbufError):
    """An ack that would skip, repeat or run ahead of what was produced; nothing was changed: give up."""

    def __init__(self, message: str, *, expected: int, got: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got


class TimedOut(ObjbufError, TimeoutError):
    """The time given is up and the outcome is still open: retry."""


class SequenceGap(ObjbufError):
    """Sequences were dequeued before they were planned; they can be in no range: give up."""

    def __init__(
        self, first: int, last: int, remedy: str = "`objbuf ranges plan --skip-gap` goes on without them"
    ) -> None:
        super().__init__(
            f"sequences {first} to {last} left the manifest before they were planned: somebody acked them, by hand or "
            f"with another consumer. Find out who; {remedy}"
        )
        self.first = first
        self.last = last


class BufferReplaced(ObjbufError):
    """The manifest is not the one this state was made from: it was deleted and made anew: give up."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the buffer was deleted and made anew: {detail}. Nothing was changed. Move the old `ranges/` objects and "
            "the lake tables away before going on, or restore the old manifest"
        )


class RangeNotPlanned(ObjbufError):
    """No range object covers this range: plan it first, or correct the key: give up."""

    def __init__(self, key: str, hint: str) -> None:
        super().__init__(f"range {key} is not planned: {hint}")
        self.key = key


class RangesOverlap(ObjbufError):
    """Two ranges hold the same sequences, and at most one of them was used: a person takes the other away: give up.

    earlier, later: their keys. unused: the key of the one that has most likely not landed.
    """

    def __init__(self, earlier: str, later: str, *, unused: str, path: str, other_path: str) -> None:
        super().__init__(
            f"ranges {earlier} and {later} hold the same sequences: somebody acked sequences before they were planned, "
            f"while two planners were at work. Only one of them may land. Move the object {shown(path)} away, or, if "
            f"{unused} is the one that has landed, {shown(other_path)} instead; then go on"
        )
        self.earlier = earlier
        self.later = later
        self.unused = unused
        self.path = path
        self.other_path = other_path


class RangeExpired(ObjbufError):
    """The range was acked longer ago than the retention, and its batches may be gone: give up."""

    def __init__(self, key: str, *, since_ms: int, since: str, retention_seconds: float) -> None:
        super().__init__(
            f"range {key} expired at {since}: replay_retention is {retention_seconds:g} s after the ack, its batches "
            "may be deleted. Its rows are in the lake; to replay more next time, set a longer replay_retention"
        )
        self.key = key
        self.since_ms = since_ms
        self.retention_seconds = retention_seconds


class JobFailed(ObjbufError):
    """Spark ended a job: a process was killed, memory ran out. Nothing was committed; see what it says, then: retry."""


class CheckFailed(ObjbufError):
    """Rows written for a range are not what its batches say; nothing was committed. A defect, or a disk: give up.

    checks: all that were made of the range, `RangeCheck`s of `lake`, those that passed included.
    """

    def __init__(self, key: str, checks: tuple[Any, ...]) -> None:
        found = "; ".join(f"{check.name}: {check.description}" for check in checks if not check.passed)
        super().__init__(f"range {key} was written wrong, and nothing was committed: {found}")
        self.key = key
        self.checks = checks
