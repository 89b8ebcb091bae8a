"""Keeping a table small and knowing what is in it."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import InvalidInput, NotFound, StorageUnavailable
from objbuf_dagster.lake.delta import METADATA_KEY, DeltaPlace
from objbuf_dagster.lake.durable import LOG, sync_log, tidy_log
from objbuf_dagster.lake.failures import LostRace, NoTable, translated
from objbuf_dagster.lake.fold import BUCKET
from objbuf_dagster.lake.schema import RANGE_COLUMN
from objbuf_dagster.lake.table import LakeTable
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import PROBE, ObjectInfo

if TYPE_CHECKING:
    import deltalake

DEFAULT_RETENTION = timedelta(days=7)
SHORTEST_RETENTION = timedelta(hours=1)
"""The files of a landing that is still running are in no commit yet, and look like those of one that was killed. Only
their age tells them apart, so this must be longer than a landing takes, whatever the clocks say."""

_DELTA_RETENTION_HOURS = 168
_REMEMBERED = "delta.deletedFileRetentionDuration"
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
    dry_run: nothing was changed, the numbers of files are what would be; log and temporary files are not counted.
    temporary_files_deleted: what killed tasks left in a directory before it was a file, a day old or older.
    foreign_files: files older than the retention that lie below the table and that none of its writers can have
        written: another table, a buffer, somebody's export. They stay. first_foreign: the path of one of them.
    """

    version: int | None
    checkpoint_version: int | None
    files_deleted: int
    bytes_freed: int
    log_files_deleted: int
    seconds: float
    dry_run: bool
    temporary_files_deleted: int = 0
    foreign_files: int = 0
    first_foreign: str | None = None


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
    and landings, must be done within it. A retention that is longer than the table's
    `delta.deletedFileRetentionDuration` (7 days unless set) is set there first: after that time the log forgets which
    files were replaced, and when. So some of what was replaced before the first run with it may be gone earlier.

    May run at any time, also beside landings and itself, and may be repeated after any failure. Of a state it is what
    deletes the files of older versions: each commit rewrites the buckets that changed. What others put below the table
    is left alone, and counted.

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
        delta = _remember_replaced(table, delta, hours)
        log_files = _compact_log(table, delta)
    needless, foreign = _vacuum(table, hours, dry_run)
    return MaintainReport(
        version=version,
        checkpoint_version=None if dry_run else delta.version(),
        files_deleted=len(needless),
        bytes_freed=sum(info.size for info in needless),
        log_files_deleted=log_files,
        seconds=time.monotonic() - started,
        dry_run=dry_run,
        temporary_files_deleted=0 if dry_run else _tidy(table, delta),
        foreign_files=len(foreign),
        first_foreign=foreign[0].path if foreign else None,
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


def _remember_replaced(table: DeltaPlace, delta: deltalake.DeltaTable, hours: int) -> deltalake.DeltaTable:
    """Have checkpoints name replaced files for so long: those that none names are taken for what killed tasks left."""
    for _ in range(_TRIES):
        with translated(table.name):
            said = delta.metadata().configuration.get(_REMEMBERED)
        if (_DELTA_RETENTION_HOURS if said is None else _interval_hours(said)) >= hours:
            return delta
        with contextlib.suppress(LostRace):
            table.set_properties(delta, {_REMEMBERED: f"interval {hours} hours"})
        delta = table.open_delta()
        table.sync(delta.version())
    raise StorageUnavailable(f"too many landings in {table.name} to set its {_REMEMBERED}: run it again later")


def _interval_hours(said: str) -> float:
    """Of what Delta calls an interval: `interval 30 days`."""
    found = re.findall(r"(\d+)\s+(week|day|hour|minute|second)s?\b", said.lower())
    return sum(timedelta(**{f"{unit}s": int(number)}).total_seconds() for number, unit in found) / 3600


def _compact_log(table: DeltaPlace, delta: deltalake.DeltaTable) -> int:
    """A checkpoint, then without the log files that it makes needless. Returns how many these were."""
    table.ask(delta.create_checkpoint)
    if table.root is not None:
        sync_log(table.root, delta.version())
    before = {info.path for info in table.store.list(LOG)}
    table.ask(delta.cleanup_metadata)
    if table.root is not None:
        tidy_log(table.root)
    else:
        table.store.tidy(LOG)
    return len(before - {info.path for info in table.store.list(LOG)})


def _vacuum(table: DeltaPlace, hours: int, dry_run: bool) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
    """Returns the files that went, and those that are not the table's.

    deltalake names what no version needs, also what killed tasks left and was never in the log: with that, all that
    anybody put below the directory. It is not asked to delete, since it cannot be told to leave some of these alone.
    """
    with translated(table.name):
        delta = table.open_delta()
        # `enforce` would refuse less than the table's property says.
        named = set(table.ask(lambda: delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)))
        ours = _written_by_us(delta.metadata().partition_columns)
    there = [info for info in table.store.list() if info.path in named] if named else []
    needless = [info for info in there if ours.fullmatch(info.path)]
    if not dry_run:
        for error in table.store.delete(info.path for info in needless).values():
            raise error
    return needless, [info for info in there if not ours.fullmatch(info.path)]


def _tidy(table: DeltaPlace, delta: deltalake.DeltaTable) -> int:
    """Without the temporary files of killed tasks, which no listing shows; only where tasks of this table write."""
    if table.root is None:
        return table.store.tidy("")  # of all stores, hdfs alone has such files, and no buffer is there to share them
    with translated(table.name):
        column = delta.metadata().partition_columns[0]
    return sum(table.store.tidy(folder.name) for folder in table.root.glob(f"{column}=*"))


def _written_by_us(partitions: Sequence[str]) -> re.Pattern[str]:
    """Paths of data files: in a folder for each partition column, no deeper and no higher.

    And what `check_conditions` leaves of its try if it is killed.
    """
    data = "".join(f"{re.escape(column)}=[^/]+/" for column in partitions) + r"[^/]+\.parquet"
    return re.compile(rf"{data}|{PROBE}")


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
