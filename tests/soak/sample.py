"""How a deployment is doing, once a second; its memory, ten times as often."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from objbuf_dagster.buffer import ManifestStore, state_of
from objbuf_dagster.orchestration.observations import published
from objbuf_dagster.store import LocalStore
from tests.e2e.running import Dagster
from tests.soak.memory import Group

_ASSET = dg.AssetKey("buffer")
_MOMENT = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """At so many seconds since the start. What the sensor has not said yet is not a number, or 0.

    memory: bytes that cannot be taken back, the most of the second before.
    """

    at: float
    lag: float
    queued_bytes: int
    memory: int
    budget: float
    rho: float
    pressure: float
    held: bool
    in_flight: int
    in_flight_bytes: int


@dataclass(slots=True)
class Sampler:
    """Takes samples in a thread of its own, until it is stopped; an error in it is raised then."""

    dagster: Dagster
    group: Group | None
    started: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _failed: list[BaseException] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _sizes: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._sample, name="soak-sampler")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def since(self, at: float) -> list[Sample]:
        """Those that were taken at or after this time."""
        return [one for one in list(self.samples) if one.at >= at]

    @property
    def now(self) -> float:
        return time.monotonic() - self.started

    def _sample(self) -> None:
        try:
            with dg.DagsterInstance.from_config(str(self.dagster.home)) as instance:
                while not self._ended.is_set():
                    most, until = 0, time.monotonic() + 1.0
                    while time.monotonic() < until and not self._ended.wait(_MOMENT):
                        most = max(most, self.group.used if self.group else 0)
                    self.samples.append(self._look(instance, most))
        except BaseException as error:  # noqa: BLE001, it is raised where somebody waits for it
            self._failed.append(error)

    def _look(self, instance: dg.DagsterInstance, memory: int) -> Sample:
        store = LocalStore(self.dagster.buffer)
        manifest = ManifestStore(store).read()
        queued = [entry.location for entry in manifest.entries()]
        self._sizes = {one: self._sizes.get(one) or store.head(one).size for one in queued}
        last = published(instance, _ASSET)
        said: dict[str, Any] = dict(last.said) if last else {}
        return Sample(
            self.now,
            state_of(manifest, time.time()).lag_seconds,
            sum(self._sizes.values()),
            memory if self.group else _used(self.dagster.left()),
            said.get("budget_bytes", 0.0),
            said.get("rho", float("nan")),
            said.get("pressure", float("nan")),
            bool(said.get("held")),
            said.get("in_flight", 0),
            said.get("in_flight_bytes", 0),
        )


def _used(processes: Iterable[int]) -> int:
    """Bytes of memory that these processes have, what they share divided between them."""
    used = 0
    for pid in processes:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            used += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    return used
