"""Fetching batches: needs no epoch, holds no manifest state, so it may run anywhere, in parallel, after pickling."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound, ObjbufError, shown
from objbuf_dagster.protocol import (
    BLOCK_BYTES,
    DEFAULT_MAX_BYTES,
    BatchDescriptor,
    Block,
    ConsumedBatch,
    PlannedBatch,
    check_batch,
    decode_batch,
    iter_batch_arrow,
)
from objbuf_dagster.store import LocalStore, Store, check_path

if TYPE_CHECKING:
    import pyarrow as pa


_FETCHERS = 8
_LEAST_WEIGHT = 64 << 10
_AHEAD_BYTES = 16 << 20
"""Stored bytes fetched ahead of the batch that is being read, so that small ones are not waited for one by one."""


def check_location(location: str, data_prefix: str) -> str:
    """A location comes from outside: it must name an object below the buffer's data prefix. Raises CorruptData."""
    try:
        check_path(location)
    except InvalidInput as error:
        raise CorruptData(f"location '{shown(location)}'", str(error)[:300]) from None
    if not location.startswith(f"{data_prefix}/"):
        raise CorruptData(f"location '{shown(location)}'", f"it is outside the buffer's data prefix, {data_prefix!r}")
    return location


@dataclass(frozen=True, slots=True)
class FetchHandle:
    """Fetches and checks batches. Cheap to copy, picklable, safe from many threads.

    max_bytes: the most a batch may have, as an object and once decompressed.
    """

    store: Store
    data_prefix: str = DEFAULT_DATA_PREFIX
    max_bytes: int = DEFAULT_MAX_BYTES
    metrics: Metrics | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return FetchHandle, (self.store, self.data_prefix, self.max_bytes)  # metrics belong to their process

    def fetch_bytes(self, descriptor: BatchDescriptor) -> bytes:
        """The batch object as it is stored. Raises NotFound, or CorruptData for one outside the buffer or too large."""
        with _named(descriptor, self.store):
            return self.store.read(check_location(descriptor.location, self.data_prefix), max_bytes=self.max_bytes)

    def fetch_planned(self, batch: PlannedBatch) -> bytes:
        """The same of a batch whose range says how large it is: one of any other size is refused.

        What is fetched at a time is measured by these sizes, and a range object is bytes from outside as well. A size
        that is only a guess refuses nothing.
        """
        if batch.size is None or batch.is_guess:
            return self.fetch_bytes(batch.descriptor)
        with _named(batch.descriptor, self.store):
            path = check_location(batch.descriptor.location, self.data_prefix)
            try:
                data = self.store.read(path, max_bytes=min(batch.size, self.max_bytes))
            except CorruptData:
                if batch.size > self.max_bytes:
                    raise
                raise _other_size("more", batch.size) from None
            if len(data) != batch.size:
                raise _other_size(str(len(data)), batch.size)
            return data

    def check(self, descriptor: BatchDescriptor, data: bytes) -> Block:
        """The record block of a fetched batch, checked to the last byte. Raises like `fetch`."""
        with _named(descriptor):
            return check_batch(data, max_bytes=self.max_bytes)

    def fetch_ahead(self, batches: Sequence[PlannedBatch]) -> Iterator[tuple[PlannedBatch, bytes]]:
        """Each batch as it is stored, in order, with the small ones behind it on their way already."""
        waiting: deque[tuple[PlannedBatch, Future[bytes]]] = deque()
        ahead = 0
        left = deque(batches)
        pool = ThreadPoolExecutor(_FETCHERS)
        try:
            while waiting or left:
                while left and (not waiting or ahead + _weight(left[0]) <= _AHEAD_BYTES):
                    batch = left.popleft()
                    ahead += _weight(batch)
                    waiting.append((batch, pool.submit(self.fetch_planned, batch)))
                batch, data = waiting.popleft()
                ahead -= _weight(batch)
                yield batch, data.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def iter_arrow(
        self, descriptor: BatchDescriptor, data: bytes, block_bytes: int = BLOCK_BYTES
    ) -> Iterator[pa.Array]:
        """A fetched batch as Arrow arrays of about `block_bytes`, one at a time. Raises like `fetch`, perhaps late."""
        with _named(descriptor):
            yield from iter_batch_arrow(data, max_bytes=self.max_bytes, block_bytes=block_bytes)

    def fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """The decoded batch; the same descriptor gives the same batch every time.

        Raises NotFound, CorruptData, UnsupportedVersion or UnsupportedCompression, each naming sequence and location.
        """
        started = time.perf_counter()
        data = self.fetch_bytes(descriptor)
        with _named(descriptor):
            entries = decode_batch(data, max_bytes=self.max_bytes)
        if self.metrics is not None:
            self.metrics.count(m.BATCHES_COLLECTED)
            self.metrics.count(m.ENTRIES_COLLECTED, len(entries))
            self.metrics.count(m.BYTES_COLLECTED, len(data))
            self.metrics.observe(m.FETCH_DURATION_SECONDS, time.perf_counter() - started)
        return ConsumedBatch(entries, descriptor.sequence, descriptor.location, descriptor.metadata)


def _weight(batch: PlannedBatch) -> int:
    return _AHEAD_BYTES if batch.size is None else max(batch.size, _LEAST_WEIGHT)


def _other_size(found: str, planned: int) -> CorruptData:
    return CorruptData(
        "batch",
        f"its object has {found} bytes where its range object says {planned}: one of the two was changed or damaged",
    )


@contextlib.contextmanager
def _named(descriptor: BatchDescriptor, store: Store | None = None) -> Iterator[None]:
    """Errors that say which batch they are about."""
    try:
        yield
    except NotFound:
        hint = f"sequence {descriptor.sequence} names it, so its data is lost or expired"
        if isinstance(store, LocalStore):
            hint += ", or its directory is not shared with the machine that looked"
        raise NotFound(descriptor.location, hint) from None
    except ObjbufError as error:
        error.args = (f"sequence {descriptor.sequence}, {shown(descriptor.location)}: {error}",)
        raise
