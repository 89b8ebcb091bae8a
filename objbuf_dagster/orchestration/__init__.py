"""The Dagster side: resources, range assets, the sensor, the ack, checks and jobs."""

from objbuf_dagster.orchestration.acking import Acked, ack_hook, ack_materialised
from objbuf_dagster.orchestration.definitions import buffer_definitions
from objbuf_dagster.orchestration.host import RunHost
from objbuf_dagster.orchestration.jobs import collect_job, table_checks, upkeep_job
from objbuf_dagster.orchestration.range_asset import (
    Outcome,
    RangeConfig,
    RangeContext,
    RangeFailure,
    RangeResult,
    range_asset,
)
from objbuf_dagster.orchestration.resources import BufferResource, LakeResource
from objbuf_dagster.orchestration.sensor import landing_job, range_sensor
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.orchestration.spark import SparkResource
from objbuf_dagster.orchestration.state import StateConfig, state_asset

__all__ = [
    "Acked",
    "BufferResource",
    "BufferSource",
    "LakeResource",
    "Outcome",
    "RangeConfig",
    "RangeContext",
    "RangeFailure",
    "RangeResult",
    "RunHost",
    "SensorSettings",
    "SparkResource",
    "StateConfig",
    "ack_hook",
    "ack_materialised",
    "buffer_definitions",
    "collect_job",
    "landing_job",
    "range_asset",
    "range_sensor",
    "state_asset",
    "table_checks",
    "upkeep_job",
]
