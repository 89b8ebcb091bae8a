"""Where a buffer is: everything that a process needs to know to work on it, picklable, with nothing read yet."""

from __future__ import annotations

from dataclasses import dataclass

from objbuf_dagster.buffer.fetch import FetchHandle
from objbuf_dagster.buffer.manifest_store import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH, ManifestStore
from objbuf_dagster.protocol import DEFAULT_MAX_BYTES
from objbuf_dagster.store import Store, check_path


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """A buffer by its store and the two paths in it.

    max_bytes: the most a batch may have, as an object and once decompressed.
    """

    store: Store
    manifest_path: str = DEFAULT_MANIFEST_PATH
    data_prefix: str = DEFAULT_DATA_PREFIX
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        check_path(self.manifest_path)
        check_path(self.data_prefix)

    def manifests(self) -> ManifestStore:
        return ManifestStore(self.store, self.manifest_path)

    def fetcher(self) -> FetchHandle:
        return FetchHandle(self.store, self.data_prefix, self.max_bytes)
