"""Object stores by URL: memory, local directory, cloud."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store.aws import SessionCredentials
from objbuf_dagster.store.base import Blob, Conflict, ObjectInfo, Payload, Store, TransientError, check_path
from objbuf_dagster.store.cloud import CloudStore, Credentials
from objbuf_dagster.store.conditions import PROBE, check_conditions
from objbuf_dagster.store.hdfs import NO_BUFFER, HdfsStore
from objbuf_dagster.store.local import LocalStore
from objbuf_dagster.store.memory import MemoryStore
from objbuf_dagster.store.remembering import RememberingStore
from objbuf_dagster.store.retry import RetryingStore, RetryPolicy

__all__ = [
    "PROBE",
    "Blob",
    "CloudStore",
    "Conflict",
    "HdfsStore",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "Payload",
    "RememberingStore",
    "RetryPolicy",
    "RetryingStore",
    "SessionCredentials",
    "Store",
    "TransientError",
    "check_conditions",
    "check_path",
    "open_store",
]

_CLOUD = {"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"}


def open_store(
    url: str | os.PathLike[str],
    *,
    options: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    retry: RetryPolicy | None = None,
    timeout_seconds: float = 60.0,
) -> Store:
    """The store at `url`; nothing is read or written yet.

    `file:///dir` or a plain path: a directory. `s3://bucket/prefix`, `gs://...`, `az://...`: a bucket, with `options`
    and `credentials` as CloudStore takes them, `timeout_seconds` per request, and failures repeated as `retry` says.
    `memory://`: a new store in this process; `memory://name`: the one of that name.

    Raises InvalidInput for a URL that is none of these.
    """
    text = os.fspath(url)
    if text.startswith("hdfs://"):
        raise InvalidInput(NO_BUFFER)
    if (options or credentials) and urlsplit(text.replace("[", "")).scheme not in _CLOUD:
        raise InvalidInput("only buckets take options and credentials: s3://, gs:// and az:// URLs")
    if "://" not in text:
        return LocalStore(_checked_directory(text))
    try:
        parts = urlsplit(text)
    except ValueError:
        raise InvalidInput("not a URL: give file:///dir, s3://bucket/prefix or a directory") from None
    if parts.query or parts.fragment:
        raise InvalidInput("a store's URL has no '?' or '#' part: write %3F or %23 in a name, give settings as options")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            path = parts.netloc.rpartition("@")[2] + parts.path
            raise InvalidInput(f"a file URL has three slashes and an absolute path: file:///{path or 'dir'}")
        return LocalStore(unquote(parts.path))
    if parts.scheme == "memory":
        name = (parts.netloc + parts.path).strip("/")
        return MemoryStore.named(name) if name else MemoryStore()
    if parts.scheme in _CLOUD:
        if not parts.netloc:
            raise InvalidInput(f"{parts.scheme}:// needs a bucket: {parts.scheme}://bucket/prefix")
        if ":" in parts.netloc:  # obstore would leave them aside without a word
            raise InvalidInput("a bucket's URL has no credentials or port: give them as options or in the environment")
        store = CloudStore(text, options=options, credentials=credentials, timeout_seconds=timeout_seconds)
        return RetryingStore(store, retry)
    raise InvalidInput(f"unknown kind of store {parts.scheme!r}: use file, s3, gs, az or memory")


def _checked_directory(text: str) -> str:
    """Not the URL of a bucket with a slash too few: that would be a directory which nobody meant."""
    if not text:
        raise InvalidInput("an empty URL names no store: give file:///dir, s3://bucket/prefix or a directory")
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in {*_CLOUD, "file", "hdfs", "memory"}:
        there = f"{scheme.lower()}://{rest.lstrip('/')}"
        meant = f"file:///dir or just {rest or 'dir'}" if scheme.lower() == "file" else there
        raise InvalidInput(f"after {scheme}: come two slashes: give {meant} (a directory of that name is ./{text})")
    return text
