"""What is produced, by whichever implementation: lists of calls, each of which becomes one batch."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from objbuf_dagster.protocol import BatchDescriptor, Metadata
from tests.spark.rows import Batch, Row

EVERY_BYTE = bytes(range(256))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `produce`."""

    entries: Sequence[bytes]
    metadata: bytes = b""

    def to_json(self) -> dict[str, object]:
        return {"entries": [text(entry) for entry in self.entries], "metadata": text(self.metadata)}


Calls = Sequence[Call]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _random(size: int) -> bytes:
    return random.Random(size).randbytes(size)


SMALL: list[Calls] = [
    [Call([b"hello", b"world"], b"first")],
    [Call([b"%d-%d" % (call, index) for index in range(call % 3 + 1)], b"call %d" % call) for call in range(24)],
    [Call([b""]), Call([b"", b"x", b""], b"around x"), Call([b"", b""])],
    [Call([b""] * 300)],
    [
        Call([EVERY_BYTE, _random(1500), b"\n\r\t\0"], EVERY_BYTE),
        Call([b"same"] * 200, b"\0"),
        Call([b"\xff"], b"\xff" * 9),
    ],
    [Call([b"odd metadata is mine"], _random(1000)), Call([b"and none is mine"])],
]
"""Many calls per batch, empty entries, odd metadata; little enough to keep what somebody wrote of it."""

COMPRESSIBLE: list[Calls] = [
    [Call([bytes(3_000_000), b"", b"between " * 40_000], b"large"), Call([b"small"], b"behind it")],
]
"""Large, unless it is compressed."""

LARGE: list[Calls] = [
    *COMPRESSIBLE,
    [Call([_random(3 << 20)], b"as it is"), Call([_random(1 << 20), b"", _random(1)], b"")],
]
"""Entries of several MiB, compressible and not."""


def entries_of(calls: Calls) -> list[bytes]:
    return [entry for call in calls for entry in call.entries]


def payloads_of(calls: Calls) -> list[tuple[int, bytes]]:
    """What the metadata items of the batch say, apart from the time: where they start, and their payload."""
    starts = accumulate((len(call.entries) for call in calls), initial=0)
    return [(start, call.metadata) for start, call in zip(starts, calls, strict=False)]


def payloads_in(metadata: Sequence[Metadata]) -> list[tuple[int, bytes]]:
    return [(item.start_index, item.payload) for item in metadata]


def rows_of(descriptors: Sequence[BatchDescriptor], batches: Sequence[Calls]) -> list[Row]:
    """What a table must hold of these batches, under the sequences and names that they got."""
    return [
        row
        for descriptor, calls in zip(descriptors, batches, strict=True)
        for row in Batch(descriptor, entries_of(calls), b"").rows()
    ]
