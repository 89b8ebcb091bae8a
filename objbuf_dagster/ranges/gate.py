"""When to start nothing new: memory, disk or work in flight are near their limits.

Pressure is the worst of what is known, 1 is the limit. At `pause_above` the gate closes, at `resume_below` it opens
again; in between it stays as it is, so that it does not swing with every tick. It is about new ranges alone: finishing
and acking are what lowers the pressure, and are never held back.

Where nothing of ours is in flight, waiting lowers nothing: then the gate opens below `pause_above` already. Otherwise a
machine that others keep at 0.7 would hold us back for ever, after one moment above 0.8.

`step` is a pure function. The readers look at the machine they run on, below a `root` that tests can give: for runs
elsewhere (a cluster, pods), pass no memory and no disk, since those of the sensor's host say nothing of theirs.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.ranges.regulator_checks import check_number

VERSION = 1

_RESET = "Reset the sensor's cursor: the gate finds out again at the next tick, nothing else depends on it"
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Pressure:
    """How near to its limit each of these is, from 0 to 1 or above; None if it is not known, which never holds back."""

    memory: float | None = None
    ranges: float | None = None
    bytes: float | None = None
    disk: float | None = None

    def worst(self) -> tuple[str, float]:
        """The highest, and what it is of; nothing known is no pressure."""
        levels = {one.name: _level(getattr(self, one.name)) for one in fields(self)}
        name = max(levels, key=lambda name: levels[name])
        return (name, levels[name]) if levels[name] > 0 else ("nothing", 0.0)


@dataclass(frozen=True, slots=True)
class GateState:
    """Whether new ranges are held back, and what for."""

    held: bool = False
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Values that `json.dumps` takes, and `from_json` gives back the same."""
        return {"version": VERSION, "held": self.held, "why": self.why}

    @classmethod
    def from_json(cls, given: object) -> GateState:
        """Raises InvalidInput for anything that was not written by `to_json`. None, from before, is an open gate."""
        if given is None:
            return cls()
        if not isinstance(given, dict):
            raise InvalidInput(f"the gate's state is damaged (it is no object). {_RESET}")
        version = given.get("version")
        if type(version) is not int or version != VERSION:
            raise InvalidInput(
                f"the gate's state has format {shown(str(version))[:20]!r}, and this release writes {VERSION}: it was "
                f"made by another release. {_RESET}"
            )
        held, why = given.get("held"), given.get("why")
        names = {"", *(one.name for one in fields(Pressure))}
        if given.keys() != {"version", "held", "why"} or not isinstance(held, bool) or not isinstance(why, str):
            raise InvalidInput(f"the gate's state is damaged (its values are not the ones that are written). {_RESET}")
        if why not in names:
            raise InvalidInput(f"the gate's state is damaged (it is held for {shown(why)!r}). {_RESET}")
        return cls(held, why)


