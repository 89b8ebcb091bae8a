"""A tick in words."""

from __future__ import annotations

from collections.abc import Sequence

from objbuf_dagster.orchestration.acking import Survey
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.ranges.ledger import utc


def ranges_ahead(manifest: Manifest, seen: Survey) -> int:
    """Ranges that are past the frontier now, after what this tick acked."""
    return sum(one.end >= manifest.frontier for one in seen.planned)


def sentence(
    runs: Sequence[tuple[SequenceRange, int]],
    added: Sequence[SequenceRange],
    manifest: Manifest,
    seen: Survey,
    *,
    skipped: Sequence[str],
    given_up: Sequence[SequenceRange],
    failing: Sequence[SequenceRange],
    in_flight: int,
    known_all: bool,
    max_ahead: int,
    gates: Sequence[str],
    now: float,
    waiting: str = "",
) -> str:
    """What a tick saw and did, for its log and the sensor's page.

    gates: the assets that must have a range before it is acked. now: seconds since 1970. waiting: see `waiting_for`.
    """
    parts = [f"epoch {manifest.epoch}, frontier {manifest.frontier}, {plural(manifest.entry_count, 'batch')} queued"]
    if manifest.frontier > seen.frontier:
        parts.append(f"acked sequences {seen.frontier} to {manifest.frontier - 1}")
    parts += skipped
    if not known_all:
        parts.append("more ranges are to be added as partitions, in the next tick")
    if added:
        parts.append(f"added {plural(len(added), 'partition')}, the last is {added[-1]}")
    if runs:
        started = ", ".join(f"{one} (attempt {attempt})" for one, attempt in runs[:5])
        parts.append(f"started {plural(len(runs), 'run')}: {started}")
    if in_flight:
        parts.append(f"{plural(in_flight, 'range')} in flight")
    if failing:
        is_are = "is" if len(failing) == 1 else "are"
        parts.append(f"{plural(len(failing), 'range')} failed and {is_are} tried again, the first is {failing[0]}")
    if given_up:
        waits = "waits" if len(given_up) == 1 else "wait"
        parts.append(
            f"{plural(len(given_up), 'range')} failed and {waits} for a person, the first is {given_up[0]}: look at "
            f"its run, mend the cause, then {_by_hand(given_up[0], seen, gates, now)}"
        )
    if (ahead := ranges_ahead(manifest, seen)) >= max_ahead:
        parts.append(f"{ahead} ranges lie past the frontier, and nothing new is planned until it moves")
    elif waiting:
        parts.append(waiting)
    if len(parts) == 1:
        parts.append("nothing to do")
    return "; ".join(parts)


def _by_hand(one: SequenceRange, seen: Survey, gates: Sequence[str], now: float) -> str:
    """How a person lets a range land, or goes on without. A mark that is older than the plan would not count."""
    of = f" of {' and '.join(gates)}" if len(gates) > 1 else ""
    each = " in each of them" if of else ""
    planned_ms = next((found.planned_at_ms for found in seen.planned if found.start == one.start), 0)
    late = f" (after {utc(planned_ms)}: the clock was ahead when it was planned)" if planned_ms > now * 1000 else ""
    return f"materialise that partition{of}; or report it as materialised{each}, to go on without{late}"


def waiting_for(batches: int, *, held: str = "", busy: str = "", is_full: bool = False) -> str:
    """What so many batches that are in no range wait for, and what is held back whether they are any or not.

    held, busy: why nothing new is started, see `Steering`. is_full: as many ranges are in flight as may be.
    """
    if held or not batches:
        return held
    waits = f"{plural(batches, 'batch')} {'waits' if batches == 1 else 'wait'}"
    if busy:
        return f"{waits}: {busy}"
    return f"{waits} for {'a range to land' if is_full else 'more, to be enough for a range'}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"
