"""Landing with checks and without commits: what was written is looked at first, and a dry run leaves nothing."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import (
    BufferReplaced,
    CheckFailed,
    InvalidInput,
    JobFailed,
    NotFound,
    ObjbufError,
    StorageError,
)
from objbuf_dagster.lake import CHECKS, LakeTable
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import Limits, RangeLedger, plan, range_of
from objbuf_dagster.spark.landing import Failed, Landed, commit, land, land_all, shares
from objbuf_dagster.spark.worker import Report, Task
from objbuf_dagster.store import LocalStore, Store
from tests.spark.landing import Deadly, Filled, fill, rows_in
from tests.spark.rows import batch, of_every_kind
from tests.support.buffers import append, batch_name, put_batch


def written(filled: Filled, planned: RangeObject, table: LakeTable) -> list[Report]:
    """What a range's tasks report when they have written their files, without Spark."""
    task = Task(filled.place.fetcher(), filled.place.manifest_path, table.store, uuid.uuid4().hex)
    return [task.do(share) for share in shares(planned, 2)]


def objects(table: LakeTable) -> list[str]:
    return [info.path for info in table.store.list()]


def test_tasks_report_how_many_records_each_batch_has(small: Filled, table: LakeTable) -> None:
    (report,) = written(small, small.ranges[1], table)

    assert (report.sequences, report.records) == ((3, 4, 5), (4, 5, 6))


def test_batches_of_every_kind_pass_their_checks_and_land(spark: SparkSession, places: tuple[Store, LakeTable]) -> None:
    store, table = places
    filled = fill(store, [*of_every_kind(), batch(0, []), batch(0, [b"last"])], per_range=40)

    outcomes = list(land_all(spark, filled.place, filled.ranges, table, verify=True))

    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Landed)
        assert tuple(check.name for check in outcome.checks) == CHECKS
        assert all(check.passed for check in outcome.checks)
        assert outcome.checks[1].metadata["rows"] == outcome.rows == len(filled.rows(number))
    assert rows_in(spark, table) == filled.rows()


def test_many_tiny_batches_pass_their_checks(spark: SparkSession, table: LakeTable, tmp_path: Path) -> None:
    made = [batch(n, [b"%d" % n] * (n % 4)) for n in range(500)]
    filled = fill(LocalStore(tmp_path / "tiny"), made, per_range=500)

    landed = land(spark, filled.place, filled.ranges[0], table, verify=True)

    assert landed.checks[0].metadata["batches_without_records"] == 125
    assert rows_in(spark, table) == filled.rows()


def test_a_range_without_rows_passes_its_checks(spark: SparkSession, table: LakeTable, tmp_path: Path) -> None:
    filled = fill(LocalStore(tmp_path / "empty"), [batch(0, []), batch(1, [])], per_range=2)

    landed = land(spark, filled.place, filled.ranges[0], table, verify=True)

    assert [check.passed for check in landed.checks] == [True] * 3
    assert list(table.ranges()) == [landed.range.key]


def test_nothing_is_checked_unless_asked_for(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    assert land(spark, small.place, small.ranges[0], table).checks == ()


def wrong_count(report: Report) -> Report:
    return dataclasses.replace(report, records=(*report.records[:-1], report.records[-1] + 1))


def no_count(report: Report) -> Report:
    return dataclasses.replace(report, records=())


def no_file(report: Report) -> Report:
    return dataclasses.replace(report, files=())


@pytest.mark.parametrize(
    ("wrong", "failing", "says"),
    [
        (wrong_count, ["rows_match_footers"], "sequence 5 has 6 rows"),
        (no_count, ["rows_match_footers"], "sequence 3 has 4 rows"),
        (no_file, ["contiguous_sequences", "rows_match_footers"], "sequence 3 has 4 records and not one row"),
    ],
)
def test_a_range_that_fails_a_check_is_not_committed(
    wrong: object, failing: list[str], says: str, small: Filled, table: LakeTable
) -> None:
    assert callable(wrong)
    reports = [wrong(report) for report in written(small, small.ranges[1], table)]

    outcome = commit(small.ranges[1], reports, table, 0.0, None, verify=True)

    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, CheckFailed)
    assert [check.name for check in outcome.error.checks if not check.passed] == failing
    assert tuple(check.name for check in outcome.error.checks) == CHECKS
    assert range_of(small.ranges[1]).key in str(outcome.error)
    assert says in str(outcome.error)
    assert not table.exists()


def test_a_failing_check_leaves_the_rows_that_were_there(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    land(spark, small.place, small.ranges[1], table)
    version = table.version()
    reports = [wrong_count(report) for report in written(small, small.ranges[1], table)]

    outcome = commit(small.ranges[1], reports, table, 0.0, None, verify=True)

    assert isinstance(outcome, Failed)
    assert table.version() == version
    assert rows_in(spark, table) == small.rows(1)


def test_a_file_that_is_gone_before_its_check_fails_the_range(small: Filled, table: LakeTable) -> None:
    reports = written(small, small.ranges[0], table)
    table.store.delete([file.path for report in reports for file in report.files])

    outcome = commit(small.ranges[0], reports, table, 0.0, None, verify=True)

    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, NotFound)
    assert not table.exists()


