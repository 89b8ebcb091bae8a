"""JSON decoding while its driver or a worker dies: each entry is a row or a letter, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.errors import JobFailed
from objbuf_dagster.spark.decoding import DecodedRange
from objbuf_dagster.spark.landing import Failed
from tests.spark.decoding import lake_at, landed, letters_in, rows_in
from tests.spark.json_deaths import CASES, WIDE
from tests.support.deaths import steps_of

JOB = LETTERS = TABLE = COMMIT = 1
STEPS = {
    "first": 2 * (JOB + TABLE + COMMIT + TABLE + COMMIT),
    "mended": 2 * (JOB + LETTERS + COMMIT + COMMIT + LETTERS + COMMIT),
    "narrowed": 2 * (JOB + COMMIT + COMMIT),
    "redriven": 2 * (JOB + LETTERS + COMMIT + COMMIT + LETTERS + COMMIT),
}


@pytest.mark.timeout(660)
@pytest.mark.parametrize("case", CASES)
def test_a_driver_that_is_killed_at_any_step_leaves_each_entry_as_a_row_or_as_one_letter(
    case: str, connect_url: str, tmp_path: Path
) -> None:
    """Kill -9 before and after the job, each file, each new table and each commit; another driver does it again."""
    steps = steps_of("tests.spark.json_deaths", tmp_path, connect_url, case, seconds=600, quiet=False)

    assert steps == {case: STEPS[case]}


class Deadly(JsonDecoder):
    """Kills the worker that asks whose an entry is, if it is one of those."""

    def takes(self, payload: bytes | None) -> bool:
        if payload == b"deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().takes(payload)


def test_a_range_that_kills_its_worker_fails_alone_and_is_decoded_once_it_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = [("json", '{"n": 1}'), ("json", '{"n": "one"}')] * 3 + [("deadly", '{"n": 2}'), ("json", "{}")] * 3
    given = landed(spark, tmp_path, texts)
    lake = lake_at(tmp_path, given.filled, WIDE)

    first, failed = lake.decode(spark, Deadly("n BIGINT"))

    assert isinstance(first, DecodedRange)
    assert first.dead_letters == 3
    assert isinstance(failed, Failed)
    with pytest.raises(JobFailed, match="nothing was committed: decode it again"):
        raise failed.error
    assert list(lake.table.ranges()) == [first.range.key]
    lake.succeed(spark, WIDE)
    assert [row["n"] for row in rows_in(lake.table)] == [1, 1, 1, 2, None, 2, None, 2, None]
    assert len(letters_in(lake.dead_letters)) == 3
