"""Batches of every kind, and the rows that they are: what a table must hold, value by value."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from objbuf_dagster.protocol import BatchDescriptor, Compression, Metadata, encode_batch, metadata_runs

MANIFEST_PATH = "ingest/manifest"

Row = tuple[int, int, int | None, str, str, bytes | None, bytes]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it is stored, and its entries."""

    descriptor: BatchDescriptor
    entries: Sequence[bytes]
    data: bytes

    def rows(self) -> list[Row]:
        runs = metadata_runs(self.descriptor.metadata, len(self.entries))
        items = [item for item, count in runs for _ in range(count)]
        sequence, location = self.descriptor.sequence, self.descriptor.location
        return [
            (
                sequence,
                index,
                item.ingestion_time_ms if item else None,
                MANIFEST_PATH,
                location,
                item.payload if item else None,
                entry,
            )
            for index, (item, entry) in enumerate(zip(items, self.entries, strict=True))
        ]


def rows_of(batches: Iterable[Batch]) -> list[Row]:
    return [row for batch in batches for row in batch.rows()]


def batch(
    sequence: int,
    entries: Sequence[bytes],
    metadata: Sequence[Metadata] = (),
    compression: Compression = "zstd",
    data: bytes | None = None,
) -> Batch:
    descriptor = BatchDescriptor(sequence, f"ingest/{sequence:026d}.batch", tuple(metadata))
    return Batch(descriptor, entries, encode_batch(entries, compression) if data is None else data)


def entries(count: int, longest: int, seed: int = 1) -> list[bytes]:
    """Of every length from nothing to `longest`."""
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(0, longest)) for _ in range(count)]


def of_every_kind() -> list[Batch]:
    """Large and tiny, compressed and not, empty, with no metadata, one item, many, odd ones."""
    rng = random.Random(7)
    made = [
        batch(
            1000, entries(3000, 300), [Metadata(0, 1_700_000_000_000, b"a"), Metadata(1000, 1_700_000_000_005, b"a")]
        ),
        batch(1001, entries(2000, 300, seed=2), compression="none"),
        batch(1002, entries(10, 30, seed=3), [Metadata(5, 3, b"late")]),
        batch(1003, [], [Metadata(0, 1, b"covers nothing")]),
        batch(1004, [b""] * 20_000, [Metadata(0, -5, b"")]),
    ]
    for sequence in range(1005, 1060):
        few = entries(rng.randint(0, 300), 20, seed=sequence)
        items = [Metadata(0, 2**62, bytes([sequence % 256])), Metadata(2, -(2**62), b"\xff" * 40)]
        made.append(batch(sequence, few, items[: sequence % 3], rng.choice(["zstd", "none"])))
    odd = [Metadata(7, 70, b"7"), Metadata(3, 30, b"3"), Metadata(2**32 - 1, 9, b"never")]
    made.append(batch(1060, entries(30_000, 20, seed=4), odd))
    made.append(batch(1061, [b"x" * 5_000_000, b"", b"y" * 3_000_000], [Metadata(i, i, b"%d" % i) for i in range(3)]))
    return made
