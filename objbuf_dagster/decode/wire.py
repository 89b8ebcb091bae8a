"""What protobuf does not say of some bytes: why it did not take them, and, before, how many messages it would make."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from objbuf_dagster.decode.decoder import Undecodable

DEEPEST = 100
"""How many messages protobuf takes inside each other."""

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_STRING, _MESSAGE = 9, 11
SMALL = 16
"""Messages with as many bytes or more are few enough by their size."""

_SCANNED = 1 << 18
_KEY = 1
"""The field of a KeyValue."""

_MOST_VARINT = 10
_LONGEST_PATH = 200
_MOST_STEPS = 100_000
"""How many fields and ends are looked at, one by one in Python, before it is left at that something is wrong."""


@dataclass(slots=True)
class _Open:
    """A message (or, without a descriptor, a group that nobody knows) that is being read."""

    descriptor: Any
    end: int
    path: str
    seen: Counter[int] = field(default_factory=Counter)
    group: int = 0
    known: set[int] = field(default_factory=set)
    unknown: int = 0


def small_fields(data: bytes) -> int:
    """At least how many fields of bytes, so also messages, shorter than SMALL there can be, at all depths.

    All at once, without following one into the other, so it counts some that are none: a byte that may be the tag of
    such a field (none of a message that is known has two bytes), and a length behind it. A tag or a length that is
    written in more bytes than it needs ends with a zero behind a byte that says that more come.
    """
    import numpy as np

    found = 0
    every = np.frombuffer(data, np.uint8)
    for begin in range(0, len(data), _SCANNED):
        part = every[begin : begin + _SCANNED + 1]
        before, here = part[:-1], part[1:]
        short = ((before & 7) == _BYTES) & (here < SMALL)
        long = (before >= 0x80) & (here == 0)
        found += int(np.count_nonzero(short | long))
    return found


def is_unknown_kind(message: Any) -> bool:
    """Whether a message without the choice or the key it should have has fields that are not known: newer ones."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    return len(UnknownFieldSet(message)) > 0


def why_refused(descriptor: Any, data: bytes) -> str:
    """The first thing that is wrong with `data` as a message of this type, with where it is; or that it is far on."""
    try:
        _walk(descriptor, data)
    except Undecodable as error:
        return error.reason
    return f"not a valid {descriptor.name}"


def _walk(descriptor: Any, data: bytes) -> None:
    at = 0
    open_: list[_Open] = [_Open(descriptor, len(data), descriptor.name)]
    for _ in range(_MOST_STEPS):
        if not open_:
            return
        top = open_[-1]
        if len(open_) > DEEPEST:
            raise Undecodable(f"values are nested deeper than the {DEEPEST} messages that protobuf takes")
        if at >= top.end:
            _check_end(open_.pop())
            continue
        start = at
        tag, at = _varint(data, at, top)
        number, wire = tag >> 3, tag & 7
        if wire == _END_GROUP and number == top.group and number:
            open_.pop()
            continue
        if number == 0 or wire in {_END_GROUP, 6, 7}:
            raise Undecodable(f"{top.path} has no valid field at byte {start}: number {number}, wire type {wire}")
        known = top.descriptor.fields_by_number.get(number) if top.descriptor is not None else None
        path = _path(top, known, number)
        if wire == _VARINT:
            value, at = _varint(data, at, top)
            _check_number(value, known, path)
        elif wire == _GROUP:
            open_.append(_Open(None, top.end, path, group=number))
        else:
            length, at = (8 if wire == _FIXED64 else 4, at) if wire != _BYTES else _varint(data, at, top)
            if length > top.end - at:
                raise Undecodable(
                    f"{path} is cut short: {length} bytes at byte {at}, where {top.end - at} are left of {top.path}"
                )
            if wire == _BYTES and known is not None and known.type == _MESSAGE:
                open_.append(_Open(known.message_type, at + length, path))
                continue
            if wire == _BYTES and known is not None and known.type == _STRING:
                _check_text(data[at : at + length], path)
            at += length
    raise Undecodable(f"not a valid {descriptor.name}: something is wrong behind its byte {at}")


def _check_end(read: _Open) -> None:
    if read.group:
        raise Undecodable(f"{read.path} is cut short at byte {read.end}: a group has no end")
    if not read.unknown or read.descriptor is None:
        return
    if read.descriptor.name == "KeyValue" and _KEY not in read.known:
        raise Undecodable(
            f"{read.path} has no key that this release knows, and has field {read.unknown}, which it does not know: "
            "upgrade opentelemetry-proto, then decode it again"
        )
    for choice in read.descriptor.oneofs:
        if len(choice.fields) > 1 and not read.known & {kind.number for kind in choice.fields}:
            raise Undecodable(
                f"{read.path} is of no {choice.name} that this release knows, and has field {read.unknown}, which it "
                "does not know: upgrade objbuf-dagster, then decode it again"
            )


def _varint(data: bytes, at: int, inside: _Open) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : min(at + _MOST_VARINT, inside.end)]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    what = "is cut short" if inside.end - at < _MOST_VARINT else "has a number of more than 64 bits"
    raise Undecodable(f"{inside.path} {what} at byte {at}")


def _check_number(value: int, known: Any, path: str) -> None:
    if value and known is not None and known.name == "key_strindex":
        raise Undecodable(f"{path} is an index into a profile's strings, which are not there: no key is known")


def _path(top: _Open, known: Any, number: int) -> str:
    if known is None:
        top.unknown = number
    else:
        top.known.add(number)
    name = f"field {number}" if known is None else known.name
    if known is not None and _is_repeated(known):
        name += f"[{top.seen[number]}]"
        top.seen[number] += 1
    path = f"{top.path}.{name}"
    return path if len(path) <= _LONGEST_PATH else f"{path[:60]} .. {path[-100:]}"


def _is_repeated(known: Any) -> bool:
    """Older releases of protobuf have no `is_repeated`, newer ones warn of `label`."""
    return bool(known.is_repeated if hasattr(known, "is_repeated") else known.label == known.LABEL_REPEATED)


def _check_text(text: bytes, path: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"{path} is not UTF-8: {error.reason} at its byte {error.start}") from None
