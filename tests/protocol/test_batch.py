"""Data batches: the other implementations' bytes, every way a writer frames them, and every kind of damage."""

from __future__ import annotations

import functools
import gc
import json
import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import CorruptData, InvalidInput, ObjbufError, UnsupportedCompression, UnsupportedVersion
from objbuf_dagster.protocol import Compression, decode_batch, decode_batch_arrow, encode_batch
from objbuf_dagster.protocol.batch import frame_batch
from objbuf_dagster.protocol.blocks import encode_block
from tests.protocol.hostile import REPEATABLE, attack, damaged

_VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "batch.json").read_text())
_VALID = [pytest.param(v, id=v["name"]) for v in _VECTORS if "error" not in v]
_DAMAGED = [pytest.param(v, id=v["name"]) for v in _VECTORS if "error" in v]
_KINDS: dict[str, type[ObjbufError]] = {
    "corrupt": CorruptData,
    "unsupported version": UnsupportedVersion,
    "unsupported compression": UnsupportedCompression,
}
_MIB = 1 << 20
_FEW, _MANY = 7, 5_000  # walked here, and read by pyarrow


def _decode_as_list_from_arrow(data: bytes, **options: int) -> list[bytes]:
    records: list[bytes] = decode_batch_arrow(data, **options).to_pylist()
    return records


_DECODERS = [pytest.param(decode_batch, id="list"), pytest.param(_decode_as_list_from_arrow, id="arrow")]
Decoder = Callable[..., list[bytes]]


def _records(count: int) -> list[bytes]:
    """Of many lengths, some of them empty."""
    return [b"" if i % 7 == 3 else b"record %d " % i * (i % 5 + 1) for i in range(count)]


def _footer(count: int, *, compression: int = 0, version: int = 1) -> bytes:
    return struct.pack("<BIH", compression, count, version)


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _zstd_unstated(data: bytes) -> bytes:
    """A frame that does not state its content size, as streaming writers make them."""
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


def _zstd_claiming(size: int, data: bytes) -> bytes:
    """A frame of `data` whose header states `size` in 8 bytes."""
    frame = _zstd_unstated(data)
    return frame[:4] + bytes([frame[4] | 0xC0]) + frame[5:6] + struct.pack("<Q", size) + frame[6:]


def _skippable(payload: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A50, len(payload)) + payload


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


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("vector", _VALID)
def test_a_valid_vector_decodes_to_its_records(vector: dict[str, Any], decode: Decoder) -> None:
    assert decode(bytes.fromhex(vector["hex"])) == [bytes.fromhex(record) for record in vector["records_hex"]]


@pytest.mark.parametrize("vector", [p for p in _VALID if "does not state" not in str(p.id)])
def test_a_valid_vector_is_encoded_to_the_same_bytes(vector: dict[str, Any]) -> None:
    compression: Compression = "zstd" if vector["name"].endswith("zstd") else "none"

    assert encode_batch([bytes.fromhex(r) for r in vector["records_hex"]], compression).hex() == vector["hex"]


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("vector", _DAMAGED)
def test_a_damaged_vector_is_refused_for_its_reason(vector: dict[str, Any], decode: Decoder) -> None:
    with pytest.raises(_KINDS[vector["error"]]) as caught:
        decode(bytes.fromhex(vector["hex"]))

    assert type(caught.value) is _KINDS[vector["error"]]


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(UnsupportedVersion) as version:
        decode_batch(_footer(0, version=99))
    with pytest.raises(UnsupportedCompression) as compression:
        decode_batch(_footer(0, compression=2))

    assert (version.value.what, version.value.version, compression.value.code) == ("batch", 99, 2)


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("count", [0, 1, 2, 999, 1_000, 1_001, _MANY])
def test_records_come_back_in_order_whatever_their_number(
    count: int, compression: Compression, decode: Decoder
) -> None:
    records = _records(count)

    assert decode(encode_batch(records, compression)) == records


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("count", [1, _FEW, 1_000, _MANY])
def test_empty_entries_are_kept(count: int, compression: Compression, decode: Decoder) -> None:
    assert decode(encode_batch([b""] * count, compression)) == [b""] * count


