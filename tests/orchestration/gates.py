"""A machine under pressure, what a gate tells of it, and runs that people start beside the sensor's."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from objbuf_dagster.orchestration.host import RunHost
from objbuf_dagster.orchestration.tick import TickResult
from objbuf_dagster.ranges.regulator import Regulator
from tests.orchestration.sensing import ENTRIES, Sensing, key

SMALL = Regulator.of("balanced", min_bytes=1, max_bytes=2000, expected_room=16.0)
"""Ranges of two batches, and as many at a time as the sensor may start."""


@dataclasses.dataclass(frozen=True, slots=True)
class Machine(RunHost):
    """A machine in such a state."""

    used: float = 0.5
    limit: float = float(64 << 30)
    free: int = 1 << 40

    def memory(self, _: dg.DagsterInstance, /) -> list[tuple[float, float]]:
        return [(self.used * self.limit, self.limit)]

    def disk(self, _: dg.DagsterInstance, /) -> tuple[int, int] | None:
        return self.free, 2 << 40


def numbers(outcome: TickResult) -> dict[str, Any]:
    (event,) = outcome.observations
    return {name: value.value for name, value in event.metadata.items()}


MANY = {ASSET_PARTITION_RANGE_START_TAG: key(10**6, 10**6), ASSET_PARTITION_RANGE_END_TAG: key(10**7, 10**7)}
"""Of a run that lands many ranges, one after the other, all of them acked long ago."""

OF_ENTRIES = frozenset({ENTRIES})


def backfill(
    sensor: Sensing, tags: Mapping[str, str] | None = None, selection: frozenset[dg.AssetKey] | None = OF_ENTRIES
) -> dg.DagsterRun:
    """A person's run of a range that is acked long ago, or will be; it has begun."""
    run = sensor.record(tags or {PARTITION_NAME_TAG: key(10**6, 10**6)}, selection)
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name, message="begins")
    sensor.instance.report_dagster_event(event, run.run_id, timestamp=time.time() + sensor.later)
    return run
