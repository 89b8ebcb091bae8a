"""The types that a JSON table may have, read from and written as Spark's DDL. Plain values: no Spark, no Arrow.

These are the types whose values can be told, before Spark parses them, to come out of its parser whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from objbuf_dagster.errors import InvalidInput, shown

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

REST = "_rest"
"""The column of all that the others do not hold: exact JSON text, by the name of the top-level field."""

_ARROW = {
    "BOOLEAN": "bool_",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "STRING": "string",
    "DATE": "date32",
}
_SAME = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT"}
_SAME |= {"DEC": "DECIMAL", "NUMERIC": "DECIMAL", "TIMESTAMP_LTZ": "TIMESTAMP"}
_MOST_DIGITS = 38
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w[\w-]*)|([<>(),:]))")
_UNFIT = re.compile(r"[ ,;{}()=\n\t\r\"'`\\\x00-\x1f]")
"""What Delta refuses in the name of a column, and what would need quoting wherever it is used."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One of the types that need no more than a name: `BIGINT`, `STRING`, `TIMESTAMP` and so on."""

    name: str

    def ddl(self) -> str:
        return self.name

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.timestamp("us", "UTC") if self.name == "TIMESTAMP" else getattr(pa, _ARROW[self.name])()


@dataclass(frozen=True, slots=True)
class Fixed:
    """DECIMAL."""

    precision: int
    scale: int

    def ddl(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True, slots=True)
class Array:
    element: Kind

    def ddl(self) -> str:
        return f"ARRAY<{self.element.ddl()}>"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(self.element.arrow())


@dataclass(frozen=True, slots=True)
class Map:
    """From strings, since JSON has no other names."""

    value: Kind

    def ddl(self) -> str:
        return f"MAP<STRING, {self.value.ddl()}>"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.map_(pa.string(), self.value.arrow())


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    required: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]

    def ddl(self) -> str:
        return f"STRUCT<{', '.join(f'`{field.name}`: {field.kind.ddl()}' for field in self.fields)}>"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.struct([pa.field(field.name, field.kind.arrow()) for field in self.fields])


Kind = Scalar | Fixed | Array | Map | Struct


def columns_ddl(columns: Struct) -> str:
    """The columns of a table in Spark's words: what `parse_columns` reads."""
    return ", ".join(
        f"`{field.name}` {field.kind.ddl()}{' NOT NULL' if field.required else ''}" for field in columns.fields
    )


def parse_columns(ddl: str) -> Struct:
    """`id BIGINT NOT NULL, user STRUCT<name: STRING>`, as Spark writes it.

    Raises InvalidInput, with what to do, for what is no such text, types that there are none of, and names that no
    column can have.
    """
    columns = parse_spark_columns(ddl)
    check_names(columns, "")
    return columns


def parse_spark_columns(ddl: str) -> Struct:
    """The same for a text that Spark made: names may be any."""
    parser = _Parser(ddl)
    fields = tuple(parser.fields(top=True))
    parser.end()
    return Struct(fields)


def why_no_name(name: str) -> str | None:
    """Why no column can have this name, if that is so."""
    if _UNFIT.search(name):
        return "Delta tables have no such name"
    if name.lower() == REST or name.lower().startswith("_odb_"):
        return "the name is ours"
    return None


def check_names(kind: Kind, where: str) -> None:
    """Raises InvalidInput if a name cannot be, or if two are one to Spark, which does not tell `a` from `A`."""
    if isinstance(kind, Array | Map):
        check_names(kind.element if isinstance(kind, Array) else kind.value, where)
    if not isinstance(kind, Struct):
        return
    seen: set[str] = set()
    for field in kind.fields:
        if (why := why_no_name(field.name)) is not None:
            raise InvalidInput(f"no column for {shown(where + field.name)}: {why}; leave it to {REST}")
        if field.name.lower() in seen:
            raise InvalidInput(f"{shown(where + field.name)} is declared twice: leave one of them to {REST}")
        seen.add(field.name.lower())
        check_names(field.kind, f"{where}{field.name}.")


