"""How far to ack."""

from __future__ import annotations

from collections.abc import Container, Iterable

from objbuf_dagster.ranges.key import SequenceRange


def frontier(current: int, ranges: Iterable[SequenceRange], materialised: Container[SequenceRange]) -> int:
    """Where the frontier (the first sequence not acked) may go: behind the longest unbroken run of materialised ranges.

    Never below `current`. A hole between ranges, or a range that is not materialised, ends the run, whatever lies
    behind. The caller acks with `ack_through(result - 1)` if the result is above `current`.

    >>> done = {SequenceRange(0, 4), SequenceRange(5, 9), SequenceRange(20, 29)}
    >>> frontier(0, [*done, SequenceRange(10, 19)], done)
    10
    """
    for planned in sorted(ranges):
        if planned.end < current:
            continue
        if planned.start > current or planned not in materialised:
            break
        current = planned.end + 1
    return current