@pytest.mark.parametrize("count", [0, _FEW, _MANY])
def test_the_arrow_form_is_binary_without_nulls(count: int) -> None:
    array = decode_batch_arrow(encode_batch(_records(count), "zstd"))

    assert (array.type, len(array), array.null_count) == (pa.binary(), count, 0)
    array.validate(full=True)


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("count", [_FEW, _MANY])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "wrap", [bytearray, memoryview, lambda data: memoryview(bytearray(b"--" + data + b"--"))[2:-2]]
)
def test_any_kind_of_buffer_is_read(
    wrap: Callable[[bytes], Any], compression: Compression, count: int, decode: Decoder
) -> None:
    records = _records(count)

    assert decode(wrap(encode_batch(records, compression))) == records


def test_entries_may_come_from_any_iterable() -> None:
    assert encode_batch(iter([b"a", b"b"])) == encode_batch((b"a", b"b")) == encode_batch([b"a", b"b"])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_framed_from_pieces_holds_all_of_their_entries(compression: Compression) -> None:
    blocks = [encode_block(_records(n)) for n in (3, 0, 1_200)]

    framed = b"".join(frame_batch([block for block, _ in blocks], sum(n for _, n in blocks), compression))

    assert decode_batch(framed) == [*_records(3), *_records(1_200)]


def _framings(block: bytes) -> dict[str, bytes]:
    a, b = block[: len(block) // 3], block[len(block) // 3 :]
    bytewise = [block[i : i + 1] for i in range(min(len(block), 50))] + [block[50:]]
    return {
        "one frame": _zstd(block),
        "one frame of unstated size": _zstd_unstated(block),
        "two frames": _zstd(a) + _zstd(b),
        "two frames of unstated size": _zstd_unstated(a) + _zstd_unstated(b),
        "stated, then unstated": _zstd(a) + _zstd_unstated(b),
        "unstated, then stated": _zstd_unstated(a) + _zstd(b),
        "many frames": b"".join(map(_zstd, bytewise)),
        "many frames of unstated size": b"".join(map(_zstd_unstated, bytewise)),
        "empty frame first": _zstd(b"") + _zstd(block),
        "empty frame of unstated size first": _zstd_unstated(b"") + _zstd(block),
        "empty frame last": _zstd(block) + _zstd(b""),
        "empty frame between": _zstd(a) + _zstd_unstated(b"") + _zstd(b),
        "skippable frame first": _skippable(b"made by") + _zstd(block),
        "skippable frame last": _zstd(block) + _skippable(b"made by"),
        "skippable frame between": _zstd(a) + _skippable(b"x" * 100_000) + _zstd_unstated(b),
        "empty skippable frames all over": _skippable(b"").join([b"", _zstd(a), _zstd_unstated(b), b""]),
    }


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("count", [_FEW, _MANY])
@pytest.mark.parametrize("framing", _framings(b""))
def test_every_way_to_frame_a_block_gives_the_same_records(framing: str, count: int, decode: Decoder) -> None:
    block, _ = encode_block(_records(count))

    assert decode(_framings(block)[framing] + _footer(count, compression=1)) == _records(count)


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("frames", [_zstd(b""), _zstd_unstated(b""), _skippable(b"nothing here")])
def test_frames_of_nothing_are_a_batch_of_nothing(frames: bytes, decode: Decoder) -> None:
    assert decode(frames + _footer(0, compression=1)) == []


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("compress", [_zstd, _zstd_unstated], ids=["stated", "unstated"])
@pytest.mark.parametrize("count", [_FEW, _MANY])
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\0", id="one byte"),
        pytest.param(b"garbage", id="no frame"),
        pytest.param(b"\x28", id="the start of a magic number"),
        pytest.param(b"\x28\xb5\x2f\xfd", id="a magic number"),
        pytest.param(_zstd(b"more and more")[:-1], id="a frame cut short"),
        pytest.param(_skippable(b"skip me")[:-1], id="a skippable frame cut short"),
        pytest.param(_zstd(b"\0"), id="a frame of one byte more"),
    ],
)
def test_garbage_after_a_frame_is_corrupt(
    garbage: bytes, count: int, compress: Callable[[bytes], bytes], decode: Decoder
) -> None:
    block, _ = encode_block(_records(count))

    with pytest.raises(CorruptData):
        decode(compress(block) + garbage + _footer(count, compression=1))


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("compress", [_zstd, _zstd_unstated], ids=["stated", "unstated"])
def test_a_frame_cut_short_anywhere_is_corrupt(compress: Callable[[bytes], bytes], decode: Decoder) -> None:
    frame = compress(encode_block(_records(_FEW))[0])

    for length in range(len(frame)):
        with pytest.raises(CorruptData):
            decode(frame[:length] + _footer(_FEW, compression=1))


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(lambda: _zstd(bytes(64 * _MIB)), id="stated size over max_bytes"),
        pytest.param(lambda: _zstd_unstated(bytes(64 * _MIB)), id="unstated size over max_bytes"),
        pytest.param(lambda: _zstd(bytes(99)) + _zstd_unstated(bytes(64 * _MIB)), id="a small frame, then a bomb"),
        pytest.param(lambda: _zstd_claiming(2**62, bytes(100)), id="a lie far over max_bytes"),
    ],
)
def test_a_bomb_is_refused_before_it_is_held(frames: Callable[[], bytes]) -> None:
    outcomes, peak = _decoded_elsewhere(frames() + _footer(1, compression=1), max_bytes=_MIB)

    assert len(outcomes) == 2
    assert all(f"larger than max_bytes, {_MIB}" in outcome for outcome in outcomes)
    assert peak < 4 * _MIB


