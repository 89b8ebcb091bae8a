"""What can be set of the sensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.ranges import Limits


@dataclass(frozen=True, slots=True)
class SensorSettings:
    """How much the sensor cuts off, and how much it starts.

    limits: when a range is full.
    max_in_flight: ranges that run or are about to, at the most; also the ranges that may wait for a person before
        nothing new is planned.
    max_ahead: ranges past the frontier, at the most, the finished ones that wait for one that failed included: every
        tick and every hook reads their objects.
    max_attempts: runs that a range gets before it waits for a person.
    retry_seconds: before a range is tried again; doubled each time.
    on_gap: what to do when sequences left the manifest unplanned: `fail` the tick, or `skip` them and say so.
    """

    limits: Limits = field(default_factory=Limits)
    max_in_flight: int = 4
    max_ahead: int = 100
    max_attempts: int = 8
    retry_seconds: float = 30.0
    on_gap: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        if min(self.max_in_flight, self.max_ahead, self.max_attempts) < 1 or not 0 <= self.retry_seconds < math.inf:
            raise InvalidInput(f"a sensor needs room for a range and an attempt, and no negative time: {self}")
        if self.on_gap not in ("fail", "skip"):
            raise InvalidInput(f"on_gap is fail or skip, not {self.on_gap!r}")
