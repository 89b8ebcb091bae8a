"""How to share out a row of things of known size: neighbours stay together, shares are about equal."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol import PlannedBatch, RangeObject

GET_BYTES = 64 << 10
"""What a GET costs, in bytes that could have been read instead: a share of a thousand tiny batches is not small."""

# What one Spark job gets, more or less: enough to keep a cluster busy, little enough for commits to come as it goes.
_JOB_BYTES = 4 << 30
_JOB_BATCHES = 10_000
_JOB_RANGES = 16


def cost(batch: PlannedBatch) -> int:
    """What it takes to land a batch, in bytes: the object, that it is fetched, and what the manifest says of it."""
    return GET_BYTES + (batch.size or 0) + sum(len(item.payload) for item in batch.descriptor.metadata)


def pack(sizes: Sequence[int], target: int, at_least: int = 1) -> list[range]:
    """Cut `sizes` into contiguous shares, as ranges of indices: together they are all of them, in order, none is empty.

    There are as many shares as `target` asks for, and no fewer than `at_least`, as far as there are things to share.
    No other way to cut into that many has a smaller largest share. `target` is no limit: shares are full things.

    >>> pack([5, 5, 5, 5], target=10)
    [range(0, 2), range(2, 4)]
    >>> pack([1, 1, 30], target=100, at_least=2)
    [range(0, 2), range(2, 3)]
    """
    if target < 1 or at_least < 1 or min(sizes, default=0) < 0:
        raise InvalidInput(f"packing needs a target and a least number above 0, and no negative sizes: {target=}")
    before = [0, *accumulate(sizes)]
    wanted = min(len(sizes), max(at_least, -(-before[-1] // target)))
    if wanted == 0:
        return []
    least, most = max(sizes), before[-1]
    while least < most:
        middle = (least + most) // 2
        if len(_fill(sizes, middle, wanted)) > wanted:
            least = middle + 1
        else:
            most = middle
    return _split(_fill(sizes, least, wanted), before, wanted)


def pack_for(sizes: Sequence[int], cores: int, target: int, worth: int) -> list[range]:
    """Shares for so many cores: as little as is worth a task, until all cores have one; then as much as `target`, in
    whole rounds, so that no core idles in the last."""
    total = sum(sizes)
    tasks = -(-total // target)
    at_least = min(-(-tasks // cores) * cores, -(-total // worth))
    return pack(sizes, target, max(at_least, 1))


def _fill(sizes: Sequence[int], limit: int, enough: int) -> list[range]:
    """The fewest shares of at most `limit`; stops as soon as they are more than `enough`."""
    shares: list[range] = []
    start = held = 0
    for index, size in enumerate(sizes):
        if held + size > limit:
            shares.append(range(start, index))
            start, held = index, 0
            if len(shares) > enough:
                return shares
        held += size
    return [*shares, range(start, len(sizes))]


def _split(shares: list[range], before: Sequence[int], wanted: int) -> list[range]:
    """The largest shares in two, again and again, until they are as many as wanted: filling up leaves the last ones."""
    waiting = [(_rank(share, before), share.start, share) for share in shares]
    heapq.heapify(waiting)
    while len(waiting) < wanted:
        share = heapq.heappop(waiting)[-1]
        middle = _middle(share, before)
        for part in (range(share.start, middle), range(middle, share.stop)):
            heapq.heappush(waiting, (_rank(part, before), part.start, part))
    return sorted((share for *_, share in waiting), key=lambda share: share.start)


def _rank(share: range, before: Sequence[int]) -> tuple[bool, int, int]:
    """First what can be split at all, then what is large, then what is many."""
    return len(share) == 1, before[share.start] - before[share.stop], -len(share)


def _middle(share: range, before: Sequence[int]) -> int:
    """Where the halves are about equal, by size and, where there is none, by number."""
    things = len(before)

    def weight(at: int) -> int:
        return before[at] * things + at

    half = (weight(share.start) + weight(share.stop)) // 2
    at = bisect.bisect_left(range(share.stop), half, lo=share.start, key=weight)
    if half - weight(at - 1) < weight(at) - half:
        at -= 1
    return min(max(at, share.start + 1), share.stop - 1)


def jobs(planned: Iterable[RangeObject]) -> Iterator[list[RangeObject]]:
    """Neighbours that share a Spark job."""
    job: list[RangeObject] = []
    batches = amount = 0
    for one in planned:
        full = batches + len(one.batches) > _JOB_BATCHES or amount + one.size > _JOB_BYTES or len(job) == _JOB_RANGES
        if job and full:
            yield job
            job, batches, amount = [], 0, 0
        job.append(one)
        batches += len(one.batches)
        amount += one.size
    if job:
        yield job
