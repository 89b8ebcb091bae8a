"""The decoders ask a release of `opentelemetry-proto` for nothing that it does not have, down to the lowest allowed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from objbuf_dagster.decode import Signal
from objbuf_dagster.decode.requests import official

ROOT = Path(__file__).resolve().parents[2]

SINCE = {
    "event_name": (1, 35),
    "entity_refs": (1, 35),
    "key_strindex": (1, 43),
    "string_value_strindex": (1, 43),
}
"""The release that a field came with, of those in these messages that 1.30 does not have."""

READ = {
    "ExportLogsServiceRequest": "resource_logs",
    "ResourceLogs": "resource scope_logs schema_url",
    "ScopeLogs": "scope log_records schema_url",
    "LogRecord": "time_unix_nano observed_time_unix_nano severity_number severity_text body attributes "
    "dropped_attributes_count flags trace_id span_id event_name",
    "Resource": "attributes dropped_attributes_count",
    "InstrumentationScope": "name version attributes dropped_attributes_count",
    "KeyValue": "key value",
    "KeyValueList": "values",
    "ArrayValue": "values",
    "AnyValue": "string_value bool_value int_value double_value bytes_value array_value kvlist_value",
    "ExportMetricsServiceRequest": "resource_metrics",
    "ResourceMetrics": "resource scope_metrics schema_url",
    "ScopeMetrics": "scope metrics schema_url",
    "Metric": "name description unit metadata gauge sum histogram exponential_histogram summary",
    "Gauge": "data_points",
    "Sum": "data_points aggregation_temporality is_monotonic",
    "Histogram": "data_points aggregation_temporality",
    "ExponentialHistogram": "data_points aggregation_temporality",
    "Summary": "data_points",
    "NumberDataPoint": "attributes start_time_unix_nano time_unix_nano as_double as_int exemplars flags",
    "HistogramDataPoint": "attributes start_time_unix_nano time_unix_nano count sum bucket_counts explicit_bounds "
    "exemplars flags min max",
    "ExponentialHistogramDataPoint": "attributes start_time_unix_nano time_unix_nano count sum scale zero_count "
    "positive negative flags exemplars min max zero_threshold",
    "Buckets": "offset bucket_counts",
    "SummaryDataPoint": "attributes start_time_unix_nano time_unix_nano count sum quantile_values flags",
    "ValueAtQuantile": "quantile value",
    "Exemplar": "filtered_attributes time_unix_nano as_double as_int span_id trace_id",
    "ExportTraceServiceRequest": "resource_spans",
    "ResourceSpans": "resource scope_spans schema_url",
    "ScopeSpans": "scope spans schema_url",
    "Span": "trace_id span_id trace_state parent_span_id flags name kind start_time_unix_nano end_time_unix_nano "
    "attributes dropped_attributes_count events dropped_events_count links dropped_links_count status",
    "Event": "time_unix_nano name attributes dropped_attributes_count",
    "Link": "trace_id span_id trace_state attributes dropped_attributes_count flags",
    "Status": "message code",
}
"""By message, what the decoders cannot do without."""


def messages(descriptor: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """This message's descriptor, and those of all that it holds, by name."""
    if descriptor.name not in seen:
        seen[descriptor.name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                messages(field.message_type, seen)
    return seen


def asked_for(fields: set[str]) -> Iterator[str]:
    """The names of fields that some code of the decoders reads as `something.name`, so that it fails without them."""
    for file in (ROOT / "objbuf_dagster/decode").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in fields:
                yield node.attr


def lowest() -> tuple[int, ...]:
    (bound,) = re.findall(r'"opentelemetry-proto>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    return tuple(map(int, bound.split(".")))


def test_every_field_that_is_read_is_there_from_the_lowest_allowed_release_on() -> None:
    there: dict[str, Any] = {}
    for signal in Signal:
        messages(official(signal).DESCRIPTOR, there)
    read = {(message, field) for message, fields in READ.items() for field in fields.split()}
    names = {field.name for message in READ for field in there[message].fields}

    assert {(message, field) for message, field in read if field not in there[message].fields_by_name} == set()
    assert set(asked_for(names)) <= {field for _, field in read}
    assert max(SINCE.get(field, (1, 30)) for _, field in read) == lowest()
