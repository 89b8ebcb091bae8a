"""How a landing's work is cut into tasks, and how the pieces get to them: one each, and nothing beside."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import BatchDescriptor, Metadata, PlannedBatch, RangeObject
from objbuf_dagster.spark.landing import TASK_BYTES, land, shares
from objbuf_dagster.spark.packing import cost
from objbuf_dagster.spark.reading import read
from objbuf_dagster.spark.tasks import job_errors, reason, share_tasks
from objbuf_dagster.spark.worker import Task
from objbuf_dagster.store import LocalStore
from tests.spark.landing import fill
from tests.spark.rows import batch
from tests.support.s3 import S3Location

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def planned(*sizes: int, payload: bytes = b"") -> RangeObject:
    metadata = (Metadata(0, 1, payload),)
    made = (PlannedBatch(BatchDescriptor(n, f"ingest/{n}", metadata), size) for n, size in enumerate(sizes))
    return RangeObject(0, len(sizes) - 1, 0, 0, tuple(made))


def sequences(one: RangeObject, cores: int) -> list[list[int]]:
    return [[batch.descriptor.sequence for batch in share.batches] for share in shares(one, cores)]


def test_a_range_is_packed_by_size_and_every_batch_is_in_one_share() -> None:
    one = planned(*[8 << 20, 100, 1 << 20, 3 << 20] * 60)

    found = sequences(one, cores=2)

    assert [sequence for share in found for sequence in share] == list(range(240))
    costs = [sum(cost(one.batches[sequence]) for sequence in share) for share in found]
    assert max(costs) < 2 * min(costs)
    assert max(costs) < 1.2 * TASK_BYTES


@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_tasks_are_whole_rounds_for_the_cores(cores: int) -> None:
    one = planned(*[4 << 20] * 500)

    assert len(shares(one, cores)) % cores == 0


def test_tiny_batches_are_spread_since_each_costs_a_get() -> None:
    found = sequences(planned(*[100] * 100_000), cores=64)

    assert len(found) == 128
    assert max(map(len, found)) < 1000


def test_metadata_counts_as_what_a_task_has_to_hold() -> None:
    one = planned(*[100] * 300, payload=bytes(1 << 20))

    assert len(shares(one, cores=1)) == 5


def test_a_huge_batch_is_alone_in_its_share() -> None:
    found = sequences(planned(1000, 1000, 900 << 20, 1000, 1000), cores=4)

    assert [2] in found


def test_a_small_range_is_one_task() -> None:
    assert sequences(planned(*[1000] * 20), cores=64) == [list(range(20))]


def rows_of_each_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    found = [share for batch in batches for share in batch.column("share").to_pylist()]
    yield pa.record_batch([pa.array([len(found)], pa.int64()), pa.array([b"".join(found)])], names=["rows", "shares"])


def check_each_share_has_a_task(spark: SparkSession) -> None:
    """Both those that go with the function and those that are too much for that."""
    for number, padding in ((1, 0), (2, 0), (13, 0), (1, 600_000), (3, 300_000), (13, 50_000)):
        sent = [b"%d" % n + bytes(padding) for n in range(number)]

        rows = share_tasks(spark, sent, rows_of_each_task, "rows long, shares binary").collect()

        assert sorted((row["rows"], bytes(row["shares"])) for row in rows) == sorted((1, share) for share in sent)


def test_each_share_has_a_task_of_its_own(spark: SparkSession) -> None:
    check_each_share_has_a_task(spark)


def test_each_share_has_a_task_of_its_own_through_spark_connect(connect_spark: SparkSession) -> None:
    check_each_share_has_a_task(connect_spark)


def test_shares_larger_than_what_spark_would_write_to_a_file_arrive(spark: SparkSession) -> None:
    sent = [bytes([number]) * (2 << 20) for number in range(3)]

    rows = share_tasks(spark, sent, rows_of_each_task, "rows long, shares binary").collect()

    assert sorted(bytes(row["shares"]) for row in rows) == sent


def raise_memory_error(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise MemoryError("this is the reason")


def kill_the_worker(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), 9)
    yield from ()


def check_the_reason_is_told(spark: SparkSession) -> None:
    with pytest.raises(JobFailed) as raised, job_errors("do it again"):
        share_tasks(spark, [b"x"], raise_memory_error, "share binary").collect()

    assert str(raised.value) == "Spark ended the job: MemoryError: this is the reason; do it again"


def test_what_a_worker_raises_is_the_reason(spark: SparkSession) -> None:
    check_the_reason_is_told(spark)


def test_what_a_worker_raises_is_the_reason_through_spark_connect(connect_spark: SparkSession) -> None:
    check_the_reason_is_told(connect_spark)


def test_a_killed_worker_is_told_as_such(spark: SparkSession) -> None:
    with pytest.raises(JobFailed, match=r"worker exited unexpectedly") as raised, job_errors("do it again"):
        share_tasks(spark, [b"x"], kill_the_worker, "share binary").collect()

    assert "\n" not in str(raised.value)


def test_a_spark_that_is_gone_fails_the_job() -> None:
    with pytest.raises(JobFailed, match=r"Connection refused; do it again"), job_errors("do it again"):
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_interrupt_is_one_also_when_telling_the_jvm_of_it_fails() -> None:
    """As in Py4J's `send_command`; the range would be called failed otherwise, and the next one begun."""

    def send() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Py4JNetworkError("Answer from Java side is empty")  # noqa: B904  as Py4J does

    with pytest.raises(KeyboardInterrupt), job_errors("do it again"):
        send()


