"""A table's files as pyarrow reads them: a few columns, and no more bytes than these need.

pyarrow reads a local disk by itself. A bucket is read through deltalake, so with the settings of the commits and with
their retries; what fails there is translated where it fails, because behind pyarrow it looks like a damaged file. On
hdfs, where deltalake waits without end, a file is read through our store.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import CorruptData, NotFound, StorageError
from objbuf_dagster.lake.failures import translated
from objbuf_dagster.lake.files import GONE
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    import pyarrow.fs

_LONGEST_REASON = 300


def local_files(root: Path) -> pyarrow.fs.FileSystem:
    """The files below this directory, which need not be there yet."""
    import pyarrow.fs

    return pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem())


def bucket_files(
    name: str,
    url: str,
    settings: dict[str, str] | None,
    sizes: Mapping[str, int] | None,
    store: Store | None = None,
) -> pyarrow.fs.FileSystem:
    """The files below this URL; `name` is what errors call it. With a store they are read through that."""
    import pyarrow as pa
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    class Handler(DeltaStorageHandler):
        def open_input_file(self, path: str) -> pa.PythonFile:
            with _storage_errors(name, path):
                if store is not None:
                    return pa.PythonFile(_StoreFile(store, path, (sizes or {}).get(path)), mode="r")
                return pa.PythonFile(_Reader(self._handler.open_input_file(path), name, path), mode="r")

        def open_input_stream(self, path: str) -> pa.PythonFile:
            return self.open_input_file(path)

    with translated(name):
        return pyarrow.fs.PyFileSystem(Handler(url, settings, dict(sizes) if sizes is not None else None))


class _Reader:
    """deltalake's file, with our errors."""

    def __init__(self, file: Any, name: str, path: str) -> None:
        self._file = file
        self._name = name
        self._path = path

    def read(self, size: int | None = None) -> Any:
        with _storage_errors(self._name, self._path):
            return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _StoreFile(io.RawIOBase):
    """A file of ours as pyarrow wants it, which asks for its parts."""

    def __init__(self, store: Store, path: str, size: int | None) -> None:
        self._store, self._path, self._at = store, path, 0
        with self._there():
            self._size = store.head(path).size if size is None else size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        with self._there():
            data = self._store.read_range(self._path, self._at, wanted)
        if len(data) < wanted:
            raise CorruptData(f"file {self._path!r}", "it is shorter than its writer said")
        self._at += len(data)
        return data

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        try:
            yield
        except NotFound:
            raise NotFound(self._path, GONE) from None


@contextlib.contextmanager
def _storage_errors(name: str, path: str) -> Iterator[None]:
    with translated(f"{name}/{path}"):
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                raise NotFound(path, GONE) from None
            if "416 Range Not Satisfiable" in str(error):
                raise CorruptData(f"file {path!r}", "it is shorter than its writer said") from None
            raise


@contextlib.contextmanager
def parquet_errors(path: str) -> Iterator[None]:
    """Raises NotFound, StorageError or CorruptData for what pyarrow raises inside while it reads this file."""
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(path, GONE) from None
    except (pa.ArrowException, OSError) as error:
        line = " ".join(str(error).split())[:_LONGEST_REASON]
        if getattr(error, "errno", None):  # the disk's; Parquet's own have none
            raise StorageError(f"cannot read {path}, check the disk and this user's rights: {line}") from None
        raise CorruptData(f"file {path!r}", line) from None
