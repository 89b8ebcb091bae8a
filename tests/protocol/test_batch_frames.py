"""Zstandard in data batches: every way to frame a block is read, frames cut short or followed by garbage are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol.blocks import encode_block
from tests.protocol.batches import (
    DECODERS,
    FEW,
    MANY,
    Decoder,
    footer,
    framings,
    skippable,
    some_records,
    zstd,
    zstd_claiming,
    zstd_unstated,
)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("framing", framings(b""))
def test_every_way_to_frame_a_block_gives_the_same_records(framing: str, count: int, decode: Decoder) -> None:
    block, _ = encode_block(some_records(count))

    assert decode(framings(block)[framing] + footer(count, compression=1)) == some_records(count)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("frames", [zstd(b""), zstd_unstated(b""), skippable(b"nothing here")])
def test_frames_of_nothing_are_a_batch_of_nothing(frames: bytes, decode: Decoder) -> None:
    assert decode(frames + footer(0, compression=1)) == []


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("compress", [zstd, zstd_unstated], ids=["stated", "unstated"])
@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\0", id="one byte"),
        pytest.param(b"garbage", id="no frame"),
        pytest.param(b"\x28", id="the start of a magic number"),
        pytest.param(b"\x28\xb5\x2f\xfd", id="a magic number"),
        pytest.param(zstd(b"more and more")[:-1], id="a frame cut short"),
        pytest.param(skippable(b"skip me")[:-1], id="a skippable frame cut short"),
        pytest.param(zstd(b"\0"), id="a frame of one byte more"),
    ],
)
def test_garbage_after_a_frame_is_corrupt(
    garbage: bytes, count: int, compress: Callable[[bytes], bytes], decode: Decoder
) -> None:
    block, _ = encode_block(some_records(count))

    with pytest.raises(CorruptData):
        decode(compress(block) + garbage + footer(count, compression=1))


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("compress", [zstd, zstd_unstated], ids=["stated", "unstated"])
def test_a_frame_cut_short_anywhere_is_corrupt(compress: Callable[[bytes], bytes], decode: Decoder) -> None:
    frame = compress(encode_block(some_records(FEW))[0])

    for length in range(len(frame)):
        with pytest.raises(CorruptData):
            decode(frame[:length] + footer(FEW, compression=1))


@pytest.mark.parametrize("decode", DECODERS)
def test_a_frame_that_states_its_size_in_eight_bytes_is_read(decode: Decoder) -> None:
    block, count = encode_block([b"y" * 100])

    assert decode(zstd_claiming(len(block), block) + footer(count, compression=1)) == [b"y" * 100]
