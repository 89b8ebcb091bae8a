"""HDFS, through the Rust client hdfs-native: for the files of a lake.

No Java is needed for it, and no libhdfs. A put writes a temporary file, closes it, and renames it: the NameNode does
that as one step, and refuses to put it in place of another file if told so. It compares no versions, so a buffer cannot
be here.

A put is as durable as HDFS makes a file that was closed: as many DataNodes have it as the cluster is told to wait for
(`dfs.namenode.replication.min`), in memory or, with their `dfs.datanode.synconclose`, on disk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError, StorageError
from objbuf_dagster.store.base import (
    Blob,
    Conflict,
    ObjectInfo,
    Payload,
    Store,
    TransientError,
    check_condition,
    check_path,
    check_size,
    folder,
)

if TYPE_CHECKING:
    import hdfs_native

NO_BUFFER = (
    "hdfs:// is for lakes: it compares no versions, which every change of a manifest needs; give the buffer a place in "
    "file, s3, gs or az"
)

_NAMES = re.compile(r"(/[A-Za-z0-9._=~-]+)+")
"""deltalake writes others with escapes in their names, and does not find them again."""

_TEMPORARY = ".tmp-"
_LEFT_BEHIND = re.compile(re.escape(_TEMPORARY) + r"[0-9a-f]{32}|\.(?:\d{20}\.[\w.-]+|_last_checkpoint)\.tmp\.\d+")
"""Temporary files of puts here, and of deltalake's in a log, which leaves one for each commit that lost its race."""
_ABANDONED_AFTER = 24 * 3600.0  # seconds until a temporary file can be nobody's work in progress
_CHUNK_BYTES = 1 << 20

_EXCEPTION = re.compile(r"RPCError\(\"(?:[\w$]+\.)*([\w$]+)\", *\"(.*)", re.DOTALL)
_TRACE = re.compile(r"(?:\s|\\n|\\t)+at [\w.$]+\(.*", re.DOTALL)
_PASSING = {"IOException", "ObserverRetryOnActiveException", "RetriableException", "SafeModeException"}
_PASSING |= {"StandbyException", "NotReplicatedYetException", "LeaseExpiredException", "RemoteException"}
_HINTS = {
    "AccessControlException": "access denied, check HADOOP_USER_NAME or the Kerberos ticket, and this user's rights",
    "DSQuotaExceededException": "the directory's quota is full, free some space or raise it",
    "NSQuotaExceededException": "the directory's quota of names is full, free some or raise it",
    "ParentNotDirectoryException": "a part of its path is a file, give it another place",
}
_SETTINGS = re.compile(r"InvalidArgument|InvalidPath|UrlParseError|SASLError|GSSAPIError|NoSASLMechanism|Unsupported")


