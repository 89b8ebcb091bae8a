"""A state with keys and values of many kinds, which go into files, out of them, and on from there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from objbuf_dagster.lake.fold import RowFold
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.lake.state_run import catch_up, rebuild
from tests.lake.states import World, decode

_MARK = b"\xff\x00"
_TIME = datetime(2026, 11, 18, 1, 2, 3, 456_789, tzinfo=timezone.utc)


class Kinds(RowFold):
    """A key of four columns of as many kinds; values that hold what came before."""

    name = "kinds"
    version = 1
    reads = ("who", "what", "amount")
    key = pa.schema(
        [
            pa.field("who", pa.string(), nullable=False),
            pa.field("size", pa.int16(), nullable=False),
            pa.field("even", pa.bool_(), nullable=False),
            pa.field("mark", pa.binary(), nullable=False),
        ]
    )
    value = pa.schema(
        [
            pa.field("total", pa.decimal128(38, 9), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("raw", pa.binary(), nullable=False),
            pa.field("half", pa.float64()),
            pa.field("seen", pa.list_(pa.struct([("what", pa.string()), ("amount", pa.int64())])), nullable=False),
        ]
    )

    def key_of(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {"who": row["who"], "size": row["amount"] // 100, "even": row["amount"] % 2 == 0, "mark": _MARK}

    def step(self, value: Mapping[str, Any] | None, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if row["what"] == "close":
            return None
        before = value or {"total": Decimal(0), "raw": b"", "seen": []}
        return {
            "total": before["total"] + Decimal(row["amount"]) / Decimal(8),
            "at": _TIME,
            "raw": before["raw"] + bytes([row["amount"] % 256, 0, 255]),
            "half": row["amount"] / 2 if row["amount"] > 100 else None,
            "seen": [*before["seen"], {"what": row["what"], "amount": row["amount"]}],
        }


def found(state: StateTable) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = state.rows().to_pylist()
    return {tuple(row[name] for name in Kinds.key.names): {n: row[n] for n in Kinds.value.names} for row in rows}


def test_keys_and_values_of_many_kinds_are_kept_from_range_to_range_and_rebuilt_the_same(tmp_path: Path) -> None:
    # given
    world = World(str(tmp_path / "lake"))
    state = StateTable(str(tmp_path / "lake" / "kinds"), Kinds(), buckets=4)
    expected = {
        ("a", 0, True, _MARK): {
            "total": Decimal("0.750000000"),
            "at": _TIME,
            "raw": b"\x02\x00\xff\x04\x00\xff",
            "half": None,
            "seen": [{"what": "buy", "amount": 2}, {"what": "sell", "amount": 4}],
        },
        ("a", 3, False, _MARK): {
            "total": Decimal("37.625000000"),
            "at": _TIME,
            "raw": b"\x2d\x00\xff",
            "half": 150.5,
            "seen": [{"what": "buy", "amount": 301}],
        },
    }
    # when
    world.land(0, [["a buy 2|b buy 7"], ["a buy 301"]])
    catch_up(state, world.sources)
    world.land(2, [["a sell 4|b close 9"]])
    catch_up(state, world.sources)
    # then
    assert found(state) == expected
    # when
    rebuild(state, world.sources, decode)
    # then
    assert found(state) == expected
