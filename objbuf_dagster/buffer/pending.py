"""What a producer has taken and not finished yet: the batch that collects calls, and the handle that each call gets."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from objbuf_dagster.errors import ObjbufError, StorageUnavailable, TimedOut
from objbuf_dagster.protocol import Metadata

_SMALL_BLOCK = 32 << 10
_GATHERED_BLOCK = 1 << 20
"""Blocks of small calls are put together, so that a batch is hundreds of pieces and not hundreds of thousands."""


@dataclass(frozen=True, slots=True)
class Durable:
    """Where an acknowledged write is: its batch's sequence and location, and the index of its first entry there."""

    sequence: int
    location: str
    start_index: int


class PendingBatch:
    """Calls on their way. Guarded by the producer's lock, or owned by one worker; `done` is for everybody."""

    __slots__ = (
        "_small",
        "_small_size",
        "blocks",
        "count",
        "done",
        "error",
        "location",
        "metadata",
        "opened",
        "sequence",
        "size",
        "started",
        "started_wall",
        "uploaded",
    )

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self._small: list[bytes] = []
        self._small_size = 0
        self.metadata: list[Metadata] = []
        self.count = 0
        self.size = 0  # as flush_size_bytes counts: entries and metadata
        self.opened = time.monotonic()
        self.started = 0.0  # by the producer's uptime
        self.started_wall = 0.0
        self.location = ""
        self.uploaded = False
        self.sequence: int | None = None
        self.error: ObjbufError | None = None
        self.done = threading.Event()

    def add(self, block: bytes, count: int, item: Metadata) -> None:
        if len(block) < _SMALL_BLOCK:
            self._small.append(block)
            self._small_size += len(block)
            if self._small_size >= _GATHERED_BLOCK:
                self._gather()
        else:
            self._gather()
            self.blocks.append(block)
        self.metadata.append(item)
        self.count += count
        self.size += len(block) - 4 * count + len(item.payload)

    def take_blocks(self) -> list[bytes]:
        """Its record block in pieces; they are not kept."""
        self._gather()
        blocks, self.blocks = self.blocks, []
        return blocks

    def _gather(self) -> None:
        if self._small:
            self.blocks.append(b"".join(self._small))
            self._small, self._small_size = [], 0


class WriteHandle:
    """The outcome of one `produce` call, as soon as there is one."""

    __slots__ = ("_batch", "ingestion_time_ms", "start_index")

    def __init__(self, batch: PendingBatch, start_index: int, ingestion_time_ms: int) -> None:
        self._batch = batch
        self.start_index = start_index
        self.ingestion_time_ms = ingestion_time_ms

    def result(self) -> Durable | ObjbufError | None:
        """None while it is open, then Durable, or the error that kept it from being so."""
        batch = self._batch
        if not batch.done.is_set():
            return None
        if batch.error is not None or batch.sequence is None:
            return batch.error
        return Durable(batch.sequence, batch.location, self.start_index)

    def await_durable(self, timeout: float | None = None) -> Durable:
        """Wait until the batch object is there and its location is in the manifest.

        Raises TimedOut after `timeout` seconds (the write goes on), or the error that kept it from being durable. With
        StorageError.in_doubt it may be durable nevertheless: produce it again only if twice is better than never.
        """
        if not self._batch.done.wait(timeout):
            raise TimedOut(f"not durable within {timeout} s; the write goes on, wait again")
        outcome = self.result()
        if isinstance(outcome, Durable):
            return outcome
        raise outcome or StorageUnavailable("the producer ended before this was durable: produce it again")