@pytest.mark.parametrize("verify", [True, False])
def test_a_dry_run_tells_what_would_land_and_leaves_nothing(
    spark: SparkSession, places: tuple[Store, LakeTable], verify: bool
) -> None:
    store, table = places
    filled = fill(store, [batch(n, [b"%d" % n] * n) for n in range(6)], per_range=3)

    outcomes = list(land_all(spark, filled.place, filled.ranges, table, verify=verify, dry_run=True))

    assert objects(table) == []
    assert not table.exists()
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Landed)
        assert (outcome.version, outcome.rows, outcome.files) == (None, len(filled.rows(number)), 1)
        assert outcome.bytes_written > 0
        assert len(outcome.checks) == (3 if verify else 0)


def test_a_dry_run_leaves_a_table_as_it_was(spark: SparkSession, places: tuple[Store, LakeTable]) -> None:
    store, table = places
    filled = fill(store, [batch(n, [b"%d" % n] * n) for n in range(6)], per_range=3)
    land(spark, filled.place, filled.ranges[0], table)
    before = objects(table)

    outcomes = list(land_all(spark, filled.place, filled.ranges, table, dry_run=True))

    assert [isinstance(outcome, Landed) for outcome in outcomes] == [True, True]
    assert objects(table) == before


def test_a_dry_run_of_a_bad_batch_fails_its_range_and_leaves_nothing(
    spark: SparkSession, small: Filled, table: LakeTable
) -> None:
    small.place.store.delete([small.batches[4].descriptor.location])

    outcomes = list(land_all(spark, small.place, small.ranges, table, dry_run=True))

    assert [type(outcome) for outcome in outcomes] == [Landed, Failed, Landed]
    assert objects(table) == []


def test_a_dry_run_leaves_nothing_of_jobs_that_spark_ended(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    """The tasks of the other ranges wrote files that no report tells of."""
    place = dataclasses.replace(small.place, store=Deadly(tmp_path / "buffer", "4.batch"))

    first, failed, third = land_all(spark, place, small.ranges, table, dry_run=True)

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, JobFailed)
    assert isinstance(first, Landed)
    assert isinstance(third, Landed)
    assert objects(table) == []


def test_a_dry_run_refuses_a_range_that_overlaps_another(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    table.commit("000000000002-000000000002", [], epoch=1)
    before = objects(table)

    outcomes = list(land_all(spark, small.place, small.ranges[:2], table, dry_run=True))

    assert isinstance(outcomes[0], Failed)
    with pytest.raises(InvalidInput, match="shares sequences with 000000000002-000000000002"):
        raise outcomes[0].error
    assert isinstance(outcomes[1], Landed)
    assert objects(table) == before


def test_a_dry_run_refuses_the_range_of_a_buffer_that_was_made_anew(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    land(spark, small.place, small.ranges[0], table)
    before = objects(table)
    anew = LocalStore(tmp_path / "anew")
    for location in [put_batch(anew, batch_name(n), [b"new %d" % n]) for n in range(3)]:
        append(anew, location)
    place = BufferPlace(anew)
    (planned,) = plan(place.manifests(), RangeLedger(anew), Limits(max_wait=0))

    with pytest.raises(BufferReplaced, match="another buffer's"):
        land(spark, place, planned, table, dry_run=True)

    assert objects(table) == before


def test_a_dry_run_refuses_a_table_of_somebody_else(spark: SparkSession, small: Filled, tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "theirs"), pa.table({"a": [1]}))
    table = LakeTable(tmp_path / "theirs")
    before = objects(table)

    with pytest.raises(InvalidInput, match="not one of ours"):
        land(spark, small.place, small.ranges[0], table, dry_run=True)

    assert objects(table) == before


class Keeping(LocalStore):
    """A store that deletes nothing."""

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        raise StorageError(f"this store keeps what it has: {list(paths)}")


def test_files_that_a_dry_run_cannot_delete_are_no_error(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    table.store = Keeping(tmp_path / "lake/entries")

    landed = land(spark, small.place, small.ranges[0], table, dry_run=True)

    assert landed.version is None
    assert len(objects(table)) == 1
    assert not table.exists()


def test_a_dry_run_with_a_failing_check_says_so(small: Filled, table: LakeTable) -> None:
    reports = [wrong_count(report) for report in written(small, small.ranges[1], table)]

    outcome = commit(small.ranges[1], reports, table, 0.0, None, verify=True, dry_run=True)

    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, CheckFailed)
    assert not table.exists()


def test_checks_work_where_executors_lack_the_package(
    cluster_spark: SparkSession, small: Filled, table: LakeTable
) -> None:
    outcomes = list(land_all(cluster_spark, small.place, small.ranges, table, verify=True))

    assert all(isinstance(outcome, Landed) and len(outcome.checks) == 3 for outcome in outcomes)
    assert rows_in(cluster_spark, table) == small.rows()
