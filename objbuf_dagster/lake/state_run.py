"""Moving a state on: the ranges that are due, in the order of their sequences, each once and never past a hole.

`catch_up` reads the typed table. `rebuild` reads `entries` and decodes again: that is what helps when ranges of the
typed table are gone, when sequences are in no range at all, and after the fold was changed. What only Spark can decode
it reads from the typed table instead.

Storage that fails is tried again, a range at a time, from the state that it was applied to: so no failure leaves a hole
or applies anything twice. After TRIES failures in a row it is given up, and what was committed until then stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from objbuf_dagster.errors import InvalidInput, NotFound, StorageUnavailable
from objbuf_dagster.lake.files import LiveFile, Snapshot, batches_of
from objbuf_dagster.lake.fold import ORDER
from objbuf_dagster.lake.state import TRIES, StateTable
from objbuf_dagster.lake.state_cursor import RebuildNeeded, StateCursor, files_hash
from objbuf_dagster.lake.state_rows import ordered
from objbuf_dagster.lake.state_shadow import Shadow
from objbuf_dagster.lake.table import LakeTable
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import RetryPolicy

if TYPE_CHECKING:
    import pyarrow as pa

RANGES_AT_ONCE = 32
"""Ranges that one commit applies, at the most, where many are due."""

Decode = Callable[["pa.RecordBatch"], Iterable["pa.RecordBatch"]]
"""Rows of the typed table from rows of `entries`."""

T = TypeVar("T")
_PAUSE = RetryPolicy(base_seconds=0.2, cap_seconds=10.0)


@dataclass(frozen=True, slots=True)
class StateReport:
    """What was done, and where the state is now.

    cursor, version: None if nothing was ever applied.
    ranges, rows, commits: by this call; rows of the typed table, also those that did not matter.
    waiting: why nothing more could be applied, if ranges lie behind what is missing.
    stale: that the typed table has something else in the ranges that were applied, in words with what to do: dead
        letters were redriven or ranges decoded anew since then, or it was rebuilt by another version of the decoder.
        None also if that cannot be told, because the typed table lacks some of them.
    changed: rows that it has more (or less) there; another number than 0 has its words.
    """

    cursor: StateCursor | None
    version: int | None
    ranges: int = 0
    rows: int = 0
    commits: int = 0
    waiting: str | None = None
    stale: str | None = None
    changed: int = 0


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


def catch_up(
    state: StateTable,
    sources: Sources,
    *,
    run_id: str | None = None,
    ranges_at_once: int = RANGES_AT_ONCE,
    tries: int = TRIES,
) -> StateReport:
    """Apply all ranges of the typed table that follow the cursor without a hole.

    Others may do the same at the same time: what they have applied is not applied again.

    Raises RebuildNeeded if the next range can never come, or the state was not made from this, by this fold;
    StorageUnavailable after `tries` failures in a row; whatever keeps a table from being read.
    """
    _check_settings(ranges_at_once, tries)
    done = _Done(tries)
    while True:
        snapshot = done.patiently(state.snapshot)
        typed = done.patiently(sources.typed.snapshot)
        landed = _landed(typed)
        cursor = snapshot.cursor if snapshot else None
        if cursor is not None:
            if not done.patiently(_planned_the_same, sources.ledger, cursor):
                cursor.check_buffer(state.name, sources.buffer)
            cursor.check_batches(state.name, done.patiently(_batches, sources.entries, cursor.last_range))
        due = done.patiently(_due, state, sources, cursor, landed)
        if not due.ranges:
            version = snapshot.version if snapshot and cursor else None
            since = _since(state, sources, cursor, typed)
            return StateReport(cursor, version, done.ranges, done.rows, done.commits, due.waiting, *since)
        if snapshot is None:
            done.patiently(state.load_or_create)
            continue  # others may have been faster, and have applied something by now
        chosen = due.ranges[:ranges_at_once]
        shadow = state.shadow(snapshot)
        for one in chosen:
            files = typed.live([one.key]) if typed else []
            done.fold(one, shadow, ordered, sources.typed, files, state.fold.reads)
        new = _moved(state, sources, cursor, chosen, shadow, done, typed)
        prepared = done.patiently(state.prepare, shadow, new)
        if state.commit(snapshot, prepared, words=_words(run_id), tries=tries) is not None:
            done.ranges += len(chosen)
            done.rows += shadow.rows
            done.commits += 1


def rebuild(
    state: StateTable,
    sources: Sources,
    decode: Decode | None,
    *,
    over_gaps: bool = False,
    run_id: str | None = None,
    tries: int = TRIES,
) -> StateReport:
    """Make the state again from `entries`, in one transaction; readers see the old one until it is done.

    It begins with the first range that is there and goes as far as the typed table does (as `entries` does, if that
    has none). It passes over sequences that the ledger says can never come, and notes them; without a ledger only if
    `over_gaps`. Keys that no row has any more are gone. What others commit meanwhile is replaced: the cursor says how
    far the state is, and `catch_up` does the rest.

    decode: None for what cannot be decoded here: it is made from the typed table then, and ends where that lacks a
        range that `entries` has.

    Raises InvalidInput if there is nothing to make it from, StorageUnavailable after `tries` failures in a row.
    """
    _check_settings(1, tries)
    done = _Done(tries)
    entries, typed = done.patiently(sources.entries.snapshot), done.patiently(sources.typed.snapshot)
    table, found = (sources.typed, typed) if decode is None else (sources.entries, entries)
    chosen, gaps, waiting = done.patiently(
        _to_rebuild, sources, table, _landed(found), {*_landed(entries), *_landed(found)}, _landed(typed), over_gaps
    )
    if found is None or not chosen:
        raise InvalidInput(
            f"there is nothing in {table.name} to rebuild {state.name} from: {waiting or 'land it first'}"
        )
    snapshot = done.patiently(state.load_or_create, any_fold=True)
    shadow = state.shadow()
    for one in chosen:
        files = found.live([one.key])
        if decode is None:
            done.fold(one, shadow, ordered, table, files, state.fold.reads)
        else:
            done.fold(one, shadow, _decoded, state, table, files, decode)
    new = _moved(state, sources, None, chosen, shadow, done, typed, gaps)
    prepared = done.patiently(state.prepare, shadow, new, everything=True)
    version = state.commit(snapshot, prepared, words={**_words(run_id), "rebuild": True}, tries=tries)
    return StateReport(new, version, len(chosen), shadow.rows, 1, waiting, *_since(state, sources, new, typed))


@dataclass(slots=True)
class _Done:
    """What was done so far, patiently."""

    tries: int
    ranges: int = 0
    rows: int = 0
    commits: int = 0

    def patiently(self, call: Callable[..., T], *given: Any, **named: Any) -> T:
        for failures in range(1, self.tries + 1):
            try:
                return call(*given, **named)
            except StorageUnavailable as error:
                if failures == self.tries:
                    raise StorageUnavailable(
                        f"storage failed in {self.tries} tries, nothing was applied by halves; try again: {error}"
                    ) from error
                time.sleep(_PAUSE.pause(failures))
        raise AssertionError("unreachable")

    def fold(
        self, one: SequenceRange, shadow: Shadow, rows: Callable[..., Iterator[pa.RecordBatch]], *given: Any
    ) -> None:
        """One range, as a whole or not at all."""
        before = shadow.save()

        def attempt() -> None:
            shadow.restore(before)
            try:
                shadow.add(rows(*given))
            except InvalidInput as error:
                raise InvalidInput(f"range {one.key} cannot be applied: {error}") from error

        self.patiently(attempt)


@dataclass(frozen=True, slots=True)
class _Due:
    ranges: list[SequenceRange]
    waiting: str | None = None


def _check_settings(ranges_at_once: int, tries: int) -> None:
    if ranges_at_once < 1 or tries < 1:
        raise InvalidInput(f"ranges at once and tries must be 1 or more: {ranges_at_once}, {tries}")


def _words(run_id: str | None) -> dict[str, Any]:
    return {} if run_id is None else {"run_id": run_id}


def _landed(snapshot: Snapshot | None) -> dict[SequenceRange, int | None]:
    """The ranges that a table has, in order, with their rows."""
    found = snapshot.by_range() if snapshot else {}
    return {SequenceRange.from_key(key): one.rows for key, one in found.items()}


def _batches(entries: LakeTable, range_key: str) -> tuple[str, str] | None:
    return batches_of(entries.files([range_key]))


def _planned_the_same(ledger: RangeLedger | None, cursor: StateCursor) -> bool:
    """Whether this buffer has the batches of the cursor's last range: then it is the same one, whatever its URL is now.

    So goes on what was imported beside a buffer that was moved, copied or is read by another name. Names of batches are
    never used twice. Those that the lake has would not do: it may be about to get those of another buffer.
    """
    if ledger is None or cursor.batches is None:
        return False
    wanted = SequenceRange.from_key(cursor.last_range)
    try:
        planned = ledger.at(wanted.start)
    except NotFound:
        return False
    return planned.end == wanted.end and {*cursor.batches} <= {one.descriptor.location for one in planned.batches}


def _decoded(
    state: StateTable, entries: LakeTable, files: Sequence[LiveFile], decode: Decode
) -> Iterator[pa.RecordBatch]:
    names = entries.schema.to_arrow().names
    for block in ordered(entries, files, names):
        for rows in decode(block.select(names)):
            yield rows.select([*dict.fromkeys([*ORDER, *state.fold.reads])])


def _moved(
    state: StateTable,
    sources: Sources,
    before: StateCursor | None,
    applied: Sequence[SequenceRange],
    shadow: Shadow,
    done: _Done,
    typed: Snapshot | None,
    gaps: Sequence[tuple[int, int]] = (),
) -> StateCursor:
    """The cursor behind these ranges."""
    done.patiently(shadow.write_out)
    last = applied[-1]
    files = before.files if before else files_hash([])
    if files is not None and typed is not None and {*applied} <= _landed(typed).keys():
        files = files_hash(typed.paths([one.key for one in applied]), files)
    else:
        files = None
    return state.cursor_of(
        last_range=last.key,
        next_sequence=last.end + 1,
        first_sequence=before.first_sequence if before else applied[0].start,
        ranges=(before.ranges if before else 0) + len(applied),
        rows=(before.rows if before else 0) + shadow.rows,
        keys=shadow.keys,
        buffer=sources.buffer or (before.buffer if before else None),
        batches=done.patiently(_batches, sources.entries, last.key),
        gaps=(*(before.gaps if before else ()), *gaps),
        files=files,
    )


def _due(
    state: StateTable, sources: Sources, cursor: StateCursor | None, landed: Mapping[SequenceRange, int | None]
) -> _Due:
    """The ranges to apply next; if there are none, why. Raises RebuildNeeded if there never will be."""
    entries = _landed(sources.entries.snapshot()) if cursor is None or not _at(landed, cursor.next_sequence) else {}
    if cursor is None:
        first = min([*landed, *entries], default=None)
        if first is None:
            return _Due([])
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
        return _Due(chosen)
    return _Due([], _missing(state, sources, position, landed, entries))


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


def _to_rebuild(
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


def _since(
    state: StateTable, sources: Sources, cursor: StateCursor | None, typed: Snapshot | None
) -> tuple[str | None, int]:
    return (None, 0) if cursor is None or typed is None else cursor.stale(state.name, sources.typed.name, typed)
