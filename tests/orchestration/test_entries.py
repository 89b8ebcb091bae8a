"""The asset `entries` on real Spark: what lands, what is shown of it, and what is left when a range fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.lake import CHECKS, LakeTable
from objbuf_dagster.orchestration import BufferResource
from objbuf_dagster.orchestration.landing import numbers
from objbuf_dagster.orchestration.materialised import LAST_BATCH
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, RangeObject
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark import Landed
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import DRY, Deployment, failure_of, told
from tests.orchestration.test_range_checks import evaluations

_HOSTILE = [b"\xff\xfe\x00\x80", b"\x00\x01\x1b[31m\r\n\x7f", b"", "\u202e\ud7ff😀".encode(), b"long" * 500_000]


@pytest.fixture
def table(lake: Path) -> LakeTable:
    return LakeTable(lake / "entries")


def planned(deployed: Deployment, produce: Produce, batches: int) -> list[str]:
    produce(batches)
    deployed.tick()
    deployed.tick(launch=False)
    return deployed.partitions


def rows(table: LakeTable) -> list[tuple[int, int]]:
    """Sequence and index of each row that the table has."""
    found = table.delta().to_pyarrow_table(columns=["_odb_sequence", "_odb_entry_index"]).to_pylist()
    return sorted((row["_odb_sequence"], row["_odb_entry_index"]) for row in found)


def shown(deployed: Deployment) -> dict[str, dict[str, Any]]:
    """The metadata of the latest materialisation of each range."""
    found = deployed.instance.fetch_materializations(dg.AssetKey("entries"), limit=100, ascending=True).records
    events = [record.asset_materialization for record in found]
    return {str(event.partition): {n: v.value for n, v in event.metadata.items()} for event in events if event}


def files(lake: Path) -> list[Path]:
    return sorted(path for path in lake.rglob("*") if path.is_file())


def table_checks(deployed: Deployment) -> dict[str, bool]:
    assert deployed.defs.resolve_job_def("check_buffer_tables_job").execute_in_process(instance=deployed.instance)
    return {name: evaluations(deployed, name)[0].passed for name in ("no_holes", "no_overlaps")}


def test_range_lands_checked_and_tells_its_numbers(
    deployed_on_spark: Deployment, produce: Produce, table: LakeTable, buffer: BufferResource
) -> None:
    (key,) = planned(deployed_on_spark, produce, 2)
    run = deployed_on_spark.materialise(key)
    assert run.success, failure_of(run)
    assert rows(table) == [(sequence, index) for sequence in range(2) for index in range(3)]
    assert deployed_on_spark.frontier == 2
    (found,) = shown(deployed_on_spark).values()
    (range_object,) = buffer.ledger().list()
    expected = {
        "rows": 6,
        "batches": 2,
        "bytes": range_object.size,
        "files": 1,
        "first_sequence": 0,
        "last_sequence": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert found[LAST_BATCH] == range_object.batches[-1].descriptor.location
    assert found["bytes_written"] > 0
    assert 0 < found["seconds"] < 300
    assert found["MB/s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e6, abs=0.001)
    assert 0 <= found["lag_seconds"] < 3600
    assert [record.data["entry"] for record in found["preview"].records] == ["a", "b", "c", "a", "b"]
    assert {name: [one.passed for one in evaluations(deployed_on_spark, name)] for name in CHECKS} == {
        name: [True] for name in CHECKS
    }


def test_hostile_bytes_neither_break_the_event_nor_make_it_large(
    deployed_on_spark: Deployment, table: LakeTable, buffer: BufferResource
) -> None:
    # given
    for entry in _HOSTILE:
        with buffer.producer() as producer:
            producer.produce([entry], entry[:60_000])
    deployed_on_spark.settle()
    # then
    assert deployed_on_spark.frontier == len(_HOSTILE)
    landed = table.delta().to_pyarrow_table(columns=["_odb_sequence", "entry"]).sort_by("_odb_sequence").to_pydict()
    assert landed["entry"] == _HOSTILE
    assert len(shown(deployed_on_spark)) == 3
    for record in deployed_on_spark.instance.fetch_materializations(dg.AssetKey("entries"), limit=10).records:
        assert len(dg.serialize_value(record.event_log_entry)) < 20_000
    previews = [row.data for found in shown(deployed_on_spark).values() for row in found["preview"].records]
    assert all(len(text) <= 200 for row in previews for text in row.values())
    assert not any(character < " " or character == "\x7f" for row in previews for character in "".join(row.values()))


def test_dry_run_leaves_no_file_and_says_how_much_it_would_have_landed(
    deployed_on_spark: Deployment, produce: Produce, lake: Path
) -> None:
    keys = planned(deployed_on_spark, produce, 2)
    before = files(lake)
    run = deployed_on_spark.materialise(keys[0], config=DRY)
    assert run.success, failure_of(run)
    assert files(lake) == before == []
    assert (deployed_on_spark.materialised(), deployed_on_spark.frontier) == ([], 0)
    log = "\n".join(told(deployed_on_spark.instance, run.run_id))
    assert "'rows': 6" in log
    assert "the frontier would be 2" in log


def test_backfill_in_one_run_lands_all_but_the_range_with_a_corrupt_batch(
    deployed_on_spark: Deployment,
    produce: Produce,
    table: LakeTable,
    buffer: BufferResource,
) -> None:
    # given: five ranges, the fourth with a batch that is garbage
    produce(10)
    for _ in range(2):
        deployed_on_spark.tick(launch=False)
    (extra,) = _plan_rest(buffer)
    deployed_on_spark.instance.add_dynamic_partitions("buffer_ranges", [extra])
    keys = deployed_on_spark.partitions
    assert len(keys) == 5
    bad = buffer.ledger().list()[3].batches[1].descriptor
    good = buffer.store().get(bad.location).data
    buffer.store().put(bad.location, b"garbage")
    # when
    run = deployed_on_spark.backfill(keys[0], keys[-1])
    # then: one run fails for one range, and says all about it
    assert not run.success
    for part in ("1 of 5 ranges failed", keys[3], f"sequence {bad.sequence}", bad.location, "its object has 7 bytes"):
        assert part in failure_of(run)
    done = [key for key in keys if key != keys[3]]
    assert sorted(deployed_on_spark.materialised()) == done
    assert {key: found["rows"] for key, found in shown(deployed_on_spark).items()} == dict.fromkeys(done, 6)
    versions = [found["table_version"] for found in shown(deployed_on_spark).values()]
    assert len(set(versions)) == 4
    deployed_on_spark.tick(launch=False)
    assert deployed_on_spark.frontier == 6
    assert table_checks(deployed_on_spark) == {"no_holes": True, "no_overlaps": True}
    # when: it is mended, and everything comes again
    buffer.store().put(bad.location, good)
    again = deployed_on_spark.backfill(keys[0], keys[-1])
    # then
    assert again.success, failure_of(again)
    assert rows(table) == [(sequence, index) for sequence in range(10) for index in range(3)]
    assert deployed_on_spark.frontier == 10


def _plan_rest(buffer: BufferResource) -> list[str]:
    from objbuf_dagster.ranges import plan, range_of
    from tests.orchestration.deployments import AT_ONCE

    return [range_of(one).key for one in plan(buffer.place().manifests(), buffer.ledger(), AT_ONCE)]


def test_acked_range_lands_again_in_place_of_itself(
    deployed_on_spark: Deployment, produce: Produce, table: LakeTable
) -> None:
    produce(4)
    deployed_on_spark.settle()
    before = rows(table)
    assert deployed_on_spark.materialise(deployed_on_spark.partitions[0]).success
    assert rows(table) == before
    assert deployed_on_spark.frontier == 4


def test_hole_in_a_table_is_found(deployed_on_spark: Deployment, produce: Produce, table: LakeTable) -> None:
    produce(6)
    deployed_on_spark.settle()
    assert table_checks(deployed_on_spark) == {"no_holes": True, "no_overlaps": True}
    key = deployed_on_spark.partitions[1]
    table.delta().delete(f"_odb_range = '{key}'")
    assert table_checks(deployed_on_spark) == {"no_holes": False, "no_overlaps": True}
    assert key in str(evaluations(deployed_on_spark, "no_holes")[0].description)


def test_backfill_of_many_ranges_is_one_spark_job(deployed_on_spark: Deployment, produce: Produce, spark: Any) -> None:
    keys = planned(deployed_on_spark, produce, 8)
    assert len(keys) == 4
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    assert deployed_on_spark.backfill(keys[0], keys[-1]).success
    assert len(tracker.getJobIdsForGroup(None)) - before == 1
    assert sorted(deployed_on_spark.materialised()) == keys


def test_ranges_of_one_job_share_its_time_by_their_bytes() -> None:
    batch = PlannedBatch(BatchDescriptor(0, "ingest/a.batch", ()), 4_000_000)
    landed = Landed(SequenceRange(0, 0), 1, 10, 4_000_000, 4_000_000, 1, seconds=8.0, version=1)
    found = numbers(landed, RangeObject(0, 0, 1, 0, (batch,)), share=0.25)
    assert (found["seconds"], found["MB/s"]) == (2.0, 2.0)
