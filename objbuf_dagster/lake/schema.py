"""What columns a table has, said once: Delta's schema, Arrow's and Spark's are derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    import deltalake

ColumnType = Literal["long", "int", "double", "boolean", "string", "binary"]
"""Delta's names, which are Spark's too."""

_DELTA = {"int": "integer"}
_ARROW = {"long": "int64", "int": "int32", "double": "float64", "boolean": "bool_", "string": "string"}

RANGE_COLUMN = "_odb_range"
"""The partition column of every table: the key of the range that a row came with."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `type` in Spark's words."""

    name: str
    type: ColumnType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns.

    data: the columns inside the data files, in order. The partition column is in their paths instead, and comes last
        in `columns`, which are all that a reader sees.
    """

    data: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name.lower() for column in self.columns]  # Spark does not tell `a` from `A`
        if not self.data or "" in names or len(set(names)) != len(names):
            raise InvalidInput(f"a table needs columns, each with a name of its own besides {RANGE_COLUMN}: {names}")

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.data, Column(RANGE_COLUMN, "string", nullable=False))

    def to_delta(self) -> deltalake.Schema:
        """As deltalake wants it: `columns`."""
        from deltalake import Field, Schema
        from deltalake.schema import PrimitiveType

        return Schema(
            [
                Field(column.name, PrimitiveType(_DELTA.get(column.type, column.type)), nullable=column.nullable)
                for column in self.columns
            ]
        )

    def to_arrow(self) -> Any:
        """The pyarrow schema of a data file: `data`, nullability included."""
        import pyarrow as pa

        return pa.schema(
            [
                pa.field(column.name, getattr(pa, _ARROW.get(column.type, column.type))(), nullable=column.nullable)
                for column in self.data
            ]
        )


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
