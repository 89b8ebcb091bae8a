"""Damaged data batches: every kind is corrupt however it is read, and says where."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable

import pytest

from objbuf_dagster.errors import CorruptData, ObjbufError
from objbuf_dagster.protocol import decode_batch, decode_batch_arrow, encode_batch
from objbuf_dagster.protocol.blocks import encode_block
from tests.protocol.batches import DECODERS, FEW, MANY, VECTORS, Decoder, footer, framings, some_records, zstd
from tests.protocol.hostile import attack, damaged


def _overwritten(block: bytes, at: int, length: int) -> bytes:
    return block[:at] + struct.pack("<I", length) + block[at + 4 :]


def _last(block: bytes) -> int:
    """Where the last record starts."""
    at = 0
    while (following := at + 4 + struct.unpack_from("<I", block, at)[0]) < len(block):
        at = following
    return at


_DAMAGE: dict[str, Callable[[bytes, int], tuple[bytes, int]]] = {
    "count one too small": lambda block, n: (block, n - 1),
    "count zero": lambda block, _n: (block, 0),
    "count one too large": lambda block, n: (block, n + 1),
    "count as large as the bytes could hold": lambda block, _n: (block, len(block) // 4),
    "count larger than the bytes could hold": lambda block, _n: (block, len(block) // 4 + 1),
    "largest count": lambda block, _n: (block, 2**32 - 1),
    "first length past the end": lambda block, n: (_overwritten(block, 0, len(block)), n),
    "first length the largest": lambda block, n: (_overwritten(block, 0, 2**32 - 1), n),
    "first length negative if signed": lambda block, n: (_overwritten(block, 0, 2**31), n),
    "first length one too large": lambda block, n: (_overwritten(block, 0, block[0] + 1), n),
    "first length one too small": lambda block, n: (_overwritten(block, 0, block[0] - 1), n),
    "last length one past the end": lambda block, n: (_overwritten(block, _last(block), block[_last(block)] + 1), n),
    "last length one too small": lambda block, n: (_overwritten(block, _last(block), block[_last(block)] - 1), n),
    "last length the largest": lambda block, n: (_overwritten(block, _last(block), 2**32 - 1), n),
    "last record cut short": lambda block, n: (block[:-1], n),
    "last record gone": lambda block, n: (block[: _last(block)], n),
    "last length cut short": lambda block, n: (block[: _last(block) + 3], n),
    "half of it gone": lambda block, n: (block[: len(block) // 2], n),
    "one byte left over": lambda block, n: (block + b"\0", n),
    "a record left over": lambda block, n: (block + b"\1\0\0\0x", n),
    "no bytes": lambda _block, n: (b"", n),
}


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("count", [FEW, MANY], ids=["walked", "through pyarrow"])
@pytest.mark.parametrize("damage", _DAMAGE)
def test_every_kind_of_damage_is_corrupt_however_it_is_read(
    damage: str, count: int, compression: str, decode: Decoder
) -> None:
    block, claimed = _DAMAGE[damage](encode_block(some_records(count))[0], count)
    data = zstd(block) + footer(claimed, compression=1) if compression == "zstd" else block + footer(claimed)

    with pytest.raises(CorruptData) as caught:
        decode(data)

    assert type(caught.value) is CorruptData
    assert caught.value.what == "batch"


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("count", [FEW, MANY], ids=["walked", "through pyarrow"])
def test_corruption_names_its_place(count: int, decode: Decoder) -> None:
    block, _ = encode_block(some_records(count))
    at = _last(block)

    with pytest.raises(CorruptData) as too_long:
        decode(_overwritten(block, at, 1 << 20) + footer(count))
    with pytest.raises(CorruptData) as left_over:
        decode(block + b"\0\0" + footer(count))

    assert too_long.value.offset == at
    assert left_over.value.offset == len(block)


@functools.cache
def _targets() -> tuple[list[bytes], list[bytes]]:
    """Valid batches to damage: small ones, and ones that go through pyarrow."""
    small = [bytes.fromhex(v["hex"]) for v in VECTORS if "error" not in v]
    small += [encode_batch(some_records(n), c) for n in (1, 40) for c in ("none", "zstd")]
    small += [f + footer(FEW, compression=1) for f in framings(encode_block(some_records(FEW))[0]).values()]
    large = [encode_batch(some_records(n), c) for n in (1_000, 1_500) for c in ("none", "zstd")]
    return small, [*large, encode_batch([b""] * 1_100), encode_batch([b"0123456789"] * 1_100)]


def _hostile_batch(rng: random.Random) -> bytes:
    small, large = _targets()
    if rng.random() < 0.3:
        # Most damage to a frame ends in zstd's own checks; damage below it must reach the records.
        data = damaged(rng, [batch for batch in large if batch[-7] == 0])
        return zstd(data[:-7]) + b"\1" + data[-6:]
    return damaged(rng, large if rng.random() < 0.3 else small)


def test_hostile_batches_raise_only_objbuf_errors_and_both_forms_agree() -> None:
    def decode(data: bytes) -> None:
        try:
            records = decode_batch(data)
        except ObjbufError as refused:
            with pytest.raises(type(refused)):
                decode_batch_arrow(data)
            raise
        assert decode_batch_arrow(data).to_pylist() == records

    attack(decode, _hostile_batch)
