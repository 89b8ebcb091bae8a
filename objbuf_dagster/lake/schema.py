"""What columns a table has, said once: Delta's schema, Arrow's and Spark's are derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

ColumnType = Literal["long", "int", "double", "boolean", "string", "binary"]
"""Delta's names, which are Spark's too, of the types that need no more than a name here."""

_DELTA = {"int": "integer"}
_ARROW = {"long": "int64", "int": "int32", "double": "float64", "boolean": "bool_", "string": "string"}

RANGE_COLUMN = "_odb_range"
"""The partition column of every table: the key of the range that a row came with."""

_OTHER_WORDS = {"int8": "byte", "int16": "short", "float": "float", "date32[day]": "date"}
_INSTANT = "timestamp[us, tz=UTC]"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    type: in Spark's words: a ColumnType, or any other, such as `map<string,string>`, that `arrow` says exactly.
    arrow: the pyarrow type of one that is no ColumnType. `TableSchema.from_arrow` knows both.
    """

    name: str
    type: str
    nullable: bool = True
    arrow: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns.

    data: the columns inside the data files, in order. The partition columns are in their paths instead, and come last
        in `columns`, which are all that a reader sees.
    part: the name of a second partition column, below the range, of a table that several write the same ranges to.
    """

    data: tuple[Column, ...]
    part: str | None = None

    def __post_init__(self) -> None:
        names = [column.name.lower() for column in self.columns]  # Spark does not tell `a` from `A`
        if not self.data or "" in names or len(set(names)) != len(names):
            raise InvalidInput(f"a table needs columns, each with a name of its own besides {RANGE_COLUMN}: {names}")

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> TableSchema:
        """The table whose data files have this pyarrow schema, nested types and nullability included.

        Raises InvalidInput for types that Delta or Spark has no word for, with what to use instead.
        """
        return cls(tuple(_column(one) for one in schema))

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the partition columns, as they follow each other in paths."""
        return (RANGE_COLUMN,) if self.part is None else (RANGE_COLUMN, self.part)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.data, *(Column(name, "string", nullable=False) for name in self.partitions))

    def to_delta(self) -> deltalake.Schema:
        """As deltalake wants it: `columns`."""
        from deltalake import Schema

        return Schema([_delta_field(column) for column in self.columns])

    def to_arrow(self) -> Any:
        """The pyarrow schema of a data file: `data`, nullability included."""
        import pyarrow as pa

        return pa.schema([pa.field(column.name, _arrow_type(column), nullable=column.nullable) for column in self.data])


def _arrow_type(column: Column) -> Any:
    import pyarrow as pa

    return column.arrow if column.arrow is not None else getattr(pa, _ARROW.get(column.type, column.type))()


def _delta_field(column: Column) -> Any:
    from deltalake import Field, Schema
    from deltalake.schema import PrimitiveType

    if column.arrow is None:
        return Field(column.name, PrimitiveType(_DELTA.get(column.type, column.type)), nullable=column.nullable)
    import pyarrow as pa

    return Schema.from_arrow(pa.schema([pa.field(column.name, column.arrow, nullable=column.nullable)])).fields[0]


def _column(one: pa.Field) -> Column:
    words = _words(one.type, one.name)
    simple = words in _ARROW or words == "binary"
    return Column(one.name, words, one.nullable, None if simple else one.type)


def _words(kind: pa.DataType, where: str) -> str:  # noqa: PLR0911  one per family of types
    """A pyarrow type in Spark's words."""
    import pyarrow as pa

    named = {getattr(pa, arrow)(): word for word, arrow in _ARROW.items()} | {pa.binary(): "binary"}
    if kind in named:
        return named[kind]
    if str(kind) in _OTHER_WORDS:
        return _OTHER_WORDS[str(kind)]
    if str(kind) == _INSTANT:
        return "timestamp"
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{_words(kind.key_type, where)},{_words(kind.item_type, where)}>"
    if pa.types.is_list(kind):
        return f"array<{_words(kind.value_type, where)}>"
    if pa.types.is_struct(kind) and kind.num_fields:
        return f"struct<{','.join(_member(kind.field(at), where) for at in range(kind.num_fields))}>"
    raise InvalidInput(
        f"column {where}: Delta and Spark have nothing like Arrow's {kind}; use signed numbers, string, binary, bool, "
        f"{_INSTANT}, date32, decimal128, and lists, maps and structs of these"
    )


def _member(one: pa.Field, where: str) -> str:
    name = one.name.replace("`", "``")
    return f"`{name}`:{_words(one.type, f'{where}.{one.name}')}{'' if one.nullable else ' NOT NULL'}"


ENTRIES = TableSchema(
    (
        Column("_odb_sequence", "long", nullable=False),
        Column("_odb_entry_index", "long", nullable=False),
        Column("_odb_ingestion_time_ms", "long"),
        Column("_odb_manifest_path", "string", nullable=False),
        Column("_odb_data_path", "string", nullable=False),
        Column("_odb_metadata", "binary"),
        Column("entry", "binary", nullable=False),
    )
)
"""The raw table: one row per entry, exactly as it was produced, with where it came from."""
