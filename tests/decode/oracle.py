"""The same entries decoded in the plainest way: official classes and a walk. It shares no code with the decoders."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))


class TooLarge(Exception):
    """A count that no signed number holds."""


class Unknown(Exception):
    """A value or a key of a kind that this release does not know, or an index into strings that are not there."""


def check_known(message: Any) -> None:
    """Raise Unknown if a choice in this message, or in one that it holds, is unset and there are unknown fields beside
    it; or if an attribute has no key but something else in its place."""
    newer = len(UnknownFieldSet(message)) > 0
    for choice in message.DESCRIPTOR.oneofs:
        if newer and len(choice.fields) > 1 and message.WhichOneof(choice.name) is None:
            raise Unknown
    if message.DESCRIPTOR.name == "KeyValue" and (message.key_strindex or (newer and not message.key)):
        raise Unknown
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                check_known(inner)


def plain(value: Any) -> Any:
    """An AnyValue as nested tuples, that are equal when the values are."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return kind, tuple(plain(item) for item in value.array_value.values)
    if kind == "kvlist_value":
        return kind, tuple((item.key, plain(item.value)) for item in value.kvlist_value.values)
    return kind, repr(getattr(value, kind)) if kind else None


def value_from(text: str | None, kind: str | None) -> AnyValue:
    """The inverse: the value that a text and its kind stand for."""
    if text is None:
        return AnyValue()
    if kind in _SCALARS:
        return _SCALARS[kind](text)
    value = _from_json(json.loads(text, object_pairs_hook=_Pairs))
    assert value.WhichOneof("value") == {"array": "array_value", "map": "kvlist_value"}[str(kind)]
    return value


_SCALARS: dict[str | None, Callable[[str], AnyValue]] = {
    None: lambda text: AnyValue(string_value=text),
    "string": lambda text: AnyValue(string_value=text),
    "bool": lambda text: AnyValue(bool_value={"true": True, "false": False}[text]),
    "int": lambda text: AnyValue(int_value=int(text)),
    "double": lambda text: AnyValue(double_value=float(text)),
    "bytes": lambda text: AnyValue(bytes_value=base64.b64decode(text, validate=True)),
    "strindex": lambda text: AnyValue(string_value_strindex=int(text)),
}


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with its keys in order, also those that come twice."""


def _from_json(item: Any) -> AnyValue:
    value = AnyValue()
    if isinstance(item, _Pairs):
        if len(item) == 1 and item[0][0] in {"$bytes", "$double", "$strindex"}:
            return value_from(str(item[0][1]), item[0][0][1:])
        value.kvlist_value.SetInParent()
        for key, inner in item:
            value.kvlist_value.values.add(key=re.sub(r"^\$\$", "$", key), value=_from_json(inner))
    elif isinstance(item, list):
        value.array_value.SetInParent()
        value.array_value.values.extend([_from_json(inner) for inner in item])
    elif isinstance(item, bool):
        value.bool_value = item
    elif isinstance(item, int):
        value.int_value = item
    elif isinstance(item, float):
        value.double_value = item
    elif isinstance(item, str):
        value.string_value = item
    return value


def attributes(items: Iterable[Any]) -> list[Any]:
    """Attributes by key, in the order of the first of each."""
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(item.key, []).append(plain(item.value))
    return list(found.items())


def attributes_from(texts: list[tuple[str, str | None]], kinds: list[tuple[str, str]]) -> list[Any]:
    """The same from the two maps of a row."""
    kind_of = dict(kinds)
    assert len(kind_of) == len(kinds)
    assert kind_of.keys() <= dict(texts).keys()
    found: list[Any] = []
    for key, text in texts:
        if kind_of.get(key) == "repeated":
            assert text is not None
            values = [_from_json(item) for item in json.loads(text, object_pairs_hook=_Pairs)]
            assert len(values) > 1
        else:
            values = [value_from(text, kind_of.get(key))]
        found.append((key, [plain(value) for value in values]))
    assert len({key for key, _ in found}) == len(found)
    return found


def readable(row: Row) -> Row:
    """A decoded row in the oracle's words: each pair of maps put together."""
    found = {}
    for name, value in row.items():
        kinds = f"{name}Kinds" if name == "MetricMetadata" else re.sub("Attributes$", "AttributeKinds", name)
        if kinds != name and kinds in row:
            found[name] = attributes_from(value, row[kinds])
        elif isinstance(value, list) and name in {"Events", "Links", "Exemplars"}:
            found[name] = [readable(item) for item in value]
        elif name == "Body":
            found[name] = plain(value_from(value, row["BodyKind"]))
            assert (value is None) == (row["BodyKind"] is None)
        elif not name.endswith("Kinds") and name != "BodyKind":
            found[name] = value
    return found


