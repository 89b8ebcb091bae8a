"""Many landings at once, and landings that die: real processes."""

from __future__ import annotations

import pickle
import random
import time
from pathlib import Path

from objbuf_dagster.lake import LakeTable
from tests.lake.landings import (
    SPAWN,
    key,
    land,
    land_in_each,
    land_rounds,
    run_all,
    sequences,
    start_landing_for_ever,
    tags,
)


def test_many_processes_landing_different_ranges_all_succeed(table: LakeTable) -> None:
    processes, rounds = 8, 1 if table.root is None else 2  # moto answers one at a time
    barrier = SPAWN.Barrier(processes)

    run_all(
        [
            SPAWN.Process(
                target=land_rounds,
                args=(table, barrier, [key(turn * processes + number) for turn in range(rounds)], b""),
            )
            for number in range(processes)
        ]
    )

    assert sequences(table) == list(range(10 * processes * rounds))
    assert table.version() == processes * rounds


def test_processes_that_race_to_make_a_table_make_one(tmp_path: Path) -> None:
    tables = [LakeTable(tmp_path / str(number)) for number in range(8)]
    barrier = SPAWN.Barrier(2)

    run_all([SPAWN.Process(target=land_in_each, args=(tables, barrier, key(number))) for number in range(2)])

    for table in tables:
        assert table.root is not None
        assert (table.version(), sequences(table)) == (2, list(range(20)))
        log = "".join(path.read_text() for path in sorted((table.root / "_delta_log").glob("*.json")))
        assert log.count('"metaData"') == 1


def test_two_processes_landing_the_same_range_leave_it_once(table: LakeTable) -> None:
    rounds = 4 if table.root is None else 8
    barrier = SPAWN.Barrier(2)
    keys = [key(number) for number in range(rounds)]

    run_all([SPAWN.Process(target=land_rounds, args=(table, barrier, keys, tag)) for tag in (b"left", b"right")])

    assert sequences(table) == list(range(10 * rounds))
    for range_key in keys:
        assert list(tags(table, range_key).values()) == [10], "a range is a mix of two landings"
    assert table.version() == 2 * rounds


def test_a_killed_landing_leaves_the_old_range_or_the_new_one(table: LakeTable) -> None:
    land(table, key(0), b"first")
    land(table, key(1), b"other")
    chance = random.Random(7)
    for _ in range(5 if table.root else 3):
        with start_landing_for_ever(pickle.dumps(table)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"landing\n"
            time.sleep(chance.uniform(0, 0.3))
            process.kill()

        assert list(tags(table, key(0)).values()) == [10]
        assert tags(table, key(1)) == {b"other": 10}

    land(table, key(0), b"last")
    assert tags(table, key(0)) == {b"last": 10}
