"""Landing in processes that race and die: the table has each range whole, once, as it was or as it is now."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import range_of
from objbuf_dagster.spark.landing import land
from objbuf_dagster.store import Conflict, LocalStore, Payload
from tests.spark.landing import Filled, fill, rows_in
from tests.spark.processes import descendants, is_alive, leftovers, python, wait_until
from tests.spark.rows import batch, entries

_LAND = """
import sys
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.spark.landing import land
from objbuf_dagster.spark.session import session
from objbuf_dagster.store import Conflict, LocalStore, Payload

place = BufferPlace(LocalStore({buffer!r}))
ranges = RangeLedger(place.store).list()
table = LakeTable({lake!r})
with session(master="local[1]") as spark:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in {numbers!r}:
        print(land(spark, place, ranges[number], table).rows, flush=True)
"""


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    made = [batch(n, entries(2000, 500, seed=n)) for n in range(6)]
    return fill(LocalStore(tmp_path / "buffer"), made, per_range=2)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake/entries")


class Lander:
    """A process with a Spark of its own that waits for the word, then lands these ranges one after the other."""

    def __init__(self, directory: Path, name: str, numbers: list[int]) -> None:
        code = _LAND.format(buffer=str(directory / "buffer"), lake=str(directory / "lake/entries"), numbers=numbers)
        (directory / name).mkdir()
        self.directory = directory / name
        self.process = python(code, self.directory)

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        assert found == line, self.process.communicate()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        output, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        assert not leftovers(self.directory), output

    def kill(self) -> None:
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.communicate()
        wait_until(lambda: not any(map(is_alive, below)))


@pytest.fixture
def landers(tmp_path: Path) -> Iterator[list[Lander]]:
    """Processes that a test started; none of them is left."""
    started: list[Lander] = []
    yield started
    for lander in started:
        if lander.process.poll() is None:
            lander.kill()


def rows_by_range(table: LakeTable) -> dict[str, int]:
    found = table.delta().to_pyarrow_table(columns=["_odb_range"]).group_by("_odb_range").aggregate([([], "count_all")])
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_processes_that_land_the_same_and_other_ranges_at_once_leave_each_once(
    filled: Filled, table: LakeTable, tmp_path: Path, landers: list[Lander], spark: SparkSession
) -> None:
    orders = [[0, 0, 0, 1], [0, 0, 0, 2], [2, 1, 0, 0]]
    landers += [Lander(tmp_path, f"lander-{number}", order) for number, order in enumerate(orders)]
    for lander in landers:
        lander.expect("ready")

    for lander in landers:
        lander.go()
    for lander in landers:
        lander.end()

    assert rows_in(spark, table) == filled.rows()
    version = table.version()
    assert version is not None
    assert version == 12, "a commit for each landing"


def test_a_driver_killed_at_any_moment_leaves_ranges_whole(
    filled: Filled, table: LakeTable, tmp_path: Path, landers: list[Lander], spark: SparkSession
) -> None:
    rng = random.Random(5)
    expected = {range_of(planned).key: len(filled.rows(number)) for number, planned in enumerate(filled.ranges)}
    for kill in range(2):
        lander = Lander(tmp_path, f"lander-{kill}", [0, 1, 2] * 100)
        landers.append(lander)
        lander.expect("ready")
        lander.go()
        lander.expect(str(expected[range_of(filled.ranges[0]).key]))  # one has landed, and it goes on
        threading.Event().wait(rng.uniform(0, 1.0))

        lander.kill()

        for key, rows in rows_by_range(table).items():
            assert rows == expected[key], "half a range"

    for planned in filled.ranges:
        land(spark, filled.place, planned, table)
    assert rows_in(spark, table) == filled.rows()


def test_a_killed_worker_fails_the_job_and_commits_nothing(
    spark: SparkSession, table: LakeTable, tmp_path: Path
) -> None:
    much = fill(LocalStore(tmp_path / "much"), [batch(n, entries(60_000, 500, seed=n)) for n in range(4)], per_range=4)
    land(spark, much.place, much.ranges[0], table)  # workers are there now
    version = table.version()
    stop = threading.Event()

    def land_often() -> None:
        """A busy machine may look for workers too seldom to meet any."""
        nonlocal version
        for _ in range(10):
            version = table.version()
            land(spark, much.place, much.ranges[0], table)

    def kill_workers() -> None:
        while not stop.wait(0.01):
            for pid, command in descendants(os.getpid()).items():
                if "pyspark.daemon" in command:
                    for worker in descendants(pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        with pytest.raises(JobFailed, match="nothing was committed: land it again"):
            land_often()
    finally:
        stop.set()
        killer.join()

    assert table.version() == version
    assert land(spark, much.place, much.ranges[0], table).rows == len(much.rows())
    assert rows_in(spark, table) == much.rows()


class DeadlyOnce(LocalStore):
    """A store that kills the first who writes to it, when that is done."""

    def __init__(self, root: Path, died: Path) -> None:
        super().__init__(root)
        self.died = died

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        done = super().put(path, data, if_version=if_version, if_absent=if_absent)
        if not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def test_a_task_that_dies_behind_its_file_is_tried_again_and_its_rows_are_there_once(
    cluster_spark: SparkSession, filled: Filled, table: LakeTable, tmp_path: Path
) -> None:
    table.store = DeadlyOnce(tmp_path / "lake/entries", tmp_path / "died")

    landed = land(cluster_spark, filled.place, filled.ranges[0], table)

    assert (tmp_path / "died").exists()
    assert rows_in(cluster_spark, table, native=False) == filled.rows(0)
    written = list((tmp_path / "lake/entries").rglob("_odb_range=*/*.parquet"))
    assert len(written) == landed.files + 1 == len(table.files()) + 1, "the first attempt's is garbage"
