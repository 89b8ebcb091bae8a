"""What a fold is: rows by key, in the order of sequences, become one row of state per key.

A fold says which rows matter and whose they are (`keyed`), and what they make of the state of their keys (`apply`). It
holds settings only. Where the state is, which ranges are in it and what becomes of a crash is not its business: see
`lake/state.py`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import InvalidInput, ObjbufError, shown
from objbuf_dagster.lake.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

ORDER = ("_odb_sequence", "_odb_entry_index", "_odb_record_index")
"""The columns that name a row for ever, and that rows are folded in the order of. A fold gets them all."""

BUCKET = "_odb_bucket"
"""The partition column of every state table."""

_KEY_TYPES = ("string", "binary", "bool", "int8", "int16", "int32", "int64")
_ROW = "_row"


@dataclass(frozen=True, slots=True)
class Changes:
    """What becomes of some keys; those that are in neither stay as they are.

    rows: their new state, the columns of key and value, each key once.
    deleted: the key columns of those that are no more.
    """

    rows: pa.Table
    deleted: pa.Table | None = None


class Fold(ABC):
    """Turns rows of a typed table into a row of state per key.

    name: tells its state from that of others.
    version: counts up with every change of what comes out: state of another version is refused, and is to be rebuilt.
    """

    name: str
    version: int

    @property
    @abstractmethod
    def key(self) -> pa.Schema:
        """The columns of a key: text, bytes, whole numbers or booleans, never null."""

    @property
    @abstractmethod
    def value(self) -> pa.Schema:
        """The other columns of a row of state."""

    @property
    @abstractmethod
    def reads(self) -> Sequence[str]:
        """The columns of the typed table that it looks at, besides ORDER: no others are read."""

    @abstractmethod
    def keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that matter, in the order given: the key columns, and whatever `apply` needs besides."""

    @abstractmethod
    def apply(self, rows: pa.Table, state: pa.Table) -> Changes:
        """What `keyed` gave, some at a time and in order, folded into the state of their keys.

        state: of these keys, as far as they have one: the columns of key and value, each key once.
        The result must be the same however the rows are cut into calls.
        """


class RowFold(Fold):
    """A fold that looks at one row at a time: the shortest way to write one's own."""

    @abstractmethod
    def key_of(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The key of a row, by column, none of them null; None if the row does not matter."""

    @abstractmethod
    def step(self, value: Mapping[str, Any] | None, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The value of a key after this row, by column; a column left out is null.

        `value` is the one before, None for a key that is new; to return None deletes the key.
        """

    def keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        row: Mapping[str, Any] = {}
        keys = []
        with fold_errors(self, "key_of", lambda: [row]):
            for row in rows.to_pylist():
                key = self.key_of(row)
                _check_names(key, self.key.names)
                keys.append(key)
        chosen = [at for at, key in enumerate(keys) if key is not None]
        found = pa.RecordBatch.from_pylist([key for key in keys if key is not None], self.key)
        packed = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema)).take(pa.array(chosen, pa.int64()))
        return pa.RecordBatch.from_arrays([*found.columns, packed], names=[*self.key.names, _ROW])

    def apply(self, rows: pa.Table, state: pa.Table) -> Changes:
        import pyarrow as pa

        names = self.key.names
        values: dict[tuple[Any, ...], Mapping[str, Any] | None] = {
            tuple(row[name] for name in names): {name: row[name] for name in self.value.names}
            for row in state.to_pylist()
        }
        row: Mapping[str, Any] = {}
        with fold_errors(self, "step", lambda: [row]):
            for key, row in zip(rows.select(names).to_pylist(), rows[_ROW].to_pylist(), strict=True):
                at = tuple(key[name] for name in names)
                value = self.step(values.get(at), row)
                _check_names(value, self.value.names)
                values[at] = value
        there = [{**dict(zip(names, key, strict=True)), **value} for key, value in values.items() if value is not None]
        gone = [dict(zip(names, key, strict=True)) for key, value in values.items() if value is None]
        return Changes(
            pa.Table.from_pylist(there, pa.schema([*self.key, *self.value])), pa.Table.from_pylist(gone, self.key)
        )


def _check_names(given: Mapping[str, Any] | None, columns: Sequence[str]) -> None:
    """Raise ValueError for what Arrow would drop in silence."""
    unknown = set(given or ()) - set(columns)
    if unknown:
        raise ValueError(f"no column for {', '.join(sorted(map(str, unknown)))}")


@contextlib.contextmanager
def fold_errors(fold: Fold, call: str, rows: Callable[[], Sequence[Mapping[str, Any]]]) -> Iterator[None]:
    """Raises InvalidInput, for the fold's author, for what its code raises inside.

    rows: the one that it is at, or the first and the last that it got; where they have them, with the columns of ORDER.
    """
    try:
        yield
    except (ObjbufError, MemoryError):
        raise
    except Exception as error:
        words = dict(zip(ORDER, ("sequence", "entry index", "record index"), strict=True))
        places = [", ".join(f"{word} {row[name]}" for name, word in words.items() if name in row) for row in rows()]
        where = " to ".join(dict.fromkeys(filter(None, places)))
        raise InvalidInput(
            f"fold {fold.name} {fold.version} failed in {call}{' at ' if where else ''}{where}: "
            f"{type(error).__name__}: {shown(str(error))}. Nothing was committed: mend the fold, or let it leave such "
            "rows out, then go on; if that changes what came out before, count its version up and rebuild the state"
        ) from error


