"""ULIDs, the names of batches: 48 bits of milliseconds and 80 random bits in Crockford's base 32."""

from __future__ import annotations

import os

from objbuf_dagster.errors import InvalidInput

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {c: i for i, c in enumerate(_ALPHABET)} | {c.lower(): i for i, c in enumerate(_ALPHABET)}
_LENGTH = 26
BATCH_SUFFIX = ".batch"


def new_ulid(time_ms: int) -> str:
    """A fresh ULID of this time."""
    if not 0 <= time_ms < 2**48:
        raise InvalidInput(f"no ULID can hold the time {time_ms} ms: set the clock right")
    number = time_ms << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def ulid_time_ms(name: str) -> int | None:
    """The time in a ULID, or None if `name` is not one."""
    if len(name) != _LENGTH or name[0] > "7":
        return None
    number = 0
    for c in name:
        value = _VALUES.get(c)
        if value is None:
            return None
        number = number << 5 | value
    return number >> 80


def batch_time_ms(location: str) -> int | None:
    """The time in the name of a batch object, or None if it is not named `<ULID>.batch`."""
    name = location.rpartition("/")[2]
    return ulid_time_ms(name.removesuffix(BATCH_SUFFIX)) if name.endswith(BATCH_SUFFIX) else None