@dataclass(frozen=True, slots=True)
class Gate:
    """The settings. Refused with InvalidInput if out of range.

    pause_above: pressure at which nothing new is started, up to 1.
    resume_below: pressure at which work goes on, below pause_above.
    max_ranges: in flight, whoever started them, that are a pressure of 1. Above what the sensor itself keeps in flight.
    max_bytes: of the ranges in flight, that are a pressure of 1.
    min_free_bytes: of the lake's disk, that are a pressure of 1; a tenth of the disk, if that is less.
    """

    pause_above: float = 0.80
    resume_below: float = 0.65
    max_ranges: int = 8
    max_bytes: int = 8 << 30
    min_free_bytes: int = 10 << 30

    def __post_init__(self) -> None:
        check_number(self, "pause_above", 0.01, 1)
        check_number(self, "resume_below", 0, 1)
        if self.resume_below >= self.pause_above:
            raise InvalidInput(
                f"the gate's resume_below must be below pause_above, which is {self.pause_above:g}, and is "
                f"{self.resume_below:g}"
            )
        check_number(self, "max_ranges", 1, 1_000_000, whole=True)
        check_number(self, "max_bytes", 1, 1 << 60, whole=True)
        check_number(self, "min_free_bytes", 1, 1 << 60, whole=True)

    def check_room(self, ranges: int, range_bytes: int) -> None:
        """Refuse limits that so many ranges of such a size, nothing unusual, would reach by themselves."""
        for name, usual in (("max_ranges", ranges), ("max_bytes", ranges * range_bytes)):
            if usual >= self.pause_above * getattr(self, name):
                raise InvalidInput(
                    f"the gate's {name} is {getattr(self, name)}, and {ranges} ranges in flight of {range_bytes} bytes "
                    f"are above {self.pause_above:g} of it: it would close in plain work. Set it to more than "
                    f"{math.ceil(usual / self.pause_above)}, or max_in_flight or the range's max_bytes to less"
                )

    def pressure(
        self,
        *,
        memory: float | None = None,
        ranges: int = 0,
        size: int = 0,
        disk: tuple[int, int] | None = None,
    ) -> Pressure:
        """Of the memory in use (`memory_in_use`), of ranges in flight and their bytes, of a disk (`disk_space`)."""
        free = None
        if disk is not None and disk[1] > 0:
            free = min(1.0, min(self.min_free_bytes, disk[1] / 10) / max(disk[0], 1))
        return Pressure(memory, ranges / self.max_ranges, size / self.max_bytes, free)

    def step(self, state: GateState, pressure: Pressure) -> tuple[GateState, bool]:
        """The state from now on, and whether it changed: a change is told once, not at every tick."""
        why, level = pressure.worst()
        if not state.held and level >= self.pause_above:
            return GateState(True, why), True
        is_idle = pressure.ranges == 0
        if state.held and (level <= self.resume_below or (is_idle and level < self.pause_above)):
            return GateState(), True
        return state, False

    def tell(self, state: GateState, pressure: Pressure) -> str:
        """A sentence for who reads the log."""
        why, level = pressure.worst()
        if state.held:
            return (
                f"nothing new is started: the pressure of {why} is {level:.2f}, and {self.pause_above:g} was "
                f"reached. It goes on at {self.resume_below:g}, or when nothing is in flight. What runs finishes, and "
                "is acked"
            )
        return f"new ranges are started: the pressure is {level:.2f}, of {why}"


def memory_in_use(root: Path = Path("/")) -> float | None:
    """The part of memory that is in use and cannot be reclaimed: of the machine, or of the tightest limit on this
    process, by control groups of version 1 or 2, whichever is worse. None where that cannot be found out.
    """
    found = [_machine(root), *_groups(root)]
    known = [one for one in found if one is not None]
    return max(known, default=None)


def disk_space(path: Path) -> tuple[int, int] | None:
    """Bytes that are free, and all, of the disk that a directory is or will be on. None where that cannot be read."""
    for one in (path, *path.parents):
        try:
            usage = shutil.disk_usage(one)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return usage.free, usage.total
    return None


def _machine(root: Path) -> float | None:
    values = _pairs(root / "proc/meminfo")
    total, available = values.get("MemTotal:"), values.get("MemAvailable:")
    if not total or available is None:
        return None
    return 1 - available / total


def _groups(root: Path) -> Iterator[float | None]:
    """Of every control group with a limit that this process is in, from its own to the outermost that is visible."""
    total = _pairs(root / "proc/meminfo").get("MemTotal:", 0) * _KIB or math.inf
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                for group in _upwards(root / mount, path):
                    limit = min(_number(group / "memory.max"), _number(group / "memory.high"))
                    yield _of_group(group, limit, "memory.current", "inactive_file", total)
        elif "memory" in controllers.split(","):
            for group in _upwards(root / "sys/fs/cgroup/memory", path):
                limit = _number(group / "memory.limit_in_bytes")
                yield _of_group(group, limit, "memory.usage_in_bytes", "total_inactive_file", total)


def _of_group(group: Path, limit: float, usage: str, cache: str, total: float) -> float | None:
    """Pages of files that nobody used of late are reclaimed first, and are no pressure. No limit is a huge one, too."""
    used = _number(group / usage)
    if not 0 < limit <= total or used == math.inf:
        return None
    return max(0.0, used - _pairs(group / "memory.stat").get(cache, 0)) / limit


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group and those around it. A path that is of outside of a container's view is not there, its root is."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")]
    for length in range(len(parts), -1, -1):
        group = mount.joinpath(*parts[:length])
        if group.is_dir():
            yield group


def _number(path: Path) -> float:
    """What a file of a control group says; no limit if it says "max", or nothing."""
    text = _text(path).strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 30 else math.inf


def _pairs(path: Path) -> dict[str, int]:
    """The names and first numbers of a file's lines; what is not like that is left out."""
    found = {}
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isascii() and words[1].isdigit() and len(words[1]) < 30:
            found[words[0]] = int(words[1])
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _level(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else max(0.0, value)
