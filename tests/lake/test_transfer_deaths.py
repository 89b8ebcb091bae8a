"""An export that ends in the middle: the place where it was to be has all of it, or is not there."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from objbuf_dagster.errors import StorageError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.transfer import export_table, import_table
from tests.cli.commands import files_in
from tests.lake.states import REPOSITORY, Accounts, World, some_entries

DYING = """
import itertools, os, signal, sys
import deltalake.transaction, pyarrow.compute, pyarrow.dataset, pyarrow.parquet
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.transfer import export_table

table, target = sys.argv[1:]

def dying(last):
    steps = 0
    def step(event, given):
        nonlocal steps
        if event in ("open", "os.mkdir", "os.rename") and ".part" in str(given[0]):
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(step)
    export_table(LakeTable(table, None), target)
    os._exit(0)

for last in itertools.count(1):
    child = os.fork()
    if child == 0:
        dying(last)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == 0:
        break
    assert ended == -signal.SIGKILL, (last, ended)
    assert not os.path.exists(target), f"step {last}"
print(last - 1)
"""
"""Exports that are killed right before they make a file or directory, or rename it, at each of these; then a whole one.

Forked from a process that has imported everything and used nothing: deltalake hangs in children of one that has.
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(str(tmp_path / "lake"))
    world.land(0, some_entries(random.Random(2), 3))
    world.apply()
    return world


def test_an_export_that_fails_at_any_step_leaves_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*given, **named)

        return instead

    before = files_in(tmp_path)
    for owner, name in ((Path, "mkdir"), (Path, "open"), (os, "fsync"), (os, "replace")):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    steps = 0
    while True:
        steps += 1
        left = steps
        with contextlib.suppress(StorageError):
            export_table(world.state, tmp_path / "export")
        if left > 0:
            break
        if (tmp_path / "export").exists():  # the last step makes the name durable, once it is whole
            break
        assert list(tmp_path.glob(".export*")) == []
        assert files_in(tmp_path) == before, f"step {steps}"
    monkeypatch.undo()
    assert steps > 10
    import_table(tmp_path / "export", LakeTable(tmp_path / "again"), fold=Accounts(), trust=True)


def test_an_export_that_is_killed_at_any_step_is_not_there_and_can_be_repeated(world: World, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DYING, f"{world.url}/accounts", str(tmp_path / "export")]

    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 10
    import_table(tmp_path / "export", LakeTable(tmp_path / "again"), fold=Accounts(), trust=True)
