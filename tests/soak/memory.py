"""A container-like limit on memory: a control group of one's own, with everything in it that is started meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_CGROUPS = Path("/sys/fs/cgroup")
_RECLAIMABLE = (
    ("total_inactive_file", "total_active_file"),
    ("inactive_file", "active_file", "slab_reclaimable"),
)
"""Of version 1 and 2: pages of files, and what the kernel remembers of them, are taken back before it kills."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group for memory. `is_second` is its version."""

    path: Path
    limit: int
    is_second: bool

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is started in this context is in the group, and stays there; this process only for as long."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self.path.parent / "cgroup.procs").write_text(str(os.getpid()))

    @contextlib.contextmanager
    def ballast(self, most_seconds: float) -> Iterator[None]:
        """Meanwhile somebody else keeps the group nearly full: see `tests/soak/ballast.py`."""
        given = (str(self.path), str(self.limit), "2" if self.is_second else "1", str(most_seconds))
        with self.inside():
            process = subprocess.Popen([sys.executable, "-m", "tests.soak.ballast", *given], cwd=_REPOSITORY)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    @property
    def used(self) -> int:
        """Bytes that cannot be taken back."""
        usage = int((self.path / ("memory.current" if self.is_second else "memory.usage_in_bytes")).read_text())
        lines = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in lines}
        return max(0, usage - sum(stat.get(name, 0) for name in _RECLAIMABLE[self.is_second]))

    @property
    def peak(self) -> int | None:
        """Bytes that were in use at the most, those that can be taken back included; None if the kernel is too old."""
        file = self.path / ("memory.peak" if self.is_second else "memory.max_usage_in_bytes")
        return int(file.read_text()) if file.exists() else None

    @property
    def killed(self) -> int:
        """Processes that the kernel has killed for reaching the limit."""
        file = self.path / ("memory.events" if self.is_second else "memory.oom_control")
        lines = (line.split() for line in file.read_text().splitlines())
        return next((int(value) for name, value in lines if name == "oom_kill"), 0)


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Group | None]:
    """A group with this limit, below our own; None where we may not make one. It is gone afterwards."""
    group = _make(limit)
    try:
        yield group
    finally:
        deadline = time.monotonic() + 30  # the kernel takes a moment to see that its processes have ended
        while group is not None and group.path.exists():
            try:
                group.path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _make(limit: int) -> Group | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, name = _CGROUPS / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        elif number == "0" and not controllers:
            parent, name = _CGROUPS / path.lstrip("/"), "memory.max"
        else:
            continue
        child = parent / f"objbuf-soak-{os.getpid()}"
        try:
            child.mkdir()
        except OSError:
            continue
        try:
            (child / name).write_text(str(limit))
        except OSError:
            child.rmdir()  # it has no such controller
            continue
        return Group(child, limit, number == "0")
    return None
