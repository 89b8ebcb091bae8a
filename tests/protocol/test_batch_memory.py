"""Memory for data batches: bombs, lies about sizes and counts from nowhere are refused before they cost any."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest
import zstandard

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol import decode_batch
from objbuf_dagster.protocol.blocks import encode_block
from tests.protocol.batches import (
    DECODERS,
    FEW,
    MANY,
    Decoder,
    footer,
    some_records,
    zstd,
    zstd_claiming,
    zstd_unstated,
)

_MIB = 1 << 20
_MEASURE = """
import sys, tracemalloc
import pyarrow as pa
from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol import decode_batch, decode_batch_arrow, encode_batch

data, max_bytes = sys.stdin.buffer.read(), int(sys.argv[1])
decode_batch(encode_batch([b"x"] * 2_000, "zstd"))  # what is loaded on first use does not count
tracemalloc.start()
for decode in (decode_batch, decode_batch_arrow):
    try:
        decode(data, max_bytes=max_bytes)
        print("read")
    except CorruptData as error:
        print(error)
print(tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory())
"""


def _decoded_elsewhere(data: bytes, max_bytes: int = 1 << 30) -> tuple[list[str], int]:
    """What both forms say of `data`, and the most memory that Python and Arrow held at once.

    In a process of its own, since Arrow's mark of the most it ever held cannot be set back.
    """
    command = [sys.executable, "-c", _MEASURE, str(max_bytes)]
    done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=60)
    *outcomes, peak = done.stdout.decode().splitlines()
    return outcomes, int(peak)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(lambda: zstd(bytes(64 * _MIB)), id="stated size over max_bytes"),
        pytest.param(lambda: zstd_unstated(bytes(64 * _MIB)), id="unstated size over max_bytes"),
        pytest.param(lambda: zstd(bytes(99)) + zstd_unstated(bytes(64 * _MIB)), id="a small frame, then a bomb"),
        pytest.param(lambda: zstd_claiming(2**62, bytes(100)), id="a lie far over max_bytes"),
    ],
)
def test_a_bomb_is_refused_before_it_is_held(frames: Callable[[], bytes]) -> None:
    outcomes, peak = _decoded_elsewhere(frames() + footer(1, compression=1), max_bytes=_MIB)

    assert len(outcomes) == 2
    assert all(f"larger than max_bytes, {_MIB}" in outcome for outcome in outcomes)
    assert peak < 4 * _MIB


@pytest.mark.parametrize("compress", [zstd, zstd_unstated], ids=["stated", "unstated"])
def test_a_large_batch_within_max_bytes_shows_that_the_bound_is_measured(compress: Callable[[bytes], bytes]) -> None:
    outcomes, peak = _decoded_elsewhere(compress(encode_block([bytes(16 * _MIB)])[0]) + footer(1, compression=1))

    assert outcomes == ["read", "read"]
    assert peak > 32 * _MIB  # the block and the record


@pytest.mark.parametrize("claimed", [1, 103, 105, 1 << 20, 1 << 29, 1 << 30])
def test_a_frame_that_lies_about_its_size_is_corrupt_and_costs_little(claimed: int) -> None:
    block, count = encode_block([b"y" * 100])

    outcomes, peak = _decoded_elsewhere(zstd_claiming(claimed, block) + footer(count, compression=1))

    assert len(outcomes) == 2
    assert all("batch is corrupt" in outcome for outcome in outcomes)
    assert peak < 8 * _MIB  # one chunk of the stream, and what the stream itself needs


@pytest.mark.parametrize("count", [1, 999, 1_000, 2**31, 2**32 - 1])
def test_a_count_from_nowhere_allocates_nothing(count: int) -> None:
    outcomes, peak = _decoded_elsewhere(b"\xff" * 100 + footer(count))

    assert len(outcomes) == 2
    assert all("batch is corrupt" in outcome for outcome in outcomes)
    assert peak < _MIB


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("compress", [zstd, zstd_unstated], ids=["stated", "unstated"])
def test_a_refused_batch_leaves_no_memory_behind(compress: Callable[[bytes], bytes], decode: Decoder) -> None:
    data = compress(encode_block(some_records(MANY))[0])[:-5] + footer(MANY, compression=1)

    def refuse() -> None:
        with pytest.raises(CorruptData):
            decode(data)

    refuse()
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for _ in range(10):
            refuse()
        gc.collect()
        left_behind = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow_before
    finally:
        tracemalloc.stop()

    assert left_behind < _MIB


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lambda block: (block, 0), id="none"),
        pytest.param(lambda block: (zstd(block), 1), id="zstd"),
        pytest.param(lambda block: (zstd_unstated(block), 1), id="zstd of unstated size"),
        pytest.param(lambda block: (zstd(block[:50]) + zstd(block[50:]), 1), id="two zstd frames"),
    ],
)
def test_max_bytes_is_the_largest_block_that_is_read(
    frame: Callable[[bytes], tuple[bytes, int]], count: int, decode: Decoder
) -> None:
    block, _ = encode_block(some_records(count))
    framed, code = frame(block)
    data = framed + footer(count, compression=code)

    assert decode(data, max_bytes=len(block)) == some_records(count)
    with pytest.raises(CorruptData, match=f"larger than max_bytes, {len(block) - 1}"):
        decode(data, max_bytes=len(block) - 1)


def test_a_few_bytes_do_not_become_millions_of_objects() -> None:
    """Python needs some 50 bytes for an entry of two: a list of them is refused where an Arrow array is not."""
    count = 11_000_000
    block = zstandard.ZstdCompressor().compress(b"\x02\0\0\0xy" * count)
    data = block + struct.pack("<BIH", 1, count, 1)

    with pytest.raises(CorruptData, match="a list of 11000000 entries"):
        decode_batch(data, max_bytes=64 << 20)
    with pytest.raises(CorruptData):
        decode_batch(data, max_bytes=1 << 20)
