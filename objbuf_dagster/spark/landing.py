"""A range becomes rows of a table: tasks fetch, check and write its batches, the driver commits once.

Tasks write files under names of their own, which nobody refers to until the commit; the commit replaces exactly the
range. So a task, a driver or a commit may die at any point, run twice, or run twice at a time: the table has the range
as it was or as it is now, and files left behind are garbage for `maintain`.

Only DataFrames are used, so the same code runs on a local session, a cluster and Spark Connect.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import LakeTable, folder_of
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.spark.packing import pack
from objbuf_dagster.spark.tasks import job_errors, number_tasks, parallelism
from objbuf_dagster.spark.worker import FILE_NAME, Report, Share, Task
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20
"""Stored bytes of batches that a task gets, more or less: what it holds in memory for one file."""

_WORTH_A_TASK = 4 << 20
_PROGRESS_SECONDS = 0.5

Progress = Callable[[int, int], None]
"""Called with the batches and stored bytes that are written so far, of all ranges of the call."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A range that is in the table.

    bytes_read: of the batch objects. bytes_written: of the Parquet files.
    seconds: from the start of the job that it was part of to its commit.
    task_seconds: what its tasks spent on what, added up: waiting for batches, checking, building and writing files.
    """

    range: SequenceRange
    batches: int
    rows: int
    bytes_read: int
    bytes_written: int
    files: int
    seconds: float
    version: int
    task_seconds: Mapping[str, float] = field(default_factory=dict)


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
) -> Landed:
    """Put exactly the rows of this range into the table, in place of those it may have of it already.

    Safe to repeat, and to run twice at a time. Raises what is wrong with a batch (CorruptData, NotFound, ..., naming
    sequence and location) or with a store; then nothing is committed.
    """
    (outcome,) = land_all(spark, buffer, [planned], table, run_id=run_id, progress=progress)
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
) -> Iterator[Landed | Failed]:
    """Several ranges in one Spark job, one commit each, in the order given. One that fails does not stop the others."""
    if not planned:
        return
    started = time.perf_counter()
    todo = [share for one in planned for share in shares(one, parallelism(spark))]
    job = uuid.uuid4().hex
    task = Task(tuple(map(pickle.dumps, todo)), buffer.fetcher(), buffer.manifest_path, table.store, job)
    with _reporting(progress, table.store, planned, job):
        reports = _run(spark, task)
    by_range: dict[SequenceRange, list[Report]] = {}
    for report in reports:
        by_range.setdefault(report.range, []).append(report)
    for one in planned:
        yield _commit(one, by_range.get(range_of(one), []), table, started, run_id)


def shares(planned: RangeObject, cores: int) -> list[Share]:
    sizes = [batch.size or 0 for batch in planned.batches]
    total = sum(sizes)
    tasks = -(-total // TASK_BYTES)
    at_least = min(-(-tasks // cores) * cores, -(-total // _WORTH_A_TASK))  # whole rounds: no core idles in the last
    packed = pack(sizes, TASK_BYTES, max(at_least, 1))
    return [Share(range_of(planned), planned.batches[part.start : part.stop]) for part in packed]


def _run(spark: SparkSession, task: Task) -> list[Report]:
    with job_errors("nothing was committed: land it again"):
        rows = number_tasks(spark, len(task.shares), task, "report binary").collect()
    return [pickle.loads(row["report"]) for row in rows]  # noqa: S301  our own tasks wrote it


def _commit(
    planned: RangeObject, reports: Iterable[Report], table: LakeTable, started: float, run_id: str | None
) -> Landed | Failed:
    wanted = range_of(planned)
    reports = list(reports)
    for report in reports:
        if report.error is not None:
            return Failed(wanted, report.error)
    if (done := sum(report.batches for report in reports)) != len(planned.batches):
        # Never seen; but what must not be in the table twice or in parts is worth a look before the commit.
        return Failed(wanted, ObjbufError(f"range {wanted}: tasks report {done} of {len(planned.batches)} batches"))
    files = [file for report in reports for file in report.files]
    try:
        commit = table.commit(wanted.key, files, epoch=planned.epoch, run_id=run_id)
    except ObjbufError as error:
        return Failed(wanted, error)
    spent: dict[str, float] = {}
    for report in reports:
        for what, seconds in report.seconds.items():
            spent[what] = spent.get(what, 0) + seconds
    return Landed(
        wanted,
        batches=done,
        rows=sum(file.rows for file in files),
        bytes_read=sum(report.bytes_read for report in reports),
        bytes_written=sum(file.size for file in files),
        files=len(files),
        seconds=time.perf_counter() - started,
        version=commit.version,
        task_seconds=spent,
    )


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
                tell(*_so_far(store, planned, job, sizes))

    watcher = threading.Thread(target=watch, name="objbuf-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    tell(len(sizes), sum(sizes.values()))


def _so_far(store: Store, planned: Sequence[RangeObject], job: str, sizes: Mapping[int, int]) -> tuple[int, int]:
    done: set[int] = set()
    for one in planned:
        for info in store.list(folder_of(range_of(one).key)):
            name = FILE_NAME.search(info.path)
            if name is not None and name[3] == job:
                done.update(range(int(name[1]), int(name[2]) + 1))
    return len(done), sum(sizes.get(sequence, 0) for sequence in done)
