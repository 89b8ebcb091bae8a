"""The range objects: a chain that planners extend and nobody rewrites.

`<data prefix>/ranges/<start, 20 digits>` is created if absent and never changed. The next range starts where the last
one ended, so planners who race want the same name; one wins, and the other adopts what it finds. There is no lock, no
owner and no state besides the objects.

Only where somebody acks what is not planned yet do planners begin at different places, and can make two ranges that
overlap. Then each was written before the other was seen. So everybody who comes to know of a range looks whether
another one overlaps with it, and does not use it then: at most one of the two is used, by who came before the other was
there. Neither is deleted, since nobody here can tell which one that is; a person can.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from itertools import pairwise

from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX
from objbuf_dagster.buffer.retention import Retention, read_retention
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    InvalidInput,
    NotFound,
    RangeExpired,
    RangeNotPlanned,
    RangesOverlap,
    StorageUnavailable,
    naming,
    shown,
)
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.protocol.range_object import MAX_RANGE_OBJECT_BYTES, RANGES_FOLDER, range_path, range_start
from objbuf_dagster.ranges.key import SequenceRange
from objbuf_dagster.store import RetryPolicy, Store, check_conditions, check_path

_READERS = 16
_PUTS = RetryPolicy(attempts=6, base_seconds=0.05, cap_seconds=1.0)


class RangeLedger:
    """Access to the range objects of one buffer. Holds no state: the objects are the truth.

    Locations in them are checked by whoever fetches, so that one bad batch fails its range and no other.
    """

    def __init__(self, store: Store, data_prefix: str = DEFAULT_DATA_PREFIX) -> None:
        self._store = store
        self.data_prefix = check_path(data_prefix)

    def create(self, planned: RangeObject, *, behind: RangeObject | None = None) -> RangeObject:
        """Add this range to the chain, or adopt the one that somebody else put there first. Safe to repeat.

        `behind` is the range that it follows, as far as the caller knows.

        Raises BufferReplaced if the other one names other batches for the same sequences, and StorageUnavailable, with
        nothing added, if another range holds some of its sequences: whoever acks what is not planned lets planners
        begin at different places, and the one who looked at the manifest later is right. Raises RangesOverlap if that
        one came while this was added.
        """
        data = planned.to_bytes()
        if len(data) > MAX_RANGE_OBJECT_BYTES:
            raise InvalidInput(
                f"the object of range {range_of(planned)} would be too large to read: plan fewer batches"
            )
        starts = self._starts_around(planned, behind)
        is_new = planned.start not in starts
        if is_new and (other := self._overlapping(planned, starts)):
            raise StorageUnavailable(
                f"range {range_of(planned)} would overlap with the one that starts at {other.start}: sequences were "
                "acked before they were planned, while this was planning. Plan again"
            )
        check_conditions(self._store, self.data_prefix)
        winner = self._put_or_adopt(planned, data)
        if winner != planned:
            compare_locations(winner, {b.descriptor.sequence: b.descriptor.location for b in planned.batches})
        if is_new:
            starts = self._starts_around(winner, behind)
        if other := self._overlapping(winner, starts):
            earlier, later = sorted((range_of(winner), range_of(other)))
            raise overlap(self.data_prefix, earlier, later, starts)
        return winner

    def _put_or_adopt(self, planned: RangeObject, data: bytes) -> RangeObject:
        for attempt in range(1, _PUTS.attempts + 1):
            if self._store.put(range_path(self.data_prefix, planned.start), data, if_absent=True) is None:
                return planned
            try:
                return self.at(planned.start)
            except NotFound:  # S3 also refuses because of a request at work on the object, which may come to nothing
                time.sleep(_PUTS.pause(attempt))
        raise StorageUnavailable(
            f"range {range_of(planned)} can neither be written nor read: the store says that it is there, and that it "
            "is not; try again"
        )

    def _starts_around(self, planned: RangeObject, behind: RangeObject | None) -> Sequence[int]:
        """Where ranges start from this one on; all of them, if it leaves out sequences: then one may reach into it."""
        follows = planned.start == (0 if behind is None else behind.end + 1)
        return self.starts(planned.start if follows else 0)

    def _overlapping(self, planned: RangeObject, starts: Sequence[int]) -> RangeObject | None:
        before = [start for start in starts if start < planned.start][-1:]
        if before and (known := self._load_if_there(before[0])) and known.end >= planned.start:
            return known
        inside = (self._load_if_there(start) for start in starts if planned.start < start <= planned.end)
        return next(filter(None, inside), None)

    def read(self, wanted: SequenceRange) -> RangeObject:
        """The object of exactly this range. Raises RangeExpired, or RangeNotPlanned."""
        self.check_retained(wanted)
        try:
            found = self.at(wanted.start)
        except NotFound:
            hint = f"no range starts at {wanted.start}; `objbuf ranges list` shows them"
            raise RangeNotPlanned(wanted.key, hint) from None
        if found.end != wanted.end:
            raise RangeNotPlanned(wanted.key, f"the range that starts there is {range_of(found).key}")
        return found

    def list(self, since: int = 0, hint: SequenceRange | None = None, limit: int | None = None) -> list[RangeObject]:
        """The retained ranges that hold sequence `since` or later ones, in order; the first `limit` of them.

        `hint` is any range that the caller knows to be planned and to begin before `since`: what lies before it is not
        even listed then. Raises RangesOverlap.
        """
        starts = self.starts(hint.start) if hint is not None and hint.start <= since else []
        if not starts or hint is None or starts[0] != hint.start:  # no hint, or not one of this buffer's
            starts = self.starts()
        first = max(since, self.retention().expired_before) if starts else since
        starts = starts[max(0, bisect.bisect_right(starts, first) - 1) :]
        if limit is not None:
            starts = starts[: limit + 1]  # one of them may end before what is wanted
        with ThreadPoolExecutor(_READERS) as pool:
            found = [planned for planned in pool.map(self._load_if_there, starts) if planned is not None]
        check_disjoint(self.data_prefix, found, starts)
        return [planned for planned in found if planned.end >= first][:limit]

    def tail(self, hint: SequenceRange | None = None) -> RangeObject | None:
        """The last range of the chain, or None if nothing was ever planned. `hint` as in `list`.

        Raises RangesOverlap: who plans behind a range uses it.
        """
        starts = self.starts(hint.start) if hint is not None else []
        starts = starts or self.starts()
        before = [self._load_if_there(start) for start in starts[-2:-1]]
        last = [self.at(start) for start in starts[-1:]]
        check_disjoint(self.data_prefix, [*filter(None, before), *last], starts)
        return last[0] if last else None

    def starts(self, since: int = 0) -> Sequence[int]:
        """Where the ranges start, from sequence `since` on, in order: one listing, and no object is read."""
        after = range_path(self.data_prefix, since - 1) if since > 0 else None
        listed = self._store.list(f"{self.data_prefix}/{RANGES_FOLDER}", after=after)
        found = (range_start(self.data_prefix, info.path) for info in listed)
        return [start for start in found if start is not None]

    def retention(self) -> Retention:
        """What has expired, and since when: one GET."""
        return read_retention(self._store, self.data_prefix)[0]

    def check_retained(self, wanted: SequenceRange) -> None:
        """Raises RangeExpired if the range's batches may be gone."""
        retention = self.retention()
        if wanted.end < retention.expired_before:
            since_ms, seconds = retention.expiry_of(wanted.end)
            raise RangeExpired(wanted.key, since_ms=since_ms, since=utc(since_ms), retention_seconds=seconds)

    def _load_if_there(self, start: int) -> RangeObject | None:
        try:
            return self.at(start)
        except NotFound:
            return None  # expired since it was listed

    def at(self, start: int) -> RangeObject:
        """The range that starts at this sequence, expired or not. Raises NotFound."""
        path = range_path(self.data_prefix, start)
        data = self._store.read(path, max_bytes=MAX_RANGE_OBJECT_BYTES)
        with naming(path):
            found = RangeObject.from_bytes(data)
            if found.start != start:
                raise CorruptData("range object", f"it says that it starts at {found.start}")
        return found


