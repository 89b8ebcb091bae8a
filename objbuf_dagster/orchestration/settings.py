"""What can be set of the sensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.gate import Gate
from objbuf_dagster.ranges.regulator import Profile, Regulator

_MOST_PARALLEL = 1_000
_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class SensorSettings:
    """How much the sensor cuts off, and how much it starts.

    limits: when a range is full, if that is not to be found out: they apply as they are, with no regulator and no gate.
    regulator: how the sensor finds the size of ranges, and how many to run at once: a profile by its name,
        `Regulator.of` with other numbers, or `off`. None is `balanced`, or `off` for who gave limits. One that is not
        `on` is off as well, and may have the limits itself. What it has of `parallel` and `tick_seconds` is the
        sensor's.
    gate: when nothing new is started, because memory, disk or work in flight are near their limits. None is one with
        room for what the sensor itself starts.
    max_in_flight: ranges that run or are about to, at the most; also the ranges that may wait for a person before
        nothing new is planned.
    max_ahead: ranges past the frontier, at the most, the finished ones that wait for one that failed included: every
        tick and every hook reads their objects.
    max_attempts: runs that a range gets before it waits for a person.
    retry_seconds: before a range is tried again; doubled each time.
    on_gap: what to do when sequences left the manifest unplanned: `fail` the tick, or `skip` them and say so.
    """

    limits: Limits | None = None
    regulator: Regulator | Profile | Literal["off"] | None = None
    gate: Gate | None = None
    max_in_flight: int = 4
    max_ahead: int = 100
    max_attempts: int = 8
    retry_seconds: float = 30.0
    on_gap: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        self._check_kinds()
        if min(self.max_in_flight, self.max_ahead, self.max_attempts) < 1 or not 0 <= self.retry_seconds < math.inf:
            raise InvalidInput(f"a sensor needs room for a range and an attempt, and no negative time: {self}")
        if self.on_gap not in ("fail", "skip"):
            raise InvalidInput(f"on_gap is fail or skip, not {self.on_gap!r}")
        chosen = self._chosen()
        if self.limits is not None and chosen.on:
            raise InvalidInput(
                "limits apply with the regulator off, and it is on: leave one of them out; for other bounds of the "
                "regulator, give Regulator.of('balanced', max_bytes=..., max_batches=..., max_wait=...)"
            )
        if self.limits is not None and chosen.limits not in (Limits(), self.limits):
            raise InvalidInput("limits are given twice, to the sensor and to its regulator: leave one of them out")
        self.regulation()

    def regulation(self, tick_seconds: float = 5.0) -> tuple[Regulator, Gate]:
        """The regulator and the gate with all their numbers, those of the sensor among them.

        Raises InvalidInput for a profile that is none, and for a gate that would close in plain work.
        """
        chosen = self._chosen()
        regulator = replace(
            chosen,
            limits=self.limits or chosen.limits,
            parallel=min(self.max_in_flight, _MOST_PARALLEL),
            tick_seconds=tick_seconds,
        )
        if self.gate is not None and regulator.on:
            self.gate.check_room(self.max_in_flight, regulator.max_bytes)
        twice = 2 * self.max_in_flight
        plain = Gate()
        roomy = Gate(
            max_ranges=min(max(plain.max_ranges, twice), 1_000_000),
            max_bytes=min(max(plain.max_bytes, twice * regulator.max_bytes), _MOST_BYTES),
        )
        return regulator, self.gate or roomy

    def _check_kinds(self) -> None:
        """What is nearly right (False, an empty name) must not be taken for what is not given."""
        names = (*get_args(Profile), "off")
        given = self.regulator
        if not (given is None or isinstance(given, Regulator) or (isinstance(given, str) and given in names)):
            raise InvalidInput(
                f"the sensor's regulator is {', '.join(names)}, a Regulator or None, not {shown(repr(given))}; for "
                "other numbers, give Regulator.of('balanced', ...)"
            )
        for name, kind in (("gate", Gate), ("limits", Limits)):
            value = getattr(self, name)
            if not (value is None or isinstance(value, kind)):
                what = f"{kind.__name__}(...), with the numbers that are to differ, or None"
                raise InvalidInput(f"the sensor's {name} is {what}, not {shown(repr(value))}")

    def _chosen(self) -> Regulator:
        chosen = ("balanced" if self.limits is None else "off") if self.regulator is None else self.regulator
        if isinstance(chosen, Regulator):
            return chosen
        return Regulator(on=False) if chosen == "off" else Regulator.of(chosen)
