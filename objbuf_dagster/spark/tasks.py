"""Work shared out to Spark, a share to each task, and what Spark says when it ends a job."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from objbuf_dagster.errors import JobFailed, ObjbufError
from objbuf_dagster.lake import Column
from objbuf_dagster.spark.session import prepare
from objbuf_dagster.spark.shipping import executor_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Share = TypeVar("Share")
Report = TypeVar("Report")

TaskFunction = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]

_UNKNOWN_CORES = 8
_WITH_THE_FUNCTION = 512 << 10
_LONGEST_REASON = 300
_NOISE = re.compile(r"^(An error occurred while calling \S+\.?|at .*|Traceback .*|JVM stacktrace:|Driver stacktrace:)$")
_TRACEBACK = "Traceback (most recent call last):"


def share_tasks(
    spark: SparkSession,
    shares: Sequence[bytes],
    function: TaskFunction,
    ddl: str,
) -> DataFrame:
    """What `function` makes of rows that have one of the shares in their column `share`, each in a task of its own.

    Few go with the function, which is fast. Many would go to every task, and Spark writes a large function to its
    disk, credentials and all: they are rows of their own, at the price of a shuffle.
    """
    if sum(map(len, shares)) <= _WITH_THE_FUNCTION:
        numbers = prepare(spark).range(0, len(shares), 1, len(shares))
        return numbers.mapInArrow(_Carried(tuple(shares), function), ddl)
    rows = [(number, bytearray(share)) for number, share in enumerate(shares)]
    frame = prepare(spark).createDataFrame(rows, "number long, share binary")
    # As many numbers as partitions, all known to whoever draws the borders, make a partition of each; hashes would put
    # several into one task.
    return frame.repartitionByRange(len(rows), "number").mapInArrow(function, ddl)


@dataclass(frozen=True, slots=True)
class _Carried:
    """A function with its shares, for rows that are their numbers."""

    shares: tuple[bytes, ...]
    function: TaskFunction = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            shares = [self.shares[number] for number in batch.column(0).to_pylist()]
            yield from self.function(iter([pa.record_batch([pa.array(shares, pa.binary())], names=["share"])]))


def ddl(columns: Iterable[Column]) -> str:
    """A table's columns in Spark's words."""
    return ", ".join(f"`{column.name}` {column.type}{'' if column.nullable else ' NOT NULL'}" for column in columns)


@contextlib.contextmanager
def job_errors(remedy: str) -> Iterator[None]:
    """Around what runs a job, and nothing else: what Spark raises, page after page, in one line, and the remedy.

    Raises ExecutorNotReady or JobFailed, with Spark's own as the cause, and KeyboardInterrupt.
    """
    try:
        with executor_errors():
            yield
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise_interrupt(error)
        raise JobFailed(f"Spark ended the job: {reason(error)}; {remedy}") from error


def raise_interrupt(error: BaseException) -> None:
    """Raise KeyboardInterrupt if that is what this error of Spark's is about.

    When Py4J is interrupted it tells the JVM so, and what fails in that takes the place of the interrupt.
    """
    seen = error
    while seen.__context__ is not None:
        seen = seen.__context__
        if isinstance(seen, KeyboardInterrupt):
            raise KeyboardInterrupt from error


def _is_sparks(error: Exception) -> bool:
    """Errors of Spark, and those of the way to it: when its JVM is gone, Py4J lets the socket's own pass."""
    if isinstance(error, ObjbufError):
        return False
    return isinstance(error, OSError) or type(error).__module__.startswith(("pyspark.", "py4j.", "grpc."))


def reason(error: BaseException) -> str:
    """What Spark says, in one line: its exceptions carry whole stack traces."""
    text = str(error)
    said = _raised(text) or _first_said(text) or type(error).__name__
    said = re.sub(r"^(?:[a-z]\w*\.)+([A-Z]\w*(?:: |$))", r"\1", said)  # an exception's class, without its package
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}..."


def _raised(text: str) -> str:
    """What a Python worker raised: the line that ends the last traceback, where the frames before it are indented."""
    _, found, frames = text.rpartition(_TRACEBACK)
    lines = frames.splitlines()[1:] if found else []
    return next((line.strip() for line in lines if line and not line[0].isspace()), "")


def _first_said(text: str) -> str:
    """The first line that is none of those that stand before every error; Java's last cause, if that one says more."""
    lines = [line.strip().lstrip(": ") for line in text.splitlines()]
    said = next((line for line in lines if line and not _NOISE.match(line)), "")
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = [cause for cause in causes if ": " in cause and cause.partition(": ")[2] not in said]
    return f"{said} ({told[-1]})" if told else said


def shares_in(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """What such a function gets."""
    for batch in batches:
        yield from batch.column("share").to_pylist()


class ReportingTask(ABC, Generic[Share, Report]):
    """The function that Spark runs, where each share is a value of the driver's and gives one report.

    It has the stores' credentials and goes to every task, so it must stay small: what is large, Spark writes to disk.
    """

    __slots__ = ()

    @abstractmethod
    def do(self, share: Share) -> Report:
        """What one share gives. Errors of a range belong into its report: raised, they would stop all other ranges too,
        and Spark would hide what they say. ImportError is raised: the executor lacks something, for all ranges alike,
        and the driver says what, and how to get it."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for share in shares_in(batches):
            report = self.do(pickle.loads(share))  # noqa: S301  the driver made it
            yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])


def unexpected(where: str, error: Exception, remedy: str) -> JobFailed:
    """What a report says of an error that is none of ours: memory, libraries, defects."""
    said = f"{type(error).__name__}: {error}".rstrip(": ")[:_LONGEST_REASON]
    return JobFailed(f"{where}: {said}; {remedy}")


def reports(
    spark: SparkSession, cut: Callable[[int], Iterable[Share]], task: ReportingTask[Share, Report], remedy: str
) -> list[Report]:
    """Run a job with the shares that `cut` makes for so many cores, and return their reports, in no order.

    Raises as `job_errors`.
    """
    with job_errors(remedy):
        shares = [pickle.dumps(share) for share in cut(parallelism(spark))]
        rows = share_tasks(spark, shares, task, "report binary").collect() if shares else []
    return [pickle.loads(row["report"]) for row in rows]  # noqa: S301  our own tasks wrote it


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session can run at a time, as far as its settings tell."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", spark.conf.get("spark.master", None) or "")
    if local is not None:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    if (stated := spark.conf.get("spark.default.parallelism", None)) is not None:
        return max(1, int(stated))
    executors = spark.conf.get("spark.executor.instances", None)
    return (
        max(1, int(executors) * int(spark.conf.get("spark.executor.cores", None) or 1)) if executors else _UNKNOWN_CORES
    )
