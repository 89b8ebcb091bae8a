"""The producer: many calls become one batch object, several batches one manifest write.

A call's entries are encoded in the caller's thread, so its buffers are its own again when `produce` returns. The
*open* batch collects them until it is large or old enough; then it is sealed, and takes one of `max_in_flight` slots,
in which a worker uploads it. A batch keeps its slot until it is in the manifest. Batches enter the manifest in the
order in which they were sealed: whichever worker finds the first of them uploaded appends all that are ready, in one
write.

The one thing that may never happen is the same batch twice in the manifest. Its location is unique, so after a write
whose answer was lost the manifest itself tells whether it happened.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Literal

from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH, ManifestStore
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.buffer.pending import PendingBatch, WriteHandle
from objbuf_dagster.buffer.sightings import uptime
from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.protocol import Compression, Manifest, Metadata
from objbuf_dagster.protocol.batch import frame_batch
from objbuf_dagster.protocol.blocks import encode_block
from objbuf_dagster.protocol.model import MAX_U16, MAX_U32
from objbuf_dagster.protocol.page import Buffer
from objbuf_dagster.protocol.ulid import BATCH_SUFFIX, new_ulid
from objbuf_dagster.store import Store, check_conditions, check_path

_TOO_OLD_SECONDS = 300.0
"""A batch that reaches the manifest later than this after its name was made could be collected as garbage before (grace
period 10 minutes), so it is not appended any more."""

_LATE_SECONDS = 10.0
"""A batch that took longer is looked for before anybody is told that it is durable: somebody may collect with a shorter
grace period, or with a clock that is wrong."""


class Producer:
    """Writes entries into a buffer. Safe from many threads; close it, or use it as a context manager.

    Settings, with the protocol's defaults:
      compression: of the record block, `none` or `zstd`.
      flush_interval: seconds from a batch's first call to its flush.
      flush_size_bytes: entries and metadata that flush it earlier.
      max_buffered_inputs: calls that may wait while all slots are taken; then `produce` blocks. While a slot is free
        none waits: the open batch takes as many as its time and size allow.
      max_in_flight: batches being uploaded or appended at the same time.

    >>> from objbuf_dagster.store import open_store
    >>> with Producer(open_store("memory://")) as producer:
    ...     handle = producer.produce([b"hello", b"world"], b"from the docs")
    ...     handle.await_durable(timeout=10).sequence
    0
    """

    def __init__(
        self,
        store: Store,
        manifest_path: str = DEFAULT_MANIFEST_PATH,
        data_prefix: str = DEFAULT_DATA_PREFIX,
        *,
        compression: Compression = "none",
        flush_interval: float = 0.1,
        flush_size_bytes: int = 64 << 20,
        max_buffered_inputs: int = 1000,
        max_in_flight: int = 4,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = uptime,
    ) -> None:
        if compression not in ("none", "zstd"):
            raise InvalidInput(f"compression is 'none' or 'zstd', not {compression!r}")
        if flush_interval < 0 or min(flush_size_bytes, max_buffered_inputs, max_in_flight) < 1:
            raise InvalidInput("flush_interval must not be negative, the other limits must be at least 1")
        check_path(manifest_path)
        if len(check_path(data_prefix).encode()) > MAX_U16 - 100:
            raise InvalidInput(f"data_prefix is too long: a location has at most {MAX_U16} bytes")
        self.metrics = metrics or Metrics()
        self._manifest = ManifestStore(store, manifest_path, "producer", self.metrics)
        self._store = store
        self._prefix = data_prefix
        self._compression: Literal["none", "zstd"] = compression
        self._interval = flush_interval
        self._flush_size = flush_size_bytes
        self._max_buffered = max_buffered_inputs
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._uptime = uptime
        lock = threading.Lock()
        self._work = threading.Condition(lock)  # for the flush thread: something became due
        self._room = threading.Condition(lock)  # for callers: a slot became free
        self._open: PendingBatch | None = None
        self._sealed: deque[PendingBatch] = deque()  # full or flushed, waiting for a slot
        self._flying: deque[PendingBatch] = deque()  # in a slot, in the order they were sealed
        self._waiting = 0  # calls that are in no slot yet
        self._committing = False
        self._closing = False
        self._failure: ObjbufError | None = None  # the first one since the last flush
        self._uploads = ThreadPoolExecutor(max_in_flight, thread_name_prefix="objbuf-upload")
        self._flusher = threading.Thread(target=self._run, name="objbuf-flush", daemon=True)
        self._flusher.start()

    def produce(self, entries: Iterable[Buffer], metadata: Buffer = b"") -> WriteHandle:
        """Hand over one call's entries; blocks while `max_buffered_inputs` calls wait for a slot.

        Raises InvalidInput: no entries at all, something that is not bytes, an entry or metadata over 2^32 - 1 bytes,
        a closed producer. Then nothing was taken.
        """
        block, count = encode_block(entries)
        if not count:
            raise InvalidInput("there are no entries in this call: give at least one, it may be empty")
        if not isinstance(metadata, bytes | bytearray | memoryview):
            raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
        payload = bytes(metadata)
        if len(payload) > MAX_U32:
            raise InvalidInput(f"a metadata payload has at most {MAX_U32} bytes, not {len(payload)}")
        with self._work:
            while not self._closing and self._waiting >= self._max_buffered and self._is_full():
                self._room.wait()
            if self._closing:
                raise InvalidInput("the producer is closed: open a new one")
            batch = self._open
            if batch is None:
                batch = self._open = PendingBatch()
                self._work.notify()
            start, now_ms = batch.count, int(self._clock() * 1000)
            batch.add(block, count, Metadata(start, now_ms, payload))
            self._waiting += 1
            if batch.size >= self._flush_size:
                self._seal()
            return WriteHandle(batch, start, now_ms)

    def flush(self) -> None:
        """Make everything produced so far durable.

        Raises the first error, since the last flush, that kept some of it from being so: who does not look at the
        handles learns it here.
        """
        with self._work:
            self._seal()
            waiting = [*self._flying, *self._sealed]
        for batch in waiting:
            batch.done.wait()
        with self._work:
            error, self._failure = self._failure, None
        for mine in (*(batch.error for batch in waiting), error):
            if mine is not None:
                raise mine

    def close(self) -> None:
        """Flush, then end the threads, also if flushing failed. Closing twice is no error."""
        with self._work:
            self._closing = True
            self._room.notify_all()
        try:
            self.flush()
        finally:
            with self._work:
                self._work.notify_all()
            self._flusher.join()
            self._uploads.shutdown()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def conflict_rate(self) -> float:
        """Percent of manifest writes that met a conflict."""
        return self._manifest.conflict_rate

    # What follows, down to _run, is called with the lock held.

    def _is_full(self) -> bool:
        return len(self._flying) >= self._max_in_flight

    def _seal(self) -> None:
        if self._open is not None:
            self._sealed.append(self._open)
            self._open = None
            self._work.notify()

    def _start_uploads(self) -> None:
        while self._sealed and not self._is_full():
            batch = self._sealed.popleft()
            self._waiting -= len(batch.metadata)
            try:
                self._uploads.submit(self._upload_and_commit, batch)
            except RuntimeError as error:  # no thread to be had, or the interpreter is ending
                batch.error = StorageError(f"no thread could upload this, produce it again: {error}")
                self._finish(batch)
            else:
                self._flying.append(batch)
            self._room.notify_all()

    def _finish(self, batch: PendingBatch) -> None:
        self._failure = self._failure or batch.error
        batch.done.set()
        self._room.notify_all()

    def _run(self) -> None:
        """The flush thread: seals what is due and gives it a slot."""
        with self._work:
            while True:
                timeout = None
                if self._open is not None and not self._is_full():
                    timeout = self._open.opened + self._interval - time.monotonic()
                    if timeout <= 0:
                        self._seal()
                        timeout = None
                self._start_uploads()
                if self._closing and not (self._open or self._sealed or self._flying):
                    return
                self._work.wait(timeout)

    def _upload_and_commit(self, batch: PendingBatch) -> None:
        batch.started, batch.started_wall = self._uptime(), self._clock()
        try:
            self._upload(batch)
        except ObjbufError as error:
            batch.error = error
        except BaseException as error:  # noqa: BLE001  a panic below is no Exception, and nobody may be left waiting
            batch.error = StorageError(f"uploading a batch failed, produce it again: {error!r}")
        with self._work:
            batch.uploaded = True
        self._commit_ready()

    def _upload(self, batch: PendingBatch) -> None:
        parts = frame_batch(batch.take_blocks(), batch.count, self._compression)
        location = f"{self._prefix}/{new_ulid(int(self._clock() * 1000))}{BATCH_SUFFIX}"
        self._store.put(location, parts)
        batch.location = location
        self.metrics.count(m.BYTES_WRITTEN, sum(map(len, parts)))

    def _age(self, batch: PendingBatch) -> float:
        """Seconds since its name was made, by whichever clock says more: one may stop in sleep, the other be set."""
        return max(self._uptime() - batch.started, self._clock() - batch.started_wall)

    def _is_gone(self, location: str) -> bool:
        """Only if the store says so: with no answer, what was appended is most likely there."""
        try:
            self._store.head(location)
        except NotFound:
            return True
        except BaseException:  # noqa: BLE001  as above
            return False
        return False

    def _commit_ready(self) -> None:
        """Append what is uploaded, in order, until nothing is ready; only one worker at a time does."""
        while True:
            with self._work:
                if self._committing:
                    return
                ready = []
                for batch in self._flying:
                    if not batch.uploaded:
                        break
                    ready.append(batch)
                if not ready:
                    return
                self._committing = True
            try:
                self._commit([batch for batch in ready if batch.error is None])
            finally:
                with self._work:
                    self._committing = False
                    for batch in ready:
                        self._flying.popleft()
                        self._finish(batch)
                    self._work.notify()

    def _commit(self, batches: list[PendingBatch]) -> None:
        """Append them in one write. Raises nothing: each gets its sequence, or its error."""
        if not batches:
            return
        append = _Append(batches, self._age)
        try:
            check_conditions(self._store, self._prefix, versions=True)
            self._manifest.update(append)
        except InvalidInput as error:
            if len(append.batches) == 1:
                append.fail(error)
            else:
                for batch in append.batches:  # nothing was written: one that does not fit keeps out no other
                    self._commit([batch])
            return
        except ObjbufError as error:
            append.fail(error)
            return
        except BaseException as error:  # noqa: BLE001  as above
            append.fail(StorageError(f"appending to the manifest failed, it may be durable: {error!r}", in_doubt=True))
            return
        for sequence, batch in enumerate(append.batches, append.first):
            if self._age(batch) > _LATE_SECONDS and self._is_gone(batch.location):
                batch.error = StorageUnavailable("it was collected as garbage before it was appended: produce it again")
                continue
            batch.sequence = sequence
            self.metrics.observe(m.FLUSH_DURATION_SECONDS, self._uptime() - batch.started)
            self.metrics.count(m.BATCHES_FLUSHED)
            self.metrics.count(m.ENTRIES_FLUSHED, batch.count)
            self.metrics.count(m.BYTES_FLUSHED, batch.size - sum(len(item.payload) for item in batch.metadata))


class _Append:
    """The change that appends batches, once: after a write it looks for the last of them where it would have put it.

    They are appended all or none, so one tells of all; and the last is the one that stays in the queue the longest. It
    looks also after a conflict without a doubt: a proxy that repeats a write answers with the second one's conflict. If
    what it wrote was consumed before it could look, only a doubt stops it: without one, the conflict is nearly always
    another producer's, and to call each of those unsure would be worse.
    """

    def __init__(self, batches: list[PendingBatch], age: Callable[[PendingBatch], float]) -> None:
        self.batches = batches
        self._age = age
        self.first = -1

    def fail(self, error: ObjbufError) -> None:
        for batch in self.batches:
            batch.error = error

    def __call__(self, manifest: Manifest, in_doubt: bool) -> bool:
        if self.first >= 0 and manifest.next_sequence >= self.first + len(self.batches):
            found = manifest.entry(self.first + len(self.batches) - 1)
            if found is None and in_doubt:
                raise StorageUnavailable(
                    "the answer to a manifest write was lost, and what it may have written was consumed since: the "
                    "entries may be durable; produce them again only if twice is better than never",
                    in_doubt=True,
                )
            if found is not None and found.location == self.batches[-1].location:
                return False
        self._drop_old(in_doubt)
        self.first = manifest.next_sequence
        for batch in self.batches:
            manifest.append(batch.location, batch.metadata)
        return bool(self.batches)

    def _drop_old(self, in_doubt: bool) -> None:
        """See _TOO_OLD_SECONDS. In doubt, an earlier write with all of them may still arrive, so all or none."""
        old = [batch for batch in self.batches if self._age(batch) > _TOO_OLD_SECONDS]
        if not old:
            return
        late = f"the batch and the manifest could not be written within {_TOO_OLD_SECONDS:g} s"
        if in_doubt:
            raise StorageUnavailable(
                f"{late}, and an answer was lost: it may be durable; produce again only if twice is better than never",
                in_doubt=True,
            )
        error = StorageUnavailable(
            f"{late}: not durable, produce it again; if uploads are slow, in smaller batches (flush_size_bytes) or "
            "compressed"
        )
        for batch in old:
            batch.error = error
        self.batches = [batch for batch in self.batches if batch.error is None]
