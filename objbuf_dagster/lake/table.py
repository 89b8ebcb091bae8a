"""A Delta table that ranges land in: one commit per range.

*A landing* writes data files below the table, where nobody reads them, then names them in one commit, which takes the
range's earlier files out. So a range is there once, however often it lands and whoever else lands it; a landing that
is killed leaves files that nobody names (`maintain` deletes them), never half a range.

*Commits race* for the next version of the log, and the file system (a hard link), the bucket (If-None-Match) or the
NameNode (a rename that replaces nothing) lets one win. The loser loads the table again and repeats. A commit whose
answer was lost is found by its files, which have names that are used once.

Errors are InvalidInput (give up), StorageUnavailable (retry: land the range again) and StorageError (give up); with
`in_doubt` the commit may have happened, and landing the range again is right all the same. deltalake hangs in a forked
child of a process that used it: start processes with spawn.
"""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.errors import InvalidInput, NotFound, StorageError, StorageUnavailable
from objbuf_dagster.lake.delta import METADATA_KEY, SOFTWARE, DeltaPlace, different_columns
from objbuf_dagster.lake.durable import sync_before_commit
from objbuf_dagster.lake.failures import LostRace, NoTable, translated
from objbuf_dagster.lake.files import (
    DataFile,
    LandedRange,
    LiveFile,
    Snapshot,
    add_action,
    check_files,
    check_replacing,
    check_there,
    folder_of,
    is_there,
    partition_of,
)
from objbuf_dagster.lake.schema import ENTRIES, RANGE_COLUMN, TableSchema
from objbuf_dagster.store import RetryPolicy
from objbuf_dagster.store.cloud import Credentials

if TYPE_CHECKING:
    import deltalake

__all__ = ["METADATA_KEY", "SOFTWARE", "Commit", "LakeTable", "Metadata"]

_OUR_METADATA = ("range", "rows", "epoch", "software", "run_id")
_MOST_PARTITIONS = 2
_CONTENTION = RetryPolicy(base_seconds=0.05, cap_seconds=2.0)

Metadata = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Commit:
    """A range is in the table.

    version: of the table, that has it.
    added, removed: files; both 0 if this very landing was there already.
    attempts: commits tried by this call; more than 1 after lost races.
    """

    version: int
    added: int
    removed: int
    attempts: int


