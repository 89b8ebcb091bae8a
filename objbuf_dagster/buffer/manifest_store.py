"""The manifest in its store: read it, or change it by compare-and-swap.

A change is read, redo, write-if-unchanged, and again from the start when somebody else was faster. Most changes can
simply be redone. But a write whose answer got lost may have happened, and then redoing it would do it twice; so a
change is told when it is *in doubt*, and looks in the manifest for its own traces first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import Fenced, InvalidInput, NotFound, ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.protocol import BatchDescriptor, Manifest
from objbuf_dagster.protocol.ulid import batch_time_ms
from objbuf_dagster.store import RetryPolicy, Store

DEFAULT_MANIFEST_PATH = "ingest/manifest"
DEFAULT_DATA_PREFIX = "ingest"
_MAX_MANIFEST_BYTES = 1 << 30
_CONFLICTS = RetryPolicy(attempts=1_000, base_seconds=0.01, cap_seconds=1.0)

Change = Callable[[Manifest, bool], bool]
"""Changes the manifest it is given, and says whether that is to be written. The flag says that an earlier write of this
change may have happened already; whatever it raises ends the update, with nothing (more) written."""


class _Doubt:
    """Whether a write of this update may have happened unseen.

    It stays to the end: a delayed write can still arrive as long as its base is the current version, and whatever goes
    wrong later, nobody may say that nothing was written.
    """

    is_there = False

    @contextlib.contextmanager
    def on_errors(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            error.in_doubt = error.in_doubt or self.is_there
            raise
        except Fenced as error:
            if not self.is_there:
                raise
            raise Fenced(error.held, error.current, in_doubt=True) from error
        except ObjbufError as error:
            if not self.is_there:
                raise
            raise StorageError(f"a write may have happened unseen before this: {error}", in_doubt=True) from error


class ManifestStore:
    """One role's access to one manifest: `producer` or `consumer` label its metrics."""

    def __init__(
        self,
        store: Store,
        path: str = DEFAULT_MANIFEST_PATH,
        role: Literal["producer", "consumer"] = "consumer",
        metrics: Metrics | None = None,
    ) -> None:
        self.store = store
        self.path = path
        self._metrics = metrics or Metrics()
        self._role = role
        self._writes = f"{m.MANIFEST_WRITES}{{role={role}}}"
        self._conflicts = f"{m.MANIFEST_CONFLICTS}{{role={role}}}"

    def read(self) -> Manifest:
        """One GET. A manifest that does not exist is an empty one."""
        return self._read()[0]

    def update(self, change: Change) -> Manifest:
        """Apply `change` and return the manifest that is in the store now; one GET and one PUT if nobody interferes.

        Raises what `change` raises; StorageUnavailable, with `in_doubt` if the write may have happened.
        """
        doubt = _Doubt()
        with doubt.on_errors():
            return self._update(change, doubt)

    def _update(self, change: Change, doubt: _Doubt) -> Manifest:
        lost = 0
        while True:
            manifest, version = self._read()
            if not change(manifest, doubt.is_there):
                return manifest
            data = manifest.to_bytes()
            if len(data) > _MAX_MANIFEST_BYTES:
                raise InvalidInput(
                    f"the manifest would have {len(data)} bytes, more than the {_MAX_MANIFEST_BYTES} that can be read: "
                    "land and ack what is there, and carry less metadata"
                )
            self._metrics.count(self._writes)
            conflict = self.store.put(self.path, data, if_version=version, if_absent=version is None)
            if conflict is None:
                return manifest
            doubt.is_there = doubt.is_there or conflict.in_doubt
            lost += 1
            self._metrics.count(self._conflicts)
            if lost >= _CONFLICTS.attempts:
                raise StorageUnavailable(
                    f"{self.path} changed under us {lost} times in a row: too many writers, try again"
                )
            time.sleep(_CONFLICTS.pause(lost))

    @property
    def conflict_rate(self) -> float:
        """Percent of this role's manifest writes that met a conflict."""
        return self._metrics.conflict_rate(self._role) or 0.0

    def _read(self) -> tuple[Manifest, str | None]:
        try:
            blob = self.store.get(self.path, max_bytes=_MAX_MANIFEST_BYTES)
        except NotFound:
            return Manifest.empty(), None
        return Manifest.from_bytes(blob.data, path=self.path), blob.version


@dataclass(frozen=True, slots=True)
class BufferState:
    """What a manifest says of its buffer. `frontier` is the first sequence that is not acked."""

    epoch: int
    frontier: int
    next_sequence: int
    queue_length: int
    lag_seconds: float


def peek(
    store: Store, manifest_path: str = DEFAULT_MANIFEST_PATH, *, clock: Callable[[], float] = time.time
) -> BufferState:
    """Look at a buffer without owning anything: one GET."""
    return state_of(ManifestStore(store, manifest_path).read(), clock())


def state_of(manifest: Manifest, now: float) -> BufferState:
    """The same from a manifest at hand. Lag is how long the oldest entry has waited; clocks that disagree give 0."""
    oldest = manifest.entry(manifest.frontier)
    time_ms = None if oldest is None else entry_time_ms(oldest)
    lag = 0.0 if time_ms is None else max(0.0, now - time_ms / 1000)
    return BufferState(manifest.epoch, manifest.frontier, manifest.next_sequence, manifest.entry_count, lag)


def entry_time_ms(entry: BatchDescriptor) -> int | None:
    """When an entry was produced: what its metadata says, else its name, else nobody knows."""
    return entry.metadata[0].ingestion_time_ms if entry.metadata else batch_time_ms(entry.location)
