"""Where to cut the queue into ranges.

`cut` is the rule, a pure function. `plan` applies it to a buffer: it finds the end of the chain of ranges, checks that
the manifest goes on there, asks for the sizes of the batches it is about to plan (and few others), and writes range
objects. Planners may race, crash and be repeated: each range is decided by whoever creates its object, and the others
adopt it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from objbuf_dagster.buffer.fetch import check_location
from objbuf_dagster.buffer.manifest_store import ManifestStore, entry_time_ms
from objbuf_dagster.errors import BufferReplaced, CorruptData, NotFound, SequenceGap
from objbuf_dagster.protocol import BatchDescriptor, Manifest, PlannedBatch, RangeObject
from objbuf_dagster.ranges.key import SequenceRange
from objbuf_dagster.ranges.ledger import RangeLedger, compare_locations, range_of
from objbuf_dagster.ranges.regulator_checks import check_number

_HEADS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """When a range is full.

    max_batches: batches in a range, at the most.
    max_bytes: bytes of its objects, at the most; a batch that is larger than this has a range of its own.
    max_wait: seconds after which the oldest waiting batch is planned although the range is not full.
    """

    max_batches: int = 1_000
    max_bytes: int = 1 << 30
    max_wait: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "max_batches", 1, 1 << 60, whole=True)
        check_number(self, "max_bytes", 1, 1 << 60, whole=True)
        check_number(self, "max_wait", 0, math.inf)


def cut(waiting: Iterable[PlannedBatch], limits: Limits, now_ms: int) -> Iterator[tuple[PlannedBatch, ...]]:
    """The batches of one range after the other, each the longest run that keeps the limits.

    What is left at the end makes a range only if its first batch has waited long enough. Reads `waiting` at most one
    batch further than what it gives.
    """
    taken: list[PlannedBatch] = []
    size = 0
    for batch in waiting:
        if taken and size + (batch.size or 0) > limits.max_bytes:
            yield tuple(taken)
            taken, size = [], 0
        taken.append(batch)
        size += batch.size or 0
        if len(taken) == limits.max_batches or size >= limits.max_bytes:
            yield tuple(taken)
            taken, size = [], 0
    if taken and _is_due(taken[0].descriptor, limits.max_wait, now_ms):
        yield tuple(taken)


def plan(
    source: ManifestStore,
    ledger: RangeLedger,
    limits: Limits | None = None,
    *,
    manifest: Manifest | None = None,
    max_ranges: int | None = None,
    hint: SequenceRange | None = None,
    tail: RangeObject | None = None,
    sizes: MutableMapping[int, int | None] | None = None,
    on_gap: Literal["fail", "skip"] = "fail",
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> list[RangeObject]:
    """Extend the chain of ranges over what the manifest holds beyond it, and return what was added.

    `manifest`, if the caller has just read it, saves reading it again. At most `max_ranges` are added; one that another
    planner added in the meantime is adopted, and counts. `hint` as in RangeLedger.list; `tail`, a range that was the
    last of the chain a moment ago, saves listing it. `sizes`, by sequence, kept from call to call, saves asking again
    for batches that had to wait, also for those that are missing. `on_gap="skip"` goes on at the frontier where
    sequences left the manifest unplanned. A dry run writes nothing and returns what it would have added.

    Raises SequenceGap for such sequences otherwise, BufferReplaced if the manifest is not the one that the
    chain was planned from. What was written before an error stays, and the next call goes on behind it.
    """
    limits = limits or Limits()
    manifest = manifest or source.read()
    known = {} if sizes is None else sizes
    now_ms = int(clock() * 1000)
    added: list[RangeObject] = []
    if tail is None or tail.end + 1 < manifest.frontier:  # what lies between may be planned, and must not be again
        tail = ledger.tail(hint)
    if tail is not None and tail.end >= manifest.next_sequence:
        manifest = _reread(source, tail)
    start = _next_start(manifest, tail, on_gap)
    try:
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            go_on = max_ranges is None or max_ranges > 0
            while go_on:
                go_on = False
                for batches in cut(_sized(source, ledger, manifest, start, pool, known), limits, now_ms):
                    end = batches[-1].descriptor.sequence
                    wanted = RangeObject(start, end, manifest.epoch, now_ms, batches)
                    made = wanted if dry_run else ledger.create(wanted, behind=tail)
                    added.append(made)
                    tail = made
                    start = made.end + 1
                    if len(added) == max_ranges:
                        break
                    if made.end != end:  # another planner's: go on where that one ends
                        check_against(manifest, made)
                        go_on = True
                        break
    finally:
        for sequence in [sequence for sequence in list(known) if sequence < start]:
            known.pop(sequence, None)  # a preview beside a tick has the same `sizes`
    return added


def waiting_bytes(
    source: ManifestStore, ledger: RangeLedger, manifest: Manifest, start: int, sizes: MutableMapping[int, int | None]
) -> float:
    """About how many bytes wait from `start` on: by those of up to 32 batches, spread over all, and `sizes` (`plan`'s).

    Batches grow with the load, so those of the ranges before say nothing of a burst. At most 32 are asked for, whatever
    waits, and none twice; `plan` has to ask for each of them anyway.
    """
    start = max(start, manifest.frontier)
    batches = max(0, manifest.next_sequence - start)
    step = max(1, -(-batches // _HEADS_AT_ONCE))
    sample = [manifest.entry(sequence) for sequence in range(manifest.next_sequence - 1, start - 1, -step)]
    with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
        asked = [size for size in pool.map(_sizing(source, ledger, sizes), filter(None, sample)) if size is not None]
    known = [size for sequence in range(start, manifest.next_sequence) if (size := sizes.get(sequence)) is not None]
    typical = sum(asked) / len(asked) if asked else 0.0
    return sum(known) + typical * (batches - len(known))


def _reread(source: ManifestStore, tail: RangeObject) -> Manifest:
    """The chain is ahead of our manifest: either that is old by now, or the buffer is another one."""
    manifest = source.read()
    if tail.end >= manifest.next_sequence:
        raise BufferReplaced(f"its next sequence is {manifest.next_sequence}, but range {range_of(tail)} is planned")
    return manifest


def _next_start(manifest: Manifest, tail: RangeObject | None, on_gap: Literal["fail", "skip"]) -> int:
    if tail is None:
        return manifest.frontier
    check_against(manifest, tail)
    if tail.end + 1 < manifest.frontier and on_gap == "fail":
        raise SequenceGap(tail.end + 1, manifest.frontier - 1)
    return max(tail.end + 1, manifest.frontier)


def check_against(manifest: Manifest, planned: RangeObject) -> None:
    """Where the manifest and a range both know a sequence, they must name the same batch. Raises BufferReplaced."""
    first = max(planned.start, manifest.frontier)
    both = manifest.entries(after=first - 1, limit=max(0, planned.end + 1 - first))
    compare_locations(planned, {entry.sequence: entry.location for entry in both})


def _sized(
    source: ManifestStore,
    ledger: RangeLedger,
    manifest: Manifest,
    start: int,
    pool: ThreadPoolExecutor,
    known: MutableMapping[int, int | None],
) -> Iterator[PlannedBatch]:
    """What waits from `start` on, with its sizes, by parallel HEADs, a few ahead of who asks.

    A batch that is missing, or is outside the buffer, has none: its range is planned, and fails when it is landed.
    """
    size = _sizing(source, ledger, known)
    entries = manifest.entries(after=start - 1)
    while some := list(itertools.islice(entries, _HEADS_AT_ONCE)):
        yield from map(PlannedBatch, some, pool.map(size, some))


def _sizing(
    source: ManifestStore, ledger: RangeLedger, known: MutableMapping[int, int | None]
) -> Callable[[BatchDescriptor], int | None]:
    """Asks for the size of a batch, once."""

    def size(entry: BatchDescriptor) -> int | None:
        if entry.sequence not in known:
            try:
                known[entry.sequence] = source.store.head(check_location(entry.location, ledger.data_prefix)).size
            except (NotFound, CorruptData):
                known[entry.sequence] = None
        return known[entry.sequence]

    return size


def _is_due(oldest: BatchDescriptor, max_wait: float, now_ms: int) -> bool:
    """A time far in the future, or none at all, says nothing about how long a batch waited: do not let it wait."""
    time_ms = entry_time_ms(oldest)
    return time_ms is None or not -max_wait <= (now_ms - time_ms) / 1000 < max_wait
