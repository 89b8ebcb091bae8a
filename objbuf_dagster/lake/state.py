"""A Delta table with one row per key: the state that a fold has made of all ranges up to its cursor.

Every commit has rows and cursor in one transaction, right behind the version that it was computed from. So a crash
anywhere leaves the old state with the old cursor or the new one with the new one, and of two who apply the same range
one wins; the other finds that the cursor has moved. Readers see one version or the next, never half of one.

`catch_up` and `rebuild` of `lake/state_run.py` are what moves it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import (
    CorruptData,
    InvalidInput,
    NotFound,
    StorageError,
    StorageUnavailable,
    UnsupportedVersion,
)
from objbuf_dagster.lake.delta import SOFTWARE, DeltaPlace, different_columns
from objbuf_dagster.lake.durable import sync_before_commit
from objbuf_dagster.lake.failures import LostRace, NoTable, translated
from objbuf_dagster.lake.files import DataFile, add_action, check_there
from objbuf_dagster.lake.fold import BUCKET, Fold, Scope, state_schema
from objbuf_dagster.lake.location import is_hdfs
from objbuf_dagster.lake.state_cursor import RebuildNeeded, StateCursor, how_to_rebuild, schema_hash
from objbuf_dagster.lake.state_shadow import Shadow, files_by_bucket, new_path
from objbuf_dagster.store import RetryPolicy
from objbuf_dagster.store.cloud import Credentials

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

CURSOR = "cursor"
"""The bucket that has no rows, and one file: the cursor."""

BUCKETS = 16
TRIES = 5
"""How often a step is tried while storage fails; each of its requests is repeated as the store's RetryPolicy says."""

