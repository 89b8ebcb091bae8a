"""A lake on a real HDFS: landing, racing, reading back by Spark itself, upkeep. See tests/support/hdfs.py.

What one does whose NameNode refuses or is silent needs no real one: tests/store and tests/lake have test_hdfs.py, too.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from objbuf_dagster.errors import NotFound, StorageError, StorageUnavailable
from objbuf_dagster.lake import LakeTable, maintain, stat
from objbuf_dagster.spark.landing import land
from objbuf_dagster.spark.reading import read
from objbuf_dagster.store import Conflict, HdfsStore, LocalStore
from tests.cli.commands import ok
from tests.lake.landings import SPAWN, key, land_rounds, run_all, sequences, start_landing_for_ever, tags
from tests.lake.landings import land as land_here
from tests.lake.states import World, some_entries
from tests.spark.decoding import Words, expected_letters, expected_words, landed, letters_in, words_in
from tests.spark.landing import Filled, fill, rows_in
from tests.spark.rows import batch, entries
from tests.spark.test_decoding import MIXED
from tests.support.hdfs import serving

pytestmark = [
    pytest.mark.skipif(os.environ.get("OBJBUF_TEST_HDFS") != "1", reason="fetches 56 MB: OBJBUF_TEST_HDFS=1 wants it"),
    pytest.mark.timeout(900),  # the first of them fetches it
]

_DIES_WRITING = """
import os, signal, sys
from hdfs_native import Client, WriteOptions
file = Client(sys.argv[1]).create(sys.argv[2], WriteOptions())
file.write(b"{")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture
def lake(server: str, request: pytest.FixtureRequest) -> str:
    """One for each test."""
    return f"{server}/{request.node.name}/lake"


@pytest.fixture
def table(lake: str) -> LakeTable:
    """One that is not there yet."""
    return LakeTable(f"{lake}/entries")


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """Two ranges of two batches."""
    made = [batch(n, entries(500, 200, seed=n)) for n in range(4)]
    return fill(LocalStore(tmp_path / "buffer"), made, per_range=2)


def test_what_landed_is_read_back_by_spark_itself(spark: SparkSession, filled: Filled, table: LakeTable) -> None:
    for planned in filled.ranges:
        land(spark, filled.place, planned, table)

    native = read(spark, table)

    assert native.inputFiles()
    assert all(name.startswith(f"{table.url}/_odb_range=") for name in native.inputFiles())
    plan = native._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan
    assert "MapInArrow" not in plan
    assert rows_in(spark, table) == rows_in(spark, table, native=False) == filled.rows()
    one = read(spark, table, list(table.ranges())[:1])
    assert (one.count(), one.filter("_odb_sequence > 0").count()) == (1000, 500)


def test_landing_again_replaces_the_range(spark: SparkSession, filled: Filled, table: LakeTable) -> None:
    for planned in (*filled.ranges, *filled.ranges):
        land(spark, filled.place, planned, table)

    assert rows_in(spark, table) == filled.rows()
    assert table.version() == 2 * len(filled.ranges)


def test_without_the_settings_of_the_table_spark_reads_through_python(
    spark: SparkSession, filled: Filled, table: LakeTable
) -> None:
    land(spark, filled.place, filled.ranges[0], table)
    elsewhere = LakeTable(table.url, options={"dfs.client.use.datanode.hostname": "false"})

    assert read(spark, elsewhere).inputFiles() == []
    assert rows_in(spark, elsewhere) == filled.rows(0)


def test_rows_are_checked_decoded_and_folded_there(spark: SparkSession, lake: str, tmp_path: Path) -> None:
    made = landed(spark, tmp_path, MIXED, url=lake, verify=True)
    words = Words()

    made.succeed(spark, words)

    assert rows_in(spark, made.entries) == made.filled.rows()
    assert words_in(made.table) == expected_words(words, made.filled.rows())
    assert letters_in(made.dead_letters) == expected_letters(words, made.filled.rows())
    assert read(spark, made.dead_letters).count() == len(MIXED) // 6


def test_a_state_follows_there(lake: str) -> None:
    world = World(lake)
    rng = random.Random(3)
    for start in (0, 3, 6):
        world.land(start, some_entries(rng, 3))
        world.apply()

    assert world.found() == world.expected()
    world.rebuild()
    assert world.found() == world.expected()
    assert maintain(world.state).checkpoint_version is not None


def test_the_commands_land_and_look_after_a_lake(filled: Filled, lake: str, tmp_path: Path) -> None:
    ok("land", "all", "--buffer", str(tmp_path / "buffer"), "--lake", lake, "--master", "local[2]")

    assert len(filled.ranges) == 2
    assert sequences(LakeTable(f"{lake}/entries")) == sorted(row[0] for row in filled.rows())
    assert "2000" in ok("lake", "stat", lake)
    ok("lake", "maintain", lake, "--yes")
    assert "2000" in ok("lake", "stat", lake)


