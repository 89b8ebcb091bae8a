"""Batches to order: the vectors, both ways to decode, and frames of every kind made by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from objbuf_dagster.protocol import check_batch, decode_batch, decode_batch_arrow, iter_batch_arrow

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "batch.json").read_text())
FEW, MANY = 7, 5_000  # walked here, and read by pyarrow


def _decode_as_list_from_arrow(data: bytes, **options: int) -> list[bytes]:
    records: list[bytes] = decode_batch_arrow(data, **options).to_pylist()
    return records


def _decode_in_blocks(data: bytes, **options: int) -> list[bytes]:
    return [record for part in iter_batch_arrow(data, block_bytes=1 << 12, **options) for record in part.to_pylist()]


def _decode_checked(data: bytes, **options: int) -> list[bytes]:
    """What `check_batch` lets through, from the block that it hands out."""
    block = check_batch(data, **options)
    stored = bytes(block.stored) + footer(block.count, compression=int(block.zstd))
    records = decode_batch(stored, **options)
    assert block.size == sum(map(len, records)) + 4 * len(records)
    assert block.count == len(records)
    return records


DECODERS = [
    pytest.param(decode_batch, id="list"),
    pytest.param(_decode_as_list_from_arrow, id="arrow"),
    pytest.param(_decode_in_blocks, id="blocks"),
    pytest.param(_decode_checked, id="checked"),
]
Decoder = Callable[..., list[bytes]]


def some_records(count: int) -> list[bytes]:
    """Of many lengths, some of them empty."""
    return [b"" if i % 7 == 3 else b"record %d " % i * (i % 5 + 1) for i in range(count)]


def footer(count: int, *, compression: int = 0, version: int = 1) -> bytes:
    return struct.pack("<BIH", compression, count, version)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def zstd_unstated(data: bytes) -> bytes:
    """A frame that does not state its content size, as streaming writers make them."""
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


def zstd_claiming(size: int, data: bytes) -> bytes:
    """A frame of `data` whose header states `size` in 8 bytes."""
    frame = zstd_unstated(data)
    return frame[:4] + bytes([frame[4] | 0xC0]) + frame[5:6] + struct.pack("<Q", size) + frame[6:]


def skippable(payload: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A50, len(payload)) + payload


def framings(block: bytes) -> dict[str, bytes]:
    a, b = block[: len(block) // 3], block[len(block) // 3 :]
    bytewise = [block[i : i + 1] for i in range(min(len(block), 50))] + [block[50:]]
    return {
        "one frame": zstd(block),
        "one frame of unstated size": zstd_unstated(block),
        "two frames": zstd(a) + zstd(b),
        "two frames of unstated size": zstd_unstated(a) + zstd_unstated(b),
        "stated, then unstated": zstd(a) + zstd_unstated(b),
        "unstated, then stated": zstd_unstated(a) + zstd(b),
        "many frames": b"".join(map(zstd, bytewise)),
        "many frames of unstated size": b"".join(map(zstd_unstated, bytewise)),
        "empty frame first": zstd(b"") + zstd(block),
        "empty frame of unstated size first": zstd_unstated(b"") + zstd(block),
        "empty frame last": zstd(block) + zstd(b""),
        "empty frame between": zstd(a) + zstd_unstated(b"") + zstd(b),
        "skippable frame first": skippable(b"made by") + zstd(block),
        "skippable frame last": zstd(block) + skippable(b"made by"),
        "skippable frame between": zstd(a) + skippable(b"x" * 100_000) + zstd_unstated(b),
        "empty skippable frames all over": skippable(b"").join([b"", zstd(a), zstd_unstated(b), b""]),
    }
