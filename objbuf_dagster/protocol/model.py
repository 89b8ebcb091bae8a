"""The values that travel between the formats, the client and its users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_U16 = 2**16 - 1
MAX_U32 = 2**32 - 1
MAX_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one `produce` call says of its entries: the records from `start_index` up to the next item's."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """One manifest entry: all that is needed to fetch its batch without reading the manifest again."""

    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """A fetched, checked and decoded batch."""

    entries: Sequence[bytes]
    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()


def metadata_runs(items: Sequence[Metadata], count: int) -> list[tuple[Metadata | None, int]]:
    """Which item covers how many records, in order, of a batch of `count`; None for records before the first item.

    Items come from outside: one that starts after the end covers nothing, and one that starts before its predecessor
    covers what is left from there on.
    """
    runs: list[tuple[Metadata | None, int]] = []
    current: Metadata | None = None
    since = 0
    for item in items:
        start = min(max(item.start_index, since), count)
        if start > since:
            runs.append((current, start - since))
        current, since = item, start
    if count > since:
        runs.append((current, count - since))
    return runs
