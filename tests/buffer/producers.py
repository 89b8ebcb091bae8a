"""What tests of producers share: a look at what arrived, and stores that can be made to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from objbuf_dagster.protocol import decode_batch
from objbuf_dagster.store import Conflict, MemoryStore, Payload, Store
from tests.support.buffers import manifest_of

NEVER = 3600.0


def landed(store: Store) -> list[list[bytes]]:
    """The entries of each batch that the manifest names, in its order."""
    return [decode_batch(store.read(entry.location)) for entry in manifest_of(store).entries()]


class GateStore(MemoryStore):
    """Holds back puts to paths with this suffix until it is opened."""

    def __init__(self, suffix: str = ".batch") -> None:
        super().__init__()
        self.suffix = suffix
        self.opened = threading.Event()
        self.arrived = threading.Semaphore(0)

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        if path.endswith(self.suffix):
            self.arrived.release()
            assert self.opened.wait(30)
        return super().put(path, data, if_version=if_version, if_absent=if_absent)


class FirstIsSlowest(MemoryStore):
    """The put of the batch with the entry `0` ends only when `others_are_there` says so."""

    others_are_there: Callable[[], bool]

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        result = super().put(path, data, if_version=if_version, if_absent=if_absent)
        if path.endswith(".batch") and decode_batch(self.read(path)) == [b"0"]:
            deadline = time.monotonic() + 30
            while not self.others_are_there() and time.monotonic() < deadline:
                time.sleep(0.001)
        return result