@pytest.mark.parametrize("compress", [_zstd, _zstd_unstated], ids=["stated", "unstated"])
def test_a_large_batch_within_max_bytes_shows_that_the_bound_is_measured(compress: Callable[[bytes], bytes]) -> None:
    outcomes, peak = _decoded_elsewhere(compress(encode_block([bytes(16 * _MIB)])[0]) + _footer(1, compression=1))

    assert outcomes == ["read", "read"]
    assert peak > 32 * _MIB  # the block and the record


@pytest.mark.parametrize("claimed", [1, 103, 105, 1 << 20, 1 << 29, 1 << 30])
def test_a_frame_that_lies_about_its_size_is_corrupt_and_costs_little(claimed: int) -> None:
    block, count = encode_block([b"y" * 100])

    outcomes, peak = _decoded_elsewhere(_zstd_claiming(claimed, block) + _footer(count, compression=1))

    assert len(outcomes) == 2
    assert all("batch is corrupt" in outcome for outcome in outcomes)
    assert peak < 8 * _MIB  # one chunk of the stream, and what the stream itself needs


@pytest.mark.parametrize("count", [1, 999, 1_000, 2**31, 2**32 - 1])
def test_a_count_from_nowhere_allocates_nothing(count: int) -> None:
    outcomes, peak = _decoded_elsewhere(b"\xff" * 100 + _footer(count))

    assert len(outcomes) == 2
    assert all("batch is corrupt" in outcome for outcome in outcomes)
    assert peak < _MIB


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("compress", [_zstd, _zstd_unstated], ids=["stated", "unstated"])
def test_a_refused_batch_leaves_no_memory_behind(compress: Callable[[bytes], bytes], decode: Decoder) -> None:
    data = compress(encode_block(_records(_MANY))[0])[:-5] + _footer(_MANY, compression=1)

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


@pytest.mark.parametrize("decode", _DECODERS)
def test_a_frame_that_states_its_size_in_eight_bytes_is_read(decode: Decoder) -> None:
    block, count = encode_block([b"y" * 100])

    assert decode(_zstd_claiming(len(block), block) + _footer(count, compression=1)) == [b"y" * 100]


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("count", [_FEW, _MANY])
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lambda block: (block, 0), id="none"),
        pytest.param(lambda block: (_zstd(block), 1), id="zstd"),
        pytest.param(lambda block: (_zstd_unstated(block), 1), id="zstd of unstated size"),
        pytest.param(lambda block: (_zstd(block[:50]) + _zstd(block[50:]), 1), id="two zstd frames"),
    ],
)
def test_max_bytes_is_the_largest_block_that_is_read(
    frame: Callable[[bytes], tuple[bytes, int]], count: int, decode: Decoder
) -> None:
    block, _ = encode_block(_records(count))
    framed, code = frame(block)
    data = framed + _footer(count, compression=code)

    assert decode(data, max_bytes=len(block)) == _records(count)
    with pytest.raises(CorruptData, match=f"larger than max_bytes, {len(block) - 1}"):
        decode(data, max_bytes=len(block) - 1)


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


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("count", [_FEW, _MANY], ids=["walked", "through pyarrow"])
@pytest.mark.parametrize("damage", _DAMAGE)
def test_every_kind_of_damage_is_corrupt_however_it_is_read(
    damage: str, count: int, compression: str, decode: Decoder
) -> None:
    block, claimed = _DAMAGE[damage](encode_block(_records(count))[0], count)
    data = _zstd(block) + _footer(claimed, compression=1) if compression == "zstd" else block + _footer(claimed)

    with pytest.raises(CorruptData) as caught:
        decode(data)

    assert type(caught.value) is CorruptData
    assert caught.value.what == "batch"


