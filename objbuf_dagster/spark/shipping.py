"""How this package gets to executors that don't have it, and what is said when they lack what it needs.

The package travels as a zip file of its sources, by `SparkSession.addArtifacts`: to the executors of a local master, of
any cluster, and of a Spark Connect server alike. The libraries it uses are compiled, so they can't travel that way:
executors must have them, or get them from `spark.archives`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.resources
import io
import re
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from objbuf_dagster.errors import ObjbufError

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from pyspark.sql import SparkSession

_PACKAGE = "objbuf_dagster"
_NEEDED = ("deltalake", "google", "hdfs_native", "numpy", "obstore", "opentelemetry", "pandas", "pyarrow", "zstandard")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_sending = threading.Lock()
"""A thread that finds the file may go on only once it was sent."""


class ExecutorNotReady(ObjbufError):
    """Executors lack something that the tasks need; the job failed for it. Set the cluster up: give up."""


def ship(spark: SparkSession) -> None:
    """Send this package to the executors of a session: tasks that start later can import it, whatever they had before.

    May be repeated: what is there is not sent again. No file outlives the session, not even if this process is
    killed. On a classic session the package is there for all sessions of the application, on Spark Connect for
    this one only.
    """
    if is_connect(spark):
        with tempfile.TemporaryDirectory(prefix="objbuf-") as directory:  # uploaded at once, then not needed
            path = Path(directory, _archive_name())
            path.write_bytes(package_archive())
            spark.addArtifacts(str(path), pyfile=True)
        return

    from pyspark import SparkFiles

    # Executors fetch the file from where it was when they start, perhaps hours later. Spark's own directory lasts until
    # then, and Spark removes it, also when this process is killed. What is in it was sent.
    path = Path(SparkFiles.getRootDirectory(), _PACKAGE, _archive_name())
    with _sending:
        if path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(package_archive())
        try:
            spark.addArtifacts(str(path), pyfile=True)
        except BaseException:
            path.unlink()
            raise
        # It is for executors: this process has the package, and processes that it spawns would take it from here.
        copied = str(path.parent.parent / path.name)
        sys.path[:] = [entry for entry in sys.path if entry != copied]


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session on a Spark Connect server (without importing what only those need)."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@functools.cache
def package_archive() -> bytes:
    """This package's sources as a zip file. The same sources give the same bytes, wherever they are installed."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(_sources(importlib.resources.files(_PACKAGE), _PACKAGE)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), source, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def archive_digest() -> str:
    """What tells this package's sources from those of any other version."""
    return hashlib.sha256(package_archive()).hexdigest()[:16]


def _archive_name() -> str:
    # Spark refuses other contents under a name that it knows, so that each version needs a name of its own.
    return f"{_PACKAGE}-{archive_digest()}.zip"


def _sources(directory: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in directory.iterdir():
        below = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, below)
        elif entry.name.endswith(".py") or entry.name == "py.typed":
            yield below, entry.read_bytes()


@contextlib.contextmanager
def executor_errors() -> Iterator[None]:
    """Around what runs a Spark job: raises `ExecutorNotReady`, in one line, if executors lack Python or a library.

    Spark reports that as a long stack trace, in one of several exceptions. Every other error passes as it is; the
    original is the cause of the new one.
    """
    try:
        yield
    except Exception as error:
        if (reason := _missing(str(error))) is None:
            raise
        raise ExecutorNotReady(reason) from error


def _missing(message: str) -> str | None:
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    remedy = "install it there, send an environment with spark.archives, or set PYSPARK_PYTHON to one that has it"
    if found := re.search(rf"No module named '({'|'.join((_PACKAGE, 'pyspark', *_NEEDED))})\b", message):
        if found[1] == _PACKAGE:
            return f"executors lack {_PACKAGE}: call `prepare(spark)` on the session before using it"
        return f"executors lack the Python package {found[1]}: {remedy}"
    if found := re.search(r"\[PACKAGE_NOT_INSTALLED\] (\S+)", message):
        return f"executors lack the Python package {found[1].lower()}: {remedy}"
    if found := re.search(r"\[PYTHON_VERSION_MISMATCH\].*?version: (\d+\.\d+)", message):
        return f"executors run Python {found[1]}, this process runs {here}: set PYSPARK_PYTHON to the same version"
    if found := re.search(r'Cannot run program "([^"]+)"', message):
        return f"executors cannot run {found[1]}: set PYSPARK_PYTHON to a {here} that they have"
    return None
