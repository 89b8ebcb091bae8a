"""Processes that kill themselves at the so-manyeth step of what they do, for a test to run.

Forked from one that has imported everything and used nothing: deltalake hangs in children of one that has, and gRPC
may. So the imports are here, before all forks.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import deltalake.transaction  # noqa: F401
import numpy  # noqa: F401, ICN001  before the forks, as those below: importing takes longest
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet  # noqa: F401

import objbuf_dagster.store.cloud  # noqa: F401
from objbuf_dagster.lake.delta import DeltaPlace
from objbuf_dagster.store import LocalStore

MOST_STEPS = 200
MOST_SECONDS = 120
"""For one of them, after which it is ended: by a signal that no step is."""
Call = tuple[Any, str]
"""Of a class or a module, what is called."""

WRITES: tuple[Call, ...] = (
    (LocalStore, "put"),
    (LocalStore, "delete"),
    (DeltaPlace, "_write"),
    (DeltaPlace, "make"),
)


def in_child(do: Callable[[], object]) -> int:
    """What became of a child that did it: 0, the number of the signal that ended it with a minus, or 1."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(MOST_SECONDS)
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(last: int, calls: Iterable[Call] = WRITES) -> None:
    """From now on every write to a store and every commit is two steps, before it and after; this is the last one."""
    left = last

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def instead(*given: Any, **named: Any) -> Any:
            step()
            done = call(*given, **named)
            step()
            return done

        return instead

    for owner, name in calls:
        setattr(owner, name, dying(getattr(owner, name)))


def die_at_each_step(
    move: Callable[[Path], object],
    check: Callable[[Path], object],
    made: Path,
    root: Path,
    calls: Iterable[Call] = WRITES,
) -> int:
    """How many steps a move has. Ends with an error if one of them is a bad one to die at: then a check fails.

    made: what each move begins with, in a copy of its own. A check is a process of its own, too.
    """
    for last in range(1, MOST_STEPS):
        copy = root / str(last)
        shutil.copytree(made, copy)

        def dying(last: int = last, copy: Path = copy) -> None:
            die_at(last, calls)
            move(copy)

        ended = in_child(dying)
        assert ended in (0, -signal.SIGKILL), f"step {last} ended with {ended}"
        assert in_child(functools.partial(check, copy)) == 0, f"step {last}"
        shutil.rmtree(copy)
        if ended == 0:
            return last - 1
    raise AssertionError(f"it has more than {MOST_STEPS} steps")
