"""Work shared out to Spark by the number of the task: no data goes in but what the function carries."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import Column
from objbuf_dagster.spark.session import prepare
from objbuf_dagster.spark.shipping import executor_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_UNKNOWN_CORES = 8


def number_tasks(
    spark: SparkSession,
    number: int,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    ddl: str,
) -> DataFrame:
    """What `function` makes of rows that are the numbers from 0 to below `number`, each in a task of its own."""
    return prepare(spark).range(0, number, 1, number).mapInArrow(function, ddl)


def ddl(columns: Iterable[Column]) -> str:
    """A table's columns in Spark's words."""
    return ", ".join(f"`{column.name}` {column.type}{'' if column.nullable else ' NOT NULL'}" for column in columns)


@contextlib.contextmanager
def job_errors(remedy: str) -> Iterator[None]:
    """Around what runs a job: what Spark raises, page after page, in one line, and what to do about it.

    Raises ExecutorNotReady or JobFailed, with Spark's own as the cause.
    """
    try:
        with executor_errors():
            yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.", "grpc.")):
            raise
        raise JobFailed(f"Spark ended the job: {_reason(str(error))}; {remedy}") from error


def _reason(text: str) -> str:
    """The line that tells most: the last cause of a Java trace, or the first line."""
    causes = re.findall(r"^Caused by: (.*)$", text, re.MULTILINE)
    return (causes[-1] if causes else text.partition("\n")[0]).strip()[:400]


def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """What such a function gets."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


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
