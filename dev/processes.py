"""Processes that are started together and end together.

Each child leads a session of its own. Its descendants stay in that session, whatever groups they make and whoever
adopts them when their parents die: so the session tells, at any time, what is left to end. A Ctrl-C in the terminal
reaches no session but the terminal's, so it is this module that passes it on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

PATIENCE_SECONDS = 10.0
"""For work in progress, before it is ended less kindly."""

HARDER = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

_QUICK_SECONDS = 4.0  # an end that takes no longer needs no explanation
_POLL_SECONDS = 0.05


class Child:
    """A Python module as a process, with all of its descendants.

    It gets an interrupt when this process dies, however it dies: see dev/leash.py.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], directory: Path, *, ask: int
    ) -> None:
        """`ask` is the signal that it takes for a wish to end."""
        self.name = name
        self._ask = ask
        self._leash: int | None
        end, self._leash = os.pipe()
        # Dagster greets with such a warning: use `dg dev`, which is in a package that we do not need.
        leashed = ["-W", "ignore::FutureWarning", "-m", "dev.leash", str(end), str(PATIENCE_SECONDS)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *leashed, *arguments],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                cwd=directory,
                pass_fds=[end],
                start_new_session=True,
            )
        finally:
            os.close(end)

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs; negative for a signal."""
        return self._process.poll()

    def ask(self) -> None:
        """Ask the first process to end; it sees to the others. Asking one that has ended does nothing."""
        if self.code is None:
            self._process.send_signal(self._ask)

    def let_go(self) -> None:
        """Give up the leash, which interrupts what is still there."""
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None

    def members(self) -> list[int]:
        """The processes that are alive in its session."""
        self._process.poll()
        return session(self._process.pid)


def session(leader: int) -> list[int]:
    """The processes in the session of `leader`, without those that have ended and wait to be reaped."""
    found = []
    for pid in _living():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended meanwhile, or somebody else's
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(pid, number)


def _living() -> Iterator[int]:
    if Path("/proc/self/stat").exists():
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    state = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        yield int(name)
        return
    listed = subprocess.run(["ps", "-axo", "pid=,stat="], capture_output=True, text=True, check=True)  # noqa: S607, ps
    for line in listed.stdout.splitlines():
        number, state = line.split(None, 1)
        if not state.startswith("Z"):
            yield int(number)


def end(children: Sequence[Child], *, hurried: Callable[[], bool], say: Callable[[str], None]) -> None:
    """End the children and all their descendants; none is left when this returns.

    They are asked first, so that work in progress can be finished. When patience is over, all get a SIGINT, which lets
    a run tell Dagster that it failed, and stop its Spark; then SIGTERM, then SIGKILL. Each time `hurried` returns True,
    the next step comes at once.
    """

    def are_gone(note: str = "") -> bool:
        started = time.monotonic()
        while any(child.members() for child in children):
            waited = time.monotonic() - started
            if waited > PATIENCE_SECONDS or hurried():
                return False
            if note and waited > _QUICK_SECONDS:
                say(note)
                note = ""
            time.sleep(_POLL_SECONDS)
        return True

    for child in children:
        child.ask()
    note = "waiting for work in progress to finish; Ctrl-C again does not wait"
    steps = itertools.chain(HARDER, itertools.repeat(HARDER[-1]))  # repeated: for what was forked in the moment before
    while not are_gone(note):
        number, note = next(steps), ""
        for child in children:
            send(number, child.members())
    for child in children:
        child.let_go()
