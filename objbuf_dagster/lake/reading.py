"""A table's files as pyarrow reads them: a few columns, and no more bytes than these need.

pyarrow reads a local disk by itself. A bucket is read through deltalake, so with the settings of the commits and with
their retries; what fails there is translated where it fails, because behind pyarrow it looks like a damaged file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import CorruptData, NotFound, StorageError
from objbuf_dagster.lake.failures import translated
from objbuf_dagster.lake.files import GONE

if TYPE_CHECKING:
    import pyarrow.fs

_LONGEST_REASON = 300


def local_files(root: Path) -> pyarrow.fs.FileSystem:
    """The files below this directory, which need not be there yet."""
    import pyarrow.fs

    return pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem())


def bucket_files(
    name: str, url: str, settings: dict[str, str] | None, sizes: Mapping[str, int] | None
) -> pyarrow.fs.FileSystem:
    """The files below this URL; `name` is what errors call it."""
    import pyarrow as pa
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    class Handler(DeltaStorageHandler):
        def open_input_file(self, path: str) -> pa.PythonFile:
            with _storage_errors(name, path):
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