def times(name: str, nanos: int) -> Row:
    stamp = _EPOCH + timedelta(microseconds=nanos // 1000) if 0 < nanos < 2**63 else None
    return {name: stamp, f"{name}UnixNano": None if not nanos else nanos if nanos < 2**63 else nanos - 2**64}


def count(number: int) -> int:
    if number >= 2**63:
        raise TooLarge
    return number


def _context(resource_part: Any, scope_part: Any) -> Row:
    resource, scope = resource_part.resource, scope_part.scope
    return {
        "ResourceAttributes": attributes(resource.attributes),
        "ResourceDroppedAttributesCount": resource.dropped_attributes_count,
        "ResourceSchemaUrl": resource_part.schema_url,
        "ScopeName": scope.name,
        "ScopeVersion": scope.version,
        "ScopeAttributes": attributes(scope.attributes),
        "ScopeDroppedAttributesCount": scope.dropped_attributes_count,
        "ScopeSchemaUrl": scope_part.schema_url,
    }


def _logs(request: Any) -> Iterator[Row]:
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                yield {
                    **_context(resource, scope),
                    **times("Timestamp", record.time_unix_nano),
                    **times("ObservedTimestamp", record.observed_time_unix_nano),
                    "SeverityNumber": record.severity_number,
                    "SeverityText": record.severity_text,
                    "Body": plain(record.body),
                    "LogAttributes": attributes(record.attributes),
                    "DroppedAttributesCount": record.dropped_attributes_count,
                    "TraceId": record.trace_id.hex(),
                    "SpanId": record.span_id.hex(),
                    "Flags": record.flags,
                    "EventName": record.event_name,
                }


def _enum(kind: Any, number: int, prefix: str) -> str:
    return kind.Name(number).removeprefix(prefix) if number in kind.values() else str(number)


def _traces(request: Any) -> Iterator[Row]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    **_context(resource, scope),
                    **times("StartTimestamp", span.start_time_unix_nano),
                    **times("EndTimestamp", span.end_time_unix_nano),
                    "TraceId": span.trace_id.hex(),
                    "SpanId": span.span_id.hex(),
                    "ParentSpanId": span.parent_span_id.hex(),
                    "TraceState": span.trace_state,
                    "Flags": span.flags,
                    "SpanName": span.name,
                    "SpanKind": _enum(Span.SpanKind, span.kind, "SPAN_KIND_"),
                    "SpanAttributes": attributes(span.attributes),
                    "DroppedAttributesCount": span.dropped_attributes_count,
                    "StatusCode": _enum(Status.StatusCode, span.status.code, "STATUS_CODE_"),
                    "StatusMessage": span.status.message,
                    "Events": [
                        {
                            **times("Timestamp", event.time_unix_nano),
                            "Name": event.name,
                            "Attributes": attributes(event.attributes),
                            "DroppedAttributesCount": event.dropped_attributes_count,
                        }
                        for event in span.events
                    ],
                    "DroppedEventsCount": span.dropped_events_count,
                    "Links": [
                        {
                            "TraceId": link.trace_id.hex(),
                            "SpanId": link.span_id.hex(),
                            "TraceState": link.trace_state,
                            "Flags": link.flags,
                            "Attributes": attributes(link.attributes),
                            "DroppedAttributesCount": link.dropped_attributes_count,
                        }
                        for link in span.links
                    ],
                    "DroppedLinksCount": span.dropped_links_count,
                }


