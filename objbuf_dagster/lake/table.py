"""A Delta table that ranges land in: one commit per range.

*A landing* writes data files below the table, where nobody reads them, then names them in one commit, which takes the
range's earlier files out. So a range is there once, however often it lands and whoever else lands it; a landing that
is killed leaves files that nobody names (`maintain` deletes them), never half a range.

*Commits race* for the next version of the log, and the file system (a hard link) or the bucket (If-None-Match) lets
one win. The loser loads the table again and repeats. A commit whose answer was lost is found by its files, which have
names that are used once.

Errors are InvalidInput (give up), StorageUnavailable (retry: land the range again) and StorageError (give up); with
`in_doubt` the commit may have happened, and landing the range again is right all the same. deltalake hangs in a forked
child of a process that used it: start processes with spawn.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster import __version__
from objbuf_dagster.errors import InvalidInput, NotFound, StorageError, StorageUnavailable
from objbuf_dagster.lake.durable import sync_before_commit, sync_log
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
from objbuf_dagster.lake.location import local_root, storage_options
from objbuf_dagster.lake.reading import bucket_files, local_files
from objbuf_dagster.lake.schema import ENTRIES, TableSchema
from objbuf_dagster.store import RetryPolicy, open_store
from objbuf_dagster.store.cloud import Credentials

if TYPE_CHECKING:
    import deltalake
    import pyarrow.fs

METADATA_KEY = "objbuf"
"""Where a commit's own words are in Delta's commitInfo."""

SOFTWARE = f"objbuf-dagster {__version__}"

CHECKPOINT_INTERVAL = 10
"""Commits between checkpoints. Loading reads every commit since the last one, each twice: few is fast, and a
checkpoint is small next to the data of ten ranges."""

_OUR_METADATA = ("range", "rows", "epoch", "software", "run_id")
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


class LakeTable:
    """The table at `url`, made by the first commit. Nothing is read or written yet.

    url: `file:///dir`, a directory, `s3://bucket/prefix`, `gs://...` or `az://...`.
    schema: its columns; a table that is there with others is refused.
    options, credentials, retry, timeout_seconds: as `open_store` takes them; deltalake gets the same.

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
        schema: TableSchema = ENTRIES,
        *,
        options: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        retry: RetryPolicy | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.url = os.fspath(url).rstrip("/")
        self.schema = schema
        self.store = open_store(
            self.url, options=options, credentials=credentials, retry=retry, timeout_seconds=timeout_seconds
        )
        self.root = local_root(self.url, self.store)
        """The directory, of a table on a local disk."""
        self._settings = (dict(options or {}), credentials, retry or RetryPolicy(), timeout_seconds)

    def __repr__(self) -> str:
        return f"LakeTable({self.name!r})"  # not the options: they may be secrets

    @property
    def name(self) -> str:
        """The URL without what may be secret in it."""
        return re.sub(r"//.*@", "//...@", self.url)

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
    ) -> Commit:
        """Make these files the range, in one commit; its other files are taken out. Durable when it returns.

        With a `part`, which a table with a second partition column needs, that part alone of the range.

        No files means a range without rows: it gets an empty file, so that it is known to have landed. `epoch`,
        `run_id` and `metadata` go into the commit, with the range, its rows and this software's version.

        The files must be complete and their names new (`new_path`). Committing the same files again changes nothing.
        After an error the table has the old range or the new one. Lost races are repeated for `give_up_after` seconds.

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
                self._sync(snapshot.version)
                return Commit(snapshot.version, len(landing) if attempts else 0, 0, attempts)
            if failure is not None and not isinstance(failure, StorageUnavailable):
                raise failure
            if attempts and time.monotonic() > deadline:
                raise failure or StorageUnavailable(
                    f"other commits to {self.name} came first {attempts} times in {give_up_after:g} s: land range "
                    f"{range_key} again later, or run fewer landings at once"
                )
            check_replacing(snapshot, range_key, live, landing, self.name, every_batch=self.schema == ENTRIES)
            if not attempts:
                check_there(self.store, landing)
                if not landing:
                    landing.append(self._put_empty(self.new_path(range_key, part)))
                if self.root is not None:
                    sync_before_commit(self.root)
            attempts += 1
            try:
                self._write(snapshot, partition, landing, words)
            except LostRace:
                failure = None
            except StorageError as error:  # also what came after a commit that did happen: see whether it is there
                failure = error
            else:
                self._sync(snapshot.version + 1)
                return Commit(snapshot.version + 1, len(landing), len(live), attempts)
            time.sleep(min(_CONTENTION.pause(attempts), max(0.0, deadline - time.monotonic())))

    def check(self, range_key: str, files: Sequence[DataFile], part: str | None = None) -> None:
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
            check_replacing(snapshot, range_key, live, files, self.name, every_batch=self.schema == ENTRIES)
        check_there(self.store, files)

    def filesystem(self, sizes: Mapping[str, int] | None = None) -> pyarrow.fs.FileSystem:
        """The files below the table for pyarrow to read, also those that no commit names, and before there is a table.

        sizes: of files by path, as far as they are known: opening these asks nothing. For others in a bucket it asks
            for the size, and no thread of this process runs until the answer is there.

        Reading from a bucket raises StorageUnavailable, StorageError, NotFound or CorruptData; from a disk, OSError.
        """
        if self.root is not None:
            return local_files(self.root)
        return bucket_files(self.name, *self._location(), sizes)

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

    def _location(self) -> tuple[str, dict[str, str] | None]:
        if self.root is not None:
            return str(self.root), None
        options, credentials, retry, timeout_seconds = self._settings
        return self.url, storage_options(self.url, options, credentials, retry=retry, timeout_seconds=timeout_seconds)

    def _load(self) -> Snapshot:
        from deltalake import DeltaTable

        url, settings = self._location()
        with translated(self.name):
            table = DeltaTable(url, storage_options=settings)
            self._check_ours(table)
            return Snapshot(table, self.schema.part)

    def _load_or_create(self) -> Snapshot:
        try:
            return self._load()
        except NoTable:
            pass
        failure: StorageError | LostRace | None = None
        try:
            self._create()
        except (StorageError, LostRace) as error:  # others may have been faster, then it is there
            failure = error
        try:
            return self._load()
        except NoTable as error:
            raise (
                failure
                if isinstance(failure, StorageError)
                else StorageUnavailable(f"the table at {self.name} was made and is not there: try again")
            ) from error

    def _create(self) -> None:
        from deltalake import CommitProperties, DeltaTable

        url, settings = self._location()
        with translated(self.name, writing=True):
            DeltaTable.create(
                url,
                self.schema.to_delta(),
                mode="error",
                partition_by=list(self.schema.partitions),
                configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)},
                storage_options=settings,
                # With retries, who loses the race for version 0 would make the table again as version 1.
                commit_properties=CommitProperties(
                    custom_metadata={METADATA_KEY: {"software": SOFTWARE}}, max_commit_retries=0
                ),
            )

    def _check_ours(self, table: deltalake.DeltaTable) -> None:
        partitions = list(table.metadata().partition_columns)
        if partitions != list(self.schema.partitions):
            raise InvalidInput(
                f"the table at {self.name} is partitioned by {partitions}, not by {', '.join(self.schema.partitions)}: "
                "it is not one of ours; give the landing a place of its own"
            )
        there, ours = _fields(table.schema().to_json()), _fields(self.schema.to_delta().to_json())
        if there != ours:
            different = [f"has {name}" for name in there if name not in ours]
            different += [f"lacks {name}" for name in ours if name not in there]
            raise InvalidInput(
                f"the table at {self.name} has other columns than this landing writes: it "
                f"{', '.join(different) or 'has them in another order'}; move it away, or give the landing a place "
                "of its own"
            )

    def _put_empty(self, path: str) -> DataFile:
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(self.schema.to_arrow().empty_table(), sink)
        self.store.put(path, sink.getvalue())
        return DataFile(path, len(sink.getvalue()), 0)

    def _write(
        self, snapshot: Snapshot, partition: Mapping[str, str], files: list[DataFile], words: dict[str, Any]
    ) -> None:
        """One attempt, right behind this snapshot: any commit since makes it fail, with nothing written."""
        from deltalake import CommitProperties, PostCommitHookProperties

        with translated(self.name, writing=True):
            snapshot.delta.create_write_transaction(
                [add_action(partition, file) for file in files],
                mode="overwrite",
                schema=snapshot.delta.schema(),  # any other would replace the table's
                partition_by=list(partition),
                partition_filters=[(column, "=", value) for column, value in partition.items()],
                # The removes are of this snapshot: deltalake must not put them behind commits that it has not seen.
                commit_properties=CommitProperties(custom_metadata={METADATA_KEY: words}, max_commit_retries=0),
                # Old log files go in `maintain`, once the checkpoint that replaces them is on the disk.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )

    def _sync(self, version: int) -> None:
        if self.root is not None:
            sync_log(self.root, version - 2 * CHECKPOINT_INTERVAL)


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


def _fields(schema: str) -> list[str]:
    return [
        f"{field['name']} {field['type']}{'' if field['nullable'] else ' not null'}"
        for field in json.loads(schema)["fields"]
    ]
