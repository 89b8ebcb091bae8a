"""A store in this process's memory: for tests, examples and dry runs."""

from __future__ import annotations

import itertools
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError
from objbuf_dagster.store.base import (
    Blob,
    Conflict,
    ObjectInfo,
    Payload,
    Store,
    check_condition,
    check_path,
    check_size,
    folder,
)

_stores: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()
_named: dict[str, MemoryStore] = {}
_lock = threading.Lock()


class MemoryStore(Store):
    """Pickles as a reference: unpickled in the same process it is the same store; elsewhere it is refused."""

    def __init__(self) -> None:
        self._objects: dict[str, Blob] = {}
        self._mutex = threading.Lock()
        self._versions = itertools.count(1)
        self._id = uuid.uuid4().hex
        _stores[self._id] = self

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of this name in this process: `memory://name`."""
        with _lock:
            return _named.setdefault(name, cls())

    def __reduce__(self) -> tuple[Any, ...]:
        return _lookup, (self._id,)

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        blob = self._objects.get(check_path(path))
        if blob is None:
            raise NotFound(path)
        check_size(path, len(blob.data), max_bytes)
        return blob

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        check_condition(if_version, if_absent)
        whole = data if isinstance(data, bytes) else b"".join(data)
        with self._mutex:
            current = self._objects.get(check_path(path))
            changed = if_version is not None and (current is None or current.version != if_version)
            if changed or (if_absent and current is not None):
                return Conflict()
            self._objects[path] = Blob(whole, str(next(self._versions)))
            return None

    def head(self, path: str) -> ObjectInfo:
        return ObjectInfo(path, len(self.get(path).data))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        below = folder(prefix)
        with self._mutex:
            found = sorted((path, len(blob.data)) for path, blob in self._objects.items() if path.startswith(below))
        yield from (ObjectInfo(path, size) for path, size in found if after is None or path > after)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = [check_path(path) for path in paths]
        with self._mutex:
            for path in wanted:
                self._objects.pop(path, None)
        return {}


def _lookup(store_id: str) -> MemoryStore:
    store = _stores.get(store_id)
    if store is None:
        raise InvalidInput("a memory store lives in one process only: use a file:// or s3:// store to share it")
    return store
