"""What the regulator remembers between ticks, and what it learns from.

The state is a hint and no truth: losing it costs a few ranges of a poorer size. It is written with a version, since
another release may find it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass, fields
from itertools import pairwise

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.ranges.regulator_cost import REMEMBERED as SAMPLES
from objbuf_dagster.ranges.regulator_cost import Sample

VERSION = 3
REMEMBERED = 128
"""Ranges that are remembered as counted; older ones are taken for counted, too."""

_LARGEST = 1e30
_LEAST_SECONDS = 1e-6
_MOST_AT_ONCE = 1e4
_RESET = "Reset the sensor's cursor: the regulator learns again from the next few ranges, nothing else depends on it"


@dataclass(frozen=True, slots=True)
class Observation:
    """A range that landed.

    start: its first sequence, so that it is counted once, however often it is told.
    size: bytes of its batches' objects.
    batches: how many they are.
    seconds: that its runs took, those that failed included.
    arrival_seconds: in which its batches arrived: from the last batch of the range before it to its own last one; from
        its own first one if the range before is not known.
    at_once: runs there were on average meanwhile, itself included: see `at_once`.

    What cannot be (a clock went back, a size is missing) is taken as little or as nothing, never refused: a measurement
    is no reason to stop.
    """

    start: int
    size: float
    batches: int
    seconds: float
    arrival_seconds: float
    at_once: float = 1.0

    def is_usable(self) -> bool:
        """Whether there is something to learn from it."""
        counts = (self.size, self.batches, self.seconds)
        return all(0 < one < math.inf for one in counts) and all(
            -math.inf < one < math.inf for one in (self.arrival_seconds, self.at_once)
        )


@dataclass(frozen=True, slots=True)
class State:
    """What was learned. The empty one knows nothing, and the regulator goes by its expectations.

    seconds, arrival_seconds, size, batches: smoothed, of a range; seconds as if each had run alone.
    samples: what the costs are fitted from, the newest last.
    counted: the first sequences of the last ranges that were counted, in rising order.
    room: runs there was room for by what was learned before; 0 if nothing was.
    """

    seconds: float = 0.0
    arrival_seconds: float = 0.0
    size: float = 0.0
    batches: float = 0.0
    samples: tuple[Sample, ...] = ()
    counted: tuple[int, ...] = ()
    room: float = 0.0

    def has_counted(self, start: int) -> bool:
        """Also whatever lies before all that is remembered: a backfill says nothing of what arrives now."""
        return start in self.counted or (len(self.counted) >= REMEMBERED and start < self.counted[0])

    def to_json(self) -> dict[str, object]:
        """Values that `json.dumps` takes, and `from_json` gives back the same."""
        samples = [list(astuple(one)) for one in self.samples]
        return {"version": VERSION, **asdict(self), "samples": samples, "counted": list(self.counted)}

    @classmethod
    def from_json(cls, given: object) -> State:
        """Raises InvalidInput for anything that was not written by `to_json`.

        None, from before there was any, is the empty state, and so is one of an older format: it is only a hint.
        """
        if given is None:
            return cls()
        if not isinstance(given, dict):
            raise _damaged("it is no object")
        version = given.get("version")
        if type(version) is int and 1 <= version < VERSION:
            return cls()
        if type(version) is not int or version != VERSION:
            raise InvalidInput(
                f"the regulator's state has format {shown(str(version))[:20]!r}, and this release writes {VERSION}: it "
                f"was made by another release. {_RESET}"
            )
        names = {one.name for one in fields(cls)}
        if given.keys() != names | {"version"}:
            raise _damaged("its names are not the ones that are written")
        return cls(
            **{name: _number(name, given[name]) for name in ("seconds", "arrival_seconds", "size", "batches")},
            samples=_samples(given["samples"]),
            counted=_counted(given["counted"]),
            room=_room(given["room"]),
        )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        raise _damaged(f"{name} is no number that it could be")
    return float(value)


def _room(given: object) -> float:
    room = _number("room", given)
    if room and not 1 <= room <= _MOST_AT_ONCE:
        raise _damaged("room is no number that it could be")
    return room


def _samples(given: object) -> tuple[Sample, ...]:
    if not isinstance(given, list) or len(given) > SAMPLES:
        raise _damaged("samples is no list, or too long")
    if any(not isinstance(one, list) or len(one) != len(fields(Sample)) for one in given):
        raise _damaged("samples has something else than samples")
    found = tuple(Sample(*(_number("samples", value) for value in one)) for one in given)
    if any(one.size <= 0 or one.seconds < _LEAST_SECONDS or not 1 <= one.at_once <= _MOST_AT_ONCE for one in found):
        raise _damaged("samples has a range that cannot be")
    return found


def _counted(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > REMEMBERED:
        raise _damaged("counted is no list, or too long")
    if any(type(one) is not int or not 0 <= one < 1 << 64 for one in given):
        raise _damaged("counted has something else than sequences")
    if any(one >= other for one, other in pairwise(given)):
        raise _damaged("counted does not rise")
    return tuple(given)


def _damaged(reason: str) -> InvalidInput:
    return InvalidInput(f"the regulator's state is damaged ({reason}). {_RESET}")
