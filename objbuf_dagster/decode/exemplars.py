"""The exemplars of metric data points, as a list of structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from objbuf_dagster.decode.attributes import Attributes
from objbuf_dagster.decode.columns import instant_fields, instants, lists, map_type, owners, structs
from objbuf_dagster.decode.values import UnknownKind
from objbuf_dagster.decode.wire import is_unknown_kind

if TYPE_CHECKING:
    import pyarrow as pa


def number_of(point: Any) -> tuple[float | None, int | None]:
    """A point's value as a double, and exactly if it is an integer; both None if it has none. Or UnknownKind."""
    kind = point.WhichOneof("value")
    if kind is None and is_unknown_kind(point):
        raise UnknownKind
    if kind == "as_int":
        return float(point.as_int), point.as_int
    return (point.as_double if kind == "as_double" else None), None


class Exemplars:
    """Collects the exemplars of one data point after the other."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._bad: list[int] = []
        self._values: list[float | None] = []
        self._integers: list[int | None] = []
        self._traces: list[str] = []
        self._spans: list[str] = []
        self._attributes = Attributes()
        self._ends = [0]

    def add(self, exemplars: Any) -> None:
        for exemplar in exemplars:
            self._times.append(exemplar.time_unix_nano)
            try:
                value, integer = number_of(exemplar)
            except UnknownKind:
                self._bad.append(len(self._values))
                value, integer = None, None
            self._values.append(value)
            self._integers.append(integer)
            self._traces.append(exemplar.trace_id.hex())
            self._spans.append(exemplar.span_id.hex())
            self._attributes.add(exemplar.filtered_attributes)
        self._ends.append(len(self._times))

    @staticmethod
    def fields() -> list[pa.Field]:
        import pyarrow as pa

        return [
            *instant_fields("Timestamp"),
            pa.field("Value", pa.float64()),
            pa.field("ValueInt", pa.int64()),
            pa.field("TraceId", pa.string(), nullable=False),
            pa.field("SpanId", pa.string(), nullable=False),
            pa.field("Attributes", map_type(), nullable=False),
            pa.field("AttributeKinds", map_type(), nullable=False),
        ]

    def build(self) -> tuple[pa.Array, list[int]]:
        """The column, and the rows with an attribute that is no valid protobuf, or a value of no known kind."""
        import numpy as np
        import pyarrow as pa

        attributes = self._attributes.build()
        columns = [
            *instants(self._times),
            pa.array(self._values, pa.float64()),
            pa.array(self._integers, pa.int64()),
            pa.array(self._traces, pa.string()),
            pa.array(self._spans, pa.string()),
            attributes.texts,
            attributes.kinds,
        ]
        column = lists(self._ends, structs(self.fields(), columns))
        return column, owners(self._ends, np.union1d(attributes.bad, np.array(self._bad, np.int64))).tolist()
