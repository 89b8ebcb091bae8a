"""JSON text to values, strictly by RFC 8259, with where the top-level fields are: no more than one object, and nothing
twice. Numbers stay as they are written."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed leaves it out
from typing import Any, NoReturn

from objbuf_dagster.decode.decoder import Undecodable
from objbuf_dagster.errors import shown

DEEPEST = 500
"""How many values may be inside each other: half of what Spark's parser takes, and Python's."""

_BOM = "\ufeff"
_spaces = re.compile(r"[ \t\n\r]*").match
_colon = re.compile(r"[ \t\n\r]*:[ \t\n\r]*").match
_follows = re.compile(r"[ \t\n\r]*([,}])[ \t\n\r]*").match
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
"""Also one without an end, so that bytes made for it do not take a time that grows with their square."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Number(str):
    """A number as it is written, which no Python number is."""

    __slots__ = ()


class Doubled(dict[str, Any]):
    """An object that has this name twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def read_text(entry: bytes, max_bytes: int) -> str:
    """The text of an entry that is not too large, nor too deep to be read. Raises Undecodable."""
    if len(entry) > max_bytes:
        raise Undecodable(f"it has {len(entry)} bytes, more than the {max_bytes} of max_bytes")
    try:
        text = entry.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if text.startswith(_BOM):
        raise Undecodable("it begins with a byte order mark, which JSON has none of")
    if entry.count(b"[") + entry.count(b"{") > DEEPEST and _depth(entry) > DEEPEST:
        raise Undecodable(f"values are nested deeper than {DEEPEST}")
    return text


def _depth(entry: bytes) -> int:
    import numpy as np

    brackets = np.frombuffer(_STRINGS.sub(b"", entry).translate(None, _NOT_BRACKETS), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opening, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0))


def _refuse(constant: str) -> NoReturn:
    raise Undecodable(f"not JSON: {constant} is no number there")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Doubled(pairs)


_decoder: Any = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=_refuse, object_pairs_hook=_object
)
_scan = _decoder.scan_once


def top_fields(text: str) -> list[tuple[str, Any, int, int]]:
    """Name and value of each field of the one object that the text is, and where the value's text begins and ends.

    Raises Undecodable if it is anything else, or if a name is there twice.
    """
    at = _skip(text, 0)
    if at == len(text):
        raise Undecodable("it is empty")
    if text[at] != "{":
        raise Undecodable(_no_object(text, at))
    found: list[tuple[str, Any, int, int]] = []
    at = _skip(text, at + 1)
    ended = text[at : at + 1] == "}"
    if ended:
        at = _skip(text, at + 1)
    names: set[str] = set()
    while not ended:
        name, value, start, at = _field(text, at)
        if name in names:
            raise Undecodable(f"the name {shown(name)} is there twice")
        names.add(name)
        found.append((name, value, start, at))
        follows = _follows(text, at)
        if follows is None:
            raise _not_json(text, _skip(text, at), "a comma or the end of the object is expected")
        ended = follows[1] == "}"
        at = follows.end()
    _check_end(text, at)
    return found


def _field(text: str, at: int) -> tuple[str, Any, int, int]:
    if text[at : at + 1] != '"':
        raise _not_json(text, at, "a name in double quotes is expected")
    try:
        name, at = scanstring(text, at + 1, True)
        colon = _colon(text, at)
        if colon is None:
            raise _not_json(text, _skip(text, at), "a colon is expected")
        at = colon.end()
        value, end = _scan(text, at)
    except json.JSONDecodeError as error:
        raise _not_json(text, error.pos, error.msg) from None
    except StopIteration as error:
        raise _not_json(text, error.value, "a value is expected") from None
    return name, value, at, end


def _no_object(text: str, at: int) -> str:
    try:
        value, end = _scan(text, at)
    except json.JSONDecodeError as error:
        return str(_not_json(text, error.pos, error.msg))
    except StopIteration as error:
        return str(_not_json(text, error.value, "a value is expected"))
    except RecursionError:
        return f"values are nested deeper than {DEEPEST}"
    _check_end(text, _skip(text, end))
    return f"an entry is one object, and this is {what(value)}"


def _skip(text: str, at: int) -> int:
    return _spaces(text, at).end()  # type: ignore[union-attr]  # it always matches


def _check_end(text: str, at: int) -> None:
    if at != len(text):
        raise _not_json(text, at, "something follows the value")


def _not_json(text: str, at: int, why: str) -> Undecodable:
    there = f"'{shown(text[at : at + 20])}'" if at < len(text) else "its end"
    return Undecodable(f"not JSON: {why} at character {at}, where {there} is")


def what(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "null"
    if isinstance(value, Number):
        return f"the number {shown(value)}"
    for kind, words in ((bool, "true or false"), (str, "a string"), (list, "an array")):
        if isinstance(value, kind):
            return words
    return "an object"
