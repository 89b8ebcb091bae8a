"""Generated JSON entries, and what plain Python makes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st


class Unfit(Exception):
    """What the column cannot hold."""


@dataclass(frozen=True)
class Generated:
    """An entry, as the texts of its fields, in their order, and its text."""

    fields: tuple[tuple[str, str], ...]
    text: str

    def expected(self) -> tuple[dict[str, Any], dict[str, str]] | None:
        """The columns that are not null, and `_rest`, by plain Python; None if it must fail."""
        names = [name for name, _ in self.fields]
        if len(set(names)) != len(names):
            return None
        columns: dict[str, Any] = {}
        rest: dict[str, str] = {}
        for name, text in self.fields:
            if name not in TYPES:
                rest[name] = text
                continue
            try:
                value = hold(json.loads(text, parse_float=Decimal, object_pairs_hook=Pairs), TYPES[name])
            except Unfit:
                return None
            if value is not None:
                columns[name] = value
            if has_more(json.loads(text), TYPES[name]):
                rest[name] = text
        return columns, rest


class Pairs(tuple[Any, ...]):
    """An object, with all its fields."""

    __slots__ = ()

    def __new__(cls, pairs: list[tuple[str, Any]]) -> Pairs:
        return super().__new__(cls, pairs)


TYPES: dict[str, Any] = {
    "id": ("int", 63),
    "small": ("int", 7),
    "d": "double",
    "m": ("decimal", 9, 2),
    "t": "string",
    "o": "boolean",
    "n": {"x": ("int", 63), "y": "string", "in": {"z": "double"}},
    "l": [("int", 63)],
    "ls": [{"a": ("int", 31)}],
    "p": ("map", ("decimal", 20, 0)),
}


def hold(value: Any, kind: Any) -> Any:  # noqa: C901, PLR0911, PLR0912  one per type
    """The value that a column of this type has. Raises Unfit."""
    if value is None:
        return None
    if isinstance(kind, dict):
        found = as_object(value)
        return {name: hold(found.get(name), inner) for name, inner in kind.items()}
    if isinstance(kind, list):
        if type(value) is not list:
            raise Unfit
        return [hold(one, kind[0]) for one in value]
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if isinstance(value, bool):
        raise Unfit
    if kind == "double" and isinstance(value, int | Decimal):
        try:
            number = float(value)
        except OverflowError:
            raise Unfit from None
        if math.isinf(number):
            raise Unfit
        return number
    if kind[0] == "int" and isinstance(value, int) and -(2 ** kind[1]) <= value < 2 ** kind[1]:
        return value
    if kind[0] == "map":
        return {name: hold(one, kind[1]) for name, one in as_object(value).items()}
    if kind[0] == "decimal" and isinstance(value, int | Decimal | str):
        if isinstance(value, str) and not value.lstrip("-").isdecimal():
            raise Unfit  # the generated strings have no other numbers
        scaled = Decimal(value).scaleb(kind[2])
        if scaled != int(scaled) or abs(scaled) >= 10 ** kind[1]:
            raise Unfit
        return scaled.scaleb(-kind[2])
    raise Unfit


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, Pairs) or len(dict(value)) != len(value):
        raise Unfit
    return dict(value)


def has_more(value: Any, kind: Any) -> bool:
    """Whether there is a field within that is not declared."""
    if isinstance(kind, dict) and isinstance(value, Mapping):
        return any(name not in kind or has_more(one, kind[name]) for name, one in value.items())
    if isinstance(kind, list) and isinstance(value, list):
        return any(has_more(one, kind[0]) for one in value)
    return False


SPACES = st.sampled_from(["", "", "", " ", "\n", "\t ", " \r\n"])
NUMBERS = st.one_of(
    st.integers(-200, 200).map(str),
    st.integers(-(2**64), 2**64).map(str),
    st.sampled_from(["-0", "127", "128", "-129", "9223372036854775807", "9223372036854775808", "1e400", "1E5"]),
    st.decimals(-(10**7), 10**7, places=2).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
STRINGS = st.one_of(
    st.sampled_from(["", "NaN", "12", "-7", "true", "[", '"', "\\"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)


@st.composite
def quoted(draw: st.DrawFn) -> str:
    return json.dumps(draw(STRINGS), ensure_ascii=draw(st.booleans()))


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str], names: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(names, values), max_size=4))
    space = draw(SPACES)
    return "{" + space + ",".join(f"{json.dumps(name)}{space}:{space}{value}{space}" for name, value in pairs) + "}"


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    space = draw(SPACES)
    return f"[{space}" + f"{space},{space}".join(draw(st.lists(values, max_size=4))) + "]"


SCALARS = st.one_of(NUMBERS, quoted(), st.sampled_from(["true", "false", "null"]))
INNER_NAMES = st.sampled_from(["x", "y", "in", "z", "a", "k", "w"])
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(arrays(inner), objects(inner, INNER_NAMES)), max_leaves=8)
FITTING: dict[str, st.SearchStrategy[str]] = {
    "id": st.integers(-(2**63), 2**63 - 1).map(str),
    "small": st.integers(-128, 127).map(str),
    "d": NUMBERS,
    "m": st.decimals(-(10**6), 10**6, places=2).map(str),
    "t": quoted(),
    "o": st.sampled_from(["true", "false"]),
    "n": st.builds(
        '{{"x":{},"y":{},"in":{{"z":{}}}{}}}'.format,
        st.integers(-9, 9),
        quoted(),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.sampled_from(["", "", ',"w":[1.0]']),
    ),
    "l": arrays(st.one_of(st.integers(-9, 9).map(str), st.just("null"))),
    "ls": arrays(st.sampled_from(['{"a":1}', "{}", "null", '{"a":2,"b":{}}'])),
    "p": st.builds(
        '{{"k":{},{}:null}}'.format,
        st.integers(-(10**20) + 1, 10**20 - 1),
        quoted().map(lambda key: f'{key[:-1]}_"'),
    ),
}


@st.composite
def fields(draw: st.DrawFn) -> tuple[str, str]:
    name = draw(st.sampled_from([*TYPES, "zz", "yy", "é", ""]))
    fits = FITTING.get(name) if draw(st.integers(0, 7)) else None
    return name, draw(VALUES if fits is None else fits)


@st.composite
def generated(draw: st.DrawFn) -> Generated:
    """Entries of which about half are good."""
    by = (lambda field: field[0]) if draw(st.integers(0, 9)) else None
    found = tuple(draw(st.lists(fields(), max_size=6, unique_by=by)))
    space = draw(SPACES)
    inside = ",".join(f"{space}{json.dumps(name)}{space}:{space}{text}{space}" for name, text in found)
    return Generated(found, f"{space}{{{inside}}}{space}")
