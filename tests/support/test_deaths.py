"""What runs processes that kill themselves: it leaves none of them behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.spark.processes import wait_until
from tests.support.deaths import steps_of

FORK = """
import os, time
child = os.fork()
if child:
    open({note!r}, "w").write(str(child))
time.sleep(60)
"""


def test_what_a_run_has_forked_does_not_outlive_its_time(tmp_path: Path) -> None:
    note = tmp_path / "child"

    with pytest.raises(subprocess.TimeoutExpired):
        steps_of("timeit", "-n1", "-r1", FORK.format(note=str(note)), seconds=2)

    child = Path(f"/proc/{note.read_text()}/stat")
    wait_until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z")
