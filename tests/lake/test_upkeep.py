"""Maintaining a table, and knowing what is in it."""

from __future__ import annotations

import json
import os
import time
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from objbuf_dagster import __version__
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import DataFile, LakeTable, maintain, stat, upkeep
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.lake.state_shadow import new_path
from objbuf_dagster.store import Store
from tests.lake.landings import SPAWN, key, land, land_rounds, sequences, write
from tests.lake.states import World

DAY = 86_400.0


def age(table: LakeTable, path: str, seconds: float) -> None:
    """Make a file look as if it was written so long ago."""
    assert table.root is not None
    then = time.time() - seconds
    os.utime(table.root / path, (then, then))


def paths(store: Store) -> set[str]:
    return {info.path for info in store.list() if not info.path.startswith("_delta_log")}


def names(files: list[DataFile]) -> set[str]:
    return {file.path for file in files}


def test_old_orphans_go_and_young_and_live_files_stay(local: LakeTable) -> None:
    live, old, young = write(local, key(0)), write(local, key(0)), write(local, key(1))
    local.commit(key(0), live, epoch=1)
    for file in (*live, *old):
        age(local, file.path, 8 * DAY)
    for file in young:
        age(local, file.path, 6 * DAY)

    report = maintain(local)

    assert (report.files_deleted, report.bytes_freed) == (2, sum(file.size for file in old))
    assert paths(local.store) == names(live) | names(young)
    assert sequences(local) == list(range(10))
    assert maintain(local).files_deleted == 0


def test_files_that_were_replaced_just_now_stay_for_readers(local: LakeTable) -> None:
    replaced = write(local, key(0))
    local.commit(key(0), replaced, epoch=1)
    for file in replaced:
        age(local, file.path, 30 * DAY)
    land(local, key(0))

    assert maintain(local).files_deleted == 0
    assert names(replaced) <= paths(local.store)


def age_all(table: LakeTable) -> None:
    assert table.root is not None
    for path in table.root.rglob("*"):
        age(table, str(path.relative_to(table.root)), 8 * DAY)


def test_what_others_put_below_a_table_stays_and_is_told(local: LakeTable) -> None:
    land(local, key(0))
    nested = LakeTable(f"{local.url}/nested")
    land(nested, key(0))
    for path in (
        "ingest/manifest",
        "ingest/01JAAAAAAAAAAAAAAAAAAAAAAA.batch",
        "part-00000.snappy.parquet",
        "a=1/b.parquet",
    ):
        local.store.put(path, b"not of this table")
    inside = f"_odb_range={key(0)}"
    for path in (f"{inside}/deeper/a.parquet", f"{inside}/notes.txt"):
        local.store.put(path, b"not of this table")
    there = paths(local.store)
    orphans = write(local, key(1))
    age_all(local)

    reports = [maintain(local, dry_run=True), maintain(local)]

    assert [report.files_deleted for report in reports] == [2, 2]
    assert [report.foreign_files for report in reports] == [10, 10], "four of them of the nested table"
    assert {report.first_foreign for report in reports} == {f"{inside}/deeper/a.parquet"}
    assert paths(local.store) == there
    assert not names(orphans) & there
    assert (sequences(local), sequences(nested)) == (list(range(10)), list(range(10)))


@pytest.mark.parametrize("kind", ["dead_letters", "state"])
def test_orphans_of_every_kind_of_table_go(tmp_path: Path, kind: str) -> None:
    if kind == "state":
        world = World(str(tmp_path))
        world.land(0, [["a1 put 1"]])
        world.apply()
        table, orphan = LakeTable(world.state.url), new_path("7")
    else:
        table = LakeTable(tmp_path, DEAD_LETTERS)
        table.commit(key(0), [], epoch=1, part="one")
        orphan = table.new_path(key(1), "one")
    live = paths(table.store)
    table.store.put(orphan, b"of a killed task")
    age_all(table)

    report = maintain(table)

    assert (report.files_deleted, report.foreign_files) == (1, 0)
    assert paths(table.store) == live