def test_of_commits_behind_one_version_one_wins(table: LakeTable) -> None:
    land_here(table, key(0))
    writers = 6
    for turn in range(1, 6):
        seen = [DeltaTable(table.url) for _ in range(writers)]
        barrier = threading.Barrier(writers)
        won: list[int] = []
        lost: list[int] = []

        def commit(
            number: int,
            seen: list[DeltaTable] = seen,
            barrier: threading.Barrier = barrier,
            won: list[int] = won,
            lost: list[int] = lost,
        ) -> None:
            words = CommitProperties(custom_metadata={"writer": str(number)}, max_commit_retries=0)
            barrier.wait(60)
            try:
                seen[number].create_write_transaction(
                    [], mode="append", schema=seen[number].schema(), commit_properties=words
                )
                won.append(number)
            except CommitFailedError:
                lost.append(number)

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(writers)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)

        assert (len(won), len(lost)) == (1, writers - 1)
        newest = DeltaTable(table.url)
        assert newest.version() == turn + 1
        assert newest.history(1)[0]["writer"] == str(won[0])


def test_two_processes_landing_the_same_range_leave_it_once(table: LakeTable) -> None:
    rounds = 3
    barrier = SPAWN.Barrier(2)
    keys = [key(number) for number in range(rounds)]

    run_all([SPAWN.Process(target=land_rounds, args=(table, barrier, keys, tag)) for tag in (b"left", b"right")])

    assert sequences(table) == list(range(10 * rounds))
    for range_key in keys:
        assert list(tags(table, range_key).values()) == [10], "a range is a mix of two landings"
    assert table.version() == 2 * rounds


def test_a_killed_landing_leaves_the_old_range_or_the_new_one(table: LakeTable) -> None:
    land_here(table, key(0), b"first")
    land_here(table, key(1), b"other")
    chance = random.Random(7)
    for _ in range(3):
        with start_landing_for_ever(pickle.dumps(table)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"landing\n"
            time.sleep(chance.uniform(0, 0.3))
            process.kill()

        assert list(tags(table, key(0)).values()) == [10]
        assert tags(table, key(1)) == {b"other": 10}

    land_here(table, key(0), b"last")
    assert tags(table, key(0)) == {b"last": 10}


def test_a_commit_goes_past_one_that_was_killed_while_it_wrote(server: str, table: LakeTable) -> None:
    land_here(table, key(0), b"first")
    path = f"{table.url.removeprefix(server)}/_delta_log/.{2:020d}.json.tmp.1"  # the name that deltalake tries first
    died = subprocess.run([sys.executable, "-c", _DIES_WRITING, server, path], check=False)
    assert died.returncode == -signal.SIGKILL
    store = HdfsStore(table.url)
    assert path.rpartition("/")[2] in [info.path.rpartition("/")[2] for info in store.list("_delta_log")]

    land_here(table, key(0), b"second")

    assert (table.version(), tags(table, key(0))) == (2, {b"second": 10})
    assert store.tidy("", older_than=-60) == 1
    assert (stat(table).version, tags(table, key(0))) == (2, {b"second": 10})


def test_upkeep_deletes_what_is_old_and_named_by_nobody(server: str, table: LakeTable) -> None:
    from hdfs_native import Client

    for tag in (b"first", b"second"):
        land_here(table, key(0), tag)
    orphan, new = table.new_path(key(5)), table.new_path(key(6))
    temporary = f"_odb_range={key(5)}/.tmp-{0:032x}"
    log = [f"_delta_log/.{9:020d}.json.tmp.1", "_delta_log/._last_checkpoint.tmp.1"]
    root = table.url.removeprefix(server)
    client = Client(server)
    long_ago = int((time.time() - 9 * 86400) * 1000)
    for path in (orphan, temporary, new, *log):
        with client.create(f"{root}/{path}") as file:
            file.write(b"12345")
        if path != new:
            client.set_times(f"{root}/{path}", long_ago, long_ago)

    report = maintain(table)

    assert (report.files_deleted, report.temporary_files_deleted, report.foreign_files) == (1, 1, 0)
    assert report.log_files_deleted == len(log)
    left = [status.path for status in client.list_status(root, recursive=True)]
    assert [path for path in (orphan, temporary, new, *log) if f"{root}/{path}" in left] == [new]
    assert tags(table, key(0)) == {b"second": 10}


def test_a_put_replaces_a_file_unless_told_not_to(lake: str) -> None:
    store = HdfsStore(lake)
    parts = [b"a" * 10, b"b" * (3 << 20), b"c", b""]

    assert store.put("x/one", parts, if_absent=True) is None
    assert isinstance(store.put("x/one", b"other", if_absent=True), Conflict)
    assert store.read("x/one") == b"".join(parts)
    assert store.put("x/one", b"", if_absent=False) is None
    assert (store.read("x/one"), store.head("x/one").size) == (b"", 0)
    assert [info.path for info in pickle.loads(pickle.dumps(store)).list()] == ["x/one"]
    assert store.delete(["x/one", "x/none"]) == {}
    with pytest.raises(NotFound):
        store.get("x/one")
    with pytest.raises(NotFound):
        store.head("x")
    assert list(store.list("nowhere")) == []


def test_what_the_namenode_refuses_is_told_in_a_line(server: str, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hdfs_native import Client

    root = lake.removeprefix(server)
    Client(server).mkdirs(root, 0o700, True)
    monkeypatch.setenv("HADOOP_USER_NAME", "eve")
    table = LakeTable(f"{lake}/entries")

    for refused in (lambda: table.store.put("one", b"1"), lambda: land_here(table, key(0)), table.version):
        with pytest.raises(StorageError, match="access denied") as caught:
            refused()
        assert not isinstance(caught.value, StorageUnavailable)
        assert "\n" not in str(caught.value)
