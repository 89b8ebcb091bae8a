"""What a task holds in memory, and what its end means: for its own range, whatever it was, and for no other."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import range_of
from objbuf_dagster.spark.landing import Failed, Landed, commit, land_all
from objbuf_dagster.spark.worker import Report
from objbuf_dagster.store import LocalStore
from tests.spark.landing import Deadly, Filled, rows_in

REPOSITORY = Path(__file__).parents[2]

_LAND = """
import os, sys
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, encode_batch
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.worker import Share, Task
from objbuf_dagster.store import LocalStore

folder, number, compression = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = LocalStore(folder)
batches = []
for sequence in range(number):
    location = f"ingest/{sequence}.batch"
    data = encode_batch([os.urandom(8192) for _ in range(1024)], compression)
    store.put(location, data)
    batches.append(PlannedBatch(BatchDescriptor(sequence, location), len(data)))
task = Task(BufferPlace(store).fetcher(), "ingest/manifest", LocalStore(folder + "/lake"), "0" * 32)
report = task.do(Share(SequenceRange(0, number - 1), tuple(batches)))
assert report.error is None and report.sequences == tuple(range(number))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]
print(sum(file.rows for file in report.files), len(report.files), int(peak) // 1024)
"""


def land_batches(folder: Path, batches: int, compression: str) -> tuple[int, int, int]:
    """Rows, files, and the peak in MiB of a process that lands so many batches of 8 MiB that cannot be compressed."""
    command = [sys.executable, "-c", _LAND, str(folder), str(batches), compression]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=120)
    rows, files, peak = map(int, ran.stdout.split())
    return rows, files, peak


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell a process's peak")
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_long_share_needs_no_more_memory_than_one_file(compression: str, tmp_path: Path) -> None:
    rows, files, short = land_batches(tmp_path / "short", 17, compression)
    assert (rows, files) == (17 * 1024, 2)

    rows, files, long = land_batches(tmp_path / "long", 51, compression)
    assert (rows, files) == (51 * 1024, 4)
    assert long < short + 48, f"{short} MiB for 136 MiB of batches, {long} MiB for 408 MiB"


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ([(0, 1)], r"too few of the sequences \[2\]"),
        ([(0, 1), (1,)], r"too few of the sequences \[2\] and too many of \[1\]"),
        ([(0, 1), (3,)], r"too few of the sequences \[2\] and too many of \[3\]"),
        ([(0, 1, 2), (2,)], r"too few of the sequences \[\] and too many of \[2\]"),
    ],
)
def test_reports_that_do_not_cover_the_range_commit_nothing(
    reported: list[tuple[int, ...]], message: str, small: Filled, table: LakeTable
) -> None:
    wanted = range_of(small.ranges[0])
    reports = [Report(wanted, sequences) for sequences in reported]

    outcome = commit(small.ranges[0], reports, table, 0.0, None)

    assert isinstance(outcome, Failed)
    with pytest.raises(JobFailed, match=message):
        raise outcome.error
    assert not table.exists()


class Unlucky(LocalStore):
    """A store that fails as no store should when one of its objects is read."""

    def __init__(self, root: Path, ending: str) -> None:
        super().__init__(root)
        self.ending = ending

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        if path.endswith(self.ending):
            raise MemoryError("this is the reason")
        return super().read(path, max_bytes=max_bytes)


def test_an_error_that_nobody_expects_fails_its_range_and_no_other(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    place = dataclasses.replace(small.place, store=Unlucky(tmp_path / "buffer", "4.batch"))

    first, failed, third = land_all(spark, place, small.ranges, table)

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, JobFailed)
    location = small.batches[4].descriptor.location
    assert str(failed.error) == (
        f"range {range_of(small.ranges[1])}, at sequence 4, {location}: MemoryError: this is the reason; "
        "nothing was committed: land it again"
    )
    assert isinstance(first, Landed)
    assert isinstance(third, Landed)
    assert rows_in(spark, table) == small.rows(0, 2)


def test_a_range_that_kills_its_worker_fails_alone(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    place = dataclasses.replace(small.place, store=Deadly(tmp_path / "buffer", "4.batch"))
    told: list[tuple[int, int]] = []

    outcomes = list(land_all(spark, place, small.ranges, table, progress=lambda *so_far: told.append(so_far)))

    first, failed, third = outcomes
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, JobFailed)
    assert failed.range == range_of(small.ranges[1])
    assert isinstance(first, Landed)
    assert isinstance(third, Landed)
    assert rows_in(spark, table) == small.rows(0, 2)
    assert told[-1] == (9, sum(one.size for one in small.ranges))
