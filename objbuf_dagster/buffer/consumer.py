"""The fenced consumer: hands out what is in the manifest, and dequeues what was acked.

One consumer at a time owns a buffer, by the epoch it wrote into the manifest. Every manifest operation checks that the
epoch is still there, and changes nothing if it is not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.fetch import FetchHandle
from objbuf_dagster.buffer.gc import DEFAULT_GRACE_SECONDS, DEFAULT_INTERVAL_SECONDS, GarbageCollector
from objbuf_dagster.buffer.manifest_store import (
    DEFAULT_DATA_PREFIX,
    DEFAULT_MANIFEST_PATH,
    BufferState,
    ManifestStore,
    state_of,
)
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.buffer.retention import DEFAULT_RETENTION_SECONDS
from objbuf_dagster.errors import BufferReplaced, Fenced, InvalidInput, OutOfOrderAck, shown
from objbuf_dagster.protocol import DEFAULT_MAX_BYTES, BatchDescriptor, ConsumedBatch, Manifest
from objbuf_dagster.store import Store, check_conditions, check_path

DEQUEUE_EVERY = 100
"""Acks between two dequeues."""

_log = logging.getLogger(__name__)
_LONGEST_CLOSE_SECONDS = 10.0
_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 1.0


class Consumer:
    """Make one with `open` (takes the buffer over) or `attach` (joins whoever holds the epoch).

    Calls come from one thread at a time; `fetch_handle()` is for the others. Close it, or use it as a context manager.

    >>> from objbuf_dagster.store import open_store
    >>> from objbuf_dagster.buffer import Producer
    >>> store = open_store("memory://")
    >>> with Producer(store) as producer:
    ...     _ = producer.produce([b"a", b"b"])
    >>> with Consumer.open(store) as consumer:
    ...     batch = consumer.next_batch()
    ...     consumer.ack_through(batch.sequence)
    ...     batch.entries
    [b'a', b'b']
    """

    def __init__(
        self,
        store: Store,
        manifest_path: str,
        data_prefix: str,
        *,
        epoch: int,
        max_bytes: int,
        metrics: Metrics | None,
        clock: Callable[[], float],
    ) -> None:
        check_path(manifest_path)
        check_path(data_prefix)
        self.metrics = metrics or Metrics()
        self.epoch = epoch
        self._manifest = ManifestStore(store, manifest_path, "consumer", self.metrics)
        self._fetch = FetchHandle(store, data_prefix, max_bytes, self.metrics)
        self._clock = clock
        self._next_sequence = 0  # of the manifest when it was last seen
        self._acked: int | None = None  # the first sequence that is not acked here; None: not known yet
        self._dequeued = 0  # the same, in the manifest as we last wrote it
        self._cursor = 0  # the first sequence that is not handed out
        self._length = 0
        self._closed = threading.Event()
        self._collecting: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        store: Store,
        manifest_path: str = DEFAULT_MANIFEST_PATH,
        data_prefix: str = DEFAULT_DATA_PREFIX,
        last_acked: int | None = None,
        *,
        gc_interval: float | None = DEFAULT_INTERVAL_SECONDS,
        gc_grace_period: float = DEFAULT_GRACE_SECONDS,
        replay_retention: float = DEFAULT_RETENTION_SECONDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Consumer:
        """Take the epoch, fencing whoever held it; with `last_acked`, also dequeue through it and read on after it.

        Settings: seconds between garbage collections (None: none here), the age that keeps a batch from it, how long
        acked ranges stay, the most bytes a decompressed batch may have.

        Raises InvalidInput, with nothing changed, if `last_acked` was never produced: then it is another buffer's; and
        StorageError for a bucket that ignores conditional puts.
        """
        if gc_interval is not None and gc_interval <= 0:
            raise InvalidInput(f"gc_interval must be above 0 seconds, or None: {gc_interval}")
        consumer = cls(store, manifest_path, data_prefix, epoch=0, max_bytes=max_bytes, metrics=metrics, clock=clock)
        collector = GarbageCollector(
            store,
            manifest_path,
            data_prefix,
            grace_seconds=gc_grace_period,
            retention_seconds=replay_retention,
            metrics=consumer.metrics,
            clock=clock,
        )

        def take(manifest: Manifest, _: bool) -> bool:
            if last_acked is not None:
                if not -1 <= last_acked < manifest.next_sequence:
                    raise InvalidInput(
                        f"last_acked {last_acked} was never produced, the next sequence is {manifest.next_sequence}: "
                        "is this state from another buffer? Open without last_acked to read what is there"
                    )
                if last_acked + 1 < manifest.frontier:
                    _log.warning(
                        "opened after sequence %d, but everything before %d is dequeued: what lies between is not read "
                        "again here",
                        last_acked,
                        manifest.frontier,
                    )
                manifest.dequeue(last_acked)
            manifest.take_epoch()  # in doubt too: somebody else may have taken the one we tried
            return True

        check_conditions(store, data_prefix, versions=True)
        manifest = consumer._manifest.update(take)
        consumer.epoch = manifest.epoch
        consumer._saw(manifest)
        consumer._cursor = manifest.frontier
        if gc_interval is not None:
            collector.epoch = consumer.epoch
            consumer._collecting = threading.Thread(
                target=collector.run, args=(consumer._closed, gc_interval), name="objbuf-gc", daemon=True
            )
            consumer._collecting.start()
        return consumer

    @classmethod
    def attach(
        cls,
        store: Store,
        manifest_path: str = DEFAULT_MANIFEST_PATH,
        data_prefix: str = DEFAULT_DATA_PREFIX,
        *,
        epoch: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Consumer:
        """Join with an epoch that somebody took, without taking it, reading or collecting anything.

        If it is not the buffer's epoch (any more), the first operation raises Fenced.
        """
        return cls(store, manifest_path, data_prefix, epoch=epoch, max_bytes=max_bytes, metrics=metrics, clock=clock)

    def next_batch(self) -> ConsumedBatch | None:
        """The next batch, or None when nothing is new: one manifest read, one fetch.

        The cursor moves only after the fetch succeeded: a batch that failed is handed out again.
        """
        entry = next(self.read().entries(after=self._cursor - 1, limit=1), None)
        if entry is None:
            return None
        batch = self.fetch_descriptor(entry)
        self._cursor = entry.sequence + 1
        return batch

    def next_descriptors(self, max: int, wait: float = 0.0) -> list[BatchDescriptor]:  # noqa: A002  the protocol's name
        """Up to `max` entries behind the cursor, which moves at once: what is lost now is found after reopening only.

        One manifest read; none with `max=0`. With `wait`, looks again, ever more rarely, until something is there, the
        seconds are up or the consumer is closed.
        """
        if max <= 0:
            return []
        until = time.monotonic() + wait
        pause = _FIRST_POLL_SECONDS
        while True:
            found = list(self.read().entries(after=self._cursor - 1, limit=max))
            left = until - time.monotonic()
            if found or left <= 0:
                break
            if self._closed.wait(min(pause, left)):
                return []
            pause = min(pause * 2, _LONGEST_POLL_SECONDS)
        if found:
            self._cursor = found[-1].sequence + 1
            self.metrics.count(m.DESCRIPTORS_HANDED_OUT, len(found))
        return found

    def fetch_handle(self) -> FetchHandle:
        """A handle that fetches without this consumer: cheap, picklable, for any thread or process."""
        return self._fetch

    def fetch_descriptor(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Fetch, and keep the lag gauge."""
        batch = self._fetch.fetch(descriptor)
        if batch.metadata:
            lag = self._clock() - batch.metadata[-1].ingestion_time_ms / 1000
            self.metrics.set(m.CONSUMER_LAG_SECONDS, max(0.0, lag))
        return batch

    def ack(self, sequence: int) -> None:
        """Ack one sequence, the one after the last; every 100th is dequeued.

        Raises OutOfOrderAck for any other; on any error nothing has changed, and a retry is safe.
        """
        acked = self._known_ack()
        if sequence != acked:
            raise OutOfOrderAck(
                f"ack of sequence {sequence}, but {acked} is next: ack in order, or use ack_through",
                expected=acked,
                got=sequence,
            )
        if sequence >= self._next_sequence:
            _check_produced(sequence, self.read())
        if sequence + 1 - self._dequeued >= DEQUEUE_EVERY:
            self._dequeue(sequence)
        self._acked = sequence + 1
        self.metrics.count(m.ACKS)

    def ack_through(self, sequence: int, *, location: str | None = None) -> None:
        """Ack everything up to `sequence` with one durable dequeue, then move local state: one read and one write.

        Who knows the location of that sequence's batch gives it: if the manifest names another one, this is not the
        buffer that was processed (epochs begin anew in a buffer made anew), and BufferReplaced is raised.

        Whether all of it was processed is for the caller to know. Raises OutOfOrderAck if `sequence` is not above the
        last ack that this consumer knows of, or was never produced; on any error nothing local has changed, and a retry
        is safe. An attached consumer knows of none yet: acking again what is acked already changes nothing then.
        """
        if self._acked is not None and sequence < self._acked:
            raise OutOfOrderAck(
                f"ack through sequence {sequence}, but {self._acked - 1} is acked already",
                expected=self._acked,
                got=sequence,
            )
        known = self._acked
        before = self._dequeue(sequence, location)
        self._acked = max(self._acked or 0, self._dequeued)
        self.metrics.count(m.ACKS, max(0, sequence + 1 - (before if known is None else known)))

    def ack_as(self, decide: Callable[[Manifest], BatchDescriptor | None]) -> Manifest:
        """Ack through the batch that `decide` names from the manifest as it is, or nothing if it names none.

        One read, and one write if the frontier moves; returns the manifest as it is then. `decide` is asked again when
        somebody else wrote in between. Raises as `ack_through` does, and what `decide` raises, with nothing changed.
        """
        manifest, before = self._dequeue_as(decide)
        self.metrics.count(m.ACKS, manifest.frontier - before)
        self._acked = max(self._acked or 0, self._dequeued)
        return manifest

    def flush(self) -> None:
        """Dequeue what is acked and not dequeued yet, if anything."""
        self._check_open()
        if self._acked is not None and self._acked > self._dequeued:
            self._dequeue(self._acked - 1)

    def close(self) -> None:
        """Flush, then end garbage collection, also if flushing failed. Closing twice is no error."""
        if self._closed.is_set():
            return
        try:
            self.flush()
        finally:
            self._closed.set()
            if self._collecting is not None:
                self._collecting.join(_LONGEST_CLOSE_SECONDS)  # it ends by itself after the store call it is in

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> Manifest:
        """The manifest, and the certainty that this consumer still owns it: one read for all who need it."""
        self._check_open()
        manifest = self._manifest.read()
        self._check_epoch(manifest)
        self._saw(manifest)
        return manifest

    def peek(self) -> BufferState:
        """Queue length, frontier, next sequence, epoch and lag, whoever owns the buffer: one manifest read."""
        return state_of(self._manifest.read(), self._clock())

    def __len__(self) -> int:
        """Entries in the queue as of the last manifest read or write."""
        return self._length

    def __bool__(self) -> bool:
        return True  # an empty queue does not make its consumer false

    @property
    def is_empty(self) -> bool:
        return self._length == 0

    @property
    def conflict_rate(self) -> float:
        """Percent of manifest writes that met a conflict."""
        return self._manifest.conflict_rate

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise InvalidInput("the consumer is closed: open a new one")

    def _check_epoch(self, manifest: Manifest) -> None:
        if manifest.epoch != self.epoch:
            raise Fenced(self.epoch, manifest.epoch)
        known = max(self._cursor, self._acked or 0)
        if manifest.next_sequence < known:
            raise BufferReplaced(f"its next sequence is {manifest.next_sequence}, but {known - 1} was there before")

    def _saw(self, manifest: Manifest) -> None:
        if self._acked is None:
            self._acked = manifest.frontier
        self._dequeued = manifest.frontier
        self._next_sequence = manifest.next_sequence
        self._length = manifest.entry_count
        self.metrics.set(m.QUEUE_LENGTH, manifest.entry_count)

    def _known_ack(self) -> int:
        if self._acked is None:
            self.read()
        self._check_open()
        return self._acked or 0

    def _dequeue(self, through: int, location: str | None = None) -> int:
        """Dequeue durably through this sequence, and return the frontier as it was before."""
        return self._dequeue_as(lambda _: BatchDescriptor(through, location or "", ()))[1]

    def _dequeue_as(self, decide: Callable[[Manifest], BatchDescriptor | None]) -> tuple[Manifest, int]:
        """Returns the manifest as it is now, and the frontier as it was before. No location means any."""
        self._check_open()
        before = 0

        def drop(manifest: Manifest, _: bool) -> bool:
            nonlocal before
            self._check_epoch(manifest)
            before = manifest.frontier
            wanted = decide(manifest)
            if wanted is None:
                return False
            _check_produced(wanted.sequence, manifest)
            entry = manifest.entry(wanted.sequence) if wanted.location else None
            if entry is not None and entry.location != wanted.location:
                raise BufferReplaced(
                    f"sequence {wanted.sequence} is {shown(entry.location)}, but {shown(wanted.location)} was processed"
                )
            manifest.dequeue(wanted.sequence)
            return manifest.frontier > before

        manifest = self._manifest.update(drop)
        self._saw(manifest)
        return manifest, before


def _check_produced(sequence: int, manifest: Manifest) -> None:
    if sequence >= manifest.next_sequence:
        raise OutOfOrderAck(
            f"ack of sequence {sequence}, which was never produced: {manifest.next_sequence} comes next",
            expected=manifest.frontier,
            got=sequence,
        )
