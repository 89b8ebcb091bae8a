"""Keeping a table small and knowing what is in it."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import InvalidInput, NotFound, StorageUnavailable
from objbuf_dagster.lake.delta import METADATA_KEY, SOFTWARE, DeltaPlace
from objbuf_dagster.lake.durable import LOG, sync_log, tidy_log
from objbuf_dagster.lake.failures import LostRace, NoTable, translated
from objbuf_dagster.lake.fold import BUCKET
from objbuf_dagster.lake.schema import RANGE_COLUMN
from objbuf_dagster.lake.table import LakeTable
from objbuf_dagster.ranges import SequenceRange

if TYPE_CHECKING:
    import deltalake

DEFAULT_RETENTION = timedelta(days=7)
SHORTEST_RETENTION = timedelta(hours=1)
"""The files of a landing that is still running are in no commit yet, and look like those of one that was killed. Only
their age tells them apart, so this must be longer than a landing takes, whatever the clocks say."""

_DELTA_RETENTION_HOURS = 168
_TRIES = 5
_LOOK_BACK = 20


@dataclass(frozen=True, slots=True)
class MaintainReport:
    """What `maintain` did, or would do.

    version: of the table, before; None if nothing has landed.
    checkpoint_version: that a new checkpoint was made for; None if none was.
    files_deleted, bytes_freed: data files that no version within the retention has.
    log_files_deleted: commits and checkpoints older than the table's `delta.logRetentionDuration` (30 days unless
        set), and what killed commits left in the log.
    dry_run: nothing was changed, the numbers of files are what would be; log files are not counted.
    """

    version: int | None
    checkpoint_version: int | None
    files_deleted: int
    bytes_freed: int
    log_files_deleted: int
    seconds: float
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Landing:
    """The newest commit that landed a range. `metadata` has range, rows, epoch, software and what the run added."""

    version: int
    time: datetime
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LakeStat:
    """What the table has now; files that no commit names are not counted.

    version: None if nothing has landed.
    rows: None if a file of another writer does not say.
    first_sequence, last_sequence: of the first and the last range.
    last_landing: None too if the newest commits were all of another kind.
    """

    version: int | None
    ranges: int
    files: int
    rows: int | None
    bytes: int
    first_sequence: int | None
    last_sequence: int | None
    last_landing: Landing | None


def maintain(
    table: DeltaPlace, *, retention: timedelta | float = DEFAULT_RETENTION, dry_run: bool = False
) -> MaintainReport:
    """Write a checkpoint, delete old log files, and delete the data files that nobody needs any more.

    Those are: files of landings that were killed, once they are older than `retention` (a timedelta or seconds,
    counted in whole hours), and files of ranges that landed again longer ago than that. Readers of an older version,
    and landings, must be done within it. What was replaced is kept no longer than the table's
    `delta.deletedFileRetentionDuration` (7 days unless set), if that is shorter.

    May run at any time, also beside landings and itself, and may be repeated after any failure. Of a state it is what
    deletes the files of older versions: each commit rewrites the buckets that changed.

    Raises InvalidInput for a retention below an hour (see SHORTEST_RETENTION), and for a table that is not ours.
    """
    started = time.monotonic()
    hours = _hours(retention, dry_run)
    try:
        delta = _ours(table)
    except NoTable:
        return MaintainReport(None, None, 0, 0, 0, time.monotonic() - started, dry_run)
    version = delta.version()
    log_files = 0
    if not dry_run:
        log_files = _compact_log(table, delta)
    paths, freed = _vacuum(table, hours, dry_run)
    return MaintainReport(
        version=version,
        checkpoint_version=None if dry_run else version,
        files_deleted=paths,
        bytes_freed=freed,
        log_files_deleted=log_files,
        seconds=time.monotonic() - started,
        dry_run=dry_run,
    )


def stat(table: LakeTable) -> LakeStat:
    """What the table has now."""
    snapshot = table.snapshot()
    if snapshot is None:
        return LakeStat(None, 0, 0, 0, 0, None, None, None)
    landed = snapshot.by_range()
    keys = [SequenceRange.from_key(key) for key in landed]
    rows = [one.rows for one in landed.values()]
    return LakeStat(
        version=snapshot.version,
        ranges=len(landed),
        files=sum(one.files for one in landed.values()),
        rows=None if None in rows else sum(row or 0 for row in rows),
        bytes=sum(one.bytes for one in landed.values()),
        first_sequence=min((key.start for key in keys), default=None),
        last_sequence=max((key.end for key in keys), default=None),
        last_landing=_last_landing(table, snapshot.version),
    )


def _hours(retention: timedelta | float, dry_run: bool) -> int:
    wanted = retention if isinstance(retention, timedelta) else timedelta(seconds=retention)
    if wanted < (timedelta() if dry_run else SHORTEST_RETENTION):
        raise InvalidInput(
            f"a retention of {wanted} could delete the files of a landing that is still running: give at least "
            f"{SHORTEST_RETENTION}"
        )
    return math.ceil(wanted / timedelta(hours=1))


def _ours(table: DeltaPlace) -> deltalake.DeltaTable:
    """The newest version of a table that ranges land in, or of a state. Raises InvalidInput for any other, NoTable."""
    delta = table.open_delta()
    with translated(table.name):
        partitions = list(delta.metadata().partition_columns)
    if partitions[:1] != [RANGE_COLUMN] and partitions != [BUCKET]:
        raise InvalidInput(
            f"the table at {table.name} is partitioned by {partitions}: it is not one of ours, look after it with what "
            "made it"
        )
    return delta


def _compact_log(table: DeltaPlace, delta: deltalake.DeltaTable) -> int:
    """A checkpoint, then without the log files that it makes needless. Returns how many these were."""
    with translated(table.name):
        delta.create_checkpoint()
    if table.root is not None:
        sync_log(table.root, delta.version())
    before = {info.path for info in table.store.list(LOG)}
    with translated(table.name):
        delta.cleanup_metadata()
    if table.root is not None:
        tidy_log(table.root)
    return len(before - {info.path for info in table.store.list(LOG)})


def _vacuum(table: DeltaPlace, hours: int, dry_run: bool) -> tuple[int, int]:
    """Returns how many files went, and their bytes. Full: what killed tasks left was never in the log."""
    from deltalake import CommitProperties

    found: set[str] = set()
    sizes: dict[str, int] | None = None
    for _ in range(_TRIES):
        try:
            with translated(table.name):
                delta = table.open_delta()
                options: dict[str, Any] = {
                    "retention_hours": hours,
                    "enforce_retention_duration": hours >= _DELTA_RETENTION_HOURS,
                    "full": True,
                }
                needless = delta.vacuum(dry_run=True, **options)
                found.update(needless)
                if sizes is None:  # while they are there
                    sizes = {info.path: info.size for info in table.store.list()} if needless else {}
                if needless and not dry_run:
                    words = {METADATA_KEY: {"software": SOFTWARE}}
                    delta.vacuum(dry_run=False, commit_properties=CommitProperties(custom_metadata=words), **options)
            return len(found), sum(sizes.get(path, 0) for path in found)
        except LostRace:  # its commits only note that it ran; what is deleted stays deleted
            continue
    raise StorageUnavailable(f"too many landings in {table.name} for a vacuum to finish: run it again later")


def _last_landing(table: LakeTable, version: int) -> Landing | None:
    for candidate in range(version, max(-1, version - _LOOK_BACK), -1):
        try:
            commit = table.store.read(f"{LOG}/{candidate:020d}.json")
        except NotFound:  # cleaned up, for a checkpoint
            return None
        for line in commit.splitlines():
            info = json.loads(line).get("commitInfo") or {} if b'"commitInfo"' in line else {}
            words = info.get(METADATA_KEY) or {}
            if "range" in words:
                when = datetime.fromtimestamp(info["timestamp"] / 1000, timezone.utc)
                return Landing(candidate, when, words)
    return None
