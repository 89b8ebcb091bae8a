"""Looking at real processes, and running code in ones of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """The processes below this one that are alive, with their command lines."""
    listed = subprocess.run(["ps", "-ewwo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)  # noqa: S607, ps
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    parents = {int(row[0]): int(row[1]) for row in rows}
    commands = {int(row[0]): row[3] for row in rows if len(row) == 4 and not row[2].startswith("Z")}

    def is_below(process: int) -> bool:
        while process := parents.get(process, 0):
            if process == pid:
                return True
        return False

    return {process: command for process, command in commands.items() if is_below(process)}


def is_alive(pid: int) -> bool:
    """Whether a process that is no child of this one is there, and not just waiting to be reaped."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607, ps
    return bool(listed.stdout.strip()) and not listed.stdout.startswith("Z")


def wait_until(condition: Callable[[], bool], *, seconds: float = 60.0, every: float = 0.1) -> None:
    """Returns once the condition holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every)


def python(code: str, directory: Path, **variables: str) -> subprocess.Popen[str]:
    """Runs code in an empty directory, with a temporary directory of its own beside it."""
    for name in ("cwd", "tmp"):
        (directory / name).mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=directory / "cwd",
        env={**os.environ, "TMPDIR": str(directory / "tmp"), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def leftovers(directory: Path) -> list[str]:
    """The files that code run by `python` left behind. Java removes its own performance data late, or never."""
    paths = [path for name in ("cwd", "tmp") for path in (directory / name).rglob("*")]
    return [str(path) for path in paths if "hsperfdata" not in str(path)]
