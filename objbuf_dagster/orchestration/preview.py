"""The first rows of a range, as the UI shows them with its materialisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from objbuf_dagster.lake.preview import head
from objbuf_dagster.orchestration.range_asset import RangeContext
from objbuf_dagster.ranges import SequenceRange

if TYPE_CHECKING:
    from objbuf_dagster.lake import LakeTable

_ROWS = 5
_TEXT = 200


def preview(context: RangeContext, table: LakeTable, wanted: SequenceRange, first: Sequence[str]) -> dict[str, Any]:
    """The first rows, these columns before all others. Failing to show them is no reason to fail what has landed."""
    try:
        rows = head(table, wanted.key, _ROWS)
    except Exception as error:  # noqa: BLE001
        context.log.warning("no preview of range %s: %s", wanted, error)
        return {}
    if not rows:
        return {}
    columns = sorted(rows[0], key=lambda name: first.index(name) if name in first else len(first))
    return {
        "preview": dg.MetadataValue.table(
            [dg.TableRecord({name: _shown(row[name]) for name in columns}) for row in rows],
            dg.TableSchema([dg.TableColumn(name, "string") for name in columns]),
        )
    }


def _shown(value: Any) -> str:
    """As text that any log, database and browser can bear: short, of ASCII, without control characters."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = value[: _TEXT // 2].hex()
    text = ascii(value[:_TEXT])[1:-1] if isinstance(value, str) else ascii(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
