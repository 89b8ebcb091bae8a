"""Which batches a read is about, with their sizes: from the range objects where they are planned, else the manifest.

Nothing is left out in silence: a sequence that was asked for and is neither in a retained range nor in the manifest is
an error, which says why it is not there.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.buffer.fetch import check_location
from objbuf_dagster.errors import BufferReplaced, CorruptData, InvalidInput, NotFound, RangeNotPlanned
from objbuf_dagster.protocol import BatchDescriptor, Manifest, PlannedBatch, RangeObject
from objbuf_dagster.protocol.model import MAX_U64
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.ranges.ledger import check_disjoint, compare_locations
from objbuf_dagster.spark.options import FromTo, Ranges, Selection, SinceFrontier
from objbuf_dagster.spark.pushdown import Sequences

_READERS = 16
_HEADS_AT_ONCE = 32
_MOST_HEADS = 4_096
"""Sizes only serve to share out the work: of more batches than this, every so many are asked for theirs."""


def choose(place: BufferPlace, selection: Selection, wanted: Sequences) -> list[PlannedBatch]:
    """The batches of `selection` whose sequences are `wanted`, in order.

    Raises RangeExpired, RangeNotPlanned or InvalidInput for sequences that cannot be had, BufferReplaced if manifest
    and ranges contradict each other. What is not wanted is not looked at.
    """
    ledger = RangeLedger(place.store, place.data_prefix)
    if isinstance(selection, Ranges):
        return _of_ranges(ledger, selection.wanted, wanted)
    # First the manifest, then the ranges: what is acked in between is in both, and not in neither.
    manifest = place.manifests().read()
    if isinstance(selection, SinceFrontier):
        selection = FromTo(manifest.frontier, None)
    _check_produced(selection, manifest)
    wanted = wanted.since(selection.first or 0).until(manifest.next_sequence - 1)
    if selection.last is not None:
        wanted = wanted.until(selection.last)
    if not wanted.meets(0, wanted.last):
        return []
    chain = _Chain(ledger)
    if selection.first is None:
        wanted = wanted.since(min(chain.oldest(), manifest.frontier))
    planned = chain.between(wanted.first, wanted.last)
    until = max([*chain.starts[-1:], *(one.end for one in planned[-1:])], default=-1)
    if until >= manifest.next_sequence and until >= place.manifests().read().next_sequence:
        raise BufferReplaced(f"its next sequence is {manifest.next_sequence}, but {until} is planned")
    return _cover(place, manifest, chain, planned, wanted)


class _Chain:
    """The retained ranges of a buffer, read when they are looked at."""

    def __init__(self, ledger: RangeLedger) -> None:
        self.ledger = ledger
        self.starts = ledger.starts()
        self.expired_before = ledger.retention().expired_before if self.starts else 0

    def between(self, first: int, last: int) -> list[RangeObject]:
        """Those that have sequences from `first` to `last`, in order; no other object is read, but perhaps one."""
        first = max(first, self.expired_before)
        begin = max(0, bisect.bisect_right(self.starts, first) - 1)
        with ThreadPoolExecutor(_READERS) as pool:
            found = list(pool.map(self._load, self.starts[begin : bisect.bisect_right(self.starts, last)]))
        there = [one for one in found if one is not None]
        check_disjoint(self.ledger.data_prefix, there, self.starts)
        return [one for one in there if one.end >= first]

    def oldest(self) -> int:
        """Where they begin; beyond any sequence if there are none."""
        held = self.between(self.expired_before, self.expired_before)
        later = bisect.bisect_right(self.starts, self.expired_before)
        return held[0].start if held else next(iter(self.starts[later:]), MAX_U64)

    def refuse(self, first: int, last: int) -> NoReturn:
        """Say why these sequences, which are in no retained range and not in the manifest, are not there."""
        if first < self.expired_before:
            self.ledger.check_retained(SequenceRange(first, min(last, self.expired_before - 1)))
        hint = f"it left the manifest before that, so somebody acked it: what is there begins with from={last + 1}"
        raise RangeNotPlanned(SequenceRange(first, last).key, hint)

    def _load(self, start: int) -> RangeObject | None:
        try:
            return self.ledger.at(start)
        except NotFound:
            return None  # expired since it was listed


def _of_ranges(ledger: RangeLedger, keys: Sequence[SequenceRange], wanted: Sequences) -> list[PlannedBatch]:
    needed = [key for key in keys if wanted.meets(key.start, key.end)]
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(ledger.read, needed))
    return [batch for one in found for batch in one.batches if batch.descriptor.sequence in wanted]


def _check_produced(selection: FromTo, manifest: Manifest) -> None:
    """Bounds beyond the end; reading from the end on is fine, and gives what came since: nothing."""
    end = manifest.next_sequence
    held = f"the buffer's last sequence is {end - 1}" if end else "the buffer has no sequence yet"
    if selection.last is not None and selection.last >= end:
        raise InvalidInput(f"to={selection.last} is not produced yet, {held}: leave 'to' away to read up to the end")
    if selection.first is not None and selection.first > end:
        raise InvalidInput(f"from={selection.first} is beyond the end, {held}: is it the right buffer?")


def _cover(
    place: BufferPlace, manifest: Manifest, chain: _Chain, planned: Sequence[RangeObject], wanted: Sequences
) -> list[PlannedBatch]:
    """All of `wanted`: from the ranges where there are some, from the manifest in between and behind."""
    batches: list[PlannedBatch] = []
    unsized: list[BatchDescriptor] = []

    def take(first: int, last: int) -> None:
        missing = min(last, manifest.frontier - 1)
        if wanted.meets(first, missing):
            chain.refuse(first, missing)
        unsized.extend(entry for entry in _entries(manifest, first, last) if entry.sequence in wanted)

    at = wanted.first
    for one in planned:
        take(at, min(one.start - 1, wanted.last))
        compare_locations(one, {entry.sequence: entry.location for entry in _entries(manifest, one.start, one.end)})
        batches.extend(batch for batch in one.batches if batch.descriptor.sequence in wanted)
        at = max(at, one.end + 1)
    take(at, wanted.last)
    batches.extend(_sized(place, unsized))
    return sorted(batches, key=lambda batch: batch.descriptor.sequence)


def _entries(manifest: Manifest, first: int, last: int) -> Iterator[BatchDescriptor]:
    first = max(first, manifest.frontier)
    return manifest.entries(after=first - 1, limit=max(0, last + 1 - first))


def _sized(place: BufferPlace, entries: Sequence[BatchDescriptor]) -> list[PlannedBatch]:
    """With the sizes of their objects; of very many, some are asked for, and guessed to be their neighbours' too.

    One that is missing, or outside the buffer, fails when it is fetched.
    """
    step = -(-len(entries) // _MOST_HEADS)

    def size(entry: BatchDescriptor) -> int | None:
        try:
            return place.store.head(check_location(entry.location, place.data_prefix)).size
        except (NotFound, CorruptData):
            return None

    with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
        asked = list(pool.map(size, entries[::step])) if entries else []
    return [PlannedBatch(entry, asked[index // step], bool(index % step)) for index, entry in enumerate(entries)]
