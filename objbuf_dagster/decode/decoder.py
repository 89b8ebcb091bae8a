"""What a decoder is: which entries it takes, which columns it gives, and entries in, rows and failures out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import InvalidInput, ObjbufError, shown

if TYPE_CHECKING:
    import pyarrow as pa


class Undecodable(ObjbufError):
    """An entry, or its metadata payload, is not what the decoder knows. It is one failure with this reason: give up."""

    @property
    def reason(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """An entry that gave no rows. `entry` is its position among those given, `reason` one line for a person."""

    entry: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of some entries.

    rows: the columns of the decoder's schema, in its order; a column that repeats itself may be dictionary-encoded,
        and is written out in bounded blocks later.
    entry_index: per row the position of its entry, an int32 array that never falls.
    failures: the entries that gave none, in rising order; an entry gives all its rows or is one failure, never half.
    """

    rows: pa.RecordBatch
    entry_index: pa.Array
    failures: tuple[Failure, ...] = ()


class Decoder(ABC):
    """Turns entries into rows. It holds settings only, since it is pickled and sent to executors.

    name: what dead letters call it.
    version: counts up with every change of what comes out, so that a dead letter tells which one failed.
    """

    name: str
    version: int

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of a row, without those that say where it came from."""

    @abstractmethod
    def takes(self, payload: bytes | None) -> bool:
        """Whether entries with this metadata payload are this decoder's; others are somebody else's, and no failure.

        payload: None where the entry has none.
        Raises Undecodable if it can't be told, or must not be guessed: then the entry is a failure with that reason.
        Whatever else it raises is one too, but for MemoryError and ImportError: those are about the process.
        """

    @abstractmethod
    def decode(self, entries: pa.Array) -> Decoded:
        """The rows of these entries, a binary array without nulls. Bad bytes are a Failure, never an exception."""


class EntryDecoder(Decoder):
    """A decoder that looks at one entry at a time: the shortest way to write one's own."""

    @abstractmethod
    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        """The rows of one entry, as values by column name; a column left out is null.

        Whatever it raises makes this entry a failure, but for MemoryError and ImportError, which are about the
        process; Undecodable says just its reason.
        """

    def decode(self, entries: pa.Array) -> Decoded:
        import pyarrow as pa

        batches: list[pa.RecordBatch] = []
        index: list[int] = []
        failures: list[Failure] = []
        for position, entry in enumerate(entries.to_pylist()):
            try:
                rows = list(self.records(entry))
                if rows:
                    batches.append(_checked(rows, self.schema))
                    index += [position] * len(rows)
            except (MemoryError, ImportError):  # the process lacks something, for all entries alike
                raise
            except Exception as error:  # noqa: BLE001  bytes from outside may break a decoder anywhere, one entry at a time
                failures.append(Failure(position, reason_of(error)))
        table = pa.Table.from_batches(batches, self.schema).combine_chunks()
        rows_of_all = table.to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], self.schema)
        return Decoded(rows_of_all, pa.array(index, pa.int32()), tuple(failures))


def _checked(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows as Arrow, which by itself drops values without a column and takes nulls where there must be none."""
    import pyarrow as pa

    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise Undecodable(f"no column for {shown(', '.join(sorted(map(str, unknown))))}")
    batch = pa.RecordBatch.from_pylist(rows, schema)
    missing = [
        field.name
        for field, column in zip(schema, batch.columns, strict=True)
        if column.null_count and not field.nullable
    ]
    if missing:
        raise Undecodable(f"no value for {', '.join(missing)}")
    return batch


def reason_of(error: Exception) -> str:
    """One line for a person: what the decoder said, or what broke in it."""
    said = shown(str(error))
    return said if isinstance(error, Undecodable) else f"{type(error).__name__}: {said}"


def checked_schema(decoder: Decoder) -> pa.Schema:
    """The decoder's schema.

    Raises InvalidInput if a name is empty, comes twice (as Spark compares them) or begins with `_odb_`, which is ours.
    """
    schema = decoder.schema
    names = [name.lower() for name in schema.names]
    if not names or "" in names or len(set(names)) != len(names) or any(name.startswith("_odb_") for name in names):
        raise InvalidInput(
            f"decoder {decoder.name}: columns need names of their own that do not begin with _odb_: {schema.names}"
        )
    return schema