class HdfsStore(Store):
    """Files below `url`: `hdfs://namenode:8020/dir`, or `hdfs://nameservice/dir` with the settings that name its nodes.

    `options` are Hadoop's settings by name (`dfs.ha.namenodes.ns`, ...); others come from the files in
    HADOOP_CONF_DIR, the user from HADOOP_USER_NAME or the Kerberos ticket. What fails is not repeated in here.
    """

    def __init__(self, url: str, *, options: Mapping[str, str] | None = None, timeout_seconds: float = 60.0) -> None:
        parts = urlsplit(url)
        if not parts.netloc or not _NAMES.fullmatch(parts.path.rstrip("/")) or "@" in parts.netloc:
            raise InvalidInput(
                "an hdfs URL has a NameNode and a path of letters, digits and ._=~-, and nothing else: "
                "hdfs://namenode:8020/lake"
            )
        if any(segment in ("", ".", "..") for segment in parts.path.strip("/").split("/")):
            raise InvalidInput("an hdfs URL's path has no empty, '.' or '..' part: hdfs://namenode:8020/lake")
        self.url = url
        self._settings = (dict(options or {}), timeout_seconds)
        self._server = f"hdfs://{parts.netloc}"
        self._root = parts.path.rstrip("/")

    def __repr__(self) -> str:
        return f"HdfsStore({self.url!r})"  # not the options: they may be secrets

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.url, *self._settings)

    @cached_property
    def _client(self) -> hdfs_native.Client:
        from hdfs_native import Client

        options, timeout_seconds = self._settings
        settings = {"dfs.client.socket-timeout": str(max(1, round(timeout_seconds * 1000)))}
        if urlsplit(self._server).port is not None:
            # There is no other NameNode to go to. The client would wait for minutes all the same, and then so would
            # each attempt of ours.
            settings["dfs.client.failover.max.attempts"] = "1"
        with _translated(""):
            return Client(self._server, {**settings, **options})

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        file = self._file(path)
        with _translated(path):
            reader = self._client.read(file)
            size = len(reader)
            check_size(path, size, max_bytes)
            data = reader.read() if size else b""
        if len(data) != size:
            raise TransientError(f"{path!r} has {size} bytes, and {len(data)} came")
        return Blob(data, "")

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        from hdfs_native import WriteOptions

        check_condition(if_version, if_absent)
        if if_version is not None:
            raise InvalidInput(NO_BUFFER)
        target = self._file(path)
        temporary = f"{target.rpartition('/')[0]}/{_TEMPORARY}{uuid.uuid4().hex}"
        done = False
        try:
            with _translated(path, writing=True):
                writer = self._client.create(temporary, WriteOptions(create_parent=True))
                for chunk in _chunks([data] if isinstance(data, bytes) else data):
                    writer.write(chunk)
                writer.close()
                try:
                    self._client.rename(temporary, target, overwrite=not if_absent)
                except FileExistsError:
                    if not if_absent:
                        raise
                    return Conflict()
            done = True
        finally:
            if not done:
                with contextlib.suppress(Exception):  # tidy() does it, a day later
                    self._client.delete(temporary)
        return None

    def head(self, path: str) -> ObjectInfo:
        file = self._file(path)
        with _translated(path):
            status = self._client.get_file_info(file)
        if status.isdir:
            raise NotFound(path)
        return ObjectInfo(path, status.length, status.modification_time)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        found = [info for info in self._below(prefix) if not _name(info.path).startswith(_TEMPORARY)]
        yield from sorted((one for one in found if after is None or one.path > after), key=lambda info: info.path)

    def _below(self, prefix: str) -> Sequence[ObjectInfo]:
        """All files below a folder, temporary ones too."""
        top = f"{self._root}/{folder(prefix)}"
        try:
            with _translated(prefix):
                return [
                    ObjectInfo(status.path.removeprefix(f"{self._root}/"), status.length, status.modification_time)
                    for status in self._client.list_status(top.rstrip("/"), recursive=True)
                    if not status.isdir and status.path.startswith(top)
                ]
        except NotFound:
            return []

    def tidy(self, prefix: str, *, older_than: float = _ABANDONED_AFTER) -> int:
        """Delete the temporary files that writers left, and return how many."""
        before = (time.time() - older_than) * 1000
        old = [
            info.path
            for info in self._below(prefix)
            if _LEFT_BEHIND.fullmatch(_name(info.path)) and (info.modified_ms or 0) < before
        ]
        with _translated(prefix):
            return sum(self._client.delete(f"{self._root}/{path}") for path in old)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = {path: self._file(path) for path in paths}
        failed: dict[str, ObjbufError] = {}
        for path, file in wanted.items():
            try:
                with _translated(path):
                    self._client.delete(file)
            except (TransientError, NotFound) as error:
                if isinstance(error, TransientError):
                    raise
            except ObjbufError as error:
                failed[path] = error
        return failed

    def _file(self, path: str) -> str:
        if any(segment.startswith(_TEMPORARY) for segment in check_path(path).split("/")):
            raise InvalidInput(f"names that start with {_TEMPORARY!r} are reserved: {path!r}")
        return f"{self._root}/{path}"


def check_installed() -> None:
    """Raise InvalidInput if this process cannot open such a store; executors tell it in their own way."""
    if importlib.util.find_spec("hdfs_native") is None:
        raise InvalidInput("a lake on hdfs needs hdfs-native: pip install 'objbuf-dagster[hdfs]', on executors too")


def _reopen(url: str, options: dict[str, str], timeout_seconds: float) -> HdfsStore:
    return HdfsStore(url, options=options, timeout_seconds=timeout_seconds)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _chunks(parts: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytes | bytearray | memoryview]:
    """The same bytes, with small parts joined: each write is a call into another thread."""
    small: list[bytes | bytearray | memoryview] = []
    size = 0
    for part in parts:
        if len(part) < _CHUNK_BYTES:
            small.append(part)
            size += len(part)
        if small and (size >= _CHUNK_BYTES or len(part) >= _CHUNK_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if len(part) >= _CHUNK_BYTES:
            yield part
    if small:
        yield b"".join(small)


@contextlib.contextmanager
def _translated(path: str, *, writing: bool = False) -> Iterator[None]:
    """The client's errors as ours. It tells the NameNode's own only by their text, whose shape a test holds on to."""
    try:
        yield
    except FileNotFoundError as error:
        if writing:  # the temporary file: it was renamed, and the answer was lost; or its folder was deleted meanwhile
            raise TransientError(_line(error)) from None
        raise NotFound(path) from None
    except OSError as error:
        raise TransientError(f"{_line(error)} ({path!r})") from None
    except RuntimeError as error:
        said = _EXCEPTION.search(str(error))
        kind = said[1] if said else ""
        if kind == "ParentNotDirectoryException" and not writing:
            raise NotFound(path) from None
        line = f"{kind}: {_line(said[2])}" if said else _line(error)
        passing = kind in _PASSING if said else not _SETTINGS.search(str(error))
        if passing:
            raise TransientError(f"{line} ({path!r})") from None
        raise StorageError(f"{_HINTS.get(kind, 'hdfs refused')}: {line} ({path!r})") from None
    except (ObjbufError, ImportError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  a panic in Rust is no Exception, and who knows what it did before
        raise StorageError(f"the hdfs client failed, check the settings: {_line(error)}", in_doubt=True) from None


def _line(said: object) -> str:
    """What it says, without the NameNode's stack trace."""
    return " ".join(_TRACE.sub("", str(said)).split())[:400]
