"""What the decoders of OpenTelemetry export requests share: the way through resources and scopes, and their columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from objbuf_dagster.decode.attributes import Attributes
from objbuf_dagster.decode.columns import map_type, spread
from objbuf_dagster.decode.decoder import Decoded, Decoder, Failure
from objbuf_dagster.decode.envelope import Envelope, Signal
from objbuf_dagster.decode.requests import official, with_raw_attributes
from objbuf_dagster.decode.wire import SMALL, small_fields, why_refused
from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

SERVICE_NAME = "service.name"

_LEAST_BYTES = 2
"""Of anything that is counted: a tag and a length."""

_SHORT_FIELDS = 4
"""Of what is counted: an attribute is a message, a key, another message and its text."""

_MOST_BYTES = 256 << 20
"""As JSON text a byte may be six; a column of strings ends at 2 GiB."""


@dataclass(frozen=True, slots=True)
class Built:
    """The rows of one signal.

    columns: by name, without those of resource and scope.
    bad_rows: why rows can't be; an empty reason means that an attribute is no valid protobuf.
    bad_scopes: the scopes, in the order they were added, with such an attribute that is in no row.
    """

    columns: dict[str, pa.Array]
    bad_rows: dict[int, str]
    bad_scopes: Sequence[int] = ()


class Rows(ABC):
    """Collects the rows of one signal, without the columns of resource and scope."""

    @abstractmethod
    def add(self, scope: Any) -> int:
        """Take all records of a scope; how many rows they are."""

    @abstractmethod
    def build(self) -> Built:
        """All that was added."""


@dataclass(frozen=True)
class OtlpDecoder(Decoder):
    """One export request per entry, told by the envelope.

    most_bytes: an entry that is larger is a failure: a request is parsed as a whole.
    most_records: so is one with more records, or with more of all else that is counted (resources, scopes, metrics,
        events, links, exemplars, quantiles and attributes together). They may be as short as 2 bytes each, and take 70
        times that in memory, if somebody means ill: so one that may have more than 4 times as many short fields is not
        parsed at all.
    """

    most_bytes: int = 64 << 20
    most_records: int = 500_000

    signal: ClassVar[Signal]
    parts_in: ClassVar[tuple[str, str]]
    """Where a request has its resources, and a resource its scopes."""

    def __post_init__(self) -> None:
        if not 0 < self.most_bytes <= _MOST_BYTES:
            raise InvalidInput(f"most_bytes must be between 1 and {_MOST_BYTES}: {self.most_bytes}")

    @abstractmethod
    def count(self, scope: Any) -> int:
        """How many rows `Rows.add` makes of this scope."""

    @abstractmethod
    def parts(self, scope: Any) -> Iterator[int]:
        """How much this scope has beside its records, by and by."""

    @abstractmethod
    def rows(self) -> Rows:
        """An empty collection."""

    @abstractmethod
    def own_fields(self) -> list[pa.Field]:
        """The columns of `Rows`."""

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([*self.own_fields(), *context_fields()])

    def takes(self, payload: bytes | None) -> bool:
        return Envelope.parse(payload).signal is self.signal

    def decode(self, entries: pa.Array) -> Decoded:
        from google.protobuf.message import DecodeError

        parse, descriptor = with_raw_attributes(self.signal).FromString, official(self.signal).DESCRIPTOR
        failures: dict[int, str] = {}
        context, rows = _Context(), self.rows()
        of_resources, of_scopes = self.parts_in
        for position, scalar in enumerate(entries):
            data = scalar.as_py()
            if len(data) > self.most_bytes:
                failures[position] = f"the entry has {len(data)} bytes, more than most_bytes, {self.most_bytes}"
                continue
            most_fields = _SHORT_FIELDS * self.most_records
            if len(data) // _LEAST_BYTES > most_fields and (fields := small_fields(data)) > most_fields:
                failures[position] = (
                    f"the entry may have {fields} fields of less than {SMALL} bytes, more than {_SHORT_FIELDS} times "
                    f"most_records, {self.most_records}"
                )
                continue
            try:
                request = parse(data)
            except DecodeError:
                failures[position] = why_refused(descriptor, data)
                continue
            resources = getattr(request, of_resources)
            records = sum(self.count(scope) for resource in resources for scope in getattr(resource, of_scopes))
            if records > self.most_records:
                failures[position] = f"the entry has {records} records, more than most_records, {self.most_records}"
                continue
            if len(data) // _LEAST_BYTES > self.most_records and self._has_too_many_parts(resources):
                failures[position] = (
                    f"the entry has more than most_records, {self.most_records}, attributes and other parts of records"
                )
                continue
            for resource in resources:
                context.add_resource(position, resource)
                for scope in getattr(resource, of_scopes):
                    context.add_scope(scope, rows.add(scope))
        return self._put_together(entries, context, rows, failures)

    def _has_too_many_parts(self, resources: Any) -> bool:
        """Counted no further than needed, before Python's and Arrow's values are made of them."""
        found = 0
        for resource in resources:
            found += 1 + len(resource.resource.attributes)
            for scope in getattr(resource, self.parts_in[1]):
                found += 1 + len(scope.scope.attributes)
                for more in self.parts(scope):
                    found += more
                    if found > self.most_records:
                        return True
        return found > self.most_records

    def _put_together(self, entries: pa.Array, context: _Context, rows: Rows, failures: dict[int, str]) -> Decoded:
        import numpy as np
        import pyarrow as pa

        built = rows.build()
        of_context, bad_entries = context.build(built.bad_scopes)
        columns = {**built.columns, **of_context}
        entry_of = context.entry_of_rows()
        wrong = dict.fromkeys(bad_entries.tolist(), "")
        for row, reason in built.bad_rows.items():
            wrong.setdefault(int(entry_of[row]), reason)
        for position, reason in wrong.items():
            said = reason or why_refused(official(self.signal).DESCRIPTOR, entries[position].as_py())
            failures.setdefault(position, said)
        names = self.schema.names
        batch = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
        if wrong:
            keep = ~np.isin(entry_of, list(wrong))
            batch, entry_of = batch.filter(pa.array(keep)), entry_of[keep]
        told = tuple(Failure(position, failures[position]) for position in sorted(failures))
        return Decoded(batch, pa.array(entry_of, pa.int32()), told)


class _Context:
    """The resources and scopes of a block: each is kept once, whatever the number of its records."""

    def __init__(self) -> None:
        self._resource_attributes = Attributes()
        self._resource_entries: list[int] = []
        self._resource_dropped: list[int] = []
        self._resource_urls: list[str] = []
        self._scope_attributes = Attributes()
        self._scope_resources: list[int] = []
        self._scope_dropped: list[int] = []
        self._scope_urls: list[str] = []
        self._scope_names: list[str] = []
        self._scope_versions: list[str] = []
        self._scope_rows: list[int] = []

    def add_resource(self, entry: int, part: Any) -> None:
        self._resource_attributes.add(part.resource.attributes)
        self._resource_entries.append(entry)
        self._resource_dropped.append(part.resource.dropped_attributes_count)
        self._resource_urls.append(part.schema_url)

    def add_scope(self, part: Any, rows: int) -> None:
        scope = part.scope
        self._scope_attributes.add(scope.attributes)
        self._scope_resources.append(len(self._resource_entries) - 1)
        self._scope_dropped.append(scope.dropped_attributes_count)
        self._scope_urls.append(part.schema_url)
        self._scope_names.append(scope.name)
        self._scope_versions.append(scope.version)
        self._scope_rows.append(rows)

    def entry_of_rows(self) -> npt.NDArray[np.int64]:
        import numpy as np

        entries = np.array(self._resource_entries, np.int64)
        return np.repeat(entries[np.array(self._scope_resources, np.int64)], self._scope_rows)

    def build(self, bad_scopes: Sequence[int]) -> tuple[dict[str, pa.Array], npt.NDArray[np.int64]]:
        """Columns by name, and the entries of these scopes or with an attribute that is no valid protobuf."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        resources, scopes = self._resource_attributes.build(), self._scope_attributes.build()
        entries, of_scope = np.array(self._resource_entries, np.int64), np.array(self._scope_resources, np.int64)
        scope = np.repeat(np.arange(len(of_scope)), self._scope_rows)
        resource = of_scope[scope]
        services = pc.map_lookup(resources.texts, SERVICE_NAME, "first").fill_null("")
        columns = {
            "ServiceName": spread(services, resource),
            "ResourceAttributes": spread(resources.texts, resource),
            "ResourceAttributeKinds": spread(resources.kinds, resource),
            "ResourceDroppedAttributesCount": spread(pa.array(self._resource_dropped, pa.int64()), resource),
            "ResourceSchemaUrl": spread(pa.array(self._resource_urls, pa.string()), resource),
            "ScopeName": spread(pa.array(self._scope_names, pa.string()), scope),
            "ScopeVersion": spread(pa.array(self._scope_versions, pa.string()), scope),
            "ScopeAttributes": spread(scopes.texts, scope),
            "ScopeAttributeKinds": spread(scopes.kinds, scope),
            "ScopeDroppedAttributesCount": spread(pa.array(self._scope_dropped, pa.int64()), scope),
            "ScopeSchemaUrl": spread(pa.array(self._scope_urls, pa.string()), scope),
        }
        of_bad_scopes = of_scope[np.union1d(scopes.bad, np.array(bad_scopes, np.int64))]
        return columns, entries[np.union1d(resources.bad, of_bad_scopes)]


def context_fields() -> list[pa.Field]:
    """The columns of resource and scope."""
    import pyarrow as pa

    kinds = {
        "ServiceName": pa.string(),
        "ResourceAttributes": map_type(),
        "ResourceAttributeKinds": map_type(),
        "ResourceDroppedAttributesCount": pa.int64(),
        "ResourceSchemaUrl": pa.string(),
        "ScopeName": pa.string(),
        "ScopeVersion": pa.string(),
        "ScopeAttributes": map_type(),
        "ScopeAttributeKinds": map_type(),
        "ScopeDroppedAttributesCount": pa.int64(),
        "ScopeSchemaUrl": pa.string(),
    }
    return [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]
