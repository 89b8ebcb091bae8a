"""Everything of one pipeline in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import CHECKS
from objbuf_dagster.orchestration.catching_up import STATE_TAG
from objbuf_dagster.orchestration.host import RunHost
from objbuf_dagster.orchestration.jobs import Job, collect_job, schedules, table_checks, upkeep_job
from objbuf_dagster.orchestration.literals import check_resources
from objbuf_dagster.orchestration.sensor import landing_job, range_sensor
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource


def buffer_definitions(
    source: BufferSource,
    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec],
    resources: Mapping[str, Any],
    settings: SensorSettings | None = None,
    *,
    tables: Mapping[str, str] | None = None,
    upkeep: Sequence[str] = (),
    sensor_interval_seconds: int = 5,
) -> dg.Definitions:
    """The external asset, these assets, the sensor that runs those with ranges, and the jobs and schedules around.

        defs = buffer_definitions(source, [entries], {"buffer": ..., "lake": ..., "spark": ...})

    assets: range assets, and specs of what they write besides, such as dead letters.
    resources: under the names that source and assets use; the lake is `lake`.
    tables: the lake's tables that upkeep and checks look after, by asset; those of the assets with the CHECKS of a
        landing unless given. None are looked after if it is empty. That of an asset behind one of these is checked to
        be decoded from what has landed there.
    upkeep: the lake's tables that upkeep alone looks after: of dead letters, most ranges have none.

    Steps run in the run's own process: hooks must be done before the run ends. Join other definitions with
    `dg.Definitions.merge`. Raises InvalidInput for an asset of `ack_after` that is not there, and for a resource with a
    credential in it that is no `EnvVar`: Dagster would store it.
    """
    ranged = [one for one in assets if isinstance(one, dg.AssetsDefinition)]
    keys = {key for asset in ranged for key in asset.keys}
    if missing := [gate.to_user_string() for gate in source.gates if gate not in keys]:
        raise InvalidInput(
            f"ack_after names {', '.join(missing)}, which is no asset of this pipeline: nothing would ever be acked"
        )
    for name, kind in ((source.name, "BufferResource"), ("lake", "LakeResource")):
        if name not in resources:
            raise InvalidInput(f"a pipeline needs the resource {name!r}: a {kind}")
    check_resources(resources)
    land = landing_job(source, ranged)
    landed = [one.key for one in ranged if set(CHECKS) <= {check.name for check in one.check_keys}]
    if tables is None:
        tables = {key.to_user_string(): "_".join(key.path) for key in landed}
    collect = collect_job(source)
    looked_after = sorted({*tables.values(), *upkeep})
    maintain = upkeep_job(looked_after, name=f"upkeep_{source.name}_tables")
    of = {
        key.to_user_string(): [dep for dep in landed if dep in one.asset_deps[key]]
        for one in ranged
        for key in one.keys
    }
    checks = [
        table_checks(source, asset, table, decoded_from=_table_of(of.get(asset, []), tables))
        for asset, table in tables.items()
    ]
    check = dg.define_asset_job(
        f"check_{source.name}_tables_job",
        selection=dg.AssetSelection.checks(*(key for one in checks for key in one.check_keys)),
        executor_def=dg.in_process_executor,
        description="Looks over whole tables: what was acked is there, no hole is between ranges, nothing is twice.",
    )
    nightly: list[Job] = [*([maintain] if looked_after else []), *([check] if tables else [])]
    sensor = range_sensor(
        source,
        land,
        settings,
        interval_seconds=sensor_interval_seconds,
        host=RunHost(resources["lake"], resources.get("spark")),
        metrics=source.metrics,
        states=[key for one in ranged for key, tags in one.tags_by_key.items() if tags.get(STATE_TAG) == source.name],
    )
    return dg.Definitions(
        assets=[source.asset(), *assets],
        asset_checks=checks,
        resources=dict(resources),
        sensors=[sensor],
        jobs=[land, collect, *nightly],
        schedules=schedules(collect, *nightly),
        executor=dg.in_process_executor,
    )


def _table_of(landings: Sequence[dg.AssetKey], tables: Mapping[str, str]) -> str | None:
    """The table of the only landing that an asset is behind; of several, nobody knows which it decodes."""
    found = [tables[key.to_user_string()] for key in landings if key.to_user_string() in tables]
    return found[0] if len(found) == 1 else None
