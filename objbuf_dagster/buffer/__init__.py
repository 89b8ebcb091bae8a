"""The buffer client: producer, fenced consumer, fetching, garbage collection."""

from objbuf_dagster.buffer.consumer import Consumer
from objbuf_dagster.buffer.fetch import FetchHandle
from objbuf_dagster.buffer.gc import GarbageCollector, GcReport
from objbuf_dagster.buffer.manifest_store import (
    DEFAULT_DATA_PREFIX,
    DEFAULT_MANIFEST_PATH,
    BufferState,
    ManifestStore,
    peek,
    state_of,
)
from objbuf_dagster.buffer.metrics import Metrics, Snapshot
from objbuf_dagster.buffer.pending import Durable, WriteHandle
from objbuf_dagster.buffer.place import BufferPlace
from objbuf_dagster.buffer.producer import Producer

__all__ = [
    "DEFAULT_DATA_PREFIX",
    "DEFAULT_MANIFEST_PATH",
    "BufferPlace",
    "BufferState",
    "Consumer",
    "Durable",
    "FetchHandle",
    "GarbageCollector",
    "GcReport",
    "ManifestStore",
    "Metrics",
    "Producer",
    "Snapshot",
    "WriteHandle",
    "peek",
    "state_of",
]
