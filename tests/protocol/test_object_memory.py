"""Memory for manifests and range objects: so many times their bytes, whatever they are made of."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable

import pytest

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol import Manifest, RangeObject

_ITEMS = 100_000
_MOST_TIMES = 10
"""Python's objects for the smallest items there are, of 16 bytes each, take 8 to 9 times as much."""


def _peak(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _manifest(items: bytes, count: int) -> bytes:
    body = struct.pack("<QH", 0, 1) + b"x" + struct.pack("<I", count) + items
    return struct.pack("<I", len(body)) + body + struct.pack("<IQQH", 1, 1, 1, 1)


def _items(count: int) -> bytes:
    return b"".join(struct.pack("<IqI", number, 1_700_000_000_000 + number, 0) for number in range(count))


def test_an_entry_of_many_empty_items_takes_so_many_times_its_bytes() -> None:
    data = _manifest(_items(_ITEMS), _ITEMS)

    assert _peak(lambda: list(Manifest.from_bytes(data).entries())) < _MOST_TIMES * len(data)


@pytest.mark.parametrize("claimed", [_ITEMS, 2**32 - 1])
def test_items_that_are_claimed_and_not_there_take_nothing(claimed: int) -> None:
    data = _manifest(_items(10), claimed)

    def decode() -> None:
        with pytest.raises(CorruptData, match="do not fit"):
            list(Manifest.from_bytes(data).entries())

    assert _peak(decode) < 1 << 20


def test_a_range_object_of_many_empty_items_takes_so_many_times_its_bytes() -> None:
    items = [{"start_index": n, "ingestion_time_ms": 10**12 + n, "payload_base64": ""} for n in range(_ITEMS)]
    batch = {"sequence": 0, "location": "x", "size": 1, "metadata": items}
    data = json.dumps(
        {"version": 1, "start": 0, "end": 0, "epoch": 1, "planned_at": 0, "batches": [batch]}, separators=(",", ":")
    ).encode()

    assert _peak(lambda: RangeObject.from_bytes(data)) < _MOST_TIMES * len(data)


def test_a_range_object_that_claims_many_batches_takes_nothing() -> None:
    data = b'{"version":1,"start":0,"end":18446744073709551614,"epoch":1,"planned_at":0,"batches":[]}'

    def decode() -> None:
        with pytest.raises(CorruptData):
            RangeObject.from_bytes(data)

    assert _peak(decode) < 1 << 20