_MOST_BUCKETS = 100
_PAUSE = RetryPolicy(base_seconds=0.1, cap_seconds=5.0)


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """One version of a state table.

    files: by bucket. cursor: None while nothing was applied. cursor_path: its file, which no other commit has.
    """

    delta: deltalake.DeltaTable
    version: int
    files: Mapping[str, tuple[DataFile, ...]]
    cursor: StateCursor | None
    cursor_path: str | None

    @property
    def paths(self) -> set[str]:
        """Of all its files."""
        found = {file.path for files in self.files.values() for file in files}
        return found if self.cursor_path is None else {*found, self.cursor_path}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a commit is about: files that are written, with their buckets, and the buckets whose files they replace.

    replaced: None for all.
    """

    cursor: StateCursor
    cursor_path: str
    files: tuple[tuple[str, DataFile], ...]
    replaced: tuple[str, ...] | None

    @property
    def paths(self) -> set[str]:
        return {file.path for _, file in self.files}


class StateTable(DeltaPlace):
    """The state at `url` of this fold, made by the first commit. Nothing is read or written yet.

    scope: which keys it has. buckets: how many parts it has, each of which is rewritten as a whole when a key of it
    changes; both are written down in the cursor, and only a rebuild changes them.
    The rest is as of LakeTable. It can be pickled if the fold can.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        fold: Fold,
        scope: Scope | None = None,
        *,
        buckets: int = BUCKETS,
        options: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        retry: RetryPolicy | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        super().__init__(url, options=options, credentials=credentials, retry=retry, timeout_seconds=timeout_seconds)
        self.fold = fold
        self.scope = scope or Scope()
        self.buckets = buckets
        if not 1 <= buckets <= _MOST_BUCKETS:
            raise InvalidInput(f"a state has 1 to {_MOST_BUCKETS} buckets, not {buckets}")
        self.scope.check(fold.key)
        state_schema(fold)

    @classmethod
    def at(cls, place: DeltaPlace, fold: Fold, scope: Scope | None = None, *, buckets: int = BUCKETS) -> StateTable:
        """The state where this place is, with its settings."""
        return cls(place.url, fold, scope, buckets=buckets, **place.settings)

    def snapshot(self) -> StateSnapshot | None:
        """The newest version, checked to be ours, or None if nothing was ever applied."""
        try:
            return self.load()
        except NoTable:
            return None

    def cursor(self) -> StateCursor | None:
        """How far it is, or None if nothing was ever applied."""
        found = self.snapshot()
        return found.cursor if found else None

    def delta(self) -> deltalake.DeltaTable:
        """The newest version as deltalake has it, to read rows. Raises NotFound if there is none."""
        try:
            return self.open_delta()
        except NoTable:
            raise NotFound("_delta_log", f"nothing was applied to {self.name} yet") from None

    def rows(self, snapshot: StateSnapshot | None = None) -> pa.Table:
        """All rows, as deltalake reads them, without the bucket; none if nothing was ever applied."""
        found = snapshot or self.snapshot()
        if found is None:
            return state_schema(self.fold).empty_table()
        sizes = {file.path: file.size for files in found.files.values() for file in files}
        source = self.filesystem(sizes) if is_hdfs(self.url) else None
        return self.ask(lambda: found.delta.to_pyarrow_table(filesystem=source).drop_columns([BUCKET]))

    def load(self, *, any_fold: bool = False) -> StateSnapshot:
        """The newest version. Raises NoTable, RebuildNeeded if it is of another fold, InvalidInput if it is no state.

        any_fold: take what is there, whatever made it, to replace it; a cursor that cannot be read is None then.
        """
        import pyarrow as pa

        delta = self.open_delta()
        with translated(self.name):
            partitions = list(delta.metadata().partition_columns)
            if partitions != [BUCKET]:
                raise self._foreign(partitions, BUCKET)
            actions = pa.table(delta.get_add_actions(flatten=False)).to_pylist()
        by_bucket = [(row["partition"][BUCKET], _file(row)) for row in actions]
        cursors = [file for bucket, file in by_bucket if bucket == CURSOR]
        files = files_by_bucket([(bucket, file) for bucket, file in by_bucket if bucket != CURSOR])
        path = cursors[0].path if len(cursors) == 1 else None
        cursor: StateCursor | None = None
        try:
            if by_bucket:
                cursor = read_cursor(self, [file.path for file in cursors])
        except (CorruptData, UnsupportedVersion):
            if not any_fold:
                raise
        found = StateSnapshot(delta, delta.version(), files, cursor, path)
        if not any_fold:
            self._check(found)
        return found

    def load_or_create(self, *, any_fold: bool = False) -> StateSnapshot:
        return self._load_or_make(
            lambda: self.load(any_fold=any_fold), lambda: self.make(self._delta_schema(), [BUCKET])
        )

    def _check(self, found: StateSnapshot) -> None:
        if found.cursor is not None:
            found.cursor.check_fold(self.name, self.fold, self.scope, self.buckets)
        different = different_columns(found.delta, self._delta_schema())
        if different is not None:
            raise RebuildNeeded(self.name, "fold", f"it has other columns than the fold {self.fold.name}: {different}")

    def shadow(self, snapshot: StateSnapshot | None = None, **limits: Any) -> Shadow:
        """What to fold into: the state of this version, or an empty one."""
        files = dict(snapshot.files) if snapshot else {}
        return Shadow(self, self.fold, self.scope, self.buckets, files, **limits)

    def prepare(self, shadow: Shadow, cursor: StateCursor, *, everything: bool = False) -> Prepared:
        """Write what a commit names, without one: may be repeated, and leaves but garbage.

        everything: the commit is to replace whatever is there, and wherever its cursor is.
        """
        shadow.write_out()
        buckets = sorted(shadow.files if everything else shadow.changed)
        files = [(bucket, file) for bucket in buckets for file in shadow.files.get(bucket, ())]
        check_there(self.store, [file for _, file in files])
        data, path = cursor.to_file(state_schema(self.fold)), new_path(CURSOR)
        self.store.put(path, data)
        if self.root is not None:
            sync_before_commit(self.root)
        return Prepared(
            cursor, path, (*files, (CURSOR, DataFile(path, len(data), 0))), None if everything else (*buckets, CURSOR)
        )

    def commit(
        self, snapshot: StateSnapshot, new: Prepared, *, words: Mapping[str, Any] | None = None, tries: int = TRIES
    ) -> int | None:
        """Make this the state, in one transaction, and return its version. Durable when it returns.

        snapshot: what it was made from. If the cursor has moved since then, nothing is written, and it returns None:
            load it again, and see what is left to do. Unless everything is replaced, then it goes behind the others.

        After an error the table has the old state or the new one; with `in_doubt` nobody knows which, and going on from
        the cursor that is there is right all the same. Raises StorageUnavailable when storage failed for `tries` tries.
        """
        told = {**(words or {}), "cursor": new.cursor.to_json(), "software": SOFTWARE}
        current: StateSnapshot | None = snapshot
        failure: LostRace | StorageError | None = None
        doubt = False
        for attempt in range(1, tries + 1):
            if current is not None:
                failure = self._try(current, new, told)
                if failure is None:
                    self.sync(current.version + 1)
                    return current.version + 1
                doubt = doubt or isinstance(failure, StorageError)
            try:
                current = self.load(any_fold=True)
            except StorageUnavailable as error:
                current, failure = None, error
            else:
                if current.paths & new.paths:  # the answer was lost, or came late
                    self.sync(current.version)
                    return current.version
                if isinstance(failure, StorageError) and not isinstance(failure, StorageUnavailable):
                    raise failure
                if current.cursor_path != snapshot.cursor_path:
                    if new.replaced is not None:
                        return None
                    if doubt:  # it may have been ours, and others went on from it: its files must not be named again
                        break
            time.sleep(_PAUSE.pause(attempt))
        raise StorageUnavailable(
            f"the state at {self.name} could not be committed in {tries} tries, try again: "
            f"{failure if isinstance(failure, StorageError) else 'other commits came first each time'}",
            in_doubt=doubt,
        )

    def _try(self, current: StateSnapshot, new: Prepared, words: Mapping[str, Any]) -> LostRace | StorageError | None:
        """Why it failed, or may have."""
        actions = [add_action({BUCKET: bucket}, file) for bucket, file in new.files]
        replace = None if new.replaced is None else [(BUCKET, "in", list(new.replaced))]
        try:
            self._write(current.delta, actions, words, replace=replace, schema=self._delta_schema())
        except (LostRace, StorageError) as error:
            return error
        return None

    def _delta_schema(self) -> deltalake.Schema:
        import pyarrow as pa
        from deltalake import Schema

        return Schema.from_arrow(state_schema(self.fold).append(pa.field(BUCKET, pa.string(), nullable=False)))

    def cursor_of(self, **fields: Any) -> StateCursor:
        """A cursor of this fold, with what it has come to."""
        return StateCursor(
            fold=self.fold.name,
            fold_version=self.fold.version,
            schema=schema_hash(state_schema(self.fold)),
            buckets=self.buckets,
            scope=self.scope.prefixes,
            **fields,
        )


