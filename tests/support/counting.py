"""A store that counts what is asked of it, so that "one GET per tick" is a test."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.store import Blob, Conflict, ObjectInfo, Payload, Store


class CountingStore(Store):
    """Passes every call on to `inner` and counts it by (method, path), from any number of threads.

    A listing counts under its prefix, once, when asked for. A delete counts once for each path. `get` and `read` are
    both a GET on the wire, and are counted apart. So is `get_if_changed`: it counts as `get` if it gave bytes, as
    `unchanged` if not.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._mutex = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """The counts so far, as a copy: `calls["get", "manifest"]`."""
        with self._mutex:
            return Counter(self._calls)

    def count(self, *methods: str, path: str | None = None) -> int:
        """How many calls of these methods (of any, without one) named this path (any, without one)."""
        return sum(
            times
            for (method, at), times in self.calls.items()
            if (not methods or method in methods) and (path is None or at == path)
        )

    def reset(self) -> None:
        """Count from zero again."""
        with self._mutex:
            self._calls.clear()

    @property
    def has_own_clock(self) -> bool:
        return self.inner.has_own_clock

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        self._count("get", path)
        return self.inner.get(path, max_bytes=max_bytes)

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        found = self.inner.get_if_changed(path, version, max_bytes=max_bytes)
        self._count("get" if found else "unchanged", path)
        return found

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        self._count("read", path)
        return self.inner.read(path, max_bytes=max_bytes)

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        self._count("put", path)
        return self.inner.put(path, data, if_version=if_version, if_absent=if_absent)

    def head(self, path: str) -> ObjectInfo:
        self._count("head", path)
        return self.inner.head(path)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        self._count("list", prefix)
        return self.inner.list(prefix, after=after)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = tuple(paths)
        self._count("delete", *wanted)
        return self.inner.delete(wanted)

    def _count(self, method: str, *paths: str) -> None:
        with self._mutex:
            self._calls.update((method, path) for path in paths)
