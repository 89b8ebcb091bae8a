"""OpenTelemetry metrics: one row per data point of a gauge, sum, histogram, exponential histogram or summary.

All kinds share one schema; what a kind does not have is null. A metric without data points gives no row; one of a kind
that is not known yet, or a point whose value is, makes its entry a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from objbuf_dagster.decode.attributes import Attributes
from objbuf_dagster.decode.columns import enum_text, instant_fields, instants, longs, map_type, owners, spread
from objbuf_dagster.decode.envelope import Signal
from objbuf_dagster.decode.exemplars import Exemplars, number_of
from objbuf_dagster.decode.otlp import Built, OtlpDecoder, Rows
from objbuf_dagster.decode.values import UnknownKind
from objbuf_dagster.decode.wire import is_unknown_kind

if TYPE_CHECKING:
    import pyarrow as pa

_TEMPORALITIES = ("UNSPECIFIED", "DELTA", "CUMULATIVE")
_WITH_TEMPORALITY = {"sum", "histogram", "exponential_histogram"}
_BUCKETS_A_PART = 16
"""A bucket may be one byte on the wire: so many count as one of the parts that an entry may have."""

_COUNTS = ("Count", "ZeroCount")
_COUNT_LISTS = ("BucketCounts", "PositiveBucketCounts", "NegativeBucketCounts")


class OtlpMetrics(OtlpDecoder):
    """Data points. `Value` is a double; where the point is an integer, `ValueInt` has it exactly.

    Counts are unsigned on the wire: an entry with one of 2^63 or more is a failure.
    """

    name = "otlp_metrics"
    version = 1
    signal = Signal.METRICS
    parts_in = ("resource_metrics", "scope_metrics")

    def count(self, scope: Any) -> int:
        return sum(len(_points(metric)[1]) for metric in scope.metrics)

    def parts(self, scope: Any) -> Iterator[int]:
        for metric in scope.metrics:
            kind, points = _points(metric)
            yield 1 + len(metric.metadata)
            for point in points:
                yield len(point.attributes)
                if kind == "summary":
                    yield len(point.quantile_values)
                    continue
                if kind == "exponential_histogram":
                    buckets = len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
                    yield buckets // _BUCKETS_A_PART
                yield len(point.exemplars)
                for exemplar in point.exemplars:
                    yield len(exemplar.filtered_attributes)

    def rows(self) -> Rows:
        return _PointRows()

    def own_fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [
            *[
                pa.field(f"Metric{name}", pa.string(), nullable=False)
                for name in ("Name", "Description", "Unit", "Type")
            ],
            pa.field("MetricMetadata", map_type(), nullable=False),
            pa.field("MetricMetadataKinds", map_type(), nullable=False),
            pa.field("AggregationTemporality", pa.string()),
            pa.field("IsMonotonic", pa.bool_()),
            *instant_fields("StartTimestamp"),
            *instant_fields("Timestamp"),
            pa.field("Attributes", map_type(), nullable=False),
            pa.field("AttributeKinds", map_type(), nullable=False),
            pa.field("Flags", pa.int64(), nullable=False),
            *[pa.field(name, kind) for name, kind in _value_types().items()],
            pa.field("Exemplars", pa.list_(pa.struct(Exemplars.fields())), nullable=False),
        ]


def _value_types() -> dict[str, pa.DataType]:
    """The columns that only some kinds of points have."""
    import pyarrow as pa

    quantile = pa.struct(
        [pa.field("Quantile", pa.float64(), nullable=False), pa.field("Value", pa.float64(), nullable=False)]
    )
    return {
        "Value": pa.float64(),
        "ValueInt": pa.int64(),
        "Count": pa.int64(),
        "Sum": pa.float64(),
        "Min": pa.float64(),
        "Max": pa.float64(),
        "BucketCounts": pa.list_(pa.int64()),
        "ExplicitBounds": pa.list_(pa.float64()),
        "Scale": pa.int32(),
        "ZeroCount": pa.int64(),
        "ZeroThreshold": pa.float64(),
        "PositiveOffset": pa.int32(),
        "PositiveBucketCounts": pa.list_(pa.int64()),
        "NegativeOffset": pa.int32(),
        "NegativeBucketCounts": pa.list_(pa.int64()),
        "Quantiles": pa.list_(quantile),
    }


def _points(metric: Any) -> tuple[str | None, Any]:
    """The kind of a metric and its data points."""
    kind = metric.WhichOneof("data")
    return kind, () if kind is None else getattr(metric, kind).data_points


def _values(kind: str, point: Any) -> dict[str, Any]:
    """What this point has of `_value_types`."""
    if kind in {"gauge", "sum"}:
        value, integer = number_of(point)
        return {"Value": value, "ValueInt": integer}
    if kind == "summary":
        quantiles = [{"Quantile": each.quantile, "Value": each.value} for each in point.quantile_values]
        return {"Count": point.count, "Sum": point.sum, "Quantiles": quantiles}
    values: dict[str, Any] = {
        "Count": point.count,
        "Sum": point.sum if point.HasField("sum") else None,
        "Min": point.min if point.HasField("min") else None,
        "Max": point.max if point.HasField("max") else None,
    }
    if kind == "histogram":
        values["BucketCounts"] = list(point.bucket_counts)
        values["ExplicitBounds"] = list(point.explicit_bounds)
        return values
    values.update(Scale=point.scale, ZeroCount=point.zero_count, ZeroThreshold=point.zero_threshold)
    for side in ("Positive", "Negative"):
        if point.HasField(side.lower()):
            buckets = getattr(point, side.lower())
            values[f"{side}Offset"] = buckets.offset
            values[f"{side}BucketCounts"] = list(buckets.bucket_counts)
    return values


class _PointRows(Rows):
    def __init__(self) -> None:
        self._metrics: list[tuple[Any, ...]] = []
        self._metadata = Attributes()
        self._metric_scopes: list[int] = []
        self._metric_rows: list[int] = []
        self._scopes = 0
        self._bad: list[int] = []
        self._bad_scopes: list[int] = []
        self._starts: list[int] = []
        self._times: list[int] = []
        self._attributes = Attributes()
        self._flags: list[int] = []
        self._values: list[dict[str, Any]] = []
        self._exemplars = Exemplars()

    def add(self, scope: Any) -> int:
        rows = 0
        for metric in scope.metrics:
            kind, points = _points(metric)
            if kind is None and is_unknown_kind(metric):
                self._bad_scopes.append(self._scopes)
            data: Any = None if kind is None else getattr(metric, kind)
            temporality = enum_text(data.aggregation_temporality, _TEMPORALITIES) if kind in _WITH_TEMPORALITY else None
            monotonic = data.is_monotonic if kind == "sum" else None
            self._metrics.append((metric.name, metric.description, metric.unit, kind or "", temporality, monotonic))
            self._metadata.add(metric.metadata)
            self._metric_scopes.append(self._scopes)
            self._metric_rows.append(len(points))
            for point in points:
                self._starts.append(point.start_time_unix_nano)
                self._times.append(point.time_unix_nano)
                self._attributes.add(point.attributes)
                self._flags.append(point.flags)
                try:
                    self._values.append(_values(kind or "", point))
                except UnknownKind:
                    self._bad.append(len(self._values))
                    self._values.append({})
                self._exemplars.add(() if kind == "summary" else point.exemplars)
            rows += len(points)
        self._scopes += 1
        return rows

    def build(self) -> Built:
        import numpy as np
        import pyarrow as pa

        of_metric = np.repeat(np.arange(len(self._metrics)), self._metric_rows)
        start, start_nanos = instants(self._starts)
        time, time_nanos = instants(self._times)
        attributes, metadata = self._attributes.build(), self._metadata.build()
        exemplars, bad_exemplars = self._exemplars.build()
        columns = {
            "MetricMetadata": spread(metadata.texts, of_metric),
            "MetricMetadataKinds": spread(metadata.kinds, of_metric),
            "StartTimestamp": start,
            "StartTimestampUnixNano": start_nanos,
            "Timestamp": time,
            "TimestampUnixNano": time_nanos,
            "Attributes": attributes.texts,
            "AttributeKinds": attributes.kinds,
            "Flags": pa.array(self._flags, pa.int64()),
            "Exemplars": exemplars,
        }
        names = ("MetricName", "MetricDescription", "MetricUnit", "MetricType", "AggregationTemporality", "IsMonotonic")
        every = list(zip(*self._metrics, strict=True)) if self._metrics else [()] * len(names)
        for name, values in zip(names, every, strict=True):
            kind = pa.bool_() if name == "IsMonotonic" else pa.string()
            columns[name] = spread(pa.array(values, kind), of_metric)
        bad = dict.fromkeys([*attributes.bad.tolist(), *bad_exemplars, *self._bad], "")
        for name, kind in _value_types().items():
            columns[name], large = _column(name, kind, [values.get(name) for values in self._values])
            for row in large:
                bad.setdefault(row, f"{name} has a number of 2^63 or more, which no column holds")
        return Built(columns, bad, [*self._bad_scopes, *(self._metric_scopes[metric] for metric in metadata.bad)])


def _column(name: str, kind: pa.DataType, values: list[Any]) -> tuple[pa.Array, list[int]]:
    """The column, and the rows with a count that is too large for it."""
    import numpy as np
    import pyarrow as pa

    if name in _COUNTS:
        column, large = longs(values)
        return column, large.tolist()
    if name in _COUNT_LISTS:
        ends = np.concatenate(([0], np.cumsum([len(counts or ()) for counts in values], dtype=np.int64)))
        flat, large = longs([count for counts in values for count in counts or ()])
        unset = pa.array([counts is None for counts in values], pa.bool_())
        column = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, mask=unset)
        return column, owners(ends.tolist(), large).tolist()
    return pa.array(values, kind), []
