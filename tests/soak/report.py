"""What happened in a soak, and which of its promises were not kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.prove.proof import Proof
from tests.soak.sample import Sample

MEMORY_LIMIT = 5 << 29
"""Of everything: Dagster's servers take a fifth of it, and a run up to half."""

LARGEST_RANGE = 64 << 20
"""So that a burst is more than a few ranges on any machine, and a soak writes no more than a few gigabytes."""

TIMES = 3.0
"""What bursts are of what one run at a time can take."""

LEVEL = 1.5
"""Lag is back at the trickle's level if it is at most so many times it."""

_GROWN = 2.0
"""Times what it was before the first burst: the budget of a deployment that is behind."""

_FILLED = 0.25
"""Of the largest range, that the largest which was planned has at the least: pressure lowers what may be."""

_MANY = 8
"""Batches that it has, at the least: a range of one batch says nothing of how ranges grow."""

_PAUSE_ABOVE = 0.80

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Planned:
    """A range that was planned so many seconds after the start, by its object."""

    at: float
    size: int
    batches: int


@dataclass(slots=True)
class Report:
    """What happened. `misses` are the promises that were not kept, in words; none is what is wanted."""

    proof: Proof
    samples: list[Sample] = field(default_factory=list)
    bursts: dict[str, tuple[float, float]] = field(default_factory=dict)
    planned: list[Planned] = field(default_factory=list)
    limit: int = MEMORY_LIMIT
    is_brief: bool = False
    is_unlimited: bool = False
    is_enforced: bool = False
    kernel_peak: int | None = None
    killed: int = 0
    failed: int = 0
    run_seconds: float = math.nan
    burst_rate: float = math.nan
    level: float = math.nan
    end_level: float = math.nan
    caught_up: bool = False
    ballast: tuple[float, float] | None = None
    beside: int = 0

    @property
    def held_back(self) -> int:
        """Seconds for which ranges were, while others had the memory."""
        start_at, end_at = self.ballast or (0.0, 0.0)
        return sum(one.held for one in self.samples if start_at <= one.at <= end_at)

    @property
    def peak(self) -> int:
        """Of memory that cannot be taken back."""
        return max((one.memory for one in self.samples), default=0)

    @property
    def times(self) -> float:
        """What bursts were, of what one run at a time can take."""
        return self.burst_rate * self.run_seconds / LARGEST_RANGE

    @property
    def begin(self) -> float:
        """When the first burst did."""
        return min((start for start, _ in self.bursts.values()), default=math.inf)

    @property
    def usual(self) -> float:
        """Bytes of a range before the first burst."""
        return statistics.median([one.size for one in self.planned if one.at < self.begin] or [math.nan])

    @property
    def largest(self) -> Planned:
        """Of the ranges that were planned."""
        return max(self.planned, key=lambda one: one.size, default=Planned(math.nan, 0, 0))

    @property
    def growth(self) -> float:
        """The largest budget since the first burst, in times of the usual one before."""
        begin = self.begin
        before = [one.budget for one in self.samples if one.budget > 0 and one.at < begin]
        after = [one.budget for one in self.samples if one.at >= begin]
        return max(after) / statistics.median(before) if before and after else math.nan

    @property
    def misses(self) -> Iterator[str]:
        if not self.proof.holds:
            yield f"{self.proof.lost} lost, {self.proof.doubled} doubled, {self.proof.invented} wrong"
        if self.failed:
            yield f"{self.failed} runs did not end well"
        if not self.is_brief and not self.times >= TIMES:
            yield f"bursts were {self.times:.2f} times what one run at a time can take, and not {TIMES:g}"
        if not self.is_brief and not self.growth >= _GROWN:
            yield f"the budget grew to {self.growth:.1f} times what it was while the deployment was behind"
        pressures = [one for one in self.samples if one.pressure > 0]
        busy = (one for one in pressures if one.in_flight)  # with nothing to do, there is nothing to hold back
        if not pressures or any(one.pressure >= _PAUSE_ABOVE and not one.held for one in busy):
            yield "pressure was not told, or held nothing back"
        if not self.is_enforced and not self.is_unlimited:
            yield "no control group may be made here, so nothing limited memory; --unlimited goes on without"
        if self.killed or (self.is_enforced and self.peak > self.limit):
            yield f"memory reached {self.peak >> 20} of {self.limit >> 20} MiB, {self.killed} processes were killed"
        if not self.caught_up and not self.is_brief:
            yield f"lag is {self.end_level:.0f} s, and was {self.level:.0f} s with the trickle alone"
        yield from self._misses_of_ballast()
        yield from self._misses_of_ranges()
        largest = max((one.budget for one in self.samples), default=0.0)
        if largest > LARGEST_RANGE or any(one.budget <= 0 for one in self.samples if not math.isnan(one.pressure)):
            yield f"a budget left its bounds, the largest is {largest:.0f}"

    def _misses_of_ranges(self) -> Iterator[str]:
        if any(one.size > LARGEST_RANGE and one.batches > 1 for one in self.planned):
            yield f"a range was planned with {self.largest.size} bytes, and {LARGEST_RANGE} is the most"
        large = self.largest
        if not self.is_brief and (large.size < _FILLED * LARGEST_RANGE or large.batches < _MANY):
            yield (
                f"the largest range that was planned has {large.size / _MIB:.1f} MiB in {large.batches} batches, and "
                f"not {_FILLED * LARGEST_RANGE / _MIB:g} MiB in {_MANY} or more"
            )

    def _misses_of_ballast(self) -> Iterator[str]:
        if self.is_enforced and not self.held_back:
            yield "others had the memory, and nothing was held back"
        if self.beside:
            yield f"{self.beside} runs began beside another one while ranges were held back"
        if self.ballast and self.samples[-1].held:
            yield "ranges were held back until the end, although memory was free again"

    def lines(self) -> Iterator[str]:
        largest_lag = max((one.lag for one in self.samples), default=math.nan)
        budgets = [one.budget for one in self.samples if one.budget > 0]
        limit = "held by a control group" if self.is_enforced else "not enforced: no control group may be made here"
        proof, times = self.proof, f"{self.times:.2f} times what one run at a time can take"
        with_files = "not known" if self.kernel_peak is None else f"{self.kernel_peak >> 20} MiB"
        yield f"{proof.tried:,} entries: {proof.lost} lost, {proof.doubled} doubled, {proof.invented} wrong"
        yield f"a run takes {self.run_seconds:.1f} s; bursts were {self.burst_rate / 1e6:.2f} MB/s, {times}"
        yield (
            f"budget of a range: {min(budgets, default=0) / _MIB:.1f} to {max(budgets, default=0) / _MIB:.1f} MiB, "
            f"{self.growth:.1f} times the usual one while behind; {self.failed} runs failed"
        )
        yield (
            f"{len(self.planned)} ranges were planned: of {self.usual / _MIB:.2f} MiB with the trickle, the largest of "
            f"{self.largest.size / _MIB:.1f} MiB in {self.largest.batches} batches"
        )
        yield f"lag: {self.level:.0f} s with the trickle, at most {largest_lag:.0f} s, at last {self.end_level:.0f} s"
        yield f"held back for {sum(one.held for one in self.samples)} of {len(self.samples)} s"
        if self.ballast:
            told = f"held back for {self.held_back} of them, and {self.beside} runs began beside another one"
            yield f"others filled memory for {self.ballast[1] - self.ballast[0]:.0f} s: {told}"
        yield f"memory: {self.peak >> 20} of {self.limit >> 20} MiB ({limit}), {self.killed} processes killed for it"
        yield f"the same with pages of files, which the kernel takes back: {with_files}"
        for miss in self.misses:
            yield f"MISSED: {miss}"
