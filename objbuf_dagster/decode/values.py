"""An OpenTelemetry value as text, without loss.

A string is itself. Any other kind has a text that casts where it can, and its kind is told beside it:

| kind | text | in JSON |
| --- | --- | --- |
| string (no kind is told in maps) | itself | a string |
| bool, int | `true`, `-7` | the same |
| double | `1.0`, `1e-07`, `NaN`, `Infinity`, `-Infinity` | the same; `{"$double":"NaN"}` |
| bytes | base64 | `{"$bytes":"..."}` |
| array | JSON | `[...]` |
| map | JSON, keys in their order, repeated ones too; a key that begins with `$` has one more | `{...}` |
| strindex (an index into a profile's strings, which is not there) | the number | `{"$strindex":7}` |
| unset | null, and no kind | `null` |
| of a newer kind, which is not known | none: the entry fails | |
| whatever its kind, with an index into a profile's strings as its key | none: the entry fails | |
| repeated (a key that is there twice in one attribute list) | a JSON array of its values | |

What is not told apart: a value that is missing and one that is there and empty; NaNs with other bits.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from json.encoder import encode_basestring as quoted
from typing import Any

from objbuf_dagster.decode.wire import is_unknown_kind

REPEATED = "repeated"


class UnknownKind(Exception):
    """A value, or an attribute's key, is of a kind that is not known: its entry fails, `why_refused` says where."""


def text_of(value: Any) -> tuple[str | None, str | None]:
    """Text and kind of an AnyValue; the kind of a string is None, and so are both if it is unset. Or UnknownKind."""
    text = value.string_value
    if text:  # spares most values the question which kind they are
        return text, None
    field = value.WhichOneof("value")
    if field is None:
        _check_unset(value)
        return None, None
    kind, text_of_kind, _ = _KINDS[field]
    return text_of_kind(getattr(value, field)), kind


def json_of(value: Any) -> str:
    """An AnyValue as JSON. It goes as deep as the value, which protobuf keeps to 100 messages."""
    field = value.WhichOneof("value")
    if field is None:
        _check_unset(value)
        return "null"
    return _KINDS[field][2](getattr(value, field))


def key_of(item: Any) -> str:
    """The key of a KeyValue. Or UnknownKind: `key_strindex` is there since 1.43 of `opentelemetry-proto`."""
    key: str = item.key
    if getattr(item, "key_strindex", 0) or (not key and is_unknown_kind(item)):
        raise UnknownKind
    return key


def _check_unset(value: Any) -> None:
    if is_unknown_kind(value):
        raise UnknownKind


def _bool(content: bool) -> str:
    return "true" if content else "false"


def double_text(content: float) -> str:
    """The shortest text that is this number again."""
    if math.isfinite(content):
        return repr(content)
    if math.isnan(content):
        return "NaN"
    return "Infinity" if content > 0 else "-Infinity"


def _double_json(content: float) -> str:
    text = double_text(content)
    return text if math.isfinite(content) else f'{{"$double":"{text}"}}'


def _bytes(content: bytes) -> str:
    return b64encode(content).decode()


def _array(content: Any) -> str:
    return f"[{','.join(map(json_of, content.values))}]"


def _map(content: Any) -> str:
    return f"{{{','.join(f'{_key(key_of(item))}:{json_of(item.value)}' for item in content.values)}}}"


def _key(key: str) -> str:
    return quoted(f"${key}" if key.startswith("$") else key)


_KINDS: dict[str, tuple[str | None, Callable[[Any], str], Callable[[Any], str]]] = {
    "string_value": (None, str, quoted),
    "bool_value": ("bool", _bool, _bool),
    "int_value": ("int", str, str),
    "double_value": ("double", double_text, _double_json),
    "bytes_value": ("bytes", _bytes, lambda content: f'{{"$bytes":"{_bytes(content)}"}}'),
    "array_value": ("array", _array, _array),
    "kvlist_value": ("map", _map, _map),
    "string_value_strindex": ("strindex", str, lambda content: f'{{"$strindex":{content}}}'),
}
"""By field: the kind, its text, and its JSON."""
