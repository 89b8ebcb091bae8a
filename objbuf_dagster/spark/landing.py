"""A range becomes rows of a table: tasks fetch, check and write its batches, the driver commits once.

Tasks write files under names of their own, which nobody refers to until the commit; the commit replaces exactly the
range. So a task, a driver or a commit may die at any point, run twice, or run twice at a time: the table has the range
as it was or as it is now, and files left behind are garbage for `maintain`.

Batches that a person has quarantined are left out, and nothing else is: `leaving_out.py` says how that is told.

With `verify`, what the tasks wrote is read back and checked before the commit: `lake/checks.py` says against what. With
`dry_run` everything happens but the commit.

Only DataFrames are used, so the same code runs on a local session, a cluster and Spark Connect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import CheckFailed, InvalidInput, JobFailed, ObjbufError
from objbuf_dagster.lake import DataFile, LakeTable, RangeCheck, check_range, folder_of
from objbuf_dagster.lake.location import check_apart
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.ranges.quarantine import Quarantined
from objbuf_dagster.spark import tasks
from objbuf_dagster.spark.leaving_out import LeftOut, read_quarantine
from objbuf_dagster.spark.packing import cost, pack_for
from objbuf_dagster.spark.worker import FILE_NAME, REMEDY, Report, Share, Task
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20
"""What a task gets, more or less, in bytes of batches and metadata, with something added for each GET."""

_WORTH_A_TASK = 4 << 20
_PROGRESS_SECONDS = 0.5
_LAST_LOOK_SECONDS = 1.0

Progress = Callable[[int, int], None]
"""Called with the batches and stored bytes that are written so far, of all ranges of the call."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A range that is in the table; or, of a dry run, that could be.

    bytes_read: of the batch objects. bytes_written: of the Parquet files.
    seconds: from the start of the job that it was part of to its commit.
    version: of the table, that has it; None for a dry run.
    task_seconds: what its tasks spent on what, added up: waiting for batches, checking, building and writing files.
    checks: what `verify` found, all passed; none without it.
    quarantined: the batches that it landed without, which are not among its `batches`.
    """

    range: SequenceRange
    batches: int
    rows: int
    bytes_read: int
    bytes_written: int
    files: int
    seconds: float
    version: int | None
    task_seconds: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[RangeCheck, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A range of which nothing was committed, and why."""

    range: SequenceRange
    error: ObjbufError


def land(
    spark: SparkSession,
    buffer: BufferPlace,
    planned: RangeObject,
    table: LakeTable,
    *,
    run_id: str | None = None,
    progress: Progress | None = None,
    verify: bool = False,
    dry_run: bool = False,
    dead_letters: LakeTable | None = None,
) -> Landed:
    """Put exactly the rows of this range into the table, in place of those it may have of it already.

    verify: read the rows back before the commit, and raise CheckFailed if they are not what the batches say.
    dry_run: do everything but the commit, raise what it would be refused for as far as that can be known, and delete
        the files again. The table stays as it is; one that is not there is not made.
    dead_letters: where batches are told that the range lands without, because they are quarantined; the table
        `dead_letters` beside this one unless given. Two buffers need one each.

    Safe to repeat, and to run twice at a time. Raises what is wrong with a batch (CorruptData, NotFound, ..., naming
    sequence and location) or with a store, and InvalidInput for a table at, above or below the buffer's data; then
    nothing is committed.
    """
    landing = _Landing(spark, buffer, table, run_id, progress, verify, dry_run, dead_letters)
    (outcome,) = landing.outcomes([planned])
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome


def land_all(
    spark: SparkSession,
    buffer: BufferPlace,
    planned: Sequence[RangeObject],
    table: LakeTable,
    *,
    run_id: str | None = None,
    progress: Progress | None = None,
    verify: bool = False,
    dry_run: bool = False,
    dead_letters: LakeTable | None = None,
) -> Iterator[Landed | Failed]:
    """Several ranges in one Spark job, one commit each, in the order given. One that fails does not stop the others.

    If Spark ends the job, nobody knows for which range: then each gets a job of its own. Raises InvalidInput at once if
    a range is there twice or the table's place is the buffer's, and ExecutorNotReady, which no range would escape.
    `verify`, `dry_run` and `dead_letters` are as for `land`; a dry run compares each range with the table, and not with
    the others of the call.
    """
    if twice := [key.key for key, times in Counter(map(range_of, planned)).items() if times > 1]:
        raise InvalidInput(f"a range can land once in a call, and these are there more often: {', '.join(twice)}")
    return _Landing(spark, buffer, table, run_id, progress, verify, dry_run, dead_letters).outcomes(planned)


