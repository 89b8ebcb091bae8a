"""Maintaining a table, and knowing what is in it."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from objbuf_dagster import __version__
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import DataFile, LakeTable, maintain, stat, upkeep
from objbuf_dagster.store import Store
from tests.lake.landings import SPAWN, key, land, land_rounds, sequences, write

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


def test_stat_looks_past_a_vacuum_for_the_last_landing(local: LakeTable, tmp_path: Path) -> None:
    land(local, key(0))
    for file in write(local, key(1)):
        age(local, file.path, 8 * DAY)
    maintain(local)

    found = stat(local)

    assert found.last_landing is not None
    assert found.last_landing.version == 1
