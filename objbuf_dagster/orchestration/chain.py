"""Whether the ranges, the manifest and what Dagster knows are of one buffer. What is not is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import dagster as dg

from objbuf_dagster.errors import BufferReplaced, InvalidInput, NotFound, shown
from objbuf_dagster.orchestration.cursor import Cursor
from objbuf_dagster.orchestration.materialised import last_batch
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange, check_against, range_of


def last_partition(
    instance: dg.DagsterInstance, source: BufferSource, ledger: RangeLedger
) -> tuple[SequenceRange | None, RangeObject | None]:
    """The last range that Dagster knows of, which must be one of this buffer's, and its object, unless it expired.

    The last by its sequences: one that was deleted and added again is the last in Dagster's list. A key that is no
    range, which somebody added by hand, is left aside, as a run of it is: no tick plans, starts or acks it.
    """
    known = max(_ranges(instance.get_dynamic_partitions(str(source.partitions.name))), default=None)
    if known is None:
        return None, None
    starts = ledger.starts()
    there: RangeObject | None = None
    if starts and starts[0] <= known.start:
        try:
            there = ledger.at(known.start)
        except NotFound:
            there = None
    elif starts:
        return known, None  # older than all that is retained
    if there is None or range_of(there) != known:
        raise InvalidInput(
            f"Dagster has a partition {known}, and this buffer has no such range. If somebody added it by hand, delete "
            f"it. Else the partitions {source.partitions.name!r} are of another buffer, or this one was made anew: "
            "give it another DAGSTER_HOME, or the source another name. The buffer was not taken over"
        )
    return known, there


def _ranges(keys: Iterable[str]) -> Iterator[SequenceRange]:
    for key in keys:
        with contextlib.suppress(InvalidInput):
            yield SequenceRange.from_key(key)


def check_chain(manifest: Manifest, tail: RangeObject | None) -> None:
    """The last range must be one of this manifest's. Raises BufferReplaced."""
    if tail is None:
        return
    if tail.end >= manifest.next_sequence:
        raise BufferReplaced(f"its next sequence is {manifest.next_sequence}, but range {range_of(tail)} is planned")
    check_against(manifest, tail)


def went_back(manifest: Manifest, cursor: Cursor) -> BufferReplaced:
    """Sequences and epochs of a buffer never fall."""
    return BufferReplaced(
        f"its next sequence is {manifest.next_sequence} and its epoch {manifest.epoch}, but sequence "
        f"{cursor.next_sequence - 1} and epoch {cursor.epoch} were there before"
    )


def still_there(
    ledger: RangeLedger, known: SequenceRange | None, batch: str | None, at_hand: Iterable[RangeObject] = ()
) -> RangeObject | None:
    """The object of a range that was seen before, with the last batch it had then; None if it has expired.

    The epochs of a buffer that was made anew begin again, so holding the right one proves nothing. Raises
    BufferReplaced if the range is another one now, or is gone and has not expired.
    """
    if known is None:
        return None
    found = next((one for one in at_hand if one.start == known.start), None)
    if found is None:
        try:
            found = ledger.at(known.start)
        except NotFound:
            if batch is None or known.end < ledger.retention().expired_before:
                return None
            raise BufferReplaced(f"range {known} was there before, and is gone although it has not expired") from None
    if range_of(found) != known or (batch is not None and last_batch(found) != batch):
        before = "" if batch is None else f" with the last batch {shown(batch)}"
        raise BufferReplaced(
            f"range {known} was there before{before}, and now it is {range_of(found)} with {shown(last_batch(found))}"
        )
    return found
