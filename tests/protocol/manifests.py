"""Manifests to order: from the vectors, from a store, or byte by byte so that they can be wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from objbuf_dagster.protocol import BatchDescriptor, Manifest, Metadata

_DIRECTORY = Path(__file__).parents[1] / "vectors"
_FOOTER = struct.Struct("<IQQH")


def vectors(name: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads((_DIRECTORY / name).read_text("utf-8"))
    return read


def footer(count: int, next_sequence: int, epoch: int = 0, version: int = 1) -> bytes:
    return _FOOTER.pack(count, next_sequence, epoch, version)


def entry_bytes(sequence: int, location: bytes, metadata: bytes = b"\0\0\0\0", *, length: int | None = None) -> bytes:
    """An entry by hand, so that it can be wrong."""
    body = struct.pack("<QH", sequence, len(location)) + location + metadata
    return struct.pack("<I", len(body) if length is None else length) + body


def location_of(sequence: int, *, uniform: bool) -> str:
    return f"ingest/{sequence:026d}.batch" if uniform else f"ingest/{'z' * (sequence % 13)}{sequence}.batch"


def filled(count: int, *, first: int = 0, epoch: int = 0, uniform: bool = True) -> Manifest:
    """As it comes back from a store."""
    manifest = Manifest.from_bytes(footer(0, first, epoch))
    for sequence in range(first, first + count):
        manifest.append(location_of(sequence, uniform=uniform), [Metadata(0, 1_700_000_000_000 + sequence, b"p")])
    return Manifest.from_bytes(manifest.to_bytes())


def rebuilt(manifest: Manifest) -> bytes:
    """The manifest made anew from its values."""
    made = Manifest.from_bytes(footer(0, manifest.frontier, manifest.epoch))
    for entry in manifest.entries():
        assert made.append(entry.location, entry.metadata) == entry.sequence
    return made.to_bytes()


def entry_starts(data: bytes | bytearray, count: int) -> list[int]:
    """Where each entry starts."""
    starts, at = [], 0
    for _ in range(count):
        starts.append(at)
        at += 4 + struct.unpack_from("<I", data, at)[0]
    return starts


def sequences_of(entries: Iterable[BatchDescriptor]) -> list[int]:
    return [entry.sequence for entry in entries]
