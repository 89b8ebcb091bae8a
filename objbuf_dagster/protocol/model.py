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
