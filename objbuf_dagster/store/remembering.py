"""A store that remembers one object: who looks at it again and again is sent its bytes only when they are others.

Up to 64 MiB: a larger one is sent each time. A manifest of that size has about 900,000 batches in its queue, fewer with
much metadata: a buffer that nobody lands, or lands too slowly, and not one that is idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

from objbuf_dagster.errors import NotFound, ObjbufError
from objbuf_dagster.store.base import Blob, Conflict, ObjectInfo, Payload, Store

_MOST_BYTES = 64 << 20
"""Larger objects are not remembered: reading them again is better than holding them between two looks."""


class RememberingStore(Store):
    """Passes calls on to `inner`; a `get` of `path` asks only whether the object changed since the last one.

    One that is too large to be remembered is given as it is, each time.

    What is remembered is in `memory`, under `name`, which tells this object from those of other stores: who keeps the
    mapping keeps it for the next store of this kind. It always is what `inner` would have given, as of now.
    """

    def __init__(self, inner: Store, path: str, name: str, memory: MutableMapping[str, Blob]) -> None:
        self.inner = inner
        self._path, self._name, self._memory = path, name, memory

    def __repr__(self) -> str:
        return f"RememberingStore({self.inner!r}, {self._path!r})"

    @property
    def has_own_clock(self) -> bool:
        return self.inner.has_own_clock

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        if path != self._path:
            return self.inner.get(path, max_bytes=max_bytes)
        known = self._memory.get(self._name)
        try:
            if known is None:
                found = self.inner.get(path, max_bytes=max_bytes)
            else:
                found = self.inner.get_if_changed(path, known.version, max_bytes=max_bytes) or known
        except NotFound:
            self._memory.pop(self._name, None)
            raise
        if found is not known:
            self._memory.clear()
            if found.version and len(found.data) <= _MOST_BYTES:
                self._memory[self._name] = found
        return found

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        return self.inner.get_if_changed(path, version, max_bytes=max_bytes)

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        return self.inner.read(path, max_bytes=max_bytes)

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        return self.inner.put(path, data, if_version=if_version, if_absent=if_absent)

    def head(self, path: str) -> ObjectInfo:
        return self.inner.head(path)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, after=after)

    def tidy(self, prefix: str) -> int:
        return self.inner.tidy(prefix)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        return self.inner.delete(paths)
