"""A directory as an object store: an object is a plain file at its path.

A put writes and syncs a temporary file, then renames it: a reader, or a machine that comes back after a crash, finds
the old bytes or the new. A conditional put does so while it holds an exclusive `flock` on `<path>.lock`; any other
program that takes that lock can join. The kernel drops the lock of a process that dies, so a lock file that is left
behind means nothing, and nobody looks at a temporary one. A put without a condition takes no lock: who changes an
object conditionally must not write it otherwise.

An object's version is a digest of its bytes. Who asks whether it changed is answered without reading them where the
file's stamp is one that no other bytes can have: see `_Look`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError, StorageError
from objbuf_dagster.store.base import (
    Blob,
    Conflict,
    ObjectInfo,
    Payload,
    Store,
    check_condition,
    check_path,
    check_size,
    folder,
)

_LOCK_SUFFIX = ".lock"
_TEMPORARY = ".tmp-"
_LEFT_BEHIND = re.compile(re.escape(_TEMPORARY) + "[0-9a-f]{32}")
_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "check the rights of this user",
    errno.EPERM: "check the rights of this user",
    errno.EROFS: "the file system is read-only",
    errno.EEXIST: "a file is where a folder is needed",
    errno.ENOTDIR: "a file is where a folder is needed",
    errno.EISDIR: "a folder is where the object should be",
}
_MOST_PARTS = 1024  # of one writev, on every system we know
_ABANDONED_AFTER = 24 * 3600.0  # seconds until a temporary file can be nobody's work in progress
_STAMPS_DIFFER = 3.0  # seconds between two writes from which on their stamps differ: FAT counts in steps of two
_MOST_LOOKS = 1024


@dataclass(frozen=True, slots=True)
class _Look:
    """A file's stamp and version, when that stamp was seen for the first time, and when the bytes were read under it.

    Two writes can have one stamp only within a step of the file system's clock. So bytes that were read longer than
    such a step after their stamp was there are the last ones to have it. Both times are of this machine's steady clock:
    another clock's idea of the time, as a file server has one, changes nothing. What is put in place long after it was
    written, as by a put that waits for its lock, has an inode of its own, and its rename is in the ctime: a file system
    that gives neither is none for a buffer.
    """

    stamp: tuple[int, ...]
    version: str
    seen: float
    read: float

    def tells(self, stamp: tuple[int, ...]) -> bool:
        """Whether a file with this stamp has these bytes."""
        return self.stamp == stamp and self.read - self.seen > _STAMPS_DIFFER


_looks: dict[str, _Look] = {}
"""The last one at each file somebody asks about again and again. Of this process and not of a store: a sensor opens
its store anew for each tick. Losing it costs two reads."""


class LocalStore(Store):
    """Objects below the directory `root`, which is made when the first object is written."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"a directory's name must be valid Unicode: {text!r}") from None
        if "\0" in text:
            raise InvalidInput(f"a directory's name cannot have a NUL: {text!r}")
        self.root = Path(text).absolute()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def has_own_clock(self) -> bool:
        return False

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        data = self.read(path, max_bytes=max_bytes)
        return Blob(data, _version(data))

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        name = str(self._file(path))
        with _translated(path), open(name, "rb", buffering=0) as file:  # which makes NFS ask for the stamp of now
            status = os.fstat(file.fileno())
            check_size(path, status.st_size, max_bytes)
            stamp, now, last = _stamp(status), time.monotonic(), _looks.get(name)
            if last and last.version == version and last.tells(stamp):
                return None
            data = file.read()  # later than the stamp: of a write in between, the next look finds another one
        found = Blob(data, _version(data))
        seen = last.seen if last and (last.stamp, last.version) == (stamp, found.version) else now
        if len(_looks) >= _MOST_LOOKS:
            _looks.clear()
        _looks[name] = _Look(stamp, found.version, seen, now)
        return None if found.version == version else found

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        with _translated(path), open(self._file(path), "rb", buffering=0) as file:
            check_size(path, os.fstat(file.fileno()).st_size, max_bytes)
            return file.read()

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        check_condition(if_version, if_absent)
        target = self._file(path)
        parts = [data] if isinstance(data, bytes) else data
        with _translated(path, reading=False):
            self._make_folder(target.parent)
            temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
            replaced = False
            try:
                with open(temporary, "xb", buffering=0) as file:
                    _write_all(file.fileno(), parts)
                    os.fsync(file.fileno())
                if if_version is None and not if_absent:
                    os.replace(temporary, target)
                else:
                    with _locked(target):
                        if not _holds(target, if_version):
                            return Conflict()
                        os.replace(temporary, target)
                replaced = True
                _sync_folder(target.parent)
            except OSError as error:
                raise _refused(error, path, in_doubt=replaced) from error
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        return None

    def head(self, path: str) -> ObjectInfo:
        with _translated(path), open(self._file(path), "rb", buffering=0) as file:
            return _info(path, os.fstat(file.fileno()))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        below = folder(prefix)
        top = str(self.root / below)
        found: list[ObjectInfo] = []
        with _translated(prefix):
            for directory, _, names in os.walk(top, onerror=_raise_unless_gone):
                inner = os.path.relpath(directory, top).replace(os.sep, "/")
                relative = below if inner == "." else f"{below}{inner}/"
                if after is not None and after.startswith(relative):
                    behind = after[len(relative) :]
                    names = [name for name in names if name > behind]  # noqa: PLW2901  first: it leaves few of many
                for name in names:
                    path = relative + name
                    if _is_ours(name) or (after is not None and path <= after):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        found.append(_info(path, os.stat(os.path.join(directory, name))))
        yield from sorted(found, key=lambda info: info.path)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = {path: self._file(path) for path in paths}
        failed: dict[str, ObjbufError] = {}
        gone = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
        for path, target in wanted.items():
            try:
                # Without the lock, a writer that holds the file deleted here and one that makes it anew would both win.
                with _translated(path), contextlib.suppress(*gone), _locked(target):
                    try:
                        os.unlink(target)
                    finally:
                        os.unlink(f"{target}{_LOCK_SUFFIX}")
            except ObjbufError as error:
                failed[path] = error
        return failed

    def tidy(self, prefix: str, *, older_than: float = _ABANDONED_AFTER) -> int:
        """Delete the temporary files that writers left when they were killed, and return how many.

        Only those below the folder `prefix` that have such a name as a put gives them: others may be anybody's.
        """
        gone = 0
        for directory, _, names in os.walk(self.root / folder(prefix)):
            for name in names:
                with contextlib.suppress(OSError):
                    file = os.path.join(directory, name)
                    if _LEFT_BEHIND.fullmatch(name) and time.time() - os.stat(file).st_mtime > older_than:
                        os.unlink(file)
                        gone += 1
        return gone

    def _file(self, path: str) -> Path:
        if any(_is_ours(segment) for segment in check_path(path).split("/")):
            raise InvalidInput(
                f"names that end in {_LOCK_SUFFIX!r} or start with {_TEMPORARY!r} are reserved: {path!r}"
            )
        return self.root / path

    def _make_folder(self, directory: Path) -> None:
        if directory.is_dir():
            return
        missing = [directory, *(parent for parent in directory.parents if not parent.exists())]
        directory.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync_folder(made.parent)