@dataclass(frozen=True, slots=True)
class Scope:
    """Which keys a state has.

    prefixes: each is values of the leading key columns, of which the last may go on: `("pay",)` are all keys whose
        first column begins with `pay`, `("payments", "eu-")` those whose first is `payments` and whose second begins
        with `eu-`. None at all means all keys; several, the keys that have any of them.

    >>> Scope.of("pay", ("orders", "eu-")).prefixes
    (('orders', 'eu-'), ('pay',))
    """

    prefixes: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, *prefixes: str | Sequence[str]) -> Scope:
        """All keys without a prefix; else those that begin with one of them."""
        found = {(one,) if isinstance(one, str) else tuple(one) for one in prefixes}
        if () in found:
            raise InvalidInput("a key prefix needs at least one value: leave prefixes out for all keys")
        return cls(tuple(sorted(found)))

    def check(self, key: pa.Schema) -> None:
        """Raises InvalidInput for prefixes that keys of these columns cannot have."""
        for prefix in self.prefixes:
            types = [str(each.type) for each in key][: len(prefix)]
            if len(prefix) > len(key) or set(types) != {"string"}:
                raise InvalidInput(
                    f"{prefix} is no prefix of keys {key.names}: give text for the leading columns, as far as they are "
                    "text"
                )

    def within(self, keyed: pa.RecordBatch, key: pa.Schema) -> pa.RecordBatch:
        """The rows whose keys are in it."""
        import pyarrow.compute as pc

        if not self.prefixes:
            return keyed
        chosen = None
        for prefix in self.prefixes:
            mask = pc.starts_with(keyed.column(key.names[len(prefix) - 1]), prefix[-1])
            for name, value in zip(key.names, prefix[:-1], strict=False):
                mask = pc.and_(mask, pc.equal(keyed.column(name), value))
            chosen = mask if chosen is None else pc.or_(chosen, mask)
        return keyed.filter(chosen)


def state_schema(fold: Fold) -> pa.Schema:
    """The columns inside the data files of this fold's state. Raises InvalidInput for those that a table can't have."""
    import pyarrow as pa

    key, value = fold.key, fold.value
    if not len(key) or any(each.nullable or str(each.type) not in _KEY_TYPES for each in key):
        raise InvalidInput(
            f"fold {fold.name}: key columns must be {', '.join(_KEY_TYPES)} with nullable=False, and one at "
            f"least: {[str(each) for each in key]}"
        )
    schema = pa.schema([*key, *value])
    if BUCKET in (name.lower() for name in schema.names):
        raise InvalidInput(f"fold {fold.name}: the column {BUCKET} is ours, take another name")
    TableSchema.from_arrow(schema)
    return schema


def check_keys(fold: Fold, keyed: pa.RecordBatch) -> None:
    """Raise InvalidInput for rows that a fold gave without a whole key: state is found by it, and kept in its part."""
    nulls = [name for name in fold.key.names if keyed.column(name).null_count]
    if nulls:
        raise InvalidInput(
            f"fold {fold.name} breaks its contract: it gave nulls for the key's {', '.join(nulls)}; nothing was "
            "committed. Keys are never null: let it leave such rows out, or give them a value that stands for none"
        )


def codes_of(rows: pa.Table | pa.RecordBatch, key: pa.Schema) -> pa.Array:
    """One binary value per row that is the same for the same key and for no other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for each in key:
        column = rows.column(each.name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        text = column if str(each.type) in ("string", "binary") else column.cast(pa.string())
        data = text.cast(pa.binary())
        parts += [pc.binary_length(data).cast(pa.string()).cast(pa.binary()), data]
    if len(parts) == 2:
        return parts[1]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.binary()))


def buckets_of(codes: pa.Array, buckets: int) -> pa.Array:
    """Per code the bucket that its key is in: always the same one, as long as their number is."""
    import zlib

    import pyarrow as pa

    encoded = codes.dictionary_encode()
    names = pa.array([f"{zlib.crc32(code) % buckets:02d}" for code in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def checked(fold: Fold, changes: Changes, touched: pa.Array) -> tuple[pa.Table, pa.Array, pa.Array]:
    """The new rows, their codes, and the codes of what was deleted.

    Raises InvalidInput if the fold breaks its contract, which is its author's to mend: nothing was committed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = state_schema(fold)
    wrong = None
    rows, deleted = changes.rows, changes.deleted
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        wrong = f"it gave columns {rows.schema.names} of {[str(each) for each in rows.schema.types]}"
    elif nulls := [each.name for each in schema if not each.nullable and rows[each.name].null_count]:
        wrong = f"it gave nulls for {', '.join(nulls)}"
    elif deleted is not None and deleted.schema.names != fold.key.names:
        wrong = f"it deleted keys with columns {deleted.schema.names}"
    elif deleted is not None and any(column.null_count for column in deleted.columns):
        wrong = "it deleted keys with nulls"
    if wrong is None:
        there = codes_of(rows, fold.key)
        gone = codes_of(deleted, fold.key) if deleted is not None else pa.array([], pa.binary())
        both = pa.concat_arrays([there, gone])
        if len(both) != len(both.unique()):
            wrong = "it gave a key twice"
        elif not pc.all(pc.is_in(both, touched), min_count=0).as_py():
            wrong = "it changed a key that no row had"
        else:
            return rows.cast(schema), there, gone
    raise InvalidInput(f"fold {fold.name} breaks its contract: {wrong}; nothing was committed")
