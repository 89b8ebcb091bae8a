"""What a range costs to land, found out from the ranges that landed.

The model is `seconds = (fixed + per_byte * bytes) * max(1, at_once / room)`. A run starts a process and a Spark session
before it touches a byte: that is `fixed`. `room` is how many runs the machine has room for: as many go at full speed,
more than that share it. It is about 1 on two cores, which a single run fills already, about 2 on four, and more than
anybody starts on a cluster.

The last ranges are remembered, and the newest count most. For each `room` that may be, the line through what they would
have taken alone is a least-squares fit, held by what is expected before anything was seen. So one sample is enough, and
samples of equal size still give an answer: what the data cannot tell apart, the expectation does. How well each line
fits, and how far its `room` and `fixed` are from what was expected, says how likely it is; the likeliest is taken. Runs
that were never more than two say only that there is room for two: whether there is for three, only trying tells
(`seen_at_once`). Old samples fade for both alike: where a sink gets slower, those from before fit no room, and must not
choose the one that bends the new ones towards them. But machines change seldom: what was held of the room moves slowly
to what samples tell, and is what is expected once they have faded (`State.room`).

A sample counts for at most three times, and at least a third, of what was expected: an outlier moves the fit a little,
a lasting change moves it within a few ranges.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

_UNIT = float(1 << 20)
"""Sizes are fitted in MiB, so that sums of squares keep their digits."""

_NOISE = 0.15
"""Of what runs take on average: how far those that should take the same differ."""

_MISFIT = 0.2
"""The same for telling one room from another, with something for what the model leaves out."""

_FIXED_SPREAD = 1.5
_PER_BYTE_SPREAD = 10.0
"""How wrong an expectation may be, in parts of it. Spark starts about alike everywhere; sinks and machines differ."""

_LOG_FIXED_SPREAD = 0.5
_ROOM_SPREAD = 0.7
"""The same for telling one room from another, as logarithms: a start that takes a tenth of what it should is as odd as
one that takes ten times as long, and then it is something else that changed."""

_OUTLIER = 3.0
_LEAST_FIXED = 0.1
_LEAST_PER_BYTE = 0.001
"""Of the expectation: nothing is free, and a cost of 0 would ask for a range of no size, or of any."""

_MOST = 1e9
"""Seconds, and seconds for a MiB, that a cost is at the most."""

_ROOM_STEPS = 4
"""From one room that may be to one twice as large."""

REMEMBERED = 60
"""Samples that a fit is made from: an older one would count for less than a sixth."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run costs.

    fixed: seconds, whatever it lands.
    per_byte: seconds more for each byte.
    room: runs at the same time that go at full speed; more than that share it.
    """

    fixed: float
    per_byte: float
    room: float

    def seconds(self, size: float, at_once: float = 1.0) -> float:
        """How long a range of this size takes beside others."""
        return (self.fixed + self.per_byte * size) * self.factor(at_once)

    def factor(self, at_once: float) -> float:
        """How much longer a run takes with as many at once."""
        return max(1.0, at_once / self.room)

    def capacity(self, at_once: float) -> float:
        """Seconds of work, as a run by itself would need, that as many at once get done in a second."""
        return at_once / self.factor(at_once)


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes of a range, seconds that it took, and how many ran at once."""

    size: float
    seconds: float
    at_once: float


def seen_at_once(samples: Sequence[Sample]) -> float:
    """How many runs samples tell of, at the most; 0 if there are none."""
    return max((one.at_once for one in samples), default=0.0)


def plausible(seconds: float, expected: float) -> float:
    """What a sample counts for."""
    return min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)


@functools.lru_cache(maxsize=64)
def fit(samples: tuple[Sample, ...], expected: Cost, keep: float) -> Cost:
    """The costs that samples, the newest last, and expectation give together; each counts `keep` of the next."""
    if not samples:
        return expected
    most = max(expected.room, seen_at_once(samples))  # of more room, these say the same as of this
    rooms = (2 ** (step / _ROOM_STEPS) for step in range(1 + math.ceil(_ROOM_STEPS * math.log2(most))))
    weights = [keep**age for age in range(len(samples) - 1, -1, -1)]
    _, cost = min((_fit_alone(samples, weights, expected, room) for room in rooms), key=lambda found: found[0])
    return cost


def _fit_alone(samples: Sequence[Sample], weights: Sequence[float], expected: Cost, room: float) -> tuple[float, Cost]:
    """How unlikely it is that there is room for so many runs, and the best costs if there is."""
    fixed, slope = expected.fixed, expected.per_byte * _UNIT
    ones = x = xx = y = xy = 0.0
    alone = []
    for part, one in zip(weights, samples, strict=True):
        size, taken = one.size / _UNIT, one.seconds * room / one.at_once if one.at_once > room else one.seconds
        alone.append((part, size, taken))
        ones += part
        x += part * size
        xx += part * size * size
        y += part * taken
        xy += part * size * taken
    noise = _NOISE * max(fixed, y / ones)
    sure_fixed, sure_slope = (noise / (_FIXED_SPREAD * fixed)) ** 2, (noise / (_PER_BYTE_SPREAD * slope)) ** 2
    found_fixed, found_slope = _line(
        ones + sure_fixed,
        x,
        xx + sure_slope,
        y + sure_fixed * fixed,
        xy + sure_slope * slope,
        (_LEAST_FIXED * fixed, _LEAST_PER_BYTE * slope),
    )
    unlikely = (math.log(room / expected.room) / _ROOM_SPREAD) ** 2
    unlikely += (math.log(found_fixed / fixed) / _LOG_FIXED_SPREAD) ** 2
    for part, size, taken in alone:
        unlikely += part * (math.log(taken / (found_fixed + found_slope * size)) / _MISFIT) ** 2
    return unlikely, Cost(found_fixed, found_slope / _UNIT, room)


def _line(ones: float, x: float, xx: float, y: float, xy: float, least: tuple[float, float]) -> tuple[float, float]:
    """The least squares of `fixed + slope * x = y` within bounds: what is outside is put on its bound."""
    det = ones * xx - x * x
    fixed, slope = ((y * xx - x * xy) / det, (ones * xy - x * y) / det) if det > 0 else (least[0], math.inf)
    if not least[0] <= fixed <= _MOST:
        fixed = min(max(least[0], fixed), _MOST)
        slope = (xy - x * fixed) / xx
    if not least[1] <= slope <= _MOST:
        slope = min(max(least[1], slope), _MOST)
        fixed = (y - x * slope) / ones
    return min(max(least[0], fixed), _MOST), slope


def at_once(spans: Sequence[tuple[float, float]]) -> list[float]:
    """How many runs there were on average while each of these, from start to end in seconds, ran; 1 is the run alone.

    Runs that have not ended, or that are of other ranges, belong here too, since they slow down the same.
    """
    found = []
    for start, end in spans:
        length = end - start
        if not 0 < length < math.inf:
            found.append(1.0)
            continue
        overlaps = (min(end, other_end) - max(start, other_start) for other_start, other_end in spans)
        found.append(max(1.0, sum(one for one in overlaps if one > 0) / length))
    return found
