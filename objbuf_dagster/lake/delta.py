"""A place where a Delta table is or will be: what all kinds of tables share of loading, making and committing.

Every commit goes right behind the version that its writer has read, or fails with nothing written. deltalake's own
retries are off: it would put a commit behind others that its writer has never seen. Before its first commit to a
bucket, a process makes sure that the bucket lets one of two commits lose.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from objbuf_dagster import __version__
from objbuf_dagster.errors import InvalidInput, StorageError, StorageUnavailable
from objbuf_dagster.lake.durable import sync_log
from objbuf_dagster.lake.failures import LostRace, NoTable, translated
from objbuf_dagster.lake.location import is_hdfs, local_root, open_lake, storage_options
from objbuf_dagster.lake.properties import set_elsewhere
from objbuf_dagster.lake.reading import bucket_files, local_files
from objbuf_dagster.store import RetryPolicy, check_conditions
from objbuf_dagster.store.cloud import Credentials
from objbuf_dagster.store.deadline import within

if TYPE_CHECKING:
    import deltalake
    import pyarrow.fs
    from deltalake.transaction import AddAction

METADATA_KEY = "objbuf"
"""Where a commit's own words are in Delta's commitInfo."""

SOFTWARE = f"objbuf-dagster {__version__}"

CHECKPOINT_INTERVAL = 10
"""Commits between checkpoints. Loading reads every commit since the last one, each twice: few is fast, and a
checkpoint is small next to the data of ten ranges."""

T = TypeVar("T")
Filters = Sequence[tuple[str, str, Any]]


class DeltaPlace:
    """The table at `url`, which need not be there. Nothing is read or written yet.

    url: `file:///dir`, a directory, `s3://bucket/prefix`, `gs://...`, `az://...` or `hdfs://namenode:8020/dir`.
    options, credentials, retry, timeout_seconds: as `open_lake` takes them; deltalake gets the same.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        options: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        retry: RetryPolicy | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.url = os.fspath(url).rstrip("/")
        self.store = open_lake(
            self.url, options=options, credentials=credentials, retry=retry, timeout_seconds=timeout_seconds
        )
        self.root = local_root(self.url, self.store)
        """The directory, of a table on a local disk."""
        self._settings = (dict(options or {}), credentials, retry or RetryPolicy(), timeout_seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"  # not the options: they may be secrets

    @property
    def name(self) -> str:
        """The URL without what may be secret in it."""
        return re.sub(r"//.*@", "//...@", self.url)

    @property
    def settings(self) -> dict[str, Any]:
        """What to open another place of the same storage with. It may hold secrets."""
        options, credentials, retry, timeout_seconds = self._settings
        return {"options": options, "credentials": credentials, "retry": retry, "timeout_seconds": timeout_seconds}

    def filesystem(self, sizes: Mapping[str, int] | None = None) -> pyarrow.fs.FileSystem:
        """The files below the table for pyarrow to read, also those that no commit names, and before there is a table.

        sizes: of files by path, as far as they are known: opening these asks nothing. For others in a bucket it asks
            for the size, and no thread of this process runs until the answer is there.

        Reading from a bucket raises StorageUnavailable, StorageError, NotFound or CorruptData; from a disk, OSError.
        """
        if self.root is not None:
            return local_files(self.root)
        # deltalake's own files wait for hdfs with the whole process.
        return bucket_files(self.name, *self._location(), sizes, self.store if is_hdfs(self.url) else None)

    def open_delta(self) -> deltalake.DeltaTable:
        """The newest version, whatever it is. Raises NoTable, StorageError."""
        from deltalake import DeltaTable

        url, settings = self._location()
        return self.ask(lambda: DeltaTable(url, storage_options=settings))

    def ask(self, call: Callable[[], T], *, writing: bool = False) -> T:
        """What deltalake answers to a call that asks the storage. Raises what `translated` does.

        On hdfs it would wait without end, and holds Ctrl-C off. There its call, which is many requests, has the time
        that a call of the store has, with its repetitions. One that is overdue is left alone, and may still happen: of
        a commit that nobody heard of, its files tell.
        """
        with translated(self.name, writing=writing):
            return call() if self._deadline is None else within(self._deadline, call)

    def set_properties(self, delta: deltalake.DeltaTable, properties: Mapping[str, str]) -> None:
        """One commit, right behind this version. Raises LostRace and StorageError."""
        from deltalake import CommitProperties

        words = {METADATA_KEY: {"software": SOFTWARE}}
        with translated(self.name, writing=True):
            if self._deadline is not None:
                set_elsewhere(*self._location(), delta.version(), properties, words, self._deadline)
                return
            delta.alter.set_table_properties(
                dict(properties), commit_properties=CommitProperties(custom_metadata=words, max_commit_retries=0)
            )

    @property
    def _deadline(self) -> float | None:
        _, _, retry, timeout_seconds = self._settings
        return retry.attempts * timeout_seconds if is_hdfs(self.url) else None

    def _location(self) -> tuple[str, dict[str, str] | None]:
        if self.root is not None:
            return str(self.root), None
        options, credentials, retry, timeout_seconds = self._settings
        return self.url, storage_options(self.url, options, credentials, retry=retry, timeout_seconds=timeout_seconds)

    def make(
        self,
        schema: deltalake.Schema,
        partitions: Sequence[str],
        files: Sequence[AddAction] = (),
        words: Mapping[str, Any] | None = None,
    ) -> None:
        """Version 0, with these files if there are any. Raises LostRace or StorageError if others were faster."""
        from deltalake import CommitProperties, DeltaTable
        from deltalake.transaction import create_table_with_add_actions

        check_conditions(self.store)
        url, settings = self._location()
        configuration = {"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)}
        # With retries, who loses the race for version 0 would make the table again as version 1.
        properties = CommitProperties(
            custom_metadata={METADATA_KEY: {**(words or {}), "software": SOFTWARE}}, max_commit_retries=0
        )
        create = (
            partial(create_table_with_add_actions, url, schema, list(files))
            if files
            else (partial(DeltaTable.create, url, schema))
        )
        self.ask(
            lambda: create(
                mode="error",
                partition_by=list(partitions),
                configuration=configuration,
                storage_options=settings,
                commit_properties=properties,
            ),
            writing=True,
        )

    def _load_or_make(self, load: Callable[[], T], make: Callable[[], None]) -> T:
        try:
            return load()
        except NoTable:
            pass
        failure: StorageError | LostRace | None = None
        try:
            make()
        except (StorageError, LostRace) as error:  # others may have been faster, then it is there
            failure = error
        try:
            return load()
        except NoTable as error:
            raise (
                failure
                if isinstance(failure, StorageError)
                else StorageUnavailable(f"the table at {self.name} was made and is not there: try again")
            ) from error

    def _write(
        self,
        delta: deltalake.DeltaTable,
        files: Sequence[AddAction],
        words: Mapping[str, Any],
        *,
        replace: Filters | None,
        schema: deltalake.Schema | None = None,
    ) -> None:
        """One attempt, right behind this version: any commit since makes it fail, with nothing written.

        replace: which partitions' files go, of that version; all if it is None.
        schema: that the table has from then on, if it is to be another one.
        """
        from deltalake import CommitProperties, PostCommitHookProperties

        check_conditions(self.store)
        self.ask(
            lambda: delta.create_write_transaction(
                list(files),
                mode="overwrite",
                schema=schema or delta.schema(),  # any other would replace the table's
                partition_by=list(delta.metadata().partition_columns),
                partition_filters=None if replace is None else list(replace),
                # The removes are of this version: deltalake must not put them behind commits that it has not seen.
                commit_properties=CommitProperties(custom_metadata={METADATA_KEY: dict(words)}, max_commit_retries=0),
                # Old log files go in `maintain`, once the checkpoint that replaces them is on the disk.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            ),
            writing=True,
        )

    def sync(self, version: int) -> None:
        """Make the log durable, up to this version, where deltalake does not."""
        if self.root is not None:
            sync_log(self.root, version - 2 * CHECKPOINT_INTERVAL)

    def _foreign(self, partitions: Sequence[str], wanted: str) -> InvalidInput:
        from objbuf_dagster.lake.fold import BUCKET

        if list(partitions) == [BUCKET]:
            return InvalidInput(f"the table at {self.name} is a state, without ranges: `objbuf state` looks after it")
        return InvalidInput(
            f"the table at {self.name} is partitioned by {list(partitions)}, not by {wanted}: it is not one of ours; "
            "give the landing a place of its own"
        )


def different_columns(delta: deltalake.DeltaTable, wanted: deltalake.Schema) -> str | None:
    """What a table has, and lacks, in place of these columns; None if they are the same."""
    there, ours = _fields(delta.schema().to_json()), _fields(wanted.to_json())
    if there == ours:
        return None
    different = [f"has {name}" for name in there if name not in ours]
    different += [f"lacks {name}" for name in ours if name not in there]
    return ", ".join(different) or "has them in another order"


def _fields(schema: str) -> list[str]:
    return [
        f"{field['name']} {field['type']}{'' if field['nullable'] else ' not null'}"
        for field in json.loads(schema)["fields"]
    ]