class LakeTable(DeltaPlace):
    """The table at `url`, made by the first commit. Nothing is read or written yet.

    url: `file:///dir`, a directory, `s3://bucket/prefix`, `gs://...`, `az://...` or `hdfs://namenode:8020/dir`.
    schema: its columns; a table that is there with others is refused. None takes a table with whatever columns it has,
        to look at it and to look after it: nothing can land in it.
    options, credentials, retry, timeout_seconds: as `open_lake` takes them; deltalake gets the same.

    It can be pickled; `store` is where tasks put data files: `table.store.put(table.new_path(key), parts)`.

    >>> import tempfile
    >>> table = LakeTable(tempfile.mkdtemp())
    >>> table.commit("000000000000-000000000099", [], epoch=1).version
    1
    >>> table.ranges()["000000000000-000000000099"].rows
    0
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        schema: TableSchema | None = ENTRIES,
        *,
        options: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        retry: RetryPolicy | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        super().__init__(url, options=options, credentials=credentials, retry=retry, timeout_seconds=timeout_seconds)
        self._schema = schema

    @property
    def schema(self) -> TableSchema:
        """Raises InvalidInput for a table that was opened with any columns."""
        if self._schema is None:
            raise InvalidInput(f"{self.name} was opened with whatever columns it has: say which, to land in it")
        return self._schema

    def new_path(self, range_key: str, part: str | None = None) -> str:
        """A path for one data file of this range, never given before."""
        return f"{self.folder(range_key, part)}/part-{uuid.uuid4().hex}.parquet"

    def folder(self, range_key: str, part: str | None = None) -> str:
        """Where the files of this range, or of this part of it, are."""
        return folder_of(partition_of(self.schema, range_key, part))

    def commit(
        self,
        range_key: str,
        files: Sequence[DataFile],
        *,
        epoch: int,
        part: str | None = None,
        run_id: str | None = None,
        metadata: Metadata | None = None,
        give_up_after: float = 300.0,
        batches: Collection[str] = (),
        still: Callable[[], None] | None = None,
    ) -> Commit:
        """Make these files the range, in one commit; its other files are taken out. Durable when it returns.

        With a `part`, which a table with a second partition column needs, that part alone of the range.

        No files means a range without rows: it gets an empty file, so that it is known to have landed. `epoch`,
        `run_id` and `metadata` go into the commit, with the range, its rows and this software's version.

        The files must be complete and their names new (`new_path`). Committing the same files again changes nothing.
        After an error the table has the old range or the new one. Lost races are repeated for `give_up_after` seconds.

        batches: names of all batches of the range: rows of before must be of these, whichever of them have rows. If not
            given, of those that the files name; then no files replace anything.
        still: raises if what the caller knew does not hold any more; nothing is committed then. It is asked after the
            table was loaded, by each attempt: who commits because of a change comes after it, or makes this one ask
            again.

        Raises StorageUnavailable (retry), NotFound or CorruptData for a file that is not there as said (land the range
        again), InvalidInput for a foreign table, or for a range that shares sequences with another one, and
        BufferReplaced if the range is there from other batches.
        """
        partition = partition_of(self.schema, range_key, part)
        check_files(partition, files)
        landing = list(files)
        words = _words(range_key, sum(file.rows for file in files), epoch, run_id, metadata)
        deadline = time.monotonic() + give_up_after
        attempts = 0
        failure: StorageError | None = None
        while True:
            try:
                snapshot = self._load_or_create()
            except StorageError as error:
                error.in_doubt = failure is not None
                raise
            live = snapshot.live([range_key], part)
            if is_there(live, files, landing):
                self.sync(snapshot.version)
                return Commit(snapshot.version, len(landing) if attempts else 0, 0, attempts)
            if failure is not None and not isinstance(failure, StorageUnavailable):
                raise failure
            if attempts and time.monotonic() > deadline:
                raise failure or StorageUnavailable(
                    f"other commits to {self.name} came first {attempts} times in {give_up_after:g} s: land range "
                    f"{range_key} again later, or run fewer landings at once"
                )
            every = self.schema == ENTRIES
            check_replacing(snapshot, range_key, live, landing, self.name, every_batch=every, batches=batches)
            (still or _always)()
            if not attempts:
                check_there(self.store, landing)
                if not landing:
                    landing.append(self.put_empty(self.new_path(range_key, part)))
                if self.root is not None:
                    sync_before_commit(self.root)
            attempts += 1
            try:
                self._replace(snapshot, partition, landing, words)
            except LostRace:
                failure = None
            except StorageError as error:  # also what came after a commit that did happen: see whether it is there
                failure = error
            else:
                self.sync(snapshot.version + 1)
                return Commit(snapshot.version + 1, len(landing), len(live), attempts)
            time.sleep(min(_CONTENTION.pause(attempts), max(0.0, deadline - time.monotonic())))

    def _replace(
        self, snapshot: Snapshot, partition: Mapping[str, str], files: Sequence[DataFile], words: Metadata
    ) -> None:
        filters = [(column, "=", value) for column, value in partition.items()]
        self._write(snapshot.delta, [add_action(partition, file) for file in files], words, replace=filters)

    def check(
        self, range_key: str, files: Sequence[DataFile], part: str | None = None, batches: Collection[str] = ()
    ) -> None:
        """Raise what `commit` would raise for these files, as far as it can be known without one; nothing is written.

        A table that is not there is not made. What others commit in the meantime may still make the commit fail.
        """
        partition = partition_of(self.schema, range_key, part)
        check_files(partition, files)
        for file in files:
            add_action(partition, file)
        snapshot = self.snapshot()
        live = snapshot.live([range_key], part) if snapshot else []
        if snapshot is not None and not is_there(live, files, files):
            every = self.schema == ENTRIES
            check_replacing(snapshot, range_key, live, files, self.name, every_batch=every, batches=batches)
        check_there(self.store, files)

    def files(self, ranges: Collection[str] | None = None, part: str | None = None) -> list[LiveFile]:
        """The files of these ranges, or of all, by range and path; none if nothing has landed."""
        snapshot = self.snapshot()
        return snapshot.live(ranges, part) if snapshot else []

    def ranges(self) -> dict[str, LandedRange]:
        """What has landed, by rising range key."""
        snapshot = self.snapshot()
        return snapshot.by_range() if snapshot else {}

    def version(self) -> int | None:
        """The newest version, or None if nothing has landed."""
        snapshot = self.snapshot()
        return snapshot.version if snapshot else None

    def exists(self) -> bool:
        return self.snapshot() is not None

    def snapshot(self) -> Snapshot | None:
        """The newest version, checked to be ours, or None if nothing has landed."""
        try:
            return self._load()
        except NoTable:
            return None

    def delta(self) -> deltalake.DeltaTable:
        """The newest version as deltalake has it, to read rows: `.to_pyarrow_table()`, `.to_pyarrow_dataset()`.

        Raises NotFound if nothing has landed.
        """
        snapshot = self.snapshot()
        if snapshot is None:
            raise NotFound("_delta_log", f"nothing has landed in {self.name} yet")
        return snapshot.delta

    def _load(self) -> Snapshot:
        delta = self.open_delta()
        with translated(self.name):
            partitions = list(delta.metadata().partition_columns)
            if self._schema is not None:
                self._check_ours(delta, partitions, self._schema)
            elif partitions[:1] != [RANGE_COLUMN] or len(partitions) > _MOST_PARTITIONS:
                raise self._foreign(partitions, RANGE_COLUMN)
            return Snapshot(delta, partitions[1] if partitions[1:] else None)

    def _load_or_create(self) -> Snapshot:
        return self._load_or_make(self._load, lambda: self.make(self.schema.to_delta(), self.schema.partitions))

    def _check_ours(self, table: deltalake.DeltaTable, partitions: Sequence[str], schema: TableSchema) -> None:
        if tuple(partitions) != schema.partitions:
            raise self._foreign(partitions, ", ".join(schema.partitions))
        different = different_columns(table, schema.to_delta())
        if different is not None:
            raise InvalidInput(
                f"the table at {self.name} has other columns than this landing writes: it {different}; move it away, "
                "or give the landing a place of its own"
            )

    def put_empty(self, path: str) -> DataFile:
        """A file without rows, for a commit to name."""
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(self.schema.to_arrow().empty_table(), sink)
        self.store.put(path, sink.getvalue())
        return DataFile(path, len(sink.getvalue()), 0)


def _always() -> None:
    """It still holds."""


def _words(
    range_key: str, rows: int, epoch: int, run_id: str | None, metadata: Metadata | None
) -> dict[str, str | int | float | bool | None]:
    taken = set(metadata or {}) & set(_OUR_METADATA)
    if taken:
        raise InvalidInput(f"a commit's {', '.join(sorted(taken))} cannot be set by metadata: use another name")
    words: dict[str, str | int | float | bool | None] = dict(metadata or {})
    words |= {"range": range_key, "rows": rows, "epoch": epoch, "software": SOFTWARE}
    if run_id is not None:
        words["run_id"] = run_id
    try:
        json.dumps(words, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a commit's metadata must be JSON: {error}") from None
    return words
