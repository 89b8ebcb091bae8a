"""What Spark's JSON parser does not tell: whether an entry is JSON, all of it, and whether the columns can hold it.

Spark's parser ends at the end of the first value, takes the last of two fields with the same name, rounds decimals,
lets large doubles be infinite, cuts nanoseconds off, and drops what is not declared, all without a word. So each entry
is read here first, strictly by RFC 8259: what passes is what Spark turns into exactly these values.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

from objbuf_dagster.decode.decoder import Undecodable
from objbuf_dagster.decode.json_reading import DEEPEST, Doubled, Number, read_text, top_fields, what
from objbuf_dagster.decode.json_types import Array, Fixed, Kind, Map, Scalar, Struct
from objbuf_dagster.errors import shown

LONGEST_NUMBER = 1000
"""Characters of a number that goes into a column; Spark's parser has the same limit."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII).fullmatch
_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
).fullmatch
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII).fullmatch
_BITS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
_MOST_OFFSET = timedelta(hours=18)
"""Java's."""


@dataclass(frozen=True, slots=True)
class Checked:
    """An entry that the columns can hold.

    known: counts the values in it that are declared and not null, and how many arrays and maps have. Whoever parses it
        must find as many.
    rest: the exact text of the top-level fields that are not declared, or have within them what is not.
    """

    text: str
    known: int
    rest: list[tuple[str, str]]


