"""Processes that are started together end together, whatever ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev import processes
from dev.processes import Child, send, session
from tests.dev.launches import CODE, environment
from tests.spark.processes import wait_until

STUBBORN = """
import os, signal, time
os.setpgid(0, 0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
child.stdout.readline()
open("up", "w").close()
time.sleep(600)
"""
OWNER = """
import os, time
from pathlib import Path
from dev import processes
processes.PATIENCE_SECONDS = 0.5
child = processes.Child("family", ["family"], os.environ, Path.cwd(), ask=2)
print(child.members()[0], flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a module `family`: a process, and a child of it in a group of its own that ends for no one."""
    (tmp_path / "family.py").write_text(FAMILY)
    return tmp_path


@pytest.fixture
def family(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 0.5)
    child = Child("family", ["family"], variables(place), place, ask=signal.SIGTERM)
    try:
        wait_until((place / "up").exists, seconds=20)
        assert len(child.members()) == 2
        yield child
    finally:
        send(signal.SIGKILL, child.members())
        wait_until(lambda: child.code is not None, seconds=20)


def variables(place: Path) -> dict[str, str]:
    return environment(PYTHONPATH=f"{CODE}:{place}")


def end(child: Child, *, hurried: bool = False, say: Callable[[str], None] = print) -> None:
    processes.end([child], hurried=lambda: hurried, say=say)


def test_a_stubborn_grandchild_in_another_group_is_ended_too(family: Child) -> None:
    end(family)
    assert family.members() == []
    assert family.code == -signal.SIGTERM


def test_who_is_in_a_hurry_does_not_wait(family: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 600)
    end(family, hurried=True)
    assert family.members() == []


def test_what_takes_long_is_explained_once(family: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_QUICK_SECONDS", 0.1)
    said: list[str] = []
    end(family, say=said.append)
    assert said == ["waiting for work in progress to finish; Ctrl-C again does not wait"]


def test_children_end_when_their_owner_is_killed(place: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=place, env=variables(place), stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        leader = int(owner.stdout.readline())
    try:
        wait_until((place / "up").exists, seconds=20)
        assert len(session(leader)) == 2
        owner.kill()
        owner.wait()
        wait_until(lambda: session(leader) == [], seconds=20)
    finally:
        owner.kill()
        owner.wait()
        send(signal.SIGKILL, session(leader))