def _is_ours(name: str) -> bool:
    return name.endswith(_LOCK_SUFFIX) or name.startswith(_TEMPORARY)


def _version(data: bytes) -> str:
    """A digest of the bytes: inode and time repeat themselves on a busy file system, which would lose an update."""
    return hashlib.sha256(data).hexdigest()


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """What changes with the bytes: by a rename the inode and ctime; ctime also if somebody sets mtime back."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _holds(target: Path, version: str | None) -> bool:
    """Whether the object still is what the writer thinks: of this version, or (None) absent."""
    try:
        current = target.read_bytes()
    except FileNotFoundError:
        return version is None
    return version is not None and _version(current) == version


def _write_all(descriptor: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """In as few system calls as can be: after each one, a busy interpreter makes us wait for our turn."""
    views = deque(memoryview(part) for part in parts if part)
    while views:
        written = os.writev(descriptor, list(itertools.islice(views, _MOST_PARTS)))
        while views and written >= len(views[0]):
            written -= len(views.popleft())
        if written:
            views[0] = views[0][written:]


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    name = f"{target}{_LOCK_SUFFIX}"
    while True:
        descriptor = os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_at(descriptor, name):  # deleted while we waited: whoever comes next would not see our lock
                continue
            yield
            return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name))
    except FileNotFoundError:
        return False


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)


def _sync_folder(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextlib.contextmanager
def _translated(path: str, *, reading: bool = True) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if reading and isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            raise NotFound(path) from None
        raise _refused(error, path) from error


def _refused(error: OSError, path: str, *, in_doubt: bool = False) -> ObjbufError:
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL) and not in_doubt:
        return InvalidInput(f"the file system cannot hold the name {path[:80]!r}...: {error.strerror}")
    hint = _HINTS.get(error.errno or 0)
    reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    return StorageError(f"{reason} ({path!r})" + (f": {hint}" if hint else ""), in_doubt=in_doubt)
