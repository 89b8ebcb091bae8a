"""OpenTelemetry logs: one row per log record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from objbuf_dagster.decode.attributes import Attributes
from objbuf_dagster.decode.columns import instant_fields, instants, map_type
from objbuf_dagster.decode.envelope import Signal
from objbuf_dagster.decode.otlp import Built, OtlpDecoder, Rows
from objbuf_dagster.decode.values import UnknownKind, text_of

if TYPE_CHECKING:
    import pyarrow as pa

AT_A_TIME = 4096
"""Of so many records protobuf's objects are made at a time, once for all columns."""


class OtlpLogs(OtlpDecoder):
    """Logs. Ids are lower-case hex of whatever length came; `Body` is text with its `BodyKind`, see `values`."""

    name = "otlp_logs"
    version = 1
    signal = Signal.LOGS
    parts_in = ("resource_logs", "scope_logs")

    def count(self, scope: Any) -> int:
        return len(scope.log_records)

    def parts(self, scope: Any) -> Iterator[int]:
        for record in scope.log_records:
            yield len(record.attributes)

    def rows(self) -> Rows:
        return _LogRows()

    def own_fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [
            *instant_fields("Timestamp"),
            *instant_fields("ObservedTimestamp"),
            pa.field("SeverityNumber", pa.int32(), nullable=False),
            pa.field("SeverityText", pa.string(), nullable=False),
            pa.field("Body", pa.string()),
            pa.field("BodyKind", pa.string()),
            pa.field("LogAttributes", map_type(), nullable=False),
            pa.field("LogAttributeKinds", map_type(), nullable=False),
            pa.field("DroppedAttributesCount", pa.int64(), nullable=False),
            pa.field("TraceId", pa.string(), nullable=False),
            pa.field("SpanId", pa.string(), nullable=False),
            pa.field("Flags", pa.int64(), nullable=False),
            pa.field("EventName", pa.string(), nullable=False),
        ]


class _LogRows(Rows):
    def __init__(self) -> None:
        self._times: list[int] = []
        self._observed: list[int] = []
        self._numbers: list[int] = []
        self._severities: list[str] = []
        self._bad: list[int] = []
        self._bodies: list[str | None] = []
        self._body_kinds: list[str | None] = []
        self._attributes = Attributes()
        self._dropped: list[int] = []
        self._traces: list[str] = []
        self._spans: list[str] = []
        self._flags: list[int] = []
        self._events: list[str] = []

    def add(self, scope: Any) -> int:
        records = scope.log_records
        for begin in range(0, len(records), AT_A_TIME):
            self._add(records[begin : begin + AT_A_TIME])
        return len(records)

    def _add(self, records: Sequence[Any]) -> None:
        self._times += [record.time_unix_nano for record in records]
        self._observed += [record.observed_time_unix_nano for record in records]
        self._numbers += [record.severity_number for record in records]
        self._severities += [record.severity_text for record in records]
        for record in records:
            try:
                text, kind = text_of(record.body)
            except UnknownKind:
                self._bad.append(len(self._bodies))
                text, kind = None, None
            self._bodies.append(text)
            self._body_kinds.append("string" if kind is None and text is not None else kind)
        for record in records:
            self._attributes.add(record.attributes)
        self._dropped += [record.dropped_attributes_count for record in records]
        self._traces += [record.trace_id.hex() for record in records]
        self._spans += [record.span_id.hex() for record in records]
        self._flags += [record.flags for record in records]
        self._events += [record.event_name for record in records]

    def build(self) -> Built:
        import pyarrow as pa

        times, nanos = instants(self._times)
        observed, observed_nanos = instants(self._observed)
        attributes = self._attributes.build()
        columns = {
            "Timestamp": times,
            "TimestampUnixNano": nanos,
            "ObservedTimestamp": observed,
            "ObservedTimestampUnixNano": observed_nanos,
            "SeverityNumber": pa.array(self._numbers, pa.int32()),
            "SeverityText": pa.array(self._severities, pa.string()),
            "Body": pa.array(self._bodies, pa.string()),
            "BodyKind": pa.array(self._body_kinds, pa.string()),
            "LogAttributes": attributes.texts,
            "LogAttributeKinds": attributes.kinds,
            "DroppedAttributesCount": pa.array(self._dropped, pa.int64()),
            "TraceId": pa.array(self._traces, pa.string()),
            "SpanId": pa.array(self._spans, pa.string()),
            "Flags": pa.array(self._flags, pa.int64()),
            "EventName": pa.array(self._events, pa.string()),
        }
        return Built(columns, dict.fromkeys([*attributes.bad.tolist(), *self._bad], ""))
