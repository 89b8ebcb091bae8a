"""The range objects: a chain that planners extend and nobody rewrites.

`<data prefix>/ranges/<start, 20 digits>` is created if absent and never changed. The next range starts where the last
one ended, so planners who race want the same name; one wins, and the other adopts what it finds. There is no lock, no
owner and no state besides the objects.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX
from objbuf_dagster.buffer.retention import Retention, read_retention
from objbuf_dagster.errors import (
    BufferReplaced,
    CorruptData,
    InvalidInput,
    NotFound,
    RangeExpired,
    RangeNotPlanned,
    shown,
)
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.protocol.range_object import MAX_RANGE_OBJECT_BYTES, RANGES_FOLDER, range_path, range_start
from objbuf_dagster.ranges.key import SequenceRange
from objbuf_dagster.store import Store, check_path

_READERS = 16


class RangeLedger:
    """Access to the range objects of one buffer. Holds no state: the objects are the truth.

    Locations in them are checked by whoever fetches, so that one bad batch fails its range and no other.
    """

    def __init__(self, store: Store, data_prefix: str = DEFAULT_DATA_PREFIX) -> None:
        self._store = store
        self.data_prefix = check_path(data_prefix)

    def create(self, planned: RangeObject) -> RangeObject:
        """Add this range to the chain, or adopt the one that somebody else put there first. Safe to repeat.

        Raises BufferReplaced if the other one names other batches for the same sequences.
        """
        data = planned.to_bytes()
        if len(data) > MAX_RANGE_OBJECT_BYTES:
            raise InvalidInput(
                f"the object of range {range_of(planned)} would be too large to read: plan fewer batches"
            )
        if self._store.put(range_path(self.data_prefix, planned.start), data, if_absent=True) is None:
            return planned
        winner = self.at(planned.start)
        compare_locations(winner, {b.descriptor.sequence: b.descriptor.location for b in planned.batches})
        return winner

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
        even listed then.
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
        return [planned for planned in found if planned.end >= first][:limit]

    def tail(self, hint: SequenceRange | None = None) -> RangeObject | None:
        """The last range of the chain, or None if nothing was ever planned. `hint` as in `list`."""
        last = self.starts(hint.start)[-1:] if hint is not None else None
        last = last or self.starts()[-1:]
        return self.at(last[0]) if last else None

    def starts(self, since: int = 0) -> Sequence[int]:
        """Where the ranges start, from sequence `since` on, in order: one listing, and no object is read."""
        after = range_path(self.data_prefix, since - 1) if since > 0 else None
        listed = self._store.list(f"{self.data_prefix}/{RANGES_FOLDER}", after=after)
        found = (range_start(info.path) for info in listed)
        return [start for start in found if start is not None]

    def retention(self) -> Retention:
        """What has expired, and since when: one GET."""
        return read_retention(self._store, self.data_prefix)[0]

    def check_retained(self, wanted: SequenceRange) -> None:
        """Raises RangeExpired if the range's batches may be gone."""
        retention = self.retention()
        if wanted.end < retention.expired_before:
            since_ms = retention.expired_at_ms(wanted.end)
            raise RangeExpired(
                wanted.key,
                since_ms=since_ms,
                since=_utc(since_ms),
                retention_seconds=retention.retention_seconds,
            )

    def _load_if_there(self, start: int) -> RangeObject | None:
        try:
            return self.at(start)
        except NotFound:
            return None  # expired since it was listed

    def at(self, start: int) -> RangeObject:
        """The range that starts at this sequence, expired or not. Raises NotFound."""
        path = range_path(self.data_prefix, start)
        found = RangeObject.from_bytes(self._store.read(path, max_bytes=MAX_RANGE_OBJECT_BYTES))
        if found.start != start:
            raise CorruptData(f"range object {path}", f"it says that it starts at {found.start}")
        return found


def range_of(planned: RangeObject) -> SequenceRange:
    return SequenceRange(planned.start, planned.end)


def compare_locations(planned: RangeObject, known: dict[int, str]) -> None:
    """Where a range and the manifest both know a sequence, they must name the same batch. Raises BufferReplaced."""
    for batch in planned.batches:
        sequence, location = batch.descriptor.sequence, batch.descriptor.location
        if known.get(sequence, location) != location:
            raise BufferReplaced(
                f"sequence {sequence} is {shown(known[sequence])} in the manifest, but {shown(location)} in range "
                f"{range_of(planned)}"
            )


def _utc(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
