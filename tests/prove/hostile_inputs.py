"""Hostile inputs to order: which one it is follows from seed, target and number alone, so that any can be made again.

Valid values, from the vectors and made here, are damaged as bytes (tests/protocol/hostile.py), as numbers in their
length fields, and, where they are JSON, as text: things that a JSON library would not write. Export requests of
OpenTelemetry are also valid ones with odd values in any field, and such as no library would write either.
"""

from __future__ import annotations

import functools
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from objbuf_dagster.decode import Envelope, Signal
from objbuf_dagster.decode.requests import official
from objbuf_dagster.protocol import BatchDescriptor, Compression, Manifest, Metadata, PlannedBatch, RangeObject
from objbuf_dagster.protocol import batch as batches
from objbuf_dagster.protocol.blocks import encode_block
from tests.decode.messages import field, log_entry, nested_value, varint
from tests.protocol.batches import VECTORS, footer, framings, some_records, zstd
from tests.protocol.hostile import damaged, damaged_json
from tests.protocol.manifests import filled, vectors
from tests.prove.hostile_documents import (
    LOG_FILES,
    cursor_file,
    cursors,
    exports,
    json_entries,
    quarantines,
    retentions,
    sightings,
    state_cursors,
    table_log,
    wrong_json_entries,
)

ODD_TEXTS = (
    *("../x", "/etc/passwd", "ingest//x", "ingest/./x", "ingest/../../x", "%2e%2e/x", "ingest/%2e%2e%2fx", "..\\x"),
    *(
        "ingest/\0",
        "ingest/\x1b[2J",
        "ingest/a\nb",
        "ingest/\u202ehctab",
        "ingest/<b>x</b>",
        "",
        "ingest",
        "i" * 65_535,
    ),
    *("ingest/\x7f", "ingest/\x9b31m", "ingest/'\"", "~/x", "file:///x", "ingest/\ufeff", "ingest/\u2028x"),
)
"""Locations and keys that somebody would choose who means harm."""

