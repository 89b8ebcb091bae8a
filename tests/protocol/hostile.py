"""Damage to order: what a broken disk, a broken writer or an enemy might hand to a decoder."""

from __future__ import annotations

import copy
import json
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import ObjbufError

LEAST = 20_000
_PER_EXAMPLE = 100
_SLOWEST_SECONDS = 5.0  # far above any honest decode of such small inputs, far below a loop over 2^32 of anything

REPEATABLE = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_EXTREME_U32 = (0, 1, 4, 0x7F, 0x7FFF_FFFC, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFC, 0xFFFF_FFFF)
_EXTREME_JSON: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 2**32, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, float("nan"), float("inf")),
    *("", "\ud800", "=", "x" * 1_000, [], {}, [[]], [{}], {"version": 1}),
)


def attack(decode: Callable[[bytes], object], inputs: Callable[[random.Random], bytes]) -> None:
    """Hand at least `LEAST` inputs to `decode`: it may accept them or raise ObjbufError, nothing else, and soon."""
    tried = refused = 0

    @settings(REPEATABLE, max_examples=LEAST // _PER_EXAMPLE)
    @given(seed=st.integers(0, 2**64 - 1))
    def run(seed: int) -> None:
        nonlocal tried, refused
        rng = random.Random(seed)
        for _ in range(_PER_EXAMPLE):
            data = inputs(rng)
            tried += 1
            started = time.perf_counter()
            try:
                decode(data)
            except ObjbufError:
                refused += 1
            assert time.perf_counter() - started < _SLOWEST_SECONDS, data[:200].hex()

    run()
    print(f"{tried} hostile inputs, {refused} refused")
    assert tried >= LEAST
    assert refused >= LEAST // 4


def damaged(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """Random bytes, or one of `valid` with one to four wounds."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice((rng.randrange(8), rng.randrange(64), rng.randrange(1_000))))
    data = bytearray(rng.choice(valid))
    for _ in range(rng.randint(1, 4)):
        rng.choice(_WOUNDS)(rng, data, valid)
    return bytes(data)


def damaged_json(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """The same, or well-formed JSON with the wrong things in it."""
    if rng.random() < 0.5:
        return damaged(rng, valid)
    document: Any = json.loads(rng.choice(valid))
    for _ in range(rng.randint(1, 2)):
        places = list(_places(document))
        if not places:
            break
        holder, key = rng.choice(places)
        if isinstance(holder, dict) and rng.random() < 0.2:
            holder.pop(key, None)
        elif rng.random() < 0.02:
            holder[key] = _deep(rng.choice((10, 900, 990)))
        else:
            holder[key] = copy.deepcopy(rng.choice(_EXTREME_JSON))  # the next wound may go into it
    try:
        return json.dumps(document).encode()
    except RecursionError:
        return b'{"version":' + b"[" * 100_000


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key in a document."""
    left = [value]
    while left:
        holder = left.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in pairs:
            yield holder, key
            if isinstance(inner, dict | list):
                left.append(inner)


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _flip(rng: random.Random, data: bytearray, _valid: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(rng: random.Random, data: bytearray, _valid: Sequence[bytes]) -> None:
    cut = rng.randint(0, min(len(data), rng.choice((4, 40, 100_000))))
    if rng.random() < 0.5:
        del data[len(data) - cut :]
    else:
        del data[:cut]


def _splice(rng: random.Random, data: bytearray, valid: Sequence[bytes]) -> None:
    other = rng.choice(valid)
    start = rng.randint(0, len(other))
    at = rng.randint(0, len(data))
    data[at : at + rng.choice((0, 4, 100))] = other[start : start + rng.choice((4, 30, 300, 100_000))]


def _overwrite(rng: random.Random, data: bytearray, _valid: Sequence[bytes]) -> None:
    if len(data) >= 4:
        # Footers and first lengths steer the most, so they are hit the most.
        near_end = max(len(data) - rng.randint(4, 26), 0)
        at = rng.choice((0, near_end, rng.randrange(len(data) - 3)))
        data[at : at + 4] = struct.pack("<I", rng.choice((*_EXTREME_U32, rng.randrange(2**32), len(data))))


_WOUNDS = (_flip, _truncate, _splice, _overwrite)
