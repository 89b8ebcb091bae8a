"""Runs a module whose processes kill themselves at each of their steps (dying.py), and leaves none of them behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MOST_SECONDS = 270.0
"""Below what a test has, so that this ends first, and ends all."""


def steps_of(module: str, *arguments: str | Path, seconds: float = MOST_SECONDS, quiet: bool = True) -> dict[str, int]:
    """How many steps each thing had that the module did, as it printed them; `quiet` if it may print no more."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it is gone, with all that it started
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    assert not (quiet and errors), errors
    return {what: int(number) for what, number in map(str.split, out.splitlines())}
