"""Zstandard in data batches: every way to frame a block is read, frames cut short or followed by garbage are not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import zstandard

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol import check_batch, decode_batch, iter_batch_arrow
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


def lying_about_its_window(block: bytes) -> bytes:
    """A frame that is right, but for a header that states a window of 128 KiB, when it refers back further."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=21)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=len(block))
    frame = bytearray(stream.compress(block) + stream.flush())
    assert not frame[4] & 0x20, "it has a window"
    frame[5] = (17 - 10) << 3
    return bytes(frame)


@pytest.mark.parametrize("decode", DECODERS)
def test_a_frame_that_no_stream_can_read_gives_the_same_records(decode: Decoder) -> None:
    """Readers like Spark's refuse it, so it must not stay as it is."""
    rng = random.Random(3)
    records = [rng.randbytes(1000) for _ in range(3000)]
    block, count = encode_block(records[:300] * 10 + records)
    data = lying_about_its_window(block) + footer(count, compression=1)

    assert decode(data) == records[:300] * 10 + records
    checked = check_batch(data)
    assert not checked.zstd
    assert bytes(checked.stored) == block


def test_blocks_stay_what_they_are_while_others_are_made() -> None:
    records = some_records(60_000)
    block, count = encode_block(records)

    for data in (zstd(block) + footer(count, compression=1), block + footer(count)):
        parts = list(iter_batch_arrow(data, block_bytes=1 << 16))
        assert len(parts) > 10
        assert max(part.nbytes for part in parts) < 1 << 18
        assert [record for part in parts for record in part.to_pylist()] == records == decode_batch(data)


def test_blocks_are_small_also_where_the_average_says_nothing() -> None:
    records = [b""] * 200_000 + [b"x" * (1 << 18)] * 40 + [b"y" * 10] * 50_000
    block, count = encode_block(records)

    for data in (zstd(block) + footer(count, compression=1), block + footer(count)):
        parts = list(iter_batch_arrow(data, block_bytes=1 << 20))
        assert max(part.nbytes for part in parts) < 4 << 20
        assert [record for part in parts for record in part.to_pylist()] == records
