"""The sensor that owns the buffer for its Dagster deployment."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.host import RunHost
from objbuf_dagster.orchestration.runs import run_key
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.orchestration.tick import Kept, Tick


def landing_job(source: BufferSource, assets: Sequence[dg.AssetsDefinition]) -> UnresolvedAssetJobDefinition:
    """Materialises these assets for a range, with the checks that are part of their steps and no others.

    The sensor runs it; so can a person, for many ranges: `dagster job backfill --job land_buffer --from ... --to ...`.
    """
    checks = [key for asset in assets for key in asset.check_keys]
    return dg.define_asset_job(
        source.job_name,
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
    host: RunHost | None = None,
    metrics: Metrics | None = None,
    states: Sequence[dg.AssetKey] = (),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Watches the manifest, cuts new data into ranges and runs the job for each; see `Tick`.

    It is on by default. Its first tick, and the first one after its cursor was reset, takes the buffer over. `host` is
    where its runs are; without one, memory and disk hold nothing back. `metrics` gets the regulator's gauges. `states`
    are assets of the job that hold a state: they get a run of their own when one was left behind. Raises InvalidInput
    for an interval that the regulator cannot work with, which would otherwise fail every tick.
    """
    chosen = settings or SensorSettings()
    try:
        chosen.regulation(float(interval_seconds))
    except InvalidInput as error:
        raise InvalidInput(f"the sensor's interval cannot be {interval_seconds} seconds: {error}") from error
    name = f"{source.name}_sensor"
    kept = Kept(metrics=metrics or Metrics())
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
        tick = Tick(
            context.instance,
            source,
            name,
            chosen,
            buffer,
            kept,
            host,
            float(interval_seconds),
            states=tuple(states),
        )
        outcome = tick.run(context.cursor)
        for note in filter(None, [outcome.note, *outcome.skipped]):
            context.log.warning(note)
        requests = [
            dg.RunRequest(run_key=run_key(one, attempt), partition_key=one.key) for one, attempt in outcome.runs
        ]
        if late := outcome.catch_up:
            requests.append(dg.RunRequest(run_key=late.run_key, asset_selection=list(late.states), tags=late.tags))
        if (
            requests or not context.cursor
        ):  # else it is the tick's reason to have started none: the log need not repeat it
            context.log.info(outcome.sentence)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else outcome.sentence,
            cursor=outcome.cursor.to_text(),
            dynamic_partitions_requests=[partitions.build_add_request([one.key for one in outcome.partitions])]
            if outcome.partitions
            else [],
            asset_events=outcome.observations,
        )

    return sense
