"""A store in memory that says when an object was written: by a clock of its own, as a bucket has, or by its users'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from objbuf_dagster.store import Conflict, MemoryStore, ObjectInfo, Payload


class ClockedStore(MemoryStore):
    """`clock` gives seconds; it is the store's, and nobody else's, unless `own` is false: a directory."""

    def __init__(self, clock: Callable[[], float], *, own: bool = True) -> None:
        super().__init__()
        self._own = own
        self._clock = clock
        self._written: dict[str, int] = {}

    @property
    def has_own_clock(self) -> bool:
        return self._own

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        conflict = super().put(path, data, if_version=if_version, if_absent=if_absent)
        if conflict is None:
            self._written[path] = int(self._clock() * 1000)
        return conflict

    def head(self, path: str) -> ObjectInfo:
        return self._dated(super().head(path))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        yield from map(self._dated, super().list(prefix, after=after))

    def _dated(self, info: ObjectInfo) -> ObjectInfo:
        return dataclasses.replace(info, modified_ms=self._written.get(info.path))
