"""Filling a store and looking at what is in it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from objbuf_dagster.store import ObjectInfo, Store

WRITERS = 8


def paths_of(infos: Iterable[ObjectInfo]) -> list[str]:
    return [info.path for info in infos]


def fill(store: Store, paths: list[str]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        assert not any(pool.map(lambda path: store.put(path, b"."), paths))
