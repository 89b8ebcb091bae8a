"""Assets that hold a state, in real runs: what they apply, when they wait, what they tell, and how they are rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.decode import OtlpLogs, decode_block, rows_schema
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import LakeTable, TableSchema
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.lake.fold_latest import ServiceLatest
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    RangeFailure,
    RangeResult,
    SparkResource,
    range_asset,
)
from objbuf_dagster.orchestration.state import state_asset
from objbuf_dagster.ranges import Limits, plan, range_of
from tests.decode.messages import LOGS
from tests.lake.services import logs_of
from tests.lake.states import Accounts, World
from tests.lake.test_state_since import JSON, land_json
from tests.orchestration.deployments import Deployment, deployment, entries_asset, failure_of

REBUILD = {"ops": {"service_latest": {"config": {"rebuild": True}}}}


def entries_rows(context: RangeContext, planned: Any) -> Any:
    """The rows of `entries` of a range, without Spark."""
    import pyarrow as pa

    fetcher = context.place.fetcher()
    rows = []
    for batch in planned.batches:
        fetched = fetcher.fetch(batch.descriptor)
        rows += [
            {
                "_odb_sequence": batch.descriptor.sequence,
                "_odb_entry_index": index,
                "_odb_ingestion_time_ms": None,
                "_odb_manifest_path": "ingest/manifest",
                "_odb_data_path": batch.descriptor.location,
                "_odb_metadata": LOGS,
                "entry": entry,
            }
            for index, entry in enumerate(fetched.entries)
        ]
    return pa.RecordBatch.from_pylist(rows, LakeTable("/nowhere").schema.to_arrow())


def land(table: LakeTable, key: str, blocks: Iterable[Any]) -> None:
    writer = RowsWriter(table.store, table.schema.to_arrow(), lambda: table.new_path(key))
    for block in blocks:
        writer.add(block)
    table.commit(key, writer.finish(), epoch=1)


def assets(source: BufferSource, failing: set[int]) -> Sequence[dg.AssetsDefinition]:
    """`entries`, `otel_logs` and `service_latest`, in the way of the pipeline of this repo, but without Spark.

    failing: first sequences of the ranges that cannot be decoded for now.
    """

    @range_asset(source)
    def entries(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        for planned in context.planned:
            land(lake.table("entries"), range_of(planned).key, [entries_rows(context, planned)])
            yield RangeResult(range_of(planned))

    @range_asset(source, deps=["entries"], retries=0)
    def otel_logs(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        table = lake.table("otel_logs", TableSchema.from_arrow(rows_schema(OtlpLogs())))
        for planned in context.planned:
            if planned.start in failing:
                yield RangeFailure(range_of(planned), InvalidInput("as the test asked"))
                continue
            decoded = decode_block(OtlpLogs(), entries_rows(context, planned))
            land(table, range_of(planned).key, (rows for rows, _ in decoded))
            yield RangeResult(range_of(planned))

    return [entries, otel_logs, state_asset(source, ServiceLatest(), OtlpLogs())]


@pytest.fixture
def failing() -> set[int]:
    return set()


@pytest.fixture
def deployed(tmp_path: Path, buffer: BufferResource, lake: Path, failing: set[int]) -> Iterator[Deployment]:
    source = BufferSource()
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=assets(source, failing)) as made:
        made.tick()
        yield made


def produce(buffer: BufferResource, *services: str) -> None:
    """A batch for each: three records, the last of which is an error."""
    for service in services:
        with buffer.producer() as producer:
            producer.produce([logs_of(service, "1", [9, 13, 17]), b"\xff"], LOGS)


def counts(lake: Path) -> dict[str, tuple[int, int, int]]:
    rows = StateTable(lake / "service_latest", ServiceLatest()).rows().to_pylist()
    return {row["ServiceName"]: (row["Records"], row["Errors"], row["_odb_sequence"]) for row in rows}


def told(deployed: Deployment) -> list[dict[str, Any]]:
    found = deployed.instance.fetch_materializations(dg.AssetKey("service_latest"), limit=100, ascending=True).records
    assert all(record.partition_key is None for record in found)
    events = [record.asset_materialization for record in found]
    return [{name: value.value for name, value in event.metadata.items()} for event in events if event]


def run(deployed: Deployment, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
    """What "Materialize" of the state alone starts."""
    return deployed.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=deployed.instance,
        asset_selection=[dg.AssetKey("service_latest")],
        run_config=config,
        raise_on_error=False,
    )


def test_each_landing_ends_with_applying_what_is_due(deployed: Deployment, buffer: BufferResource, lake: Path) -> None:
    produce(buffer, "shop", "till", "shop")
    deployed.settle()

    assert counts(lake) == {"shop": (6, 2, 2), "till": (3, 1, 1)}
    last = told(deployed)[-1]
    assert sum(one["ranges_applied"] for one in told(deployed)) == 2
    assert sum(one["rows_applied"] for one in told(deployed)) == 9
    assert (last["keys"], last["first_sequence"], last["next_sequence"], last["ranges"]) == (2, 0, 3, 2)
    assert not any("begins" in one for one in told(deployed))
    assert last["last_range"] == deployed.partitions[-1]
    assert deployed.frontier == 3


def test_where_a_state_begins_is_told_when_it_does(deployed: Deployment, buffer: BufferResource, lake: Path) -> None:
    produce(buffer, "shop")
    buffer.attach(buffer.peek().epoch).ack_through(0)  # by hand, as whoever consumed the buffer before
    produce(buffer, "till")
    plan(buffer.place().manifests(), buffer.ledger(), Limits(max_wait=0), on_gap="skip")
    deployed.settle()
    produce(buffer, "till")
    deployed.settle()

    assert counts(lake) == {"till": (6, 2, 2)}
    first, *later = told(deployed)
    assert "begins at sequence 1" in first["begins"]
    assert later
    assert {one["first_sequence"] for one in (first, *later)} == {1}
    assert not any("begins" in one for one in later)


def test_a_run_that_was_killed_before_the_state_is_made_good_though_nobody_produces(
    deployed: Deployment, buffer: BufferResource, lake: Path
) -> None:
    produce(buffer, "shop", "till")
    (request,) = deployed.tick(launch=False).requests
    land = deployed.defs.resolve_job_def("land_buffer")
    upstream = [dg.AssetKey("entries"), dg.AssetKey("otel_logs")]
    assert land.execute_in_process(
        instance=deployed.instance, partition_key=request.partition_key, asset_selection=upstream
    ).success
    assert (deployed.frontier, counts(lake)) == (2, {})
    deployed.settle()

    assert counts(lake) == {"shop": (3, 1, 0), "till": (3, 1, 1)}
    assert deployed.tick().requests == []


def test_it_waits_for_a_range_that_cannot_be_decoded_and_then_applies_all(
    deployed: Deployment, buffer: BufferResource, lake: Path, failing: set[int]
) -> None:
    failing.add(0)
    produce(buffer, "shop", "till", "shop")
    deployed.settle()

    assert counts(lake) == {}
    assert "000000000000-000000000001" in told(deployed)[-1]["waiting"]
    failing.clear()
    request = dg.RunRequest(run_key="again", partition_key=deployed.partitions[0])
    assert deployed.launch(request).success
    assert counts(lake) == {"shop": (6, 2, 2), "till": (3, 1, 1)}
    assert "waiting" not in told(deployed)[-1]


def test_a_rebuild_makes_it_again_from_entries(deployed: Deployment, buffer: BufferResource, lake: Path) -> None:
    produce(buffer, "shop", "till", "shop")
    deployed.settle()
    before = counts(lake)

    assert run(deployed, REBUILD).success
    last = told(deployed)[-1]
    assert (last["rebuilt"], last["ranges_applied"], last["commits"]) == (True, 2, 1)
    assert counts(lake) == before
    assert run(deployed).success
    assert told(deployed)[-1]["ranges_applied"] == 0


def test_a_state_that_lies_in_the_buffer_is_refused(
    deployed: Deployment, buffer: BufferResource, lake: Path, tmp_path: Path
) -> None:
    produce(buffer, "shop")
    lake.mkdir()
    (lake / "service_latest").symlink_to(tmp_path / "buffer" / "ingest")

    done = run(deployed)

    assert not done.success
    assert "give the table a place of its own" in failure_of(done)
    assert not (tmp_path / "buffer" / "ingest" / "_delta_log").exists()


def test_a_state_that_cannot_go_on_fails_its_step_and_says_how_to_go_on(
    deployed: Deployment, buffer: BufferResource, lake: Path
) -> None:
    produce(buffer, "shop")
    deployed.settle()
    with buffer.producer() as producer:
        producer.produce([b"lost"], LOGS)
    buffer.attach(buffer.peek().epoch).ack_through(1)  # by hand, before it was planned
    produce(buffer, "till")
    plan(buffer.place().manifests(), buffer.ledger(), Limits(max_wait=0), on_gap="skip")
    deployed.settle()

    failed = [done for ticked in deployed.seen for done in ticked.runs][-1]
    assert not failed.success
    assert "sequences 1 to 1 are in no range: they were skipped as a gap" in failure_of(failed)
    assert "rebuild: true" in failure_of(failed)
    assert deployed.frontier == 3, "landing itself goes on"
    assert counts(lake) == {"shop": (3, 1, 0)}
    assert run(deployed, REBUILD).success
    assert counts(lake) == {"shop": (3, 1, 0), "till": (3, 1, 2)}
    assert told(deployed)[-1]["gaps"] == "1-1"


def test_it_is_the_same_behind_real_landings_and_decodings(
    tmp_path: Path, buffer: BufferResource, lake: Path, spark: SparkSession
) -> None:
    """On Spark: the files of `entries` that a rebuild reads, and those of the typed table."""
    source = BufferSource()

    @range_asset(source, deps=["entries"])
    def otel_logs(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterable[Outcome]:
        return context.decode(spark.session, lake, OtlpLogs())

    made = [entries_asset(source), otel_logs, state_asset(source, ServiceLatest(), OtlpLogs())]
    with deployment(tmp_path / "home", buffer, lake, source=source, assets=made) as deployed:
        deployed.tick()
        produce(buffer, "shop", "till", "shop")
        deployed.settle()
        assert counts(lake) == {"shop": (6, 2, 2), "till": (3, 1, 1)}
        before = StateTable(lake / "service_latest", ServiceLatest()).rows().sort_by("ServiceName")

        assert run(deployed, REBUILD).success

        assert told(deployed)[-1]["rows_applied"] == 9
        assert told(deployed)[-1]["rows_changed_since"] == 0
    table = StateTable(lake / "service_latest", ServiceLatest())
    assert table.rows().sort_by("ServiceName") == before
    cursor = table.cursor()
    assert cursor is not None
    assert cursor.batches is not None, "real entries say which batches they are of"


def test_a_state_of_json_is_rebuilt_from_its_table(buffer: BufferResource, lake: Path) -> None:
    world = World(str(lake), buckets=16)
    land_json(world, 0, [["a1 put 1", "b1 put 2"]])

    done = dg.materialize(
        [state_asset(BufferSource(), Accounts(), JSON, of="json")],
        resources={"buffer": buffer, "lake": LakeResource(url=str(lake))},
        run_config={"ops": {"accounts": {"config": {"rebuild": True}}}},
        raise_on_error=False,
    )

    assert done.success, failure_of(done)
    assert world.found() == world.expected()


def test_an_asset_without_a_try_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one try"):
        state_asset(BufferSource(), ServiceLatest(), OtlpLogs(), tries=0)