class _Parser:
    """Reads DDL from left to right."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._at = 0
        self._next: tuple[str, str] = ("", "")
        self._advance()

    def fields(self, *, top: bool) -> Iterator[Field]:
        """Until what ends them, which is left to be read."""
        while True:
            name = self._take("name", "word")
            if self._next == ("symbol", ":"):
                self._advance()
            kind = self.kind()
            required = self._is_word("NOT")
            if required:
                self._advance()
                self._expect_word("NULL")
                if not top:
                    raise self._wrong("NOT NULL is for columns, not for what is inside them: leave it out there")
            yield Field(name, kind, required)
            if self._next != ("symbol", ","):
                return
            self._advance()

    def kind(self) -> Kind:
        word = self._take("word").upper()
        name = _SAME.get(word, word)
        if name in _ARROW or name == "TIMESTAMP":
            return Scalar(name)
        if name == "DECIMAL":
            return self._fixed()
        if name == "ARRAY":
            return Array(self._inside(self.kind))
        if name == "MAP":
            return self._inside(self._map)
        if name == "STRUCT":
            return Struct(self._inside(lambda: tuple(self.fields(top=False))))
        raise self._wrong(
            f"{shown(word)} is no type of a JSON table; there are {', '.join(_ARROW)}, TIMESTAMP, DECIMAL, ARRAY, MAP "
            "and STRUCT"
        )

    def end(self) -> None:
        if self._next[0]:
            raise self._wrong("a comma or the end is expected")

    def _fixed(self) -> Fixed:
        numbers: list[int] = []
        if self._next == ("symbol", "("):
            while self._next != ("symbol", ")"):
                self._advance()
                digits = self._take("word")
                if not digits.isdecimal():
                    raise self._wrong("DECIMAL(precision, scale) has two numbers")
                numbers.append(int(digits))
            self._advance()
        precision, scale, *more = [*numbers, *(10, 0)[len(numbers) :]]
        if more or not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise self._wrong(f"DECIMAL has up to {_MOST_DIGITS} digits, of which `scale` are behind the point")
        return Fixed(precision, scale)

    def _map(self) -> Map:
        if self.kind() != Scalar("STRING"):
            raise self._wrong("the names of a JSON object are strings: declare MAP<STRING, ...>")
        self._expect(",")
        return Map(self.kind())

    def _inside(self, read: Callable[[], _T]) -> _T:
        self._expect("<")
        found = read()
        self._expect(">")
        return found

    def _is_word(self, word: str) -> bool:
        return self._next[0] == "word" and self._next[1].upper() == word

    def _expect_word(self, word: str) -> None:
        if not self._is_word(word):
            raise self._wrong(f"{word} is expected")
        self._advance()

    def _expect(self, symbol: str) -> None:
        if self._next != ("symbol", symbol):
            raise self._wrong(f"{symbol} is expected")
        self._advance()

    def _take(self, *kinds: str) -> str:
        kind, text = self._next
        if kind not in kinds:
            raise self._wrong("the name of a column or a type is expected")
        self._advance()
        return text

    def _advance(self) -> None:
        found = _TOKEN.match(self._ddl, self._at)
        if found is None:
            if self._ddl[self._at :].strip():
                raise self._wrong("this is no DDL")
            self._next = ("", "")
            return
        self._at = found.end()
        quoted, word, symbol = found.groups()
        if quoted is not None:
            self._next = ("name", quoted.replace("``", "`"))
        else:
            self._next = ("word", word) if word is not None else ("symbol", symbol)

    def _wrong(self, what: str) -> InvalidInput:
        before = self._ddl[: self._at][-40:]
        return InvalidInput(f"the columns of a JSON table cannot be read at '{shown(before)}': {what}")
