"""When to start nothing new: memory, disk or work in flight are near their limits.

Pressure is the worst of what is known, 1 is the limit. At `pause_above` the gate closes, at `resume_below` it opens
again; in between it stays as it is, so that it does not swing with every tick. It is about new ranges alone: finishing
and acking are what lowers the pressure, and are never held back.

A run takes its memory only some time after it began, when it has started Spark and reads. So `room` keeps memory for
runs that are young, and a backlog does not start more of them in one tick than will fit. That is no pressure yet, and
closes nothing.

There are two exceptions, both only while none of ours is in flight: no run of a range that is not acked. A run that
lands acked ranges again (a backfill) is one of the others, since it may go on for a day. Then waiting lowers nothing,
and

- the gate opens below `pause_above` already. Otherwise a machine that others keep at 0.7 would hold us back for ever,
  after one moment above 0.8.
- where memory alone is at `pause_above` or more, and below `stop_above`, one range passes the closed gate, and the next
  one when that has ended. A laptop at 0.82 would never land anything otherwise.

A full disk lets nothing pass: what is written there stays, and only a person makes room. `stop_above=pause_above` takes
the second exception out: at `pause_above` nothing new is started, whatever is in flight.

`step` is a pure function. The readers look at the machine they run on, below a `root` that tests can give: for runs
elsewhere (a cluster, pods), pass no memory and no disk, since those of the sensor's host say nothing of theirs.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.ranges.regulator_checks import check_number

VERSION = 1

_RESET = "Reset the sensor's cursor: the gate finds out again at the next tick, nothing else depends on it"
_KIB = 1024
_RUN_MEMORY = 1 << 30

_FIRST = ("total_inactive_file", "total_active_file")
_SECOND = ("inactive_file", "active_file", "slab_reclaimable")
"""Of version 1 and 2: pages of files, also of those in use, and what the kernel remembers of them."""


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

    pause_above: pressure at which nothing new is started, up to 1; but see stop_above.
    resume_below: pressure at which work goes on, below pause_above. While none of ours is in flight, it goes on below
        pause_above.
    stop_above: memory from which on nothing is started at all: a run would bring the machine down. From pause_above up
        to it, one range at a time is started while none of ours is in flight, if it is memory alone that is so high.
        The same as pause_above, or less, starts none there.
    max_ranges: in flight, whoever started them, that are a pressure of 1. Above what the sensor itself keeps in flight.
    max_bytes: of the ranges in flight that are not acked, that are a pressure of 1. A run that lands acked ranges again
        (a backfill) is one of `max_ranges`, whatever its bytes: they are in no manifest any more.
    min_free_bytes: of the lake's disk, that are a pressure of 1; a tenth of the disk, if that is less.
    run_memory_bytes: that are kept for a run until it has shown what it takes; 0 keeps none. None is what the driver of
        Spark may take, if that is set, else 1 GiB. Measured, with ranges of 16 MiB and a driver of 1 GiB: 0.7 to 1.3.
    settle_seconds: after which it has, at the least: a machine on which runs start more slowly gives them longer.
    """

    pause_above: float = 0.80
    resume_below: float = 0.65
    stop_above: float = 0.95
    max_ranges: int = 8
    max_bytes: int = 8 << 30
    min_free_bytes: int = 10 << 30
    run_memory_bytes: int | None = None
    settle_seconds: float = 30.0

    def __post_init__(self) -> None:
        check_number(self, "pause_above", 0.01, 1)
        check_number(self, "resume_below", 0, 1)
        if self.resume_below >= self.pause_above:
            raise InvalidInput(
                f"the gate's resume_below must be below pause_above, which is {self.pause_above:g}, and is "
                f"{self.resume_below:g}"
            )
        check_number(self, "stop_above", 0.01, 1)
        check_number(self, "max_ranges", 1, 1_000_000, whole=True)
        check_number(self, "max_bytes", 1, 1 << 60, whole=True)
        check_number(self, "min_free_bytes", 1, 1 << 60, whole=True)
        if self.run_memory_bytes is not None:
            check_number(self, "run_memory_bytes", 0, 1 << 60, whole=True)
        check_number(self, "settle_seconds", 0, 86_400)

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
        """Of the part of memory in use, of ranges in flight and their bytes, of a disk (`disk_space`)."""
        free = None
        if disk is not None and disk[1] > 0:
            free = min(1.0, min(self.min_free_bytes, disk[1] / 10) / max(disk[0], 1))
        return Pressure(memory, ranges / self.max_ranges, size / self.max_bytes, free)

    def room(
        self,
        memory: Sequence[tuple[float, float]],
        running: Sequence[float],
        others: Sequence[float] = (),
        *,
        driver: int | None = None,
        starting: float = 0.0,
    ) -> float:
        """Runs that may be started without bringing memory (`memory_use`) to `pause_above`.

        `running`, `others`: for each run of what is not acked, and of a backfill, how many seconds it has been. One may
        always start where none is `running`: if it fits will show. `driver`: bytes that a run may take, if that is
        known. `starting`: seconds that a run is expected to take for its start. Infinite where nothing is known of
        memory. What counts is the limit that leaves the fewest bytes: a small container that is nearly empty has less
        room than a large machine that is half full.
        """
        each = (driver or _RUN_MEMORY) if self.run_memory_bytes is None else self.run_memory_bytes
        if not memory or not each:
            return math.inf
        young = sum(seconds < max(self.settle_seconds, starting) for seconds in (*running, *others))
        left = min(self.pause_above * limit - used for used, limit in memory) - young * each
        return max(0 if running else 1, math.floor(left / each))

    def step(self, state: GateState, pressure: Pressure, *, is_idle: bool = False) -> tuple[GateState, bool]:
        """The state from now on, and whether it changed: a change is told once, not at every tick.

        `is_idle`: whether none of ours is in flight.
        """
        why, level = pressure.worst()
        if not state.held and level >= self.pause_above:
            return GateState(True, why), True
        if state.held and (level <= self.resume_below or (is_idle and level < self.pause_above)):
            return GateState(), True
        return state, False

    def passes(self, state: GateState, pressure: Pressure, *, is_idle: bool = False) -> float:
        """Ranges that may be started, as far as the gate is about it. `is_idle`: as of `step`."""
        if not state.held:
            return math.inf
        return 1 if is_idle and self._is_only_memory(pressure) else 0

    def _is_only_memory(self, pressure: Pressure) -> bool:
        """Whether nothing but memory is near its limit, and that not too near for a run."""
        return (pressure.memory or 0.0) < self.stop_above and (
            replace(pressure, memory=None).worst()[1] < self.pause_above
        )

    def goes_on(self) -> str:
        """When what is held back is started again, in words."""
        return f"it goes on at {self.resume_below:g}, or below {self.pause_above:g} when none of ours is in flight"

    def tell(self, state: GateState, pressure: Pressure) -> str:
        """A sentence for who reads the log."""
        why, level = pressure.worst()
        if not state.held:
            return f"new ranges are started: the pressure is {level:.2f}, of {why}"
        meanwhile = "What is in flight lowers it when it ends"
        if why == "disk":
            meanwhile = "Free some space on the lake's disk: nothing else will"
        elif why == "memory":
            up_to = (
                f"one range at a time is started when none of ours is in flight, below {self.stop_above:g} of memory"
            )
            meanwhile = f"Until then, {up_to if self.stop_above > self.pause_above else 'nothing is started at all'}"
        return (
            f"nothing new is started: the pressure of {why} is {level:.2f}, and {self.pause_above:g} was reached; "
            f"{self.goes_on()}. {meanwhile}. What runs finishes, and is acked"
        )