def cursor_at(place: DeltaPlace) -> tuple[int, StateCursor | None]:
    """The version of the state that is there, whatever fold made it, and its cursor; None if nothing was applied.

    Raises NotFound if there is no table, InvalidInput if it is no state, CorruptData or UnsupportedVersion if a cursor
    cannot be read.
    """
    import pyarrow as pa

    try:
        delta = place.open_delta()
    except NoTable:
        raise NotFound("_delta_log", f"there is no table at {place.name}: check its URL") from None
    with translated(place.name):
        if list(delta.metadata().partition_columns) != [BUCKET]:
            raise InvalidInput(f"the table at {place.name} is no state: `objbuf lake stat` shows tables of ranges")
        rows = pa.table(delta.get_add_actions(flatten=False)).to_pylist()
    paths = [row["path"] for row in rows if row["partition"][BUCKET] == CURSOR]
    return delta.version(), read_cursor(place, paths) if rows else None


def read_cursor(place: DeltaPlace, paths: Sequence[str]) -> StateCursor:
    """The cursor of a state that has these cursor files, of which there must be one. Raises as `cursor_at` does."""
    how = how_to_rebuild(place.name, by_cursor=False)
    if len(paths) != 1:
        writes = "another program writes to it; find out which, then rebuild it"
        raise CorruptData(f"table {place.name}", f"it has {len(paths)} cursors: {writes}. {how}")
    try:
        return StateCursor.from_file(place.store.read(paths[0]))
    except CorruptData as error:
        raise CorruptData(error.what, f"{error.reason}. {how}") from None


def _file(row: Mapping[str, Any]) -> DataFile:
    return DataFile(row["path"], row["size_bytes"], row.get("num_records") or 0)
