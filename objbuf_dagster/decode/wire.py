"""Why protobuf did not take some bytes. Its own error says no more than that it did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from objbuf_dagster.decode.decoder import Undecodable

DEEPEST = 100
"""How many messages protobuf takes inside each other."""

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_STRING, _MESSAGE = 9, 11
_MOST_VARINT = 10
_LONGEST_PATH = 200


@dataclass(slots=True)
class _Open:
    """A message (or, without a descriptor, a group that nobody knows) that is being read."""

    descriptor: Any
    end: int
    path: str
    seen: Counter[int] = field(default_factory=Counter)
    group: int = 0


def why_refused(descriptor: Any, data: bytes) -> str:
    """The first thing that is wrong with `data` as a message of this type, with where it is."""
    try:
        _walk(descriptor, data)
    except Undecodable as error:
        return error.reason
    return f"not a valid {descriptor.name}"


def _walk(descriptor: Any, data: bytes) -> None:
    at = 0
    open_: list[_Open] = [_Open(descriptor, len(data), descriptor.name)]
    while open_:
        top = open_[-1]
        if len(open_) > DEEPEST:
            raise Undecodable(f"values are nested deeper than the {DEEPEST} messages that protobuf takes")
        if at >= top.end:
            if top.group:
                raise Undecodable(f"{top.path} is cut short at byte {at}: a group has no end")
            open_.pop()
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
            _, at = _varint(data, at, top)
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


def _varint(data: bytes, at: int, inside: _Open) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : min(at + _MOST_VARINT, inside.end)]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    what = "is cut short" if inside.end - at < _MOST_VARINT else "has a number of more than 64 bits"
    raise Undecodable(f"{inside.path} {what} at byte {at}")


def _path(top: _Open, known: Any, number: int) -> str:
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