def range_of(planned: RangeObject) -> SequenceRange:
    return SequenceRange(planned.start, planned.end)


def check_disjoint(data_prefix: str, ranges: Sequence[RangeObject], starts: Sequence[int] = ()) -> None:
    """That no two of these, which rise, hold the same sequence: raises RangesOverlap. `starts`: of all there are."""
    for one, following in pairwise(ranges):
        if following.start <= one.end:
            raise overlap(data_prefix, range_of(one), range_of(following), starts)


def overlap(
    data_prefix: str, earlier: SequenceRange, later: SequenceRange, starts: Sequence[int] = ()
) -> RangesOverlap:
    """The error, with which of the two is to go: who planned behind one had looked, so it is that one which is used."""
    gone, kept = (later, earlier)
    if later.end + 1 in starts and earlier.end + 1 not in starts:
        gone, kept = kept, gone
    paths = range_path(data_prefix, gone.start), range_path(data_prefix, kept.start)
    return RangesOverlap(earlier.key, later.key, unused=gone.key, path=paths[0], other_path=paths[1])


def compare_locations(planned: RangeObject, known: dict[int, str]) -> None:
    """Where a range and the manifest both know a sequence, they must name the same batch. Raises BufferReplaced."""
    for batch in planned.batches:
        sequence, location = batch.descriptor.sequence, batch.descriptor.location
        if known.get(sequence, location) != location:
            raise BufferReplaced(
                f"sequence {sequence} is {shown(known[sequence])} in the manifest, but {shown(location)} in range "
                f"{range_of(planned)}"
            )


def utc(time_ms: int) -> str:
    """A time from outside, to the second, if it is one."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
