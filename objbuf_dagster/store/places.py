"""Where stores are, so that one can be told to lie inside another."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from objbuf_dagster.store.base import Store
from objbuf_dagster.store.cloud import CloudStore
from objbuf_dagster.store.local import LocalStore

_SAME = {"s3a": "s3", "azure": "az"}
"""Two names of one kind of place."""


def parts_of(store: Store, path: str = "") -> tuple[str, ...] | None:
    """What leads to this path of the store, part by part; None for a store that no other one can be in."""
    inner: object = store
    while not isinstance(inner, LocalStore | CloudStore):
        inner = getattr(inner, "inner", None)
        if inner is None:
            return None
    below = [part for part in path.split("/") if part]
    if isinstance(inner, LocalStore):
        return ("file", *Path(os.path.realpath(inner.root.joinpath(*below))).parts)
    bucket, endpoint = inner.place
    scheme, _, name = bucket.partition("://")
    folders = [part for part in unquote(urlsplit(inner.url).path).split("/") if part]
    return (_SAME.get(scheme, scheme), endpoint.rstrip("/"), name, *folders, *below)


def overlap(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> bool:
    """Whether they are the same place, or one lies inside the other."""
    if one is None or other is None:
        return False
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]
