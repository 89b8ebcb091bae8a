"""Export requests to test with: any that Hypothesis finds, and wire bytes by hand."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from objbuf_dagster.decode import Decoder, OtlpLogs, OtlpMetrics, OtlpTraces, Signal, decode_block
from objbuf_dagster.decode.requests import official
from objbuf_dagster.lake.schema import ENTRIES

Rows = list[dict[str, Any]]

DECODERS = [OtlpLogs(), OtlpMetrics(), OtlpTraces()]
LOGS = bytes((1, 2, 1, 0))

_TEXT = st.one_of(
    st.sampled_from(["", "a", "k", "$", "$bytes", "$$double", "service.name", "1", "null", "x" * 200, "ü\0\u2028"]),
    st.text(max_size=12),
)
_DOUBLES = st.floats().map(lambda number: math.nan if math.isnan(number) else number)  # one NaN, whatever its bits
_BY_TYPE: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=20),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: _DOUBLES,
    FieldDescriptor.TYPE_FIXED64: st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 2**63, 2**64 - 1])),
    FieldDescriptor.TYPE_UINT64: st.one_of(st.integers(0, 1000), st.sampled_from([2**63 - 1, 2**63])),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 3, 9, 77]),
}
_LEFT_OUT = {"key_strindex", "entity_refs"}


def any_values() -> st.SearchStrategy[AnyValue]:
    """Every kind, nested in each other, with duplicate keys."""
    leaves = st.one_of(
        st.just(AnyValue()),
        _TEXT.map(lambda text: AnyValue(string_value=text)),
        st.booleans().map(lambda flag: AnyValue(bool_value=flag)),
        st.integers(-(2**63), 2**63 - 1).map(lambda number: AnyValue(int_value=number)),
        _DOUBLES.map(lambda number: AnyValue(double_value=number)),
        st.binary(max_size=20).map(lambda data: AnyValue(bytes_value=data)),
        st.integers(-(2**31), 2**31 - 1).map(lambda number: AnyValue(string_value_strindex=number)),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(_array), st.lists(st.tuples(_TEXT, inner), max_size=3).map(_map)
        ),
        max_leaves=6,
    )


def _array(values: list[AnyValue]) -> AnyValue:
    value = AnyValue()
    value.array_value.SetInParent()
    value.array_value.values.extend(values)
    return value


def _map(items: list[tuple[str, AnyValue]]) -> AnyValue:
    value = AnyValue()
    value.kvlist_value.SetInParent()
    for key, item in items:
        value.kvlist_value.values.add(key=key, value=item)
    return value


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor) -> Any:
    """A message of this type in which every field may be set, found by its descriptor: none is forgotten."""
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(descriptor)()
    chosen = {oneof.name: draw(st.sampled_from([None, *oneof.fields])) for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if field.name in _LEFT_OUT or (oneof is not None and chosen[oneof.name] is not field):
            continue
        if field.message_type is not None:
            inner = any_values() if field.message_type.name == "AnyValue" else messages(field.message_type)
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(inner, max_size=2)))
            elif oneof is not None or draw(st.booleans()):
                getattr(message, field.name).CopyFrom(draw(inner))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_BY_TYPE[field.type], max_size=3)))
        elif oneof is not None or draw(st.booleans()):
            setattr(message, field.name, draw(_BY_TYPE[field.type]))
    return message


def requests(signal: Signal) -> st.SearchStrategy[bytes]:
    """Serialised export requests."""
    return messages(official(signal).DESCRIPTOR).map(lambda message: bytes(message.SerializeToString()))


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def nested_value(levels: int) -> bytes:
    """An AnyValue that is an array in an array in an array..."""
    value = field(1, b"x")
    for _ in range(levels):
        value = field(5, field(1, value))
    return value


def log_entry(*records: bytes) -> bytes:
    """A logs request with these records."""
    return field(1, field(2, b"".join(field(2, record) for record in records)))


def entries_batch(entries: list[bytes], payloads: list[bytes | None] | bytes = LOGS) -> pa.RecordBatch:
    """Rows of `entries`, one sequence each."""
    count = len(entries)
    of_entries = [payloads] * count if isinstance(payloads, bytes) else payloads
    columns = [
        pa.array(range(100, 100 + count), pa.int64()),
        pa.array([index % 3 for index in range(count)], pa.int64()),
        pa.array([None if index % 2 else index for index in range(count)], pa.int64()),
        pa.array(["ingest/manifest"] * count, pa.string()),
        pa.array([f"ingest/{index}.batch" for index in range(count)], pa.string()),
        pa.array(of_entries, pa.binary()),
        pa.array(entries, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRIES.to_arrow())


def decoded(decoder: Decoder, batch: pa.RecordBatch, **settings: int) -> tuple[Rows, Rows]:
    """All rows and failures of a batch."""
    rows: Rows = []
    failures: Rows = []
    for some_rows, some_failures in decode_block(decoder, batch, **settings):
        some_rows.validate(full=True)
        some_failures.validate(full=True)
        for part in (some_rows, some_failures):
            assert not [
                at.name
                for at, each in zip(part.schema, part.columns, strict=True)
                if each.null_count and not at.nullable
            ]
        rows += some_rows.to_pylist()
        failures += some_failures.to_pylist()
    return rows, failures
