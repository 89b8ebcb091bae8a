"""OpenTelemetry traces: one row per span, its events and links kept inside."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from objbuf_dagster.decode.attributes import Attributes
from objbuf_dagster.decode.columns import enum_text, instant_fields, instants, lists, map_type, owners, structs
from objbuf_dagster.decode.envelope import Signal
from objbuf_dagster.decode.otlp import Built, OtlpDecoder, Rows

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES = ("UNSET", "OK", "ERROR")
_PLAIN = (
    "TraceId",
    "SpanId",
    "ParentSpanId",
    "TraceState",
    "Flags",
    "SpanName",
    "SpanKind",
    "DroppedAttributesCount",
    "StatusCode",
    "StatusMessage",
    "DroppedEventsCount",
    "DroppedLinksCount",
)
"""What a span has one text or number of, in the order in which `_SpanRows.add` reads it."""


class OtlpTraces(OtlpDecoder):
    """Spans. Ids are lower-case hex of whatever length came; a kind or code that has no name yet is its number."""

    name = "otlp_traces"
    version = 1
    signal = Signal.TRACES
    parts_in = ("resource_spans", "scope_spans")

    def count(self, scope: Any) -> int:
        return len(scope.spans)

    def parts(self, scope: Any) -> Iterator[int]:
        for span in scope.spans:
            yield len(span.attributes) + len(span.events) + len(span.links)
            for part in chain(span.events, span.links):
                yield len(part.attributes)

    def rows(self) -> Rows:
        return _SpanRows()

    def own_fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [
            *instant_fields("StartTimestamp"),
            *instant_fields("EndTimestamp"),
            pa.field("TraceId", pa.string(), nullable=False),
            pa.field("SpanId", pa.string(), nullable=False),
            pa.field("ParentSpanId", pa.string(), nullable=False),
            pa.field("TraceState", pa.string(), nullable=False),
            pa.field("Flags", pa.int64(), nullable=False),
            pa.field("SpanName", pa.string(), nullable=False),
            pa.field("SpanKind", pa.string(), nullable=False),
            pa.field("SpanAttributes", map_type(), nullable=False),
            pa.field("SpanAttributeKinds", map_type(), nullable=False),
            pa.field("DroppedAttributesCount", pa.int64(), nullable=False),
            pa.field("StatusCode", pa.string(), nullable=False),
            pa.field("StatusMessage", pa.string(), nullable=False),
            pa.field("Events", pa.list_(pa.struct(_event_fields())), nullable=False),
            pa.field("DroppedEventsCount", pa.int64(), nullable=False),
            pa.field("Links", pa.list_(pa.struct(_link_fields())), nullable=False),
            pa.field("DroppedLinksCount", pa.int64(), nullable=False),
        ]


def _event_fields() -> list[pa.Field]:
    import pyarrow as pa

    return [
        *instant_fields("Timestamp"),
        pa.field("Name", pa.string(), nullable=False),
        pa.field("Attributes", map_type(), nullable=False),
        pa.field("AttributeKinds", map_type(), nullable=False),
        pa.field("DroppedAttributesCount", pa.int64(), nullable=False),
    ]


def _link_fields() -> list[pa.Field]:
    import pyarrow as pa

    return [
        pa.field("TraceId", pa.string(), nullable=False),
        pa.field("SpanId", pa.string(), nullable=False),
        pa.field("TraceState", pa.string(), nullable=False),
        pa.field("Flags", pa.int64(), nullable=False),
        pa.field("Attributes", map_type(), nullable=False),
        pa.field("AttributeKinds", map_type(), nullable=False),
        pa.field("DroppedAttributesCount", pa.int64(), nullable=False),
    ]


class _Events:
    def __init__(self) -> None:
        self._times: list[int] = []
        self._names: list[str] = []
        self._attributes = Attributes()
        self._dropped: list[int] = []
        self._ends = [0]

    def add(self, events: Any) -> None:
        for event in events:
            self._times.append(event.time_unix_nano)
            self._names.append(event.name)
            self._attributes.add(event.attributes)
            self._dropped.append(event.dropped_attributes_count)
        self._ends.append(len(self._times))

    def build(self) -> tuple[pa.Array, list[int]]:
        """The column, and the rows with an attribute that is no valid protobuf."""
        import pyarrow as pa

        attributes = self._attributes.build()
        columns = [
            *instants(self._times),
            pa.array(self._names, pa.string()),
            attributes.texts,
            attributes.kinds,
            pa.array(self._dropped, pa.int64()),
        ]
        column = lists(self._ends, structs(_event_fields(), columns))
        return column, owners(self._ends, attributes.bad).tolist()


class _Links:
    def __init__(self) -> None:
        self._traces: list[str] = []
        self._spans: list[str] = []
        self._states: list[str] = []
        self._flags: list[int] = []
        self._attributes = Attributes()
        self._dropped: list[int] = []
        self._ends = [0]

    def add(self, links: Any) -> None:
        for link in links:
            self._traces.append(link.trace_id.hex())
            self._spans.append(link.span_id.hex())
            self._states.append(link.trace_state)
            self._flags.append(link.flags)
            self._attributes.add(link.attributes)
            self._dropped.append(link.dropped_attributes_count)
        self._ends.append(len(self._traces))

    def build(self) -> tuple[pa.Array, list[int]]:
        """The column, and the rows with an attribute that is no valid protobuf."""
        import pyarrow as pa

        attributes = self._attributes.build()
        columns = [
            pa.array(self._traces, pa.string()),
            pa.array(self._spans, pa.string()),
            pa.array(self._states, pa.string()),
            pa.array(self._flags, pa.int64()),
            attributes.texts,
            attributes.kinds,
            pa.array(self._dropped, pa.int64()),
        ]
        column = lists(self._ends, structs(_link_fields(), columns))
        return column, owners(self._ends, attributes.bad).tolist()


class _SpanRows(Rows):
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._values: list[tuple[Any, ...]] = []
        self._attributes = Attributes()
        self._events = _Events()
        self._links = _Links()

    def add(self, scope: Any) -> int:
        spans = scope.spans
        for span in spans:
            self._starts.append(span.start_time_unix_nano)
            self._stops.append(span.end_time_unix_nano)
            self._attributes.add(span.attributes)
            self._events.add(span.events)
            self._links.add(span.links)
            self._values.append(
                (
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.trace_state,
                    span.flags,
                    span.name,
                    enum_text(span.kind, _KINDS),
                    span.dropped_attributes_count,
                    enum_text(span.status.code, _CODES),
                    span.status.message,
                    span.dropped_events_count,
                    span.dropped_links_count,
                )
            )
        return len(spans)

    def build(self) -> Built:
        import pyarrow as pa

        start, start_nanos = instants(self._starts)
        stop, stop_nanos = instants(self._stops)
        attributes = self._attributes.build()
        events, bad_events = self._events.build()
        links, bad_links = self._links.build()
        columns = {
            "StartTimestamp": start,
            "StartTimestampUnixNano": start_nanos,
            "EndTimestamp": stop,
            "EndTimestampUnixNano": stop_nanos,
            "SpanAttributes": attributes.texts,
            "SpanAttributeKinds": attributes.kinds,
            "Events": events,
            "Links": links,
        }
        every = list(zip(*self._values, strict=True)) if self._values else [()] * len(_PLAIN)
        for name, values in zip(_PLAIN, every, strict=True):
            is_number = name == "Flags" or name.endswith("Count")
            columns[name] = pa.array(values, pa.int64() if is_number else pa.string())
        return Built(columns, dict.fromkeys([*attributes.bad.tolist(), *bad_events, *bad_links], ""))