@dataclass(frozen=True, slots=True)
class _Landing:
    spark: SparkSession
    buffer: BufferPlace
    table: LakeTable
    run_id: str | None
    progress: Progress | None
    verify: bool
    dry_run: bool
    dead_letters: LakeTable | None

    def __post_init__(self) -> None:
        check_apart(self.table.store, self.table.name, self.buffer)

    def outcomes(self, planned: Sequence[RangeObject]) -> Iterator[Landed | Failed]:
        if not planned:
            return
        started = time.perf_counter()
        job = uuid.uuid4().hex
        known = read_quarantine(self.buffer, planned)
        wanted = [found for found in known if isinstance(found, LeftOut)]
        try:
            reports = self._job(wanted, job)
        except JobFailed as error:
            self._forget(planned, job)
            if len(planned) == 1:
                yield Failed(range_of(planned[0]), error)
                return
        else:
            for one, left_out in zip(planned, known, strict=True):
                outcome = self._committed(one, left_out, reports.get(range_of(one), []), started)
                self._forget([one], job)
                yield outcome
            return
        batches = amount = 0
        for one in planned:
            progress = _beyond(self.progress, batches, amount)
            yield from dataclasses.replace(self, progress=progress).outcomes([one])
            batches += len(one.batches)
            amount += one.size

    def _committed(
        self, one: RangeObject, left_out: LeftOut | ObjbufError, reports: Sequence[Report], started: float
    ) -> Landed | Failed:
        if isinstance(left_out, ObjbufError):
            return Failed(range_of(one), left_out)
        return commit(
            one,
            reports,
            self.table,
            started,
            self.run_id,
            verify=self.verify,
            dry_run=self.dry_run,
            left_out=left_out,
            dead_letters=self.dead_letters,
        )

    def _forget(self, planned: Sequence[RangeObject], job: str) -> None:
        """Delete what a dry run wrote, also what its tasks could not report; what stays is garbage for `maintain`."""
        if self.dry_run:
            for one in planned:
                with contextlib.suppress(ObjbufError):
                    self.table.store.delete([path for path, _, _ in _written(self.table.store, one, job)])

    def _job(self, wanted: Sequence[LeftOut], job: str) -> dict[SequenceRange, list[Report]]:
        planned = [one.planned for one in wanted]
        task = Task(self.buffer.fetcher(), self.buffer.manifest_path, self.table.store, job)
        by_range: dict[SequenceRange, list[Report]] = {}
        with _reporting(self.progress, self.table.store, planned, job):
            for report in tasks.reports(
                self.spark,
                lambda cores: [share for one in wanted for share in shares(one.planned, cores, one.sequences)],
                task,
                REMEDY,
            ):
                by_range.setdefault(report.range, []).append(report)
        return by_range


def _beyond(progress: Progress | None, batches: int, amount: int) -> Progress | None:
    """The same, for ranges that come after others."""
    return None if progress is None else lambda more, size: progress(batches + more, amount + size)


def shares(planned: RangeObject, cores: int, without: Collection[int] = ()) -> list[Share]:
    """What each task of a range gets, if it lands without these sequences."""
    batches = planned.batches
    if without:
        batches = tuple(batch for batch in batches if batch.descriptor.sequence not in without)
    if not batches:
        return []
    packed = pack_for([cost(batch) for batch in batches], cores, TASK_BYTES, _WORTH_A_TASK)
    return [Share(range_of(planned), batches[part.start : part.stop]) for part in packed]