@pytest.mark.parametrize("decode", _DECODERS)
@pytest.mark.parametrize("count", [_FEW, _MANY], ids=["walked", "through pyarrow"])
def test_corruption_names_its_place(count: int, decode: Decoder) -> None:
    block, _ = encode_block(_records(count))
    at = _last(block)

    with pytest.raises(CorruptData) as too_long:
        decode(_overwritten(block, at, 1 << 20) + _footer(count))
    with pytest.raises(CorruptData) as left_over:
        decode(block + b"\0\0" + _footer(count))

    assert too_long.value.offset == at
    assert left_over.value.offset == len(block)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(["text"], id="str"),
        pytest.param([""], id="empty str"),
        pytest.param([b"bytes", "text"], id="str behind bytes"),
        pytest.param("text", id="a str for all"),
        pytest.param([1], id="int"),
        pytest.param([None], id="None"),
        pytest.param([[b"nested"]], id="list"),
        pytest.param(b"bytes", id="bytes for all"),
    ],
)
def test_entries_that_are_not_bytes_are_invalid_input(entries: Iterable[Any], compression: Compression) -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        encode_batch(entries, compression)


@pytest.mark.parametrize("compression", ["lz4", "", "ZSTD", "None", 1])
def test_an_unknown_compression_is_invalid_input(compression: Any) -> None:
    with pytest.raises(InvalidInput, match="'none' or 'zstd'"):
        encode_batch([b"x"], compression)


def test_more_entries_than_the_footer_can_count_are_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="at most 4294967295"):
        frame_batch([b""], 2**32, "none")


@settings(REPEATABLE, max_examples=200)
@given(records=st.lists(st.binary(max_size=40), max_size=60), compression=st.sampled_from(["none", "zstd"]))
def test_any_records_come_back(records: list[bytes], compression: Compression) -> None:
    data = encode_batch(records, compression)

    assert decode_batch(data) == records
    assert decode_batch_arrow(data).to_pylist() == records


@settings(REPEATABLE, max_examples=60)
@given(seed=st.integers(0, 2**32), count=st.integers(1_000, 4_000), compression=st.sampled_from(["none", "zstd"]))
def test_any_many_records_come_back(seed: int, count: int, compression: Compression) -> None:
    rng = random.Random(seed)
    records = [rng.randbytes(rng.randrange(rng.choice((1, 2, 40)))) for _ in range(count)]

    data = encode_batch(records, compression)

    assert decode_batch(data) == records
    assert decode_batch_arrow(data).to_pylist() == records


@functools.cache
def _targets() -> tuple[list[bytes], list[bytes]]:
    """Valid batches to damage: small ones, and ones that go through pyarrow."""
    small = [bytes.fromhex(v["hex"]) for v in _VECTORS if "error" not in v]
    small += [encode_batch(_records(n), c) for n in (1, 40) for c in ("none", "zstd")]
    small += [f + _footer(_FEW, compression=1) for f in _framings(encode_block(_records(_FEW))[0]).values()]
    large = [encode_batch(_records(n), c) for n in (1_000, 1_500) for c in ("none", "zstd")]
    return small, [*large, encode_batch([b""] * 1_100), encode_batch([b"0123456789"] * 1_100)]


def _hostile_batch(rng: random.Random) -> bytes:
    small, large = _targets()
    if rng.random() < 0.3:
        # Most damage to a frame ends in zstd's own checks; damage below it must reach the records.
        data = damaged(rng, [batch for batch in large if batch[-7] == 0])
        return _zstd(data[:-7]) + b"\1" + data[-6:]
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
