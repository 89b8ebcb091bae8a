"""Assets that decode, on real Spark: what lands, what is shown of it, and what becomes of what cannot be decoded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import GarbageCollector
from objbuf_dagster.buffer.metrics import DECODED_DEAD_LETTERS, DECODED_ROWS, DECODED_SKIPPED, REGULATOR, Metrics
from objbuf_dagster.decode import OtlpLogs
from objbuf_dagster.errors import RangeExpired
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    SparkResource,
    buffer_definitions,
    range_asset,
)
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.ranges.quarantine import QuarantineLedger
from objbuf_dagster.spark.decoding import typed_schema
from objbuf_dagster.spark.decoding_worker import OnError
from tests.decode.messages import LOGS, field, log_entry
from tests.orchestration.deployments import Deployment, deployment, entries_asset, failure_of

GOOD = log_entry(field(5, field(1, b"hello")))
DRY = {"ops": {"otel_logs": {"config": {"dry_run": True}}}}


def logs_asset(source: BufferSource, on_error: OnError = "dead_letter") -> dg.AssetsDefinition:
    @range_asset(source, deps=["entries"], batches=False)
    def otel_logs(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterable[Outcome]:
        return context.decode(spark.session, lake, OtlpLogs(), on_error=on_error)

    return otel_logs


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(params=["dead_letter"])
def deployed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    buffer: BufferResource,
    lake: Path,
    spark: SparkSession,
    metrics: Metrics,
) -> Iterator[Deployment]:
    """With two ranges of two batches planned: a good entry, a bad one, and one of another signal in each batch."""
    for _ in range(4):
        with buffer.producer() as producer:
            producer.produce([GOOD, b"\xff\xff"], LOGS)
            producer.produce([b"of metrics"], bytes((1, 1, 1, 0)))
    source = BufferSource(metrics=metrics)
    made = [entries_asset(source), logs_asset(source, request.param)]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=made) as found:
        found.tick()
        found.tick(launch=False)
        assert len(found.partitions) == 2
        yield found


def run(deployed: Deployment, asset: str, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
    """A backfill of all ranges."""
    first, last = deployed.partitions[0], deployed.partitions[-1]
    return deployed.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=deployed.instance,
        asset_selection=[dg.AssetKey(asset)],
        raise_on_error=False,
        run_config=config,
        tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
    )


def shown(deployed: Deployment) -> list[dict[str, Any]]:
    found = deployed.instance.fetch_materializations(dg.AssetKey("otel_logs"), limit=100, ascending=True).records
    events = [record.asset_materialization for record in found]
    return [{name: value.value for name, value in event.metadata.items()} for event in events if event]


def bodies(lake: Path) -> list[str]:
    table = LakeTable(lake / "otel_logs", typed_schema(OtlpLogs()))
    found: list[str] = table.delta().to_pyarrow_table()["Body"].to_pylist() if table.exists() else []
    return found


def letters(lake: Path) -> list[bytes]:
    table = LakeTable(lake / "dead_letters", DEAD_LETTERS)
    found: list[bytes] = table.delta().to_pyarrow_table()["entry"].to_pylist() if table.exists() else []
    return found


def test_ranges_are_decoded_after_they_landed_and_tell_their_numbers(deployed: Deployment, lake: Path) -> None:
    early = run(deployed, "otel_logs")
    assert not early.success
    assert "land it first" in failure_of(early)
    assert run(deployed, "entries").success

    done = run(deployed, "otel_logs")

    assert done.success, failure_of(done)
    assert bodies(lake) == ["hello"] * 4
    assert letters(lake) == [b"\xff\xff"] * 4
    first, second = sorted(shown(deployed), key=lambda one: int(one["first_sequence"]))
    for one in (first, second):
        told = {name: one[name] for name in ("rows", "entries", "entries_of_others", "dead_letters", "skipped")}
        assert told == {"rows": 2, "entries": 4, "entries_of_others": 2, "dead_letters": 2, "skipped": 0}
        assert (one["decoder"], one["decoder_version"]) == ("otlp_logs", OtlpLogs.version)
        assert one["seconds"] > 0
        assert one["rows/s"] == pytest.approx(2 / one["seconds"], rel=0.05)
        assert one["preview"].records[0].data["Body"] == "hello"
    assert (first["first_sequence"], second["first_sequence"]) == (0, 2)
    told_of = deployed.instance.fetch_materializations(dg.AssetKey("dead_letters"), limit=10).records
    seen = {str(one.partition_key): one.asset_materialization for one in told_of}
    assert sorted(seen) == deployed.partitions
    assert all(one is not None and one.metadata["dead_letters"].value == 2 for one in seen.values())


def test_ranges_of_one_job_share_its_time(deployed: Deployment) -> None:
    assert run(deployed, "entries").success

    started = time.monotonic()
    assert run(deployed, "otel_logs").success
    whole = time.monotonic() - started

    each = [one["seconds"] for one in shown(deployed)]
    assert len(each) == 2
    assert sum(each) < whole
    assert max(each) < 0.6 * whole  # and not all of it, as each was told before


@pytest.mark.parametrize("name", ["otel_logs", "dead_letters"])
def test_tables_that_lie_in_the_buffer_are_refused(deployed: Deployment, lake: Path, tmp_path: Path, name: str) -> None:
    assert run(deployed, "entries").success
    (lake / name).symlink_to(tmp_path / "buffer" / "ingest")

    done = run(deployed, "otel_logs")

    assert not done.success
    assert "give the table a place of its own" in failure_of(done)
    assert not (tmp_path / "buffer" / "ingest" / "_delta_log").exists()


def test_a_dry_run_says_what_it_would_do_and_does_nothing(deployed: Deployment, lake: Path) -> None:
    assert run(deployed, "entries").success

    assert run(deployed, "otel_logs", DRY).success

    assert deployed.materialised("otel_logs") == []
    assert bodies(lake) == []
    assert letters(lake) == []
    assert deployed.materialised("dead_letters") == []


@pytest.mark.parametrize("deployed", ["fail"], indirect=True)
def test_an_asset_that_shall_fail_commits_nothing(deployed: Deployment, lake: Path) -> None:
    assert run(deployed, "entries").success

    failed = run(deployed, "otel_logs")

    assert not failed.success
    assert "sequence 0, entry 1:" in failure_of(failed)
    assert bodies(lake) == []
    assert deployed.materialised("otel_logs") == []


@pytest.mark.parametrize("deployed", ["skip"], indirect=True)
def test_an_asset_that_may_skip_counts_what_it_dropped(deployed: Deployment, lake: Path, metrics: Metrics) -> None:
    assert run(deployed, "entries").success

    assert run(deployed, "otel_logs").success

    assert [(one["skipped"], one["dead_letters"]) for one in shown(deployed)] == [(2, 0)] * 2
    decoded = {name: value for name, value in metrics.snapshot().counters.items() if name.startswith("decode.")}
    assert decoded == {DECODED_ROWS: 4, DECODED_DEAD_LETTERS: 0, DECODED_SKIPPED: 4}
    assert set(metrics.snapshot().gauges) >= set(REGULATOR), "the sensor's are there too"
    assert bodies(lake) == ["hello"] * 4
    assert letters(lake) == []


def test_ranges_whose_batches_are_gone_are_decoded_from_what_has_landed(deployed: Deployment, lake: Path) -> None:
    # given: all is acked, and the first range and its batches have expired
    assert run(deployed, "entries").success
    first, second = deployed.partitions
    buffer = deployed.buffer
    collector = GarbageCollector(buffer.store(), epoch=deployed.state.epoch, grace_seconds=0, retention_seconds=0)
    with buffer.attach(deployed.state.epoch) as consumer:
        consumer.ack_through(1)
    collector.collect_once()
    with pytest.raises(RangeExpired):
        buffer.ledger().read(SequenceRange.from_key(first))
    # when
    failed, done = run(deployed, "entries"), run(deployed, "otel_logs")
    # then: who needs the batches fails for them, and who does not goes on
    assert "RangeExpired" in failure_of(failed) or "expired" in failure_of(failed)
    assert done.success, failure_of(done)
    assert bodies(lake) == ["hello"] * 4
    assert letters(lake) == [b"\xff\xff"] * 4
    assert sorted(deployed.materialised("otel_logs")) == [first, second]


def test_upkeep_and_checks_look_after_typed_tables_too(deployed: Deployment, lake: Path) -> None:
    assert run(deployed, "entries").success
    assert run(deployed, "otel_logs").success
    source = deployed.source
    resources = dict(deployed.defs.resources or {})
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [entries_asset(source), logs_asset(source)]
    assets.append(dg.AssetSpec("dead_letters", deps=["otel_logs"]))
    tables = {"entries": "entries", "otel_logs": "otel_logs"}
    defs = buffer_definitions(source, assets, resources, tables=tables, upkeep=["dead_letters"])

    upkeep = defs.resolve_job_def("upkeep_buffer_tables_job").execute_in_process(instance=deployed.instance)
    checks = defs.resolve_job_def("check_buffer_tables_job").execute_in_process(instance=deployed.instance)

    assert upkeep.success
    for table in ("entries", "otel_logs", "dead_letters"):
        assert list((lake / table).rglob("*.checkpoint.parquet")), table
    found = {(one.asset_key.to_user_string(), one.passed) for one in checks.get_asset_check_evaluations()}
    assert found == {("entries", True), ("otel_logs", True)}


def test_a_range_that_landed_with_other_entries_is_told_until_it_is_decoded_again(
    tmp_path: Path, buffer: BufferResource, lake: Path, spark: SparkSession
) -> None:
    for _ in range(2):
        with buffer.producer() as producer:
            producer.produce([GOOD], LOGS)
    source = BufferSource(ack_after=["entries", "otel_logs"])
    assets = [entries_asset(source), logs_asset(source)]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=assets) as found:
        found.tick()
        found.tick(launch=False)
        job = found.defs.resolve_job_def("check_buffer_tables_job")

        def check() -> tuple[bool, str]:
            results = job.execute_in_process(instance=found.instance).get_asset_check_evaluations()
            (one,) = [one for one in results if one.check_name == "decoded_from_what_is_there"]
            assert one.asset_key == dg.AssetKey("otel_logs")
            return one.passed, one.description or ""

        # given a range that is decoded without a batch
        records = QuarantineLedger(buffer.store())
        records.add(1, buffer.ledger().at(0).batches[1].descriptor.location, "zeros")
        for asset in ("entries", "otel_logs"):
            assert run(found, asset).success
        assert check()[0]
        # when that is brought back, and the range lands
        records.undo(1)
        assert run(found, "entries").success
        # then
        passed, said = check()
        assert not passed
        assert f"{found.partitions[0]} (1 entries then, 2 now); decode them again" in said
        # and
        assert run(found, "otel_logs").success
        assert check()[0]
        assert bodies(lake) == ["hello", "hello"]