def commit(
    planned: RangeObject,
    reports: Iterable[Report],
    table: LakeTable,
    started: float,
    run_id: str | None,
    *,
    verify: bool = False,
    dry_run: bool = False,
    left_out: LeftOut | None = None,
    dead_letters: LakeTable | None = None,
) -> Landed | Failed:
    """The range as these reports of its tasks say it is; nothing, if one failed or they are not exactly the range.

    verify, dry_run, dead_letters: as for `land`, but no file is deleted.
    left_out: what the tasks were told to leave out; nothing, and nobody asks for it, unless given.
    """
    wanted = range_of(planned)
    reports = list(reports)
    for report in reports:
        if report.error is not None:
            return Failed(wanted, report.error)
    done = sorted(sequence for report in reports for sequence in report.sequences)
    quarantined = left_out.batches if left_out is not None else ()
    without = {one.sequence for one in quarantined}
    expected = [sequence for sequence in range(planned.start, planned.end + 1) if sequence not in without]
    if done != expected:
        # Never seen; but what must not be in the table twice or in parts is worth a look before the commit.
        return Failed(wanted, JobFailed(f"range {wanted}: {_mismatch(expected, done)}; {REMEDY}"))
    files = [file for report in reports for file in report.files]
    names = [batch.descriptor.location for batch in planned.batches]
    checks: tuple[RangeCheck, ...] = ()
    version: int | None = None
    try:
        if verify:
            checks = _verified(planned, reports, table, files, without)
        if left_out is not None:
            version = left_out.commit(table, files, dead_letters, run_id, dry_run=dry_run)
        elif dry_run:
            table.check(wanted.key, files, batches=names)
        else:
            version = table.commit(wanted.key, files, epoch=planned.epoch, run_id=run_id, batches=names).version
    except ObjbufError as error:
        return Failed(wanted, error)
    spent: dict[str, float] = {}
    for report in reports:
        for what, seconds in report.seconds.items():
            spent[what] = spent.get(what, 0) + seconds
    return Landed(
        wanted,
        batches=len(done),
        rows=sum(file.rows for file in files),
        bytes_read=sum(report.bytes_read for report in reports),
        bytes_written=sum(file.size for file in files),
        files=len(files),
        seconds=time.perf_counter() - started,
        version=version,
        task_seconds=spent,
        checks=checks,
        quarantined=quarantined,
    )


def _verified(
    planned: RangeObject,
    reports: Iterable[Report],
    table: LakeTable,
    files: Sequence[DataFile],
    quarantined: Collection[int],
) -> tuple[RangeCheck, ...]:
    """The checks of a range, all passed. Raises CheckFailed, and what keeps its files from being read."""
    # A task that tells fewer counts than batches fails the check, and is no reason to stop here.
    told = {n: count for report in reports for n, count in zip(report.sequences, report.records, strict=False)}
    checks = check_range(table, planned, files, told, quarantined)
    if not all(check.passed for check in checks):
        raise CheckFailed(range_of(planned).key, checks)
    return checks


def _mismatch(expected: Sequence[int], done: Sequence[int]) -> str:
    counted = Counter(done)
    counted.subtract(expected)
    missing = [sequence for sequence, more in counted.items() if more < 0]
    beyond = [sequence for sequence, more in counted.items() if more > 0]
    return f"tasks report too few of the sequences {missing[:5]} and too many of {beyond[:5]}"


@contextlib.contextmanager
def _reporting(progress: Progress | None, store: Store, planned: Sequence[RangeObject], job: str) -> Iterator[None]:
    """Tell how far the tasks are, from the names of the files they wrote: this works on every kind of Spark."""
    if progress is None:
        yield
        return
    tell = progress
    sizes = {batch.descriptor.sequence: batch.size or 0 for one in planned for batch in one.batches}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            with contextlib.suppress(ObjbufError):
                so_far = _so_far(store, planned, job, sizes)
                if not ended.is_set():  # what a slow store tells late is less than all
                    tell(*so_far)

    watcher = threading.Thread(target=watch, name="objbuf-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(_LAST_LOOK_SECONDS)  # a store that hangs must not hold up the commit
    tell(len(sizes), sum(sizes.values()))


def _so_far(store: Store, planned: Sequence[RangeObject], job: str, sizes: Mapping[int, int]) -> tuple[int, int]:
    done: set[int] = set()
    for one in planned:
        for _, first, last in _written(store, one, job):
            done.update(range(first, last + 1))
    return len(done), sum(sizes.get(sequence, 0) for sequence in done)


def _written(store: Store, planned: RangeObject, job: str) -> Iterator[tuple[str, int, int]]:
    """The files that this job has written of a range: path, first and last sequence."""
    for info in store.list(folder_of(range_of(planned).key)):
        name = FILE_NAME.search(info.path)
        if name is not None and name[3] == job:
            yield info.path, int(name[1]), int(name[2])
