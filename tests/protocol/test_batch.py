"""Data batches: the other implementations' bytes, what was encoded comes back, and what cannot be encoded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
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
from tests.protocol.batches import DECODERS, FEW, MANY, VECTORS, Decoder, footer, some_records
from tests.protocol.hostile import REPEATABLE

_VALID = [pytest.param(v, id=v["name"]) for v in VECTORS if "error" not in v]
_DAMAGED = [pytest.param(v, id=v["name"]) for v in VECTORS if "error" in v]
_KINDS: dict[str, type[ObjbufError]] = {
    "corrupt": CorruptData,
    "unsupported version": UnsupportedVersion,
    "unsupported compression": UnsupportedCompression,
}


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("vector", _VALID)
def test_a_valid_vector_decodes_to_its_records(vector: dict[str, Any], decode: Decoder) -> None:
    assert decode(bytes.fromhex(vector["hex"])) == [bytes.fromhex(record) for record in vector["records_hex"]]


@pytest.mark.parametrize("vector", [p for p in _VALID if "does not state" not in str(p.id)])
def test_a_valid_vector_is_encoded_to_the_same_bytes(vector: dict[str, Any]) -> None:
    compression: Compression = "zstd" if vector["name"].endswith("zstd") else "none"

    assert encode_batch([bytes.fromhex(r) for r in vector["records_hex"]], compression).hex() == vector["hex"]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("vector", _DAMAGED)
def test_a_damaged_vector_is_refused_for_its_reason(vector: dict[str, Any], decode: Decoder) -> None:
    with pytest.raises(_KINDS[vector["error"]]) as caught:
        decode(bytes.fromhex(vector["hex"]))

    assert type(caught.value) is _KINDS[vector["error"]]


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(UnsupportedVersion) as version:
        decode_batch(footer(0, version=99))
    with pytest.raises(UnsupportedCompression) as compression:
        decode_batch(footer(0, compression=2))

    assert (version.value.what, version.value.version, compression.value.code) == ("batch", 99, 2)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("count", [0, 1, 2, 999, 1_000, 1_001, MANY])
def test_records_come_back_in_order_whatever_their_number(
    count: int, compression: Compression, decode: Decoder
) -> None:
    records = some_records(count)

    assert decode(encode_batch(records, compression)) == records


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("count", [1, FEW, 1_000, MANY])
def test_empty_entries_are_kept(count: int, compression: Compression, decode: Decoder) -> None:
    assert decode(encode_batch([b""] * count, compression)) == [b""] * count


@pytest.mark.parametrize("count", [0, FEW, MANY])
def test_the_arrow_form_is_binary_without_nulls(count: int) -> None:
    array = decode_batch_arrow(encode_batch(some_records(count), "zstd"))

    assert (array.type, len(array), array.null_count) == (pa.binary(), count, 0)
    array.validate(full=True)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "wrap", [bytearray, memoryview, lambda data: memoryview(bytearray(b"--" + data + b"--"))[2:-2]]
)
def test_any_kind_of_buffer_is_read(
    wrap: Callable[[bytes], Any], compression: Compression, count: int, decode: Decoder
) -> None:
    records = some_records(count)

    assert decode(wrap(encode_batch(records, compression))) == records


def test_entries_may_come_from_any_iterable() -> None:
    assert encode_batch(iter([b"a", b"b"])) == encode_batch((b"a", b"b")) == encode_batch([b"a", b"b"])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_framed_from_pieces_holds_all_of_their_entries(compression: Compression) -> None:
    blocks = [encode_block(some_records(n)) for n in (3, 0, 1_200)]

    framed = b"".join(frame_batch([block for block, _ in blocks], sum(n for _, n in blocks), compression))

    assert decode_batch(framed) == [*some_records(3), *some_records(1_200)]


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


def test_blocks_are_compressed_at_level_3() -> None:
    """The protocol's; on this block every other level up to 9 gives other bytes."""
    chance = random.Random(3)
    words = [bytes(chance.choices(b"abcdefgh", k=chance.randint(2, 9))) for _ in range(300)]
    records = [b" ".join(chance.choices(words, k=12)) for _ in range(2_000)]
    block, _ = encode_block(records)

    encoded = encode_batch(records, "zstd")[:-7]

    levels = [level for level in range(1, 10) if zstandard.ZstdCompressor(level=level).compress(block) == encoded]
    assert levels == [3]