def _number(point: Any) -> Row:
    kind = point.WhichOneof("value")
    exact = point.as_int if kind == "as_int" else None
    return {"Value": None if kind is None else float(getattr(point, kind)), "ValueInt": exact}


def _point(kind: str, point: Any) -> Row:
    row: Row = dict.fromkeys(("Value", "ValueInt", "Count", "Sum", "Min", "Max", "BucketCounts", "ExplicitBounds"))
    row.update(dict.fromkeys(("Scale", "ZeroCount", "ZeroThreshold", "Quantiles")))
    row.update(
        dict.fromkeys(f"{side}{what}" for side in ("Positive", "Negative") for what in ("Offset", "BucketCounts"))
    )
    if kind in {"gauge", "sum"}:
        return {**row, **_number(point)}
    row["Count"] = count(point.count)
    if kind == "summary":
        quantiles = [{"Quantile": item.quantile, "Value": item.value} for item in point.quantile_values]
        return {**row, "Sum": point.sum, "Quantiles": quantiles}
    row.update({name.title(): getattr(point, name) for name in ("sum", "min", "max") if point.HasField(name)})
    if kind == "histogram":
        row["BucketCounts"] = [count(item) for item in point.bucket_counts]
        row["ExplicitBounds"] = list(point.explicit_bounds)
        return row
    row.update({"Scale": point.scale, "ZeroCount": count(point.zero_count), "ZeroThreshold": point.zero_threshold})
    for side in ("positive", "negative"):
        if point.HasField(side):
            row[f"{side.title()}Offset"] = getattr(point, side).offset
            row[f"{side.title()}BucketCounts"] = [count(item) for item in getattr(point, side).bucket_counts]
    return row


def _metrics(request: Any) -> Iterator[Row]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is None:
                    continue
                body = getattr(metric, kind)
                has = body.DESCRIPTOR.fields_by_name
                temporality = getattr(body, "aggregation_temporality", None)
                for point in body.data_points:
                    yield {
                        **_context(resource, scope),
                        "MetricName": metric.name,
                        "MetricDescription": metric.description,
                        "MetricUnit": metric.unit,
                        "MetricType": kind,
                        "MetricMetadata": attributes(metric.metadata),
                        "AggregationTemporality": None
                        if temporality is None
                        else _enum(AggregationTemporality, temporality, "AGGREGATION_TEMPORALITY_"),
                        "IsMonotonic": body.is_monotonic if "is_monotonic" in has else None,
                        **times("StartTimestamp", point.start_time_unix_nano),
                        **times("Timestamp", point.time_unix_nano),
                        "Attributes": attributes(point.attributes),
                        "Flags": point.flags,
                        **_point(kind, point),
                        "Exemplars": [
                            {
                                **times("Timestamp", item.time_unix_nano),
                                **_number(item),
                                "TraceId": item.trace_id.hex(),
                                "SpanId": item.span_id.hex(),
                                "Attributes": attributes(item.filtered_attributes),
                            }
                            for item in getattr(point, "exemplars", ())
                        ],
                    }


_WALKS: dict[str, tuple[Callable[[Any], Iterator[Row]], Any]] = {
    "otlp_logs": (_logs, ExportLogsServiceRequest),
    "otlp_metrics": (_metrics, ExportMetricsServiceRequest),
    "otlp_traces": (_traces, ExportTraceServiceRequest),
}


def expected(decoder: str, data: bytes) -> list[Row] | None:
    """The rows of an entry; None if it can't be decoded."""
    walk, request = _WALKS[decoder]
    try:
        message = request.FromString(data)
        check_known(message)
        return list(walk(message))
    except (DecodeError, TooLarge, Unknown):
        return None