def memory_use(root: Path = Path("/")) -> list[tuple[float, float]]:
    """Bytes of memory that are in use and cannot be reclaimed, and the limit: of the machine, and of each limit that
    control groups of version 1 or 2 set to this process. Empty where that cannot be found out.
    """
    return [one for one in (_machine(root), *_groups(root)) if one is not None]


def memory_level(memory: Sequence[tuple[float, float]]) -> float | None:
    """The part of a limit that is in use, of that which is nearest."""
    return max((used / limit for used, limit in memory), default=None)


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


def _machine(root: Path) -> tuple[float, float] | None:
    values = _pairs(root / "proc/meminfo")
    total, available = values.get("MemTotal:"), values.get("MemAvailable:")
    if not total or available is None:
        return None
    return (total - available) * _KIB, total * _KIB


def _groups(root: Path) -> Iterator[tuple[float, float] | None]:
    """Of every control group with a limit that this process is in, from its own to the outermost that is visible."""
    total = _pairs(root / "proc/meminfo").get("MemTotal:", 0) * _KIB or math.inf
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                for group in _upwards(root / mount, path):
                    limit = min(_number(group / "memory.max"), _number(group / "memory.high"))
                    yield _of_group(group, limit, "memory.current", _SECOND, total)
        elif "memory" in controllers.split(","):
            for group in _upwards(root / "sys/fs/cgroup/memory", path):
                limit = _number(group / "memory.limit_in_bytes")
                yield _of_group(group, limit, "memory.usage_in_bytes", _FIRST, total)


def _of_group(
    group: Path, limit: float, usage: str, reclaimable: Sequence[str], total: float
) -> tuple[float, float] | None:
    """What the kernel takes back before it kills is no pressure. No limit is a huge one, too."""
    used = _number(group / usage)
    if not 0 < limit <= total or used == math.inf:
        return None
    stat = _pairs(group / "memory.stat")
    return max(0.0, used - sum(stat.get(name, 0) for name in reclaimable)), limit


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
