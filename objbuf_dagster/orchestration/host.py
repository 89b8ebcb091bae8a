"""The machine that runs are on, as far as it is the one that the sensor is on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
from dagster._core.launcher import DefaultRunLauncher

from objbuf_dagster.ranges.gate import disk_space, memory_use

_LEAST_OVERHEAD = 384 << 20
"""Of a driver, besides its heap: what Spark itself counts with, or a tenth of the heap."""


@dataclass(frozen=True, slots=True)
class RunHost:
    """Memory and disk of the machine that runs are on. Reads nothing before it is asked.

    Runs are elsewhere if another launcher than Dagster's own starts them, or if Spark is not a local one: then nothing
    is known, since what this machine has says nothing of theirs.

    lake, spark: the resources of the pipeline, as they were given; None if it has none.
    """

    lake: Any = None
    spark: Any = None

    def memory(self, instance: dg.DagsterInstance, /) -> list[tuple[float, float]]:
        """Bytes that are in use, and all there may be, of the machine and of the container."""
        return memory_use() if self._is_here(instance) else []

    def disk(self, instance: dg.DagsterInstance, /) -> tuple[int, int] | None:
        """Bytes that are free, and all, of the disk of a lake that is a directory."""
        url = value_of(getattr(self.lake, "url", ""))
        if not url or not self._is_here(instance):
            return None
        if "://" not in url:
            return disk_space(Path(url).absolute())
        parts = urlsplit(url)
        return disk_space(Path(unquote(parts.path))) if parts.scheme == "file" else None

    def run_memory(self) -> int | None:
        """Bytes that a run may take, by what its driver may; None if there is none here, or it does not say."""
        ask = getattr(self.spark, "driver_memory", None)
        driver = ask() if callable(ask) else None
        return None if driver is None else driver + max(_LEAST_OVERHEAD, driver // 10)

    def _is_here(self, instance: dg.DagsterInstance) -> bool:
        is_local = getattr(self.spark, "is_local", None)
        if callable(is_local) and not is_local():
            return False
        try:
            return isinstance(instance.run_launcher, DefaultRunLauncher)
        except (ImportError, dg.DagsterError):
            return False  # one that is not even installed here


def value_of(setting: object) -> str:
    """What a setting says, also one that the environment is to give; empty if that does not."""
    if isinstance(setting, dg.EnvVar):
        return setting.get_value() or ""
    return str(setting)
