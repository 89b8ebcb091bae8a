"""Where a table is: one URL and one set of settings for two libraries.

Tasks write data files through our store (obstore), the driver commits through deltalake; both are built on the same
Rust crate, so obstore's settings mean the same to deltalake. What differs is done here.

On hdfs both are built on hdfs-native, of different releases, and the settings are Hadoop's, by whatever means they
come. Both read those that name NameNodes (`dfs.ha.namenodes`, `dfs.namenode.rpc-address`), Kerberos' and
`dfs.data.transfer.protection`. deltalake's leaves aside `dfs.client.use.datanode.hostname`,
`dfs.client.socket-timeout` and `dfs.client.failover.max.attempts`: it goes to DataNodes by their addresses, and once to
each NameNode. It has no timeout either: see `DeltaPlace.ask`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store import HdfsStore, LocalStore, MemoryStore, RetryingStore, RetryPolicy, Store, open_store
from objbuf_dagster.store.cloud import Credentials
from objbuf_dagster.store.hdfs import check_installed
from objbuf_dagster.store.places import overlap, parts_of

_S3 = ("s3", "s3a")
_GOOGLE = ("gs",)
_HDFS = "hdfs"
_BY_HOSTNAME = "dfs.client.use.datanode.hostname"
_UNSAFE = re.compile(r"(aws_)?(s3_)?(allow_unsafe_rename|locking_provider|conditional_put)", re.IGNORECASE)


def open_lake(
    url: str,
    *,
    options: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    retry: RetryPolicy | None = None,
    timeout_seconds: float = 60.0,
) -> Store:
    """The files of a lake: what `open_store` opens, and `hdfs://namenode:8020/dir`, where no buffer can be.

    Raises InvalidInput as `open_store` does, for a setting that hdfs needs and deltalake would leave aside, and if the
    library for hdfs is not there.
    """
    if not is_hdfs(url):
        return open_store(url, options=options, credentials=credentials, retry=retry, timeout_seconds=timeout_seconds)
    if credentials is not None:
        raise InvalidInput("hdfs takes no credentials: it goes by HADOOP_USER_NAME or the Kerberos ticket")
    if (options or {}).get(_BY_HOSTNAME, "").lower() == "true":
        raise InvalidInput(
            f"commits leave {_BY_HOSTNAME} aside, so landings would fail at their end: make the DataNodes' addresses "
            "reachable from here (dfs.datanode.hostname or a route to them), and leave it out"
        )
    store = HdfsStore(url, options=options, timeout_seconds=timeout_seconds)
    check_installed()
    return RetryingStore(store, retry)


def is_hdfs(url: str) -> bool:
    return url.startswith(f"{_HDFS}://")


def local_root(url: str, store: Store) -> Path | None:
    """The directory of a table that is one, or None for a bucket. Raises InvalidInput where no table can be."""
    if isinstance(store, MemoryStore):
        raise InvalidInput("a table cannot be in memory: give file:///dir, s3://bucket/prefix or a directory")
    root = store.root if isinstance(store, LocalStore) else None
    if "%" in (str(root) if root else url):
        raise InvalidInput("deltalake takes a '%' in a name for something else: give the table a place without one")
    return root


def check_apart(table: Store, name: str, buffer: BufferPlace) -> None:
    """Raise InvalidInput for a table at, above or below what a buffer consists of.

    Each is looked after by who takes what lies in its folders for its own: a buffer's batches and a table's files are
    garbage to the other one's upkeep, sooner or later.
    """
    place = parts_of(table)
    for path in (buffer.data_prefix, buffer.manifest_path):
        if overlap(place, parts_of(buffer.store, path)):
            raise InvalidInput(
                f"the table at {name} and the buffer's {path} would lie one inside the other: give the table a place "
                "of its own, with another lake or another name of the table"
            )


def storage_options(
    url: str,
    options: Mapping[str, str],
    credentials: Credentials | None,
    *,
    retry: RetryPolicy,
    timeout_seconds: float,
) -> dict[str, str]:
    """deltalake's `storage_options` for the place at `url`; a credential provider is asked each time.

    Raises InvalidInput for credentials that deltalake has no setting for.
    """
    scheme = urlsplit(url).scheme
    if scheme == _HDFS:
        return dict(options)
    found = {**(getattr(credentials, "config", None) or {}), **options}  # as obstore joins them
    given = {name.lower(): str(value) for name, value in found.items() if not _UNSAFE.fullmatch(name)}
    if credentials is not None:
        given.update(_provided(scheme, credentials))
    given.update(
        {
            "allow_http": "true",  # as our store: an http endpoint is the user's choice
            "timeout": _milliseconds(timeout_seconds),
            "max_retries": str(retry.attempts - 1),
            "retry_timeout": _milliseconds(retry.attempts * (timeout_seconds + retry.cap_seconds)),
            "backoff_config.init_backoff": _milliseconds(retry.base_seconds),
            "backoff_config.max_backoff": _milliseconds(max(retry.cap_seconds, retry.base_seconds)),
        }
    )
    if scheme in _S3:
        # If-None-Match on the commit's object is what makes one of two racing commits lose. Said aloud, since the
        # environment could turn it off; that the server keeps to it is tried before the first commit.
        given["aws_conditional_put"] = "etag"
        given["aws_s3_allow_unsafe_rename"] = "false"
    return given


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _provided(scheme: str, credentials: Credentials) -> dict[str, str]:
    """What an obstore credential provider gives, as settings."""
    given: Any = credentials()
    if inspect.isawaitable(given):
        if inspect.iscoroutine(given):
            given.close()
        raise InvalidInput("a table's credential provider must not be asynchronous: give one that returns a value")
    if scheme in _S3:
        names = {
            "access_key_id": "aws_access_key_id",
            "secret_access_key": "aws_secret_access_key",
            "token": "aws_session_token",
        }
    elif scheme in _GOOGLE:
        raise InvalidInput(
            "deltalake takes no tokens for Google Cloud Storage: give the option service_account_key, or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )
    else:
        names = {
            "access_key": "azure_storage_account_key",
            "token": "azure_storage_token",
            "sas_token": "azure_storage_sas_token",
        }
    return {
        setting: value if isinstance(value, str) else urlencode(value)  # a SAS token may come in pairs
        for name, setting in names.items()
        if (value := given.get(name)) is not None
    }