_SHORT_TEXTS = [text for text in ODD_TEXTS if len(text) < 100]
_EDGES_U16 = (0, 1, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
_EDGES_U32 = (0, 1, 3, 4, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFB, 0xFFFF_FFFF)
_EDGES_U64 = (0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)

_TOKENS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0", "1E400", "0.1", "1" + "0" * 400, "9" * 5_000, "-1"),
    *("18446744073709551615", "18446744073709551616", "9223372036854775808", "true", "null", "[]", "{}", '""'),
    *('"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"\\u202e"', '"\\n"', '"\x1b"', '"' + "x" * 70_000 + '"', "[[]]"),
)
_TOKEN = re.compile(rb'-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|null|true|false')
OTLP_ENTRIES = 20
"""That are decoded together, as one input."""
_NO_PAYLOAD = 255  # where the length of an envelope would be: the entry has none at all
_FIELD_VALUES: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: (*_SHORT_TEXTS, "service.name", "$", "$bytes", "\ufffe", "x" * 300),
    FieldDescriptor.TYPE_BYTES: (b"", b"\0", bytes(16), b"\xff" * 8, b"\x1b[2J" * 9),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -0.0, 0.1, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    FieldDescriptor.TYPE_FIXED64: _EDGES_U64,
    FieldDescriptor.TYPE_UINT64: _EDGES_U64,
    FieldDescriptor.TYPE_INT64: (0, 1, -1, -(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: (0, 1, -1, -(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: _EDGES_U32,
    FieldDescriptor.TYPE_FIXED32: _EDGES_U32,
    FieldDescriptor.TYPE_INT32: (0, 1, -1, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (0, 1, -1, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 77, -1, 2**31 - 1),
}
_DEPTHS = (500, 950, 970, 990, 1_000, 3_000, 100_000)
_DEEPEST_LOG = 10_000


def input_of(seed: int, target: str, number: int) -> bytes:
    """The input with this number."""
    return _MAKERS[target](random.Random(f"{seed} {target} {number}"))


def _manifest(rng: random.Random) -> bytes:
    small, large = _manifests()
    if rng.random() < 0.3:
        return _with_edges(rng, rng.choice(small))
    return damaged(rng, large if rng.random() < 0.03 else small)


def _batch(rng: random.Random) -> bytes:
    small, large = _batches()
    kind = rng.random()
    if kind < 0.1:
        # Most damage to a frame ends in Zstandard's own checks: this goes below it, to the records.
        data = damaged(rng, [one for one in small if one[-7] == 0])
        return zstd(data[:-7]) + b"\1" + data[-6:]
    if kind < 0.3:
        return _with_edges(rng, rng.choice(small))
    return damaged(rng, large if kind < 0.35 else small)


def _key(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        text = rng.choice((*ODD_TEXTS, "\u0660" * 12 + "-" + "\u0660" * 12, "0" * 12 + "\u2013" + "0" * 12, "1_0-2_0"))
        return text.encode()
    start = rng.choice((*_EDGES_U64, rng.randrange(10**6)))
    key = f"{start:012d}-{start + rng.choice((0, 1, 99)):012d}".encode()
    return damaged(rng, [key]) if rng.random() < 0.8 else key


def _otlp(rng: random.Random) -> bytes:
    """Entries with their envelopes, which are decoded together: see `otlp_entries`."""
    data = b""
    for _ in range(OTLP_ENTRIES):
        signal = rng.choice(list(Signal))
        payload, entry = _envelope(rng, signal), _entry(rng, signal)
        data += struct.pack("<BI", _NO_PAYLOAD if payload is None else len(payload), len(entry))
        data += (payload or b"") + entry
    return data


def otlp_entries(data: bytes) -> list[tuple[bytes | None, bytes]]:
    """Envelope, if there is one, and entry, of each."""
    found: list[tuple[bytes | None, bytes]] = []
    at = 0
    while at < len(data):
        envelope, entry = struct.unpack_from("<BI", data, at)
        begin = at + struct.calcsize("<BI")
        middle = begin + (0 if envelope == _NO_PAYLOAD else envelope)
        at = middle + entry
        found.append((None if envelope == _NO_PAYLOAD else data[begin:middle], data[middle:at]))
    return found


def _entry(rng: random.Random, signal: Signal) -> bytes:
    kind = rng.random()
    if kind < 0.2:
        return _request(rng, signal)
    if kind < 0.35:
        return rng.choice(_NO_LIBRARYS)(rng)
    return _with_edges(rng, rng.choice(_requests())) if kind < 0.5 else damaged(rng, _requests())


def _envelope(rng: random.Random, signal: Signal) -> bytes | None:
    kind = rng.random()
    right = Envelope(signal, rng.choice((0, 0, 255))).to_bytes()
    if kind < 0.5:
        return right
    if kind < 0.6:
        return None
    if kind < 0.8:
        return bytes(rng.choice((0, 1, 2, 3, 4, 27, 255)) for _ in range(4))
    return rng.choice((right[:3], right + b"\0", b"", rng.randbytes(rng.randrange(_NO_PAYLOAD)), b"\x1b[2J\n" * 40))


def _request(rng: random.Random, signal: Signal) -> bytes:
    """Valid, with an odd value in any field."""
    message = official(signal)()
    _fill(rng, message, 0)
    data: bytes = message.SerializeToString()
    return data


def _fill(rng: random.Random, message: Any, depth: int) -> None:
    for each in message.DESCRIPTOR.fields:
        if depth > 2 and rng.random() < (0.95 if depth > 12 else 0.4):
            continue
        values = _FIELD_VALUES.get(each.type)
        held = getattr(message, each.name)
        if values is not None and each.is_repeated:
            held.extend(rng.choice(values) for _ in range(rng.randrange(4)))
        elif values is not None:
            setattr(message, each.name, rng.choice(values))
        elif each.is_repeated:
            for _ in range(rng.randint(depth < 3, 2)):
                _fill(rng, held.add(), depth + 1)
        else:
            held.SetInParent()
            _fill(rng, held, depth + 1)


_NO_LIBRARYS: tuple[Callable[[random.Random], bytes], ...] = (
    lambda rng: log_entry(field(5, nested_value(rng.choice((40, 47, 48, 49, 50, 1_000))))),
    lambda rng: log_entry(field(6, field(1, b"k") + field(2, nested_value(rng.choice((40, 47, 48, 49, 50, 1_000)))))),
    lambda rng: field(1, b"") * rng.choice((1, 100)),
    lambda rng: log_entry(*[b""] * rng.choice((1, 100))),
    lambda rng: log_entry(field(rng.choice((3, 5, 6, 9, 12)), rng.choice(_SHORT_TEXTS).encode("utf-16"))),
    lambda rng: field(1, field(2, field(2, field(rng.randrange(1, 14), rng.randbytes(rng.randrange(40)))))),
    lambda rng: varint(rng.choice(_EDGES_U32[1:]) << 3 | rng.randrange(8)) + varint(rng.choice(_EDGES_U64)),
    lambda rng: bytes((0x0A, *b"\xff" * rng.randrange(12))) + rng.randbytes(rng.randrange(20)),
    lambda rng: b"\x0b" * rng.choice((1, 99, 101, 5_000)) + b"\x0c" * rng.choice((0, 99, 5_000)),
)
"""Entries with too deep a value, nothing but empty messages, text that is none, lengths beyond the end, open groups."""


def _json(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """Damaged as a document, or as text."""
    if rng.random() < 0.5:
        return damaged_json(rng, valid)
    data = rng.choice(valid)
    for _ in range(rng.randint(1, 3)):
        data = rng.choice(_TEXT_WOUNDS)(rng, data)
    return data


def _swap_token(rng: random.Random, data: bytes) -> bytes:
    places = list(_TOKEN.finditer(data))
    if not places:
        return data
    place = rng.choice(places)
    return data[: place.start()] + rng.choice(_TOKENS).encode() + data[place.end() :]


def _swap_text(rng: random.Random, data: bytes) -> bytes:
    """Text for text: what is read as a name, a location or a key."""
    places = [place for place in _TOKEN.finditer(data) if place[0].startswith(b'"')]
    if not places:
        return data
    place = rng.choice(places)
    escaped = rng.random() < 0.5
    text = json.dumps(rng.choice(ODD_TEXTS), ensure_ascii=escaped)
    return data[: place.start()] + text.encode() + data[place.end() :]


def _double_key(rng: random.Random, data: bytes) -> bytes:
    keys: list[bytes] = re.findall(rb'"[a-z_]+"(?=\s*:)', data)
    opened = [place.end() for place in re.finditer(rb"\{", data)]
    if not keys or not opened:
        return data
    at = rng.choice(opened)
    return data[:at] + rng.choice(keys) + b":" + rng.choice(_TOKENS).encode() + b"," + data[at:]


def _deepen(rng: random.Random, data: bytes) -> bytes:
    places = list(_TOKEN.finditer(data))
    if not places:
        return data
    place = rng.choice(places)
    depth = rng.choice(_DEPTHS[:-1] if rng.random() < 0.95 else _DEPTHS)
    if rng.random() < 0.5:
        inner = b"[" * depth + b"]" * (depth if rng.random() < 0.9 else 0)
    else:
        inner = b'{"a":' * depth + b"0" + b"}" * depth
    return data[: place.start()] + inner + data[place.end() :]


def _encode_otherwise(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    encoding = rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp1252", "utf-7"))
    return text.encode(encoding, "replace")


_TEXT_WOUNDS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(_swap_token, _swap_token, _swap_text, _swap_text, _double_key, _deepen, _encode_otherwise),
)


def _with_edges(rng: random.Random, data: bytes) -> bytes:
    """Numbers at the edge of what their field holds, anywhere, most of all in the footer."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        layout, edges = rng.choice((("<H", _EDGES_U16), ("<I", _EDGES_U32), ("<Q", _EDGES_U64)))
        size = struct.calcsize(layout)
        if len(changed) >= size:
            last = len(changed) - size
            at = max(0, last - rng.randrange(22)) if rng.random() < 0.5 else rng.randint(0, last)
            struct.pack_into(layout, changed, at, rng.choice(edges))
    return bytes(changed)


def _chance() -> random.Random:
    return random.Random("what every hostile input begins with")


def _metadata(rng: random.Random) -> tuple[Metadata, ...]:
    times = (0, -1, -(2**63), 2**63 - 1, 1_700_000_000_000)
    return tuple(
        Metadata(rng.choice((0, 5, 2**32 - 1)), rng.choice(times), rng.randbytes(rng.randrange(12)))
        for _ in range(rng.randrange(4))
    )


@functools.cache
def _manifests() -> tuple[list[bytes], list[bytes]]:
    """Small ones, and ones that are hopped over at a stride or through pyarrow."""
    rng = _chance()
    small = [bytes.fromhex(one["hex"]) for one in vectors("manifest.json") if "error" not in one]
    small += [filled(4).to_bytes(), filled(9, first=3, uniform=False).to_bytes()]
    for first in _EDGES_U64:
        made = Manifest(b"", 0, 0, first, rng.choice(_EDGES_U64))
        for _ in range(min(rng.randrange(6), 2**64 - 1 - first)):
            made.append(rng.choice(ODD_TEXTS[:-1]), _metadata(rng))
        small.append(made.to_bytes())
    return small, [filled(1_200, first=7, uniform=uniform).to_bytes() for uniform in (True, False)]


@functools.cache
def _batches() -> tuple[list[bytes], list[bytes]]:
    """Small ones, and ones that go through pyarrow or into Parquet as they are."""
    kinds: tuple[Compression, ...] = ("none", "zstd")
    small = [bytes.fromhex(one["hex"]) for one in VECTORS if "error" not in one]
    small += [batches.encode_batch(some_records(n), kind) for n in (1, 40) for kind in kinds]
    small += [frames + footer(7, compression=1) for frames in framings(encode_block(some_records(7))[0]).values()]
    large = [batches.encode_batch(some_records(1_100), kind) for kind in kinds]
    return small, [
        *large,
        batches.encode_batch([b"0123456789" * 7] * 1_200, "zstd"),
        batches.encode_batch([b""] * 1_100),
    ]


@functools.cache
def _requests() -> list[bytes]:
    rng = _chance()
    return [_request(rng, signal) for signal in Signal for _ in range(8)]


@functools.cache
def _ranges() -> list[bytes]:
    rng = _chance()
    found = []
    for start in (0, 7, 10**6, 2**63, 2**64 - 3):
        planned = tuple(
            PlannedBatch(BatchDescriptor(n, f"ingest/{n:026d}.batch", _metadata(rng)), rng.choice((None, 0, 2**63 - 1)))
            for n in range(start, start + 3)
        )
        found.append(RangeObject(start, start + 2, rng.choice(_EDGES_U64), 1_700_000_000_000, planned).to_bytes())
    return found


def _state_cursor(rng: random.Random) -> bytes:
    """Damaged within its file, or with it."""
    if rng.random() < 0.5:
        return damaged(rng, [cursor_file(one) for one in state_cursors()])
    return cursor_file(_json(rng, state_cursors()))


def _table_log(rng: random.Random) -> bytes:
    """Which file of the log it is, and what is to be there in its place.

    Not deeper than `_DEEPEST_LOG`: deltalake's parser recurses without a limit, and its process dies of that.
    """
    number = rng.randrange(len(LOG_FILES))
    held = table_log()[LOG_FILES[number]]
    data = damaged(rng, [held]) if LOG_FILES[number].endswith(".parquet") else _json(rng, [held])
    is_too_deep = any(opened * _DEEPEST_LOG in data for opened in (b"[", b'{"a":'))
    return bytes([number]) + (held if is_too_deep else data)


def _json_entry(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(json_entries())
    return damaged(rng, wrong_json_entries()) if kind < 0.2 else _json(rng, json_entries())


_MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "manifest": _manifest,
    "batch": _batch,
    "range object": lambda rng: _json(rng, _ranges()),
    "sensor cursor": lambda rng: _json(rng, cursors()),
    "retention object": lambda rng: _json(rng, retentions()),
    "quarantine object": lambda rng: _json(rng, quarantines()),
    "note of garbage": lambda rng: _json(rng, sightings()),
    "state cursor": _state_cursor,
    "export document": lambda rng: _json(rng, exports()) if rng.random() < 0.9 else rng.choice(exports()),
    "table log": _table_log,
    "partition key": _key,
    "OTLP entries": _otlp,
    "JSON entry": _json_entry,
}
TARGETS = tuple(_MAKERS)