class _Misfit(Exception):
    """A value that its column cannot hold; the path is told from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.path: list[str] = []


@dataclass(slots=True)
class _Seen:
    """Whether there was a field that is not declared."""

    unknown: bool = False


_Check = Callable[[Any, _Seen], int]
"""Counts what is known in a value that is not null. Raises _Misfit."""


class Checker:
    """Checks entries against these columns.

    max_bytes: of an entry.
    """

    def __init__(self, columns: Struct, max_bytes: int) -> None:
        self._checks = {field.name: _check_of(field.kind) for field in columns.fields}
        self._required = [field.name for field in columns.fields if field.required]
        self._max_bytes = max_bytes

    def check(self, entry: bytes) -> Checked:
        """Raises Undecodable with the reason."""
        text = read_text(entry, self._max_bytes)
        known = 0
        rest: list[tuple[str, str]] = []
        missing = set(self._required)
        seen = _Seen()
        try:
            for name, value, start, end in top_fields(text):
                check = self._checks.get(name)
                if check is None:
                    _check_text(name)
                    rest.append((name, text[start:end]))
                elif value is not None:
                    known += _at(name, check, value, seen)
                    missing.discard(name)
                    if seen.unknown:
                        seen.unknown = False
                        rest.append((name, text[start:end]))
        except _Misfit as misfit:
            path = "".join(reversed(misfit.path)).lstrip(".")
            raise Undecodable(f"{shown(path)}: {misfit}" if path else str(misfit)) from None
        except RecursionError:
            raise Undecodable(f"values are nested deeper than {DEEPEST}") from None
        if missing:
            raise Undecodable(f"no value for {', '.join(name for name in self._required if name in missing)}")
        return Checked(text, known, rest)


def _at(step: str, check: _Check, value: Any, seen: _Seen) -> int:
    try:
        return check(value, seen)
    except _Misfit as misfit:
        misfit.path.append(f".{step}")
        raise


def _check_of(kind: Kind) -> _Check:
    if isinstance(kind, Struct):
        return _struct({field.name: _check_of(field.kind) for field in kind.fields}, kind)
    if isinstance(kind, Array):
        return _array(_check_of(kind.element), kind)
    if isinstance(kind, Map):
        return _map(_check_of(kind.value), kind)
    if isinstance(kind, Fixed):
        return _fixed(kind)
    return _SCALARS[kind.name](kind)


def _struct(checks: dict[str, _Check], kind: Struct) -> _Check:
    def check(value: Any, seen: _Seen) -> int:
        _check_object(value, kind)
        known = 1
        for name, inner in value.items():
            of_field = checks.get(name)
            if of_field is None:
                seen.unknown = True
            elif inner is not None:
                known += _at(name, of_field, inner, seen)
        return known

    return check


def _map(of_value: _Check, kind: Map) -> _Check:
    def check(value: Any, seen: _Seen) -> int:
        _check_object(value, kind)
        known = 1 + len(value)
        for name, inner in value.items():
            _check_text(name)
            if inner is not None:
                known += _at(name, of_value, inner, seen)
        return known

    return check


def _array(of_element: _Check, kind: Array) -> _Check:
    def check(value: Any, seen: _Seen) -> int:
        if type(value) is not list:
            raise _other(value, kind)
        known = 1 + len(value)
        for place, inner in enumerate(value):
            if inner is not None:
                try:
                    known += of_element(inner, seen)
                except _Misfit as misfit:
                    misfit.path.append(f"[{place}]")
                    raise
        return known

    return check


def _check_object(value: Any, kind: Kind) -> None:
    if not isinstance(value, dict):
        raise _other(value, kind)
    if isinstance(value, Doubled):
        raise _Misfit(f"the name {shown(value.name)} is there twice")


def _fixed(kind: Fixed) -> _Check:
    def check(value: Any, _: _Seen) -> int:
        if type(value) is str:
            if not _NUMBER(value):
                raise _Misfit(f"the string '{shown(value)}' is no number, and {kind.ddl()} is declared")
        elif type(value) is not Number:
            raise _other(value, kind)
        _check_length(value)
        try:
            number = Decimal(value).as_tuple()
        except InvalidOperation:
            raise _Misfit(f"{shown(value)} does not fit {kind.ddl()}") from None
        written = "".join(map(str, number.digits)).lstrip("0")
        kept = written.rstrip("0")
        behind = -(int(number.exponent) + len(written) - len(kept))
        if kept and (behind > kind.scale or len(kept) - behind > kind.precision - kind.scale):
            raise _Misfit(f"{shown(value)} does not fit {kind.ddl()}, which would round it")
        return 1

    return check


def _whole(kind: Scalar) -> _Check:
    most = 1 << _BITS[kind.name]

    def check(value: Any, _: _Seen) -> int:
        if type(value) is not Number:
            raise _other(value, kind)
        if not value.lstrip("-").isdecimal():
            raise _Misfit(f"{shown(value)} is not written as a whole number, and {kind.name} is declared")
        if len(value) > 20 or not -most <= int(value) < most:
            raise _Misfit(f"{shown(value)} does not fit {kind.name}")
        return 1

    return check


def _floating(kind: Scalar) -> _Check:
    def check(value: Any, _: _Seen) -> int:
        if type(value) is not Number:
            raise _other(value, kind)
        _check_length(value)
        number = float(value)
        try:
            if kind.name == "FLOAT":
                struct.pack("<f", number)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise _Misfit(f"{shown(value)} does not fit {kind.name}, where it would be infinite")
        return 1

    return check


def _boolean(kind: Scalar) -> _Check:
    def check(value: Any, _: _Seen) -> int:
        if type(value) is not bool:
            raise _other(value, kind)
        return 1

    return check


def _string(kind: Scalar) -> _Check:
    def check(value: Any, _: _Seen) -> int:
        if type(value) is not str:
            raise _other(value, kind)
        _check_text(value)
        return 1

    return check


def _day(kind: Scalar) -> _Check:
    def check(value: Any, _: _Seen) -> int:
        if type(value) is not str:
            raise _other(value, kind)
        found = _DAY(value)
        try:
            if found is None:
                raise ValueError
            date(*map(int, found.groups()))
        except ValueError:
            raise _Misfit(f"'{shown(value)}' is no DATE, which is written as 2024-12-31") from None
        return 1

    return check


def _instant(kind: Scalar) -> _Check:
    def check(value: Any, _: _Seen) -> int:
        if type(value) is not str:
            raise _other(value, kind)
        try:
            _check_instant(value)
        except (ValueError, OverflowError):
            raise _Misfit(
                f"'{shown(value)}' is no TIMESTAMP, which is written as 2024-12-31T23:59:59.999999Z, with Z or an "
                "offset, and at most microseconds"
            ) from None
        return 1

    return check


def _check_instant(value: str) -> None:
    found = _INSTANT(value)
    if found is None:
        raise ValueError
    *numbers, _, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    if offset > _MOST_OFFSET or int(minutes or 0) > 59:
        raise ValueError
    zone = timezone(-offset if sign == "-" else offset)
    year, month, day, hour, minute, second = map(int, numbers)
    datetime(year, month, day, hour, minute, second, tzinfo=zone).astimezone(timezone.utc)


_SCALARS: dict[str, Callable[[Scalar], _Check]] = {
    **dict.fromkeys(_BITS, _whole),
    "FLOAT": _floating,
    "DOUBLE": _floating,
    "BOOLEAN": _boolean,
    "STRING": _string,
    "DATE": _day,
    "TIMESTAMP": _instant,
}


def _check_text(text: str) -> None:
    """JSON can name halves of a character, which no text is."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Misfit(f"'{shown(text)}' has half a character (a lone surrogate), which no text can hold") from None


def _check_length(number: str) -> None:
    if len(number) > LONGEST_NUMBER:
        raise _Misfit(f"{shown(number)} has more than {LONGEST_NUMBER} characters")


def _other(value: Any, kind: Kind) -> _Misfit:
    return _Misfit(f"it is {what(value)}, and {shown(kind.ddl())} is declared")
