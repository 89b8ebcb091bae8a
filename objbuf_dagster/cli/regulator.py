"""What a pipeline's regulator does, for `objbuf stat`: read from Dagster, which alone knows."""

from __future__ import annotations

import time
from typing import Any

from objbuf_dagster.cli.shared import Buffer, note
from objbuf_dagster.cli.text import duration, plural, printable, redact, size

NAMES = ("budget_bytes", "rho", "pressure", "held", "in_flight", "in_flight_bytes", "catch_up_seconds")
_ALSO = ("conflict_rate",)


def regulator_of(buffer: Buffer, asset: str) -> dict[str, Any] | None:
    """What the sensor of the deployment at DAGSTER_HOME last said, and when; a value it did not know is None.

    None, and a note, if it said nothing of this buffer, or cannot be asked.
    """
    from objbuf_dagster.orchestration import BufferResource
    from objbuf_dagster.orchestration.observations import published_here

    try:
        last = published_here(asset)
    except Exception as error:  # noqa: BLE001, whatever its storage raises: what else is shown does not depend on it
        first = (str(error).splitlines() or [""])[0]
        note(f"the deployment at DAGSTER_HOME cannot be asked: {printable(redact(first))[:300]}")
        return None
    if last is None:
        note(
            f"the deployment at DAGSTER_HOME has said nothing of {asset!r} yet: is its sensor on, is --asset the name?"
        )
        return None
    there = BufferResource(
        url=buffer.url,
        manifest_path=buffer.manifest_path,
        data_prefix=buffer.data_prefix,
        options=dict(buffer.options),
    ).identity()
    if last.buffer != there:
        note(f"the deployment at DAGSTER_HOME is for {printable(redact(last.buffer))[:300]!r}, not {redact(there)!r}")
        return None
    return {"at": last.at, **{name: last.said.get(name) for name in (*NAMES, *_ALSO)}}


def told(found: dict[str, Any] | None) -> str:
    """In one line."""
    if found is None:
        return "unknown, see the note"
    budget, rho, pressure = (found[name] for name in ("budget_bytes", "rho", "pressure"))
    parts = [
        "budget unknown" if budget is None else f"budget {size(budget)} a range",
        "rho unknown" if rho is None else f"rho {rho:.2f}",
        "pressure unknown" if pressure is None else f"pressure {pressure:.2f}",
        "new ranges are held back" if found["held"] else "not held",
        f"{plural(found['in_flight'] or 0, 'range')} in flight ({size(found['in_flight_bytes'] or 0)})",
        _catching_up(found),
        f"{duration(max(0.0, time.time() - found['at']))} ago",
    ]
    return ", ".join(parts)


def _catching_up(found: dict[str, Any]) -> str:
    """No time is known before the first look (a takeover), while nothing is started, and where it only gets more."""
    seconds: float | None = found["catch_up_seconds"]
    if seconds is None and found["pressure"] is None:
        return "time to catch up unknown"
    if seconds is None and found["held"]:
        return "time to catch up unknown while held"
    if seconds is None:
        return "no end of catching up in sight"
    return f"caught up in {duration(seconds)}" if seconds else "caught up"
