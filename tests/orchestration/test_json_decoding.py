"""An asset of JSON entries is like any other that decodes: what lands, what is shown, what becomes of failures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    SparkResource,
    range_asset,
)
from objbuf_dagster.spark.decoding import typed_schema
from tests.decode.json_cases import DDL, ODD
from tests.orchestration.deployments import deployment, entries_asset, failure_of

EVENTS = JsonDecoder(DDL, name="events", payload=b"json")


def test_an_asset_of_json_lands_and_tells_its_numbers(
    tmp_path: Path, buffer: BufferResource, lake: Path, spark: SparkSession
) -> None:
    good = [entry for entry, *_ in ODD.values()]
    with buffer.producer() as producer:
        producer.produce([*good, b"no JSON"], b"json")
        producer.produce([b"of others"], b"else")
    source = BufferSource()

    @range_asset(source, deps=["entries"], batches=False)
    def events(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterable[Outcome]:
        return context.decode(spark.session, lake, EVENTS)

    with deployment(tmp_path / "home", buffer, lake, source=source, assets=[entries_asset(source), events]) as deployed:
        deployed.tick()
        deployed.tick(launch=False)
        (partition,) = deployed.partitions
        job = deployed.defs.resolve_implicit_global_asset_job_def()
        for asset in ("entries", "events"):
            done = job.execute_in_process(
                instance=deployed.instance,
                asset_selection=[dg.AssetKey(asset)],
                partition_key=partition,
                raise_on_error=False,
            )
            assert done.success, failure_of(done)
        event = deployed.instance.get_latest_materialization_event(dg.AssetKey("events"))

    assert event is not None
    assert event.asset_materialization is not None
    told = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert (told["rows"], told["dead_letters"], told["entries_of_others"]) == (len(good), 1, 1)
    assert (told["decoder"], told["decoder_version"]) == ("events", 1)
    rows = LakeTable(lake / "events", typed_schema(EVENTS)).delta().to_pyarrow_table()
    assert len(rows) == len(good)
    letters = LakeTable(lake / "dead_letters", DEAD_LETTERS).delta().to_pyarrow_table()
    assert letters["entry"].to_pylist() == [b"no JSON"]
