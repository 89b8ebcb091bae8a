"""The sensor that owns the buffer for its Dagster deployment."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from objbuf_dagster.orchestration.runs import run_key
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.orchestration.tick import Tick


def landing_job(source: BufferSource, assets: Sequence[dg.AssetsDefinition]) -> UnresolvedAssetJobDefinition:
    """Materialises these assets for a range, with the checks that are part of their steps and no others.

    The sensor runs it; so can a person, for many ranges: `dagster job backfill --job land_buffer --from ... --to ...`.
    """
    checks = [key for asset in assets for key in asset.check_keys]
    return dg.define_asset_job(
        f"land_{source.name}",
        selection=dg.AssetSelection.assets(*assets).without_checks() | dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description=f"Lands one range of {source.name!r}.",
    )


def range_sensor(
    source: BufferSource,
    job: UnresolvedAssetJobDefinition,
    settings: SensorSettings | None = None,
    *,
    interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Watches the manifest, cuts new data into ranges and runs the job for each; see `Tick`.

    It is on by default. Its first tick, and the first one after its cursor was reset, takes the buffer over.
    """
    chosen = settings or SensorSettings()
    name = f"{source.name}_sensor"
    sizes: dict[int, int] = {}
    partitions = source.partitions

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=interval_seconds,
        default_status=default_status,
        required_resource_keys={source.name},
        description=(
            f"Owns the buffer {source.name!r}: cuts what is new into ranges, starts a run for each, and acks what has "
            "materialised. Reset the cursor to take the buffer over from another consumer."
        ),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        buffer = getattr(context.resources, source.name)
        tick = Tick(context.instance, source, name, chosen, buffer, sizes)
        outcome = tick.run(context.cursor)
        context.log.info(outcome.sentence)
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(run_key=run_key(one, attempt), partition_key=one.key) for one, attempt in outcome.runs
            ],
            skip_reason=None if outcome.runs else outcome.sentence,
            cursor=outcome.cursor.to_text(),
            dynamic_partitions_requests=[partitions.build_add_request([one.key for one in outcome.partitions])]
            if outcome.partitions
            else [],
            asset_events=outcome.observations,
        )

    return sense
