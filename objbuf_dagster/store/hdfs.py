"""HDFS, through the Rust client hdfs-native: for the files of a lake.

No Java is needed for it, and no libhdfs. A put writes a temporary file, closes it, and renames it: the NameNode does
that as one step, and refuses to put it in place of another file if told so. It compares no versions, so a buffer cannot
be here.

The client waits for a NameNode without end. So each call has a deadline, and one that is overdue is left alone: it may
still happen, which harms nobody, as a put is there with its rename and the names of a lake's files are used once.

A put is as durable as HDFS makes a file that was closed: as many DataNodes have it as the cluster is told to wait for
(`dfs.namenode.replication.min`), in memory or, with their `dfs.datanode.synconclose`, on disk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

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
    check_timeout,
    folder,
)
from objbuf_dagster.store.deadline import Overdue, within
from objbuf_dagster.store.namenode import one_line, refusal_in

if TYPE_CHECKING:
    import hdfs_native

T = TypeVar("T")

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
_PART_BYTES = 32 << 20
_LISTED_AT_ONCE = 100
"""What one call writes, reads and lists, so that its deadline is of that and not of a whole file or directory."""

_CLEANING_SECONDS = 5.0
_USUAL_NODES = 3
_EXAMPLE = "hdfs://namenode:8020/lake"


class HdfsStore(Store):
    """Files below `url`: `hdfs://namenode:8020/dir`, or `hdfs://nameservice/dir` with the settings that name its nodes.

    `options` are Hadoop's settings by name (`dfs.ha.namenodes.ns`, ...); others come from the files in
    HADOOP_CONF_DIR, the user from HADOOP_USER_NAME or the Kerberos ticket. A call of the NameNode, and one that moves
    a part of a file, may take `timeout_seconds`. What fails is not repeated in here.
    """

    def __init__(self, url: str, *, options: Mapping[str, str] | None = None, timeout_seconds: float = 60.0) -> None:
        parts = _parts(url)
        check_timeout(timeout_seconds)
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
        # A DataNode that is silent for half of the time leaves the other half to another one.
        settings = {"dfs.client.socket-timeout": str(max(1, round(timeout_seconds * 500)))}
        if urlsplit(self._server).port is not None:
            # There is no other NameNode to go to. The client would wait for minutes all the same, and then so would
            # each attempt of ours.
            settings["dfs.client.failover.max.attempts"] = "1"
        else:
            # Each node twice: with the client's 15 attempts one of ours would take a minute while no node is up.
            named = options.get(f"dfs.ha.namenodes.{urlsplit(self._server).netloc}")
            nodes = len(named.split(",")) if named else _USUAL_NODES
            settings["dfs.client.failover.max.attempts"] = str(2 * nodes)
        with _translated(""):
            return Client(self._server, {**settings, **options})

    def _call(self, path: str, call: Callable[[], T], *, writing: bool = False) -> T:
        """One step, with its deadline."""
        timeout_seconds = self._settings[1]
        with _translated(path, writing=writing):
            try:
                return within(timeout_seconds, call)
            except Overdue as error:
                # The next one connects anew: this connection may lead to a machine that is gone.
                self.__dict__.pop("_client", None)
                raise _NoAnswer(f"{error} ({path!r}): set timeout_seconds (--timeout) higher if it is slow") from None

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        reader = self._open(path)
        size = len(reader)
        check_size(path, size, max_bytes)
        if size <= _PART_BYTES:
            return Blob(self._part(path, reader, 0, size), "")
        # Joined parts would be there twice. This has room for all from the start, and what it gives is no copy.
        whole = io.BytesIO()
        whole.seek(size - 1)
        whole.write(b"\0")
        whole.seek(0)
        for start in range(0, size, _PART_BYTES):
            whole.write(self._part(path, reader, start, min(_PART_BYTES, size - start)))
        return Blob(whole.getvalue(), "")

    def read_range(self, path: str, start: int, size: int) -> bytes:
        reader = self._open(path)
        end = min(start + size, len(reader))
        parts = (
            self._part(path, reader, at, min(_PART_BYTES, end - at))
            for at in range(start, max(start, end), _PART_BYTES)
        )
        return b"".join(parts)

    def _open(self, path: str) -> hdfs_native.FileReader:
        file = self._file(path)
        client = self._client
        return self._call(path, lambda: client.read(file))

    def _part(self, path: str, reader: hdfs_native.FileReader, start: int, size: int) -> bytes:
        data = self._call(path, lambda: reader.read_range(start, size)) if size else b""
        if len(data) != size:
            raise TransientError(f"{path!r} has {size} bytes at {start}, and {len(data)} came")
        return data

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        check_condition(if_version, if_absent)
        if if_version is not None:
            raise InvalidInput(NO_BUFFER)
        target = self._file(path)
        temporary = f"{target.rpartition('/')[0]}/{_TEMPORARY}{uuid.uuid4().hex}"
        client = self._client
        try:
            self._write(client, path, temporary, data)
            renamed = self._call(path, lambda: _rename(client, temporary, target, if_absent), writing=True)
        except _NoAnswer:  # nor would there be one to this; tidy() does it, a day later
            raise
        except BaseException:
            _forget(client, temporary)
            raise
        if not renamed:
            _forget(client, temporary)
            return Conflict()
        return None

    def _write(self, client: hdfs_native.Client, path: str, temporary: str, data: Payload) -> None:
        from hdfs_native import WriteOptions

        writer = self._call(path, lambda: client.create(temporary, WriteOptions(create_parent=True)), writing=True)
        for chunk in _chunks([data] if isinstance(data, bytes) else data):
            self._call(path, lambda chunk=chunk: writer.write(chunk), writing=True)  # type: ignore[misc]
        self._call(path, writer.close, writing=True)

    def head(self, path: str) -> ObjectInfo:
        file = self._file(path)
        client = self._client
        status = self._call(path, lambda: client.get_file_info(file))
        if status.isdir:
            raise NotFound(path)
        return ObjectInfo(path, status.length, status.modification_time)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        found = [info for info in self._below(prefix) if not _name(info.path).startswith(_TEMPORARY)]
        yield from sorted((one for one in found if after is None or one.path > after), key=lambda info: info.path)

    def _below(self, prefix: str) -> Sequence[ObjectInfo]:
        """All files below a folder, temporary ones too."""
        top = f"{self._root}/{folder(prefix)}"
        client = self._client
        found: list[ObjectInfo] = []
        try:
            statuses = self._call(prefix, lambda: iter(client.list_status(top.rstrip("/"), recursive=True)))
            while some := self._call(prefix, lambda: list(islice(statuses, _LISTED_AT_ONCE))):
                found += [
                    ObjectInfo(status.path.removeprefix(f"{self._root}/"), status.length, status.modification_time)
                    for status in some
                    if not status.isdir and status.path.startswith(top)
                ]
        except NotFound:
            if self._is_there(prefix, top):
                raise TransientError(f"folders below {prefix!r} went while they were listed") from None
            return []
        return found

    def _is_there(self, prefix: str, top: str) -> bool:
        client = self._client
        try:
            self._call(prefix, lambda: client.get_file_info(top.rstrip("/")))
        except NotFound:
            return False
        return True

    def tidy(self, prefix: str, *, older_than: float = _ABANDONED_AFTER) -> int:
        """Delete the temporary files that writers left, and return how many."""
        before = (time.time() - older_than) * 1000
        old = [
            info.path
            for info in self._below(prefix)
            if _LEFT_BEHIND.fullmatch(_name(info.path)) and (info.modified_ms or 0) < before
        ]
        return sum(self._delete(path, f"{self._root}/{path}") for path in old)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = {path: self._file(path) for path in paths}
        failed: dict[str, ObjbufError] = {}
        for path, file in wanted.items():
            try:
                self._delete(path, file)
            except TransientError:
                raise
            except NotFound:
                continue
            except ObjbufError as error:
                failed[path] = error
        return failed

    def _delete(self, path: str, file: str) -> bool:
        client = self._client
        return self._call(path, lambda: client.delete(file))

    def _file(self, path: str) -> str:
        if any(segment.startswith(_TEMPORARY) for segment in check_path(path).split("/")):
            raise InvalidInput(f"names that start with {_TEMPORARY!r} are reserved: {path!r}")
        return f"{self._root}/{path}"


class _NoAnswer(TransientError):
    """A call was left alone."""


def check_installed() -> None:
    """Raise InvalidInput if this process cannot open such a store; executors tell it in their own way."""
    if importlib.util.find_spec("hdfs_native") is None:
        raise InvalidInput("a lake on hdfs needs hdfs-native: pip install 'objbuf-dagster[hdfs]', on executors too")


def _reopen(url: str, options: dict[str, str], timeout_seconds: float) -> HdfsStore:
    return HdfsStore(url, options=options, timeout_seconds=timeout_seconds)


def _parts(url: str) -> SplitResult:
    """Checked. What would be left aside without a word is refused: two tables would be one."""
    try:
        parts = urlsplit(url)
        port_is_one = parts.port != 0
    except ValueError:
        raise InvalidInput(f"not an hdfs URL, its host or port is none: {_EXAMPLE}") from None
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise InvalidInput(f"an hdfs URL has no '?' or '#' part, settings are given as options: {_EXAMPLE}")
    if not parts.hostname or not port_is_one or not _NAMES.fullmatch(parts.path.rstrip("/")) or "@" in parts.netloc:
        raise InvalidInput(
            f"an hdfs URL has a NameNode and a path of letters, digits and ._=~-, and nothing else: {_EXAMPLE}"
        )
    if any(segment in ("", ".", "..") for segment in parts.path.strip("/").split("/")):
        raise InvalidInput(f"an hdfs URL's path has no empty, '.' or '..' part: {_EXAMPLE}")
    return parts


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _rename(client: hdfs_native.Client, source: str, target: str, if_absent: bool) -> bool:
    """Whether it was, and not refused as something is there."""
    try:
        client.rename(source, target, overwrite=not if_absent)
    except FileExistsError:
        if not if_absent:
            raise
        return False
    return True


def _forget(client: hdfs_native.Client, temporary: str) -> None:
    with contextlib.suppress(Exception):  # tidy() does it, a day later
        within(_CLEANING_SECONDS, lambda: client.delete(temporary))


def _chunks(parts: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes, with small parts joined, as each write is a call into another thread, and large ones cut."""
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
            view = memoryview(part)
            yield from (view[start : start + _PART_BYTES] for start in range(0, len(view), _PART_BYTES))
    if small:
        yield b"".join(small)


@contextlib.contextmanager
def _translated(path: str, *, writing: bool = False) -> Iterator[None]:
    """The client's errors as ours. It tells the NameNode's own only by their text, whose shape a test holds on to."""
    try:
        yield
    except FileNotFoundError as error:
        if writing:  # the temporary file: it was renamed, and the answer was lost; or its folder was deleted meanwhile
            raise TransientError(one_line(error)) from None
        raise NotFound(path) from None
    except OSError as error:
        raise TransientError(f"{one_line(error)} ({path!r})") from None
    except RuntimeError as error:
        refusal = refusal_in(str(error))
        if refusal is not None and refusal.kind == "ParentNotDirectoryException" and not writing:
            raise NotFound(path) from None
        line = f"{refusal.line if refusal else one_line(error)} ({path!r})"
        if refusal is None or refusal.passing:
            raise TransientError(line) from None
        raise StorageError(f"{refusal.hint}: {line}") from None
    except (ObjbufError, ImportError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  a panic in Rust is no Exception, and who knows what it did before
        raise StorageError(f"the hdfs client failed, check the settings: {one_line(error)}", in_doubt=True) from None