def test_errors_that_are_not_sparks_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), job_errors("do it again"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            (
                "x\nTraceback (most recent call last):\n  File\n    f()\nValueError: first\n\nDuring that:\n"
                "\nTraceback (most recent call last):\n  File\nKeyError: 'last'\n\n\tat org.apache.x(y)"
            ),
            "KeyError: 'last'",
        ),
        (
            "Job aborted\n\tat a.b\nCaused by: java.io.IOException: No space left\n\tat c.d",
            "Job aborted (java.io.IOException: No space left)",
        ),
        ("Job aborted: crashed\n\tat a.b\nCaused by: java.io.EOFException\n\tat c.d", "Job aborted: crashed"),
    ],
)
def test_the_line_that_tells_most_is_the_reason(said: str, line: str) -> None:
    assert reason(RuntimeError(said)) == line


def test_the_function_is_small_and_reports_what_it_landed(tmp_path: Path, spark: SparkSession) -> None:
    """Above 1 MiB Spark writes it to a plain file, and it has the credentials of the stores."""
    from pyspark import cloudpickle

    filled = fill(LocalStore(tmp_path / "buffer"), [batch(n, [b"x"]) for n in range(3)], per_range=3)
    task = Task(filled.place.fetcher(), filled.place.manifest_path, LakeTable(tmp_path / "lake").store, "0" * 32)

    assert len(cloudpickle.dumps(task)) < 10_000  # type: ignore[no-untyped-call]
    sent = [pickle.dumps(share) for share in shares(filled.ranges[0], 1)]
    (row,) = share_tasks(spark, sent, task, "report binary").collect()
    assert pickle.loads(row["report"]).sequences == (0, 1, 2)


def test_credentials_show_in_no_plan(spark: SparkSession, trusting_s3: S3Location, tmp_path: Path) -> None:
    filled = fill(LocalStore(tmp_path / "buffer"), [batch(0, [b"x"])], per_range=1)
    secret = "m4rk0f4s3cret"  # noqa: S105
    location = S3Location(trusting_s3.url, {**trusting_s3.options, "secret_access_key": secret, "token": secret})
    table = LakeTable(location.url, options=location.options)
    land(spark, filled.place, filled.ranges[0], table)
    place = dataclasses.replace(filled.place, store=location.open())
    task = Task(place.fetcher(), place.manifest_path, table.store, "0" * 32)
    shown = io.StringIO()

    with contextlib.redirect_stdout(shown):
        for frame in (share_tasks(spark, [b"x"], task, "report binary"), read(spark, table)):
            frame.explain(extended=True)
            frame.explain("formatted")
            print(frame)
        print(task, table)

    assert shown.getvalue().count("MapInArrow") > 2
    assert secret not in shown.getvalue()
