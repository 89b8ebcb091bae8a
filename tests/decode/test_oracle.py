"""What the decoders make of entries is what a plain walk through the official classes finds, on any input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from objbuf_dagster.decode.attributes import Attributes
from objbuf_dagster.decode.otlp import OtlpDecoder
from tests.decode.messages import DECODERS, any_values, decoded, entries_batch, field, requests
from tests.decode.oracle import (
    Unknown,
    attributes,
    attributes_from,
    check_known,
    expected,
    plain,
    readable,
    value_from,
)

_SLOW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
_LONG = settings(max_examples=150, suppress_health_check=list(HealthCheck))

_MAP = field(6, field(1, field(1, b"k") + field(2, b"\x18\x07")) + field(1, field(2, field(5, field(1, b"\x10\x01")))))
_ATTRIBUTE = field(1, b"key") + field(2, _MAP)
_RESOURCE = field(1, field(1, field(1, b"service.name") + field(2, field(1, b"shop"))))
FULL = {
    "otlp_logs": _RESOURCE + field(2, field(2, field(5, _MAP) + field(6, _ATTRIBUTE))),
    "otlp_metrics": _RESOURCE
    + field(2, field(2, field(5, field(1, field(7, _ATTRIBUTE) + field(5, b"\x31" + bytes(8)) + b"\x31" + bytes(8))))),
    "otlp_traces": _RESOURCE + field(2, field(2, field(9, _ATTRIBUTE) + field(11, field(3, _ATTRIBUTE)))),
}
"""By decoder, the resource part of a request with all that is a choice of kinds."""


def check(decoder: OtlpDecoder, entries: list[bytes], **sizes: int) -> None:
    rows, failures = decoded(decoder, entries_batch(entries, bytes((1, decoder.signal, 1, 0))), **sizes)
    wanted = [expected(decoder.name, entry) for entry in entries]
    assert [failure["_odb_sequence"] - 100 for failure in failures] == [
        at for at, each in enumerate(wanted) if each is None
    ]
    assert all(
        failure["reason"] and failure["entry"] == entries[failure["_odb_sequence"] - 100] for failure in failures
    )
    places = [(row["_odb_sequence"] - 100, row["_odb_record_index"]) for row in rows]
    assert places == [(at, index) for at, each in enumerate(wanted) for index in range(len(each or ()))]
    for row, (at, index) in zip(rows, places, strict=True):
        found = {name: value for name, value in readable(row).items() if not name.startswith("_odb_")}
        service = found.pop("ServiceName")
        assert repr(sorted(found.items())) == repr(sorted((wanted[at] or [])[index].items()))
        assert service == (dict(row["ResourceAttributes"]).get("service.name") or "")


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
@_SLOW
@given(data=st.data())
def test_any_request_gives_the_rows_of_a_plain_walk(decoder: OtlpDecoder, data: st.DataObject) -> None:
    entries = data.draw(st.lists(requests(decoder.signal), min_size=1, max_size=3))

    check(decoder, entries)
    check(decoder, entries, entry_bytes=1, row_bytes=1)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
@_LONG
@given(data=st.data())
def test_damaged_bytes_give_what_protobuf_gives_and_spoil_no_neighbour(
    decoder: OtlpDecoder, data: st.DataObject
) -> None:
    good = data.draw(requests(decoder.signal))
    damaged = bytearray(data.draw(requests(decoder.signal)))
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(damaged)))

    check(decoder, [good, bytes(damaged), bytes(damaged[:cut]), data.draw(st.binary(max_size=30)), good])


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_every_bit_that_may_fall_over_gives_what_the_plain_walk_gives(decoder: OtlpDecoder) -> None:
    whole = field(1, FULL[decoder.name])
    flipped = [
        whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    ]

    check(decoder, [whole, *flipped])


@given(value=any_values())
def test_a_value_of_any_kind_comes_back_exactly(value: Any) -> None:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    collected = Attributes()
    collected.add([KeyValue(key="k", value=value).SerializeToString()])
    maps = collected.build()
    ((_, text),) = maps.texts.to_pylist()[0]
    kinds = dict(maps.kinds.to_pylist()[0])

    rebuilt = value_from(text, kinds.get("k"))
    assert plain(rebuilt) == plain(value)
    assert rebuilt.SerializeToString(deterministic=True) == value.SerializeToString(deterministic=True)


@given(one=any_values(), other=any_values())
def test_values_that_differ_have_texts_or_kinds_that_differ(one: Any, other: Any) -> None:
    from objbuf_dagster.decode.values import json_of, text_of

    same = one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
    assert (text_of(one) == text_of(other)) == same
    assert (json_of(one) == json_of(other)) == same


@st.composite
def serialised_attributes(draw: st.DrawFn) -> bytes:
    """Nearly what a library would write: valid, or with a bit that fell over, or a number in too many bytes."""
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    key = draw(st.text(max_size=4))
    how = draw(st.sampled_from(["valid", "valid", "damaged", "varint"]))
    if how == "varint":
        number = draw(st.lists(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]), min_size=1, max_size=11))
        return field(1, key.encode()) + field(2, b"\x18" + bytes(number))
    data = bytearray(KeyValue(key=key, value=draw(any_values())).SerializeToString())
    if data and how == "damaged":
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


_STRING, _INT, _KEY = field(1, b"text"), b"\x18\x07", field(1, b"k")


@pytest.mark.parametrize("last", [0, 1, 2, 0x7F, 0x80])
@pytest.mark.parametrize("length", [1, 8, 9, 10, 11])
def test_integers_are_read_as_protobuf_reads_them(length: int, last: int) -> None:
    check_attributes([[_KEY + field(2, b"\x18" + b"\xff" * (length - 1) + bytes((last,)))], [_KEY + field(2, _INT)]])


@pytest.mark.parametrize(
    "item",
    [
        b"",
        _KEY,
        field(2, _STRING),
        field(2, _STRING) + _KEY,
        _KEY + field(2, b""),
        _KEY + field(2, b"\x0a\x00"),
        _KEY + field(2, _STRING + b"\x98\x06\x01"),
        _KEY + field(2, _STRING + field(1, b"last")),
        _KEY + field(2, _STRING + _INT),
        _KEY + field(2, _INT + _STRING),
        _KEY + field(2, _INT + _INT),
        _KEY + field(2, _STRING) + b"\x98\x06\x01",
        _KEY + field(2, _STRING) + field(2, _INT),
        _KEY + field(2, _STRING) + field(1, b"other"),
        _KEY + field(2, field(1, b"x" * 125)),
        _KEY + field(2, field(1, b"x" * 126)),
        field(1, b"k" * 127) + field(2, _STRING),
        field(1, b"k" * 128) + field(2, _STRING),
        b"\x0a\x81\x00k" + field(2, _STRING),
        _KEY + b"\x12\x87\x00\x0a\x85\x00texts",
        _KEY + b"\x12\x05\x0a\x04text",
        _KEY + b"\x12\x06\x0a\x05text",
        _KEY + b"\x12\x06\x0a\x03text",
        _KEY + field(2, b"\x21" + bytes(7)),
        _KEY + field(2, b"\x21" + bytes(8)),
        _KEY + field(2, b"\x21" + bytes(9)),
        _KEY + field(2, b"\x10\x02"),
        _KEY + field(2, field(77, b"a newer kind")),
        _KEY + field(2, _STRING) + b"\x18\x07",
        b"\x18\x07" + field(2, _STRING),
        _KEY + field(2, _STRING) + b"\x18\x00",
        field(2, _STRING) + b"\x20\x07",
        _KEY + field(2, field(6, field(1, field(2, _STRING) + b"\x18\x07"))),
        _KEY + b"\x12\x8a\x0a\x88" + b"x" * 136,  # 1290 bytes, of which few are there
        b"\x0a\x8a\x01" + b"k" * 137 + b"\x12\x12\x0a\x10" + b"x" * 16,  # a key of 138 bytes, and rubbish
    ],
)
def test_a_shape_that_is_nearly_common_is_read_as_protobuf_reads_it(item: bytes) -> None:
    common = _KEY + field(2, _STRING)

    check_attributes([[item], [common], [common, item, _KEY + field(2, _INT)]])


@settings(max_examples=200)
@given(lists=st.lists(st.lists(serialised_attributes(), max_size=4), max_size=4))
def test_any_attributes_are_read_as_protobuf_reads_them(lists: list[list[bytes]]) -> None:
    check_attributes(lists)


def check_attributes(lists: list[list[bytes]]) -> None:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    collected = Attributes()
    for items in lists:
        collected.add(items)
    maps = collected.build()

    for at, items in enumerate(lists):
        try:
            read = [KeyValue.FromString(item) for item in items]
            for each in read:
                check_known(each)
        except (DecodeError, Unknown):
            assert at in maps.bad
        else:
            assert at not in maps.bad
            assert attributes_from(maps.texts[at].as_py(), maps.kinds[at].as_py()) == attributes(read)
