"""Moving a state on: the ranges that are due, in the order of their sequences, each once and never past a hole.

`catch_up` reads the typed table. `rebuild` reads `entries` and decodes again: that is what helps when ranges of the
typed table are gone, when sequences are in no range at all, and after the fold was changed. What only Spark can decode
it reads from the typed table instead.

Storage that fails is tried again, a range at a time, from the state that it was applied to: so no failure leaves a hole
or applies anything twice. After TRIES failures in a row it is given up, and what was committed until then stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from objbuf_dagster.errors import InvalidInput, NotFound, StorageUnavailable
from objbuf_dagster.lake.files import LiveFile, Snapshot, batches_of
from objbuf_dagster.lake.fold import ORDER
from objbuf_dagster.lake.state import TRIES, StateTable
from objbuf_dagster.lake.state_cursor import StateCursor, files_hash
from objbuf_dagster.lake.state_due import Sources, begins_at, due_ranges, landed_in, ranges_to_rebuild
from objbuf_dagster.lake.state_rows import ordered
from objbuf_dagster.lake.state_shadow import Shadow
from objbuf_dagster.lake.table import LakeTable
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import RetryPolicy

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RANGES_AT_ONCE", "Decode", "Sources", "StateReport", "catch_up", "rebuild"]

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
    begins: that there were sequences before those that it has, in words with what to do; told once, by the call that
        has begun it.
    """

    cursor: StateCursor | None
    version: int | None
    ranges: int = 0
    rows: int = 0
    commits: int = 0
    waiting: str | None = None
    stale: str | None = None
    changed: int = 0
    begins: str | None = None


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

    Raises RebuildNeeded if the next range can never come, if all that came before the first one has expired, or if the
    state was not made from this, by this fold;
    StorageUnavailable after `tries` failures in a row; whatever keeps a table from being read.
    """
    _check_settings(ranges_at_once, tries)
    done = _Done(tries)
    while True:
        snapshot = done.patiently(state.snapshot)
        typed = done.patiently(sources.typed.snapshot)
        landed = landed_in(typed)
        cursor = snapshot.cursor if snapshot else None
        if cursor is not None:
            if not done.patiently(_planned_the_same, sources.ledger, cursor):
                cursor.check_buffer(state.name, sources.buffer)
            cursor.check_batches(state.name, done.patiently(_batches, sources.entries, cursor.last_range))
        due = done.patiently(due_ranges, state, sources, cursor, landed)
        if not due.ranges:
            version = snapshot.version if snapshot and cursor else None
            since = _since(state, sources, cursor, typed)
            return StateReport(cursor, version, done.ranges, done.rows, done.commits, due.waiting, *since, done.begins)
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
            done.begins = done.begins if cursor else begins_at(state, new)


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
        ranges_to_rebuild,
        sources,
        table,
        landed_in(found),
        {*landed_in(entries), *landed_in(found)},
        landed_in(typed),
        over_gaps,
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
    since = _since(state, sources, new, typed)
    return StateReport(new, version, len(chosen), shadow.rows, 1, waiting, *since, begins_at(state, new))


@dataclass(slots=True)
class _Done:
    """What was done so far, patiently."""

    tries: int
    ranges: int = 0
    rows: int = 0
    commits: int = 0
    begins: str | None = None

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


def _check_settings(ranges_at_once: int, tries: int) -> None:
    if ranges_at_once < 1 or tries < 1:
        raise InvalidInput(f"ranges at once and tries must be 1 or more: {ranges_at_once}, {tries}")


def _words(run_id: str | None) -> dict[str, Any]:
    return {} if run_id is None else {"run_id": run_id}


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
    if files is not None and typed is not None and {*applied} <= landed_in(typed).keys():
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


def _since(
    state: StateTable, sources: Sources, cursor: StateCursor | None, typed: Snapshot | None
) -> tuple[str | None, int]:
    return (None, 0) if cursor is None or typed is None else cursor.stale(state.name, sources.typed.name, typed)
