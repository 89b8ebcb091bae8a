"""Whether a bucket keeps to the conditions of a put. All that must happen once rests on them, and a server that does
not know them takes every put and says nothing: two commits with one number, and the first is lost."""

from __future__ import annotations

import contextlib
import uuid

from objbuf_dagster.errors import ObjbufError, StorageError
from objbuf_dagster.store.base import Conflict, Store
from objbuf_dagster.store.cloud import CloudStore

PROBE = "probe-[0-9a-f]{32}"
"""The name of what is put to try it, as a pattern: whose process was killed meanwhile leaves it."""

_kept: set[tuple[str, str, bool]] = set()
"""What this process has seen to be so, also of versions or not: a server does not change its mind."""


def check_conditions(store: Store, folder: str = "", *, versions: bool = False) -> None:
    """Raise StorageError if this bucket takes a put that it should refuse.

    Tried with an object below `folder` that is deleted again, once per process and bucket; with `versions`, also that
    a put asks for a version. Other kinds of stores are ours, and keep to them. Raises also what keeps it from being
    tried.
    """
    bucket = _bucket_of(store)
    if bucket is None or not _kept.isdisjoint((*bucket.place, asked) for asked in {versions, True}):
        return
    path = f"{folder}/probe-{uuid.uuid4().hex}" if folder else f"probe-{uuid.uuid4().hex}"
    try:
        store.put(path, b"1", if_absent=True)
        if not isinstance(store.put(path, b"2", if_absent=True), Conflict):
            raise _ignored(bucket, "If-None-Match")
        if versions:
            first = store.get(path).version
            store.put(path, b"3", if_version=first)
            if not isinstance(store.put(path, b"4", if_version=first), Conflict):
                raise _ignored(bucket, "If-Match")
    except StorageError as error:
        error.in_doubt = False  # what the caller came to write was not tried yet
        raise
    finally:
        with contextlib.suppress(ObjbufError):
            store.delete([path])
    _kept.add((*bucket.place, versions))


def _bucket_of(store: Store) -> CloudStore | None:
    inner: object = store
    while not isinstance(inner, CloudStore):
        inner = getattr(inner, "inner", None)
        if inner is None:
            return None
    return inner


def _ignored(bucket: CloudStore, header: str) -> StorageError:
    return StorageError(
        f"the server of {bucket!r} ignores conditional puts ({header}): what two processes write at once would be "
        "lost, so nothing was written. Use a server, or a release of it, that keeps to them, as S3 does"
    )
