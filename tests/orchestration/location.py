"""A code location for commands. They can't be given objects, so the environment says where everything is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    SensorSettings,
    buffer_definitions,
)
from tests.orchestration.deployments import AT_ONCE, scripted_asset, write_lines

_REPOSITORY = Path(__file__).parents[2]
_BUFFER, _LAKE, _FAULT = "TEST_BUFFER_URL", "TEST_LAKE", "TEST_FAULT"


def _land(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
    fault = os.environ.get(_FAULT)
    if fault == "fail":
        raise RuntimeError("as the test asked")
    yield from write_lines(context, Path(lake.url) / "entries")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if _BUFFER in os.environ:
    source = BufferSource()
    defs = buffer_definitions(
        source,
        [scripted_asset(source, _land)],
        {"buffer": BufferResource(url=os.environ[_BUFFER]), "lake": LakeResource(url=os.environ[_LAKE])},
        SensorSettings(limits=AT_ONCE, retry_seconds=0),
    )


def environment(home: Path, buffer: BufferResource, lake: Path, fault: str = "") -> dict[str, str]:
    """What a process needs to be of this deployment. fault: `fail` raises, `kill` ends it after it wrote."""
    return {"DAGSTER_HOME": str(home), _BUFFER: buffer.url, _LAKE: str(lake), _FAULT: fault}


def dagster(command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Dagster's on this location."""
    return subprocess.run(
        [sys.executable, "-m", "dagster", *command.split(), "-f", __file__, "-d", str(_REPOSITORY)],
        env={**os.environ, **variables, "PYTHONPATH": str(_REPOSITORY)},
        cwd=variables["DAGSTER_HOME"],  # Dagster lets a `.env` where it works win over all of these
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
