"""What a range costs to land, found out from the ranges that landed.

The model is `seconds = (fixed + per_byte * bytes) * (1 + slowdown * (at_once - 1))`. A run starts a process and a Spark
session before it touches a byte: that is `fixed`. `slowdown` is what each other run at the same time adds: 0 on a
cluster with room, nearly 1 on a machine that a single run fills already.

The three are a weighted least-squares fit that forgets, held by what is expected before anything was seen. So one
sample is enough, and samples of equal size still give an answer: what the data cannot tell apart, the expectation does.
Each cost keeps within its bounds: where the best fit is outside, the bound is taken and the others are fitted to it. A
sample counts for at most three times, and at least a third, of what was expected: an outlier moves the fit a little, a
lasting change moves it within a few ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_UNIT = float(1 << 20)
"""Sizes are fitted in MiB, so that sums of squares keep their digits."""

_NOISE = 0.15
"""Of what runs take on average: how far those that should take the same differ."""

_FIXED_SPREAD = 1.5
_PER_BYTE_SPREAD = 50.0
_SLOWDOWN_SPREAD = 0.5
"""How wrong an expectation may be; the first two in parts of it. Spark starts about alike everywhere; sinks differ."""

_OUTLIER = 3.0
_LEAST_FIXED = 0.1
_LEAST_PER_BYTE = 0.01
"""Of the expectation: nothing is free, and a cost of 0 would ask for a range of no size, or of any."""

_MOST = 1e9
"""Seconds, and seconds for a MiB, that a cost is at the most."""

SUMS = 9
"""How many sums a fit is made from: six products of the three factors with each other, three with the seconds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run costs.

    fixed: seconds, whatever it lands.
    per_byte: seconds more for each byte.
    slowdown: part of both that each other run at the same time adds, 0 to 1.
    """

    fixed: float
    per_byte: float
    slowdown: float

    def seconds(self, size: float, at_once: float = 1.0) -> float:
        """How long a range of this size takes beside others."""
        return (self.fixed + self.per_byte * size) * self.factor(at_once)

    def factor(self, at_once: float) -> float:
        """How much longer a run takes with as many at once."""
        return 1 + self.slowdown * (at_once - 1)

    def capacity(self, at_once: float) -> float:
        """Seconds of work, as a run by itself would need, that as many at once get done in a second."""
        return at_once / self.factor(at_once)


def plausible(seconds: float, expected: float) -> float:
    """What a sample counts for."""
    return min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)


def add(sums: Sequence[float], cost: Cost, size: float, at_once: float, seconds: float, keep: float) -> list[float]:
    """The sums with one more sample, that `cost` was expected of; `keep` is what is left of the older ones."""
    factors = (1.0, size / _UNIT, (at_once - 1) * cost.seconds(size))
    new = [factors[row] * factors[column] for row in range(3) for column in range(row, 3)]
    new += [factor * seconds for factor in factors]
    return [keep * old + more for old, more in zip(sums, new, strict=True)]


def fit(sums: Sequence[float], expected: Cost) -> Cost:
    """The costs that samples and expectation give together."""
    means = [expected.fixed, expected.per_byte * _UNIT, expected.slowdown]
    spreads = [_FIXED_SPREAD * means[0], _PER_BYTE_SPREAD * means[1], _SLOWDOWN_SPREAD]
    bounds = [(_LEAST_FIXED * means[0], _MOST), (_LEAST_PER_BYTE * means[1], _MOST), (0.0, 1.0)]
    noise = _NOISE * max(means[0], sums[6] / sums[0] if sums[0] > 0 else 0.0)
    products = iter(sums)
    matrix = [[0.0] * 3 for _ in range(3)]
    for row in range(3):
        for column in range(row, 3):
            matrix[row][column] = matrix[column][row] = next(products)
    right = list(products)
    for one, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        sure = (noise / spread) ** 2
        matrix[one][one] += sure
        right[one] += mean * sure
    fixed, slope, slowdown = _solve(matrix, right, bounds)
    return Cost(fixed, slope / _UNIT, slowdown)


def _solve(matrix: list[list[float]], right: list[float], bounds: list[tuple[float, float]]) -> list[float]:
    """The least squares within the bounds: what is outside is put on its bound, one after the other."""
    known: dict[int, float] = {}
    while True:
        open_ = [one for one in range(len(right)) if one not in known]
        rest = [right[one] - sum(matrix[one][other] * value for other, value in known.items()) for one in open_]
        found = _eliminate([[matrix[one][other] for other in open_] for one in open_], rest)
        outside = 0.0
        worst = None
        for one, value in zip(open_, found, strict=True):
            low, high = bounds[one]
            inside = min(max(low, value), high) if math.isfinite(value) else low
            away = abs(value - inside) * math.sqrt(matrix[one][one]) if math.isfinite(value) else math.inf
            if away > outside:
                worst, outside, at = one, away, inside
        if worst is None:
            return [known[one] if one in known else found[open_.index(one)] for one in range(len(right))]
        known[worst] = at


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss, for a matrix that is symmetric and positive but for rounding; scaled, since its factors are not alike."""
    size = len(right)
    scale = [1 / math.sqrt(matrix[one][one]) for one in range(size)]
    rows = [
        [matrix[row][column] * scale[row] * scale[column] for column in range(size)] + [right[row] * scale[row]]
        for row in range(size)
    ]
    for pivot in range(size):
        for row in range(pivot + 1, size):
            part = rows[row][pivot] / max(rows[pivot][pivot], 1e-12)
            rows[row] = [value - part * above for value, above in zip(rows[row], rows[pivot], strict=True)]
    found = [0.0] * size
    for row in reversed(range(size)):
        rest = rows[row][size] - sum(rows[row][column] * found[column] for column in range(row + 1, size))
        found[row] = rest / max(rows[row][row], 1e-12)
    return [value * factor for value, factor in zip(found, scale, strict=True)]


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