def test_what_tried_the_bucket_and_was_killed_goes(local: LakeTable) -> None:
    land(local, key(0))
    live = paths(local.store)
    local.store.put(f"probe-{uuid.uuid4().hex}", b"1")
    age_all(local)

    report = maintain(local)

    assert (report.files_deleted, report.foreign_files) == (1, 0)
    assert paths(local.store) == live


def test_what_killed_tasks_wrote_of_a_file_goes_and_a_live_one_stays(local: LakeTable) -> None:
    land(local, key(0))
    assert local.root is not None
    left, live, others = (f"{folder}/.tmp-{uuid.uuid4().hex}" for folder in (f"_odb_range={key(0)}",) * 2 + ("ingest",))
    for path in (left, live, others):
        (local.root / path).parent.mkdir(exist_ok=True)
        (local.root / path).write_bytes(b"half a file")
    for path in (left, others):
        age(local, path, 2 * DAY)

    assert maintain(local, dry_run=True).temporary_files_deleted == 0
    assert (local.root / left).exists()

    report = maintain(local)

    assert (report.temporary_files_deleted, report.files_deleted) == (1, 0)
    assert [(local.root / path).exists() for path in (left, live, others)] == [False, True, True]
    assert sequences(local) == list(range(10))


def all_ago(table: LakeTable, days: float) -> None:
    """As if everything so far had happened so many days earlier."""
    assert table.root is not None
    for path in (table.root / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            for kind, field in (
                ("remove", "deletionTimestamp"),
                ("add", "modificationTime"),
                ("commitInfo", "timestamp"),
            ):
                if kind in action:
                    action[kind][field] -= int(days * DAY * 1000)
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    for path in table.root.rglob("*.parquet"):
        then = path.stat().st_mtime - days * DAY
        os.utime(path, (then, then))


@pytest.fixture
def replaced(local: LakeTable) -> list[DataFile]:
    """Files of forty days ago that were replaced eight days ago."""
    found = write(local, key(0))
    local.commit(key(0), found, epoch=1)
    all_ago(local, 32)
    land(local, key(0))
    all_ago(local, 8)
    return found


def test_replaced_files_stay_for_a_retention_that_is_longer_than_deltas(
    local: LakeTable, replaced: list[DataFile]
) -> None:
    for _ in range(2):  # with a checkpoint each
        assert maintain(local, retention=30 * DAY, dry_run=True).files_deleted == 0
        assert maintain(local, retention=30 * DAY).files_deleted == 0
        land(local, key(1))
    assert names(replaced) <= paths(local.store)
    assert local.delta().metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 720 hours"
    assert sequences(local) == list(range(20))


def test_files_of_a_range_that_landed_again_go_after_the_retention(local: LakeTable, replaced: list[DataFile]) -> None:
    assert maintain(local, retention=9 * DAY).files_deleted == 0

    report = maintain(local, retention=7 * DAY)

    assert (report.files_deleted, report.bytes_freed) == (2, sum(file.size for file in replaced))
    assert not names(replaced) & paths(local.store)
    assert sequences(local) == list(range(10))
    version = local.version()
    maintain(local)
    assert local.version() == version, "a retention that is not longer sets nothing"


@pytest.mark.parametrize(
    ("said", "hours"),
    [("interval 2 weeks", 336), ("INTERVAL 1 day 12 hours", 36), ("interval 90 minutes", 1.5), ("for ever", 0)],
)
def test_what_a_table_says_of_its_own_retention_is_understood(said: str, hours: float) -> None:
    assert upkeep._interval_hours(said) == hours


def test_a_dry_run_only_tells(local: LakeTable) -> None:
    land(local, key(0))
    orphans = write(local, key(1))
    for file in orphans:
        age(local, file.path, 8 * DAY)
    assert local.root is not None
    before = sorted(path for path in local.root.rglob("*"))

    report = maintain(local, dry_run=True)

    assert (report.files_deleted, report.checkpoint_version, report.dry_run) == (2, None, True)
    assert report.bytes_freed == sum(file.size for file in orphans)
    assert sorted(path for path in local.root.rglob("*")) == before


def test_a_retention_that_could_hurt_a_running_landing_is_refused(local: LakeTable) -> None:
    land(local, key(0))
    orphan = write(local, key(1), files=1)[0]
    age(local, orphan.path, 2 * 3600)

    for too_short in (59 * 60, timedelta(minutes=1), 0, -1):
        with pytest.raises(InvalidInput, match="still running"):
            maintain(local, retention=too_short)
    assert orphan.path in paths(local.store)
    assert maintain(local, retention=0, dry_run=True).files_deleted == 1
    assert maintain(local, retention=3600).files_deleted == 1


def test_a_checkpoint_is_made_and_old_log_files_go(local: LakeTable) -> None:
    for number in range(4):
        land(local, key(number))
    assert local.root is not None
    log = local.root / "_delta_log"
    staged = log / f"{9:020d}.json#1"
    staged.write_text("a commit that was killed")
    for path in log.iterdir():
        age(local, f"_delta_log/{path.name}", 40 * DAY)

    report = maintain(local)

    assert (report.version, report.checkpoint_version) == (4, 4)
    assert (log / f"{4:020d}.checkpoint.parquet").exists()
    assert not staged.exists()
    assert report.log_files_deleted >= 1
    assert sequences(local) == list(range(40))
    land(local, key(4))
    assert sequences(local) == list(range(50))


def test_upkeep_works_in_a_bucket(table: LakeTable) -> None:
    land(table, key(0))
    orphans = write(table, key(1))

    report = maintain(table)

    assert (report.checkpoint_version, report.files_deleted) == (1, 0)
    assert names(orphans) <= paths(table.store)
    assert maintain(table, retention=0, dry_run=True).files_deleted == len(orphans)
    land(table, key(2))
    assert sequences(table) == [*range(10), *range(20, 30)]


def test_orphans_in_a_bucket_go_and_nothing_else(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket's clock cannot be turned back, so the floor is lowered instead."""
    monkeypatch.setattr(upkeep, "SHORTEST_RETENTION", timedelta())
    land(table, key(0))
    live = paths(table.store)
    orphans = write(table, key(1))

    report = maintain(table, retention=0)

    assert (report.files_deleted, report.bytes_freed) == (2, sum(file.size for file in orphans))
    assert paths(table.store) == live
    assert sequences(table) == list(range(10))


def test_upkeep_does_not_disturb_landings(local: LakeTable) -> None:
    for number in range(10, 40):
        for file in write(local, key(number), files=1):
            age(local, file.path, 8 * DAY)
    barrier = SPAWN.Barrier(1)
    keys = [key(number) for number in range(10)]
    process = SPAWN.Process(target=land_rounds, args=(local, barrier, keys, b""))
    process.start()
    while process.is_alive():
        maintain(local)
    process.join()

    assert process.exitcode == 0
    assert sequences(local) == list(range(100))
    maintain(local)
    assert len(paths(local.store)) == 20


def test_nothing_is_done_where_nothing_has_landed(table: LakeTable) -> None:
    report = maintain(table)

    assert (report.version, report.checkpoint_version, report.files_deleted) == (None, None, 0)
    assert (stat(table).version, stat(table).rows, stat(table).last_landing) == (None, 0, None)


def test_stat_tells_what_is_there(table: LakeTable) -> None:
    started = datetime.now(timezone.utc) - timedelta(seconds=5)
    land(table, key(7))
    land(table, key(3))
    table.commit(key(5), [], epoch=9, run_id="run-9")
    write(table, key(8))  # an orphan

    found = stat(table)

    assert (found.version, found.ranges, found.files, found.rows) == (3, 3, 5, 20)
    assert (found.first_sequence, found.last_sequence) == (30, 79)
    assert found.bytes == sum(file.size for file in table.files())
    assert found.last_landing is not None
    assert started < found.last_landing.time < datetime.now(timezone.utc) + timedelta(seconds=5)
    assert found.last_landing.version == 3
    assert found.last_landing.metadata == {
        "range": key(5),
        "rows": 0,
        "epoch": 9,
        "run_id": "run-9",
        "software": f"objbuf-dagster {__version__}",
    }


def test_stat_looks_past_other_commits_for_the_last_landing(local: LakeTable) -> None:
    land(local, key(0))
    maintain(local, retention=30 * DAY)  # which is a commit
    assert local.version() == 2

    found = stat(local)

    assert found.last_landing is not None
    assert found.last_landing.version == 1
