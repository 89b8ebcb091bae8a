"""Ready-made folds: the last row of each key with counts, and of OpenTelemetry logs that of each service's instance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from objbuf_dagster.lake.fold import ORDER, Changes, Fold, codes_of

if TYPE_CHECKING:
    import pyarrow as pa

DELETED = "_deleted"
_WARNING, _ERROR = 13, 17  # where OpenTelemetry's severity numbers begin


class LastRow(Fold):
    """The last row of each key, in the order of sequences, and how often something was so of its rows.

    What `keyed` gives has the columns of `key` and `last`, and one for each of `counts`: true, or how many, per row. A
    column `_deleted` may be there too: where it is true the row ends its key, with its counts.
    """

    @property
    @abstractmethod
    def last(self) -> pa.Schema:
        """The columns that are those of the last row."""

    @property
    @abstractmethod
    def counts(self) -> Sequence[str]:
        """The columns that are sums over all rows of the key."""

    @property
    def value(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([*self.last, *(pa.field(name, pa.int64(), nullable=False) for name in self.counts)])

    def apply(self, rows: pa.Table, state: pa.Table) -> Changes:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = rows.select(self.key.names)
        codes = codes_of(rows, self.key).dictionary_encode()
        number = codes.indices.to_numpy()
        ended = np.full(len(codes.dictionary), -1, np.int64)
        if DELETED in rows.schema.names:
            ends = np.flatnonzero(rows[DELETED].combine_chunks().to_numpy(zero_copy_only=False))
            np.maximum.at(ended, number[ends], ends)
        alive = np.flatnonzero(np.arange(len(rows)) > ended[number])
        latest = np.full(len(codes.dictionary), -1, np.int64)
        np.maximum.at(latest, number[alive], alive)
        first = np.flatnonzero(latest >= 0)
        chosen = rows.take(pa.array(latest[first]))
        before = state.take(pc.index_in(codes.dictionary.take(pa.array(first)), codes_of(state, self.key)))
        columns = [chosen[each.name].combine_chunks().cast(each.type) for each in (*self.key, *self.last)]
        for name in self.counts:
            found = np.zeros(len(codes.dictionary), np.int64)
            np.add.at(found, number[alive], rows[name].combine_chunks().cast(pa.int64()).to_numpy()[alive])
            known = pc.fill_null(before[name], 0).combine_chunks().to_numpy()
            columns.append(pa.array(found[first] + np.where(ended[first] < 0, known, 0), pa.int64()))
        names = [*self.key.names, *self.value.names]
        gone = np.flatnonzero((ended >= 0) & (latest < 0))
        return Changes(pa.Table.from_arrays(columns, names=names), keys.take(pa.array(ended[gone])))


class ServiceLatest(LastRow):
    """Of `otel_logs`: the last log record of each (service.name, service.instance.id), and how many there were.

    The last one is that with the highest sequence, entry and record index, which its columns name; `LastSeen` is its
    time, or where it has none, the time at which it was observed, and null for one from the year 2262 on, of which
    `LastSeenUnixNano` has the bits. Records of a resource without service.name are nobody's; an instance without an id
    is `""`.
    """

    name = "service_latest"
    version = 1
    reads = (
        "ServiceName",
        "ResourceAttributes",
        "Timestamp",
        "TimestampUnixNano",
        "ObservedTimestamp",
        "ObservedTimestampUnixNano",
        "SeverityNumber",
        "SeverityText",
    )
    counts = ("Records", "Warnings", "Errors")

    @property
    def key(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(
            [
                pa.field("ServiceName", pa.string(), nullable=False),
                pa.field("ServiceInstanceId", pa.string(), nullable=False),
            ]
        )

    @property
    def last(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(
            [
                pa.field("LastSeen", pa.timestamp("us", tz="UTC")),
                pa.field("LastSeenUnixNano", pa.int64()),
                pa.field("LastSeverityNumber", pa.int32(), nullable=False),
                pa.field("LastSeverityText", pa.string(), nullable=False),
                *(pa.field(name, pa.int64(), nullable=False) for name in ORDER),
            ]
        )

    def keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = rows.filter(pc.greater(pc.fill_null(pc.binary_length(rows.column("ServiceName")), 0), 0))
        instance = pc.map_lookup(rows.column("ResourceAttributes"), "service.instance.id", "first")
        severity = rows.column("SeverityNumber")
        timed = rows.column("TimestampUnixNano").is_valid()  # Timestamp is null for some that have a time, too
        columns: dict[str, Any] = {
            "ServiceName": rows.column("ServiceName"),
            "ServiceInstanceId": pc.fill_null(instance, ""),
            "LastSeen": pc.if_else(timed, rows.column("Timestamp"), rows.column("ObservedTimestamp")),
            "LastSeenUnixNano": pc.coalesce(rows.column("TimestampUnixNano"), rows.column("ObservedTimestampUnixNano")),
            "LastSeverityNumber": severity,
            "LastSeverityText": rows.column("SeverityText"),
            **{name: rows.column(name) for name in ORDER},
            "Records": pa.repeat(pa.scalar(True), len(rows)),
            "Warnings": pc.and_(pc.greater_equal(severity, _WARNING), pc.less(severity, _ERROR)),
            "Errors": pc.greater_equal(severity, _ERROR),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
