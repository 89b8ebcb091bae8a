"""Which ranges a state is to apply next, or why it cannot: by what the tables have, and what the ledger knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from objbuf_dagster.lake.files import Snapshot
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.lake.state_cursor import RebuildNeeded, StateCursor
from objbuf_dagster.lake.table import LakeTable
from objbuf_dagster.ranges import RangeLedger, SequenceRange


@dataclass(frozen=True, slots=True)
class Sources:
    """What a state is made from.

    typed: the table whose rows are folded. entries: the one that this was decoded from.
    ledger: of the buffer. Without it nobody can tell a range that is to come from one that never will.
    buffer: its identity, written into the cursor and compared with it.
    """

    typed: LakeTable
    entries: LakeTable
    ledger: RangeLedger | None = None
    buffer: str | None = None


@dataclass(frozen=True, slots=True)
class Due:
    ranges: list[SequenceRange]
    waiting: str | None = None


def landed_in(snapshot: Snapshot | None) -> dict[SequenceRange, int | None]:
    """The ranges that a table has, in order, with their rows."""
    found = snapshot.by_range() if snapshot else {}
    return {SequenceRange.from_key(key): one.rows for key, one in found.items()}


def due_ranges(
    state: StateTable, sources: Sources, cursor: StateCursor | None, landed: Mapping[SequenceRange, int | None]
) -> Due:
    """The ranges to apply next; if there are none, why. Raises RebuildNeeded if there never will be."""
    entries = landed_in(sources.entries.snapshot()) if cursor is None or not _at(landed, cursor.next_sequence) else {}
    if cursor is None:
        first = min([*landed, *entries], default=None)
        if first is None:
            return Due([])
        planned = sources.ledger.starts()[:1] if sources.ledger else []
        position = min([first.start, *planned])
    else:
        position = cursor.next_sequence
    chosen: list[SequenceRange] = []
    for one in landed:
        if one.start == position:
            chosen.append(one)
            position = one.end + 1
    if chosen:
        if cursor is None:
            _check_beginning(state, sources, chosen[0].start)
        return Due(chosen)
    return Due([], _missing(state, sources, position, landed, entries))


def _check_beginning(state: StateTable, sources: Sources, first: int) -> None:
    """Raise RebuildNeeded if what came before has expired, and the tables begin no earlier than what has not.

    Tables that have some of what expired were there in time, and begin where landing began: buffers that were consumed
    otherwise before begin there, too, and nobody misses what came before. The report tells it (`begins_at`).
    """
    expired = sources.ledger.retention().expired_before if sources.ledger else 0
    if 0 < expired <= first:
        detail = f"sequences 0 to {first - 1} have expired, and are neither in {sources.typed.name} nor in `entries`"
        raise RebuildNeeded(state.name, "expired", detail, first=0, last=first - 1)


def begins_at(state: StateTable, cursor: StateCursor) -> str | None:
    """What to tell of a state that has just been begun behind the first sequence; None if it has them all."""
    if cursor.first_sequence == 0:
        return None
    return (
        f"the state at {state.name} begins at sequence {cursor.first_sequence}: what came before is in no table that "
        "it could read, so it is not in this state; if it should be, bring those ranges back into `entries` (land them "
        "while they are retained, or import them), decode them, and rebuild the state"
    )


def _at(landed: Iterable[SequenceRange], start: int) -> SequenceRange | None:
    return next((one for one in landed if one.start == start), None)


def _missing(
    state: StateTable,
    sources: Sources,
    position: int,
    landed: Mapping[SequenceRange, int | None],
    entries: Mapping[SequenceRange, int | None],
) -> str | None:
    """What the typed table lacks at this sequence, in words; None if it is just not produced yet."""
    astride = next((one for one in [*landed, *entries] if one.start < position <= one.end), None)
    if astride is not None:
        detail = f"its next sequence is {position}, inside of range {astride}: ranges were cut anew"
        raise RebuildNeeded(state.name, "replaced", detail, first=position, last=astride.end)
    waiting = _at(entries, position)
    behind = min((one.start for one in [*landed, *entries] if one.start > position), default=None)
    if waiting is None and behind is None:
        return None
    if sources.ledger is None:
        if waiting is not None:
            return f"range {waiting} has landed and is not in {sources.typed.name} yet"
        return (
            f"sequences {position} to {(behind or 0) - 1} are in no table: they are still to land, have expired, or "
            "were skipped; the buffer would tell"
        )
    expired = sources.ledger.retention().expired_before
    planned = waiting or _planned(sources.ledger, position)
    if planned is not None:
        if planned.end >= expired:
            return f"range {planned} is not in {sources.typed.name} yet"
        detail = f"range {planned} has expired, and is not in {sources.typed.name}"
        raise RebuildNeeded(state.name, "expired", detail, first=planned.start, last=planned.end)
    last = min([*(start for start in sources.ledger.starts(position)), *([behind] if behind else [])]) - 1
    if position < expired:
        detail = f"sequences {position} to {last} have expired, and are not in {sources.typed.name}"
        raise RebuildNeeded(state.name, "expired", detail, first=position, last=last)
    detail = f"sequences {position} to {last} are in no range: they were skipped as a gap"
    raise RebuildNeeded(state.name, "gap", detail, first=position, last=last)


def _planned(ledger: RangeLedger, start: int) -> SequenceRange | None:
    found = ledger.starts(start)
    if not found or found[0] != start:
        return None
    planned = ledger.at(start)
    return SequenceRange(planned.start, planned.end)


def ranges_to_rebuild(
    sources: Sources,
    table: LakeTable,
    there: Collection[SequenceRange],
    landed: Collection[SequenceRange],
    typed: Collection[SequenceRange],
    over_gaps: bool,
) -> tuple[list[SequenceRange], list[tuple[int, int]], str | None]:
    """The ranges to make it from, the gaps between them, and what ended it before its time.

    there: in the table that it is made from. landed: in that, or in `entries`.
    """
    end = max((one.end for one in typed), default=None)
    chosen: list[SequenceRange] = []
    gaps: list[tuple[int, int]] = []
    for one in sorted(landed):
        if end is not None and one.end > end:
            break
        if one not in there:
            return chosen, gaps, f"range {one} is not in {table.name}: materialise it there first"
        position = chosen[-1].end + 1 if chosen else one.start
        if one.start > position:
            if not over_gaps and not _never_comes(sources.ledger, position, one.start):
                missing = f"sequences {position} to {one.start - 1} are not in {table.name}"
                told = "yet" if sources.ledger else "and nobody can tell whether they will be: name the buffer"
                return chosen, gaps, f"{missing} {told}"
            gaps.append((position, one.start - 1))
        chosen.append(one)
    return chosen, gaps, None


def _never_comes(ledger: RangeLedger | None, first: int, behind: int) -> bool:
    """Whether no range that is still to land has any of these sequences."""
    if ledger is None:
        return False
    expired = ledger.retention().expired_before
    return all(ledger.at(start).end < expired for start in ledger.starts(first) if start < behind)
