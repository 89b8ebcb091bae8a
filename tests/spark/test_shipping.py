"""The package reaches executors that do not have it; what they lack is told in one line."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

import objbuf_dagster
from objbuf_dagster.spark.shipping import ExecutorNotReady, archive_digest, executor_errors, package_archive, ship

if TYPE_CHECKING:
    import pyarrow as pa

_SOURCES = Path(objbuf_dagster.__file__).parent


def where_it_is_imported_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os
    import time

    import pyarrow as pa

    import objbuf_dagster.buffer
    import objbuf_dagster.spark

    for _ in batches:
        time.sleep(0.5)  # so that each executor has its share
        yield pa.RecordBatch.from_pydict({"path": [objbuf_dagster.spark.__file__], "executor": [os.getppid()]})


SCHEMA = "path string, executor long"


def executors_that_imported_the_shipped_package(spark: SparkSession) -> set[int]:
    rows = spark.range(0, 4, 1, 4).mapInArrow(where_it_is_imported_from, SCHEMA).collect()
    assert len(rows) == 4
    for row in rows:
        assert row.path.endswith(f"objbuf_dagster-{archive_digest()}.zip/objbuf_dagster/spark/__init__.py")
    return {row.executor for row in rows}


def test_executors_of_a_cluster_that_lack_the_package_get_it(cluster_spark: SparkSession) -> None:
    assert len(executors_that_imported_the_shipped_package(cluster_spark)) == 2


def test_spark_connect_servers_that_lack_the_package_get_it(connect_spark: SparkSession) -> None:
    assert len(executors_that_imported_the_shipped_package(connect_spark)) == 1


def test_connect_session_that_is_not_prepared_is_told_what_to_do(connect_url: str, connect_spark: SparkSession) -> None:
    bare = SparkSession.builder.remote(connect_url).create()
    try:
        with pytest.raises(ExecutorNotReady, match=r"^executors lack objbuf_dagster: call `prep"), executor_errors():
            bare.range(1).mapInArrow(where_it_is_imported_from, SCHEMA).collect()
        ship(bare)
        ship(bare)
        assert len(bare.range(1).mapInArrow(where_it_is_imported_from, SCHEMA).collect()) == 1
    finally:
        bare.stop()


class SlowToSend:
    """As much of a classic session as is asked to send something, and takes its time."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802, Spark's name
        assert pyfile
        time.sleep(0.5)
        self.sent.append(Path(path).name)


def test_a_thread_waits_until_another_has_sent_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    spark, together = SlowToSend(), threading.Barrier(2)

    def ship_one(_: int) -> list[str]:
        together.wait(10)
        ship(cast("SparkSession", spark))
        return list(spark.sent)

    with ThreadPoolExecutor(2) as threads:
        seen = list(threads.map(ship_one, range(2)))

    assert seen == [[f"objbuf_dagster-{archive_digest()}.zip"]] * 2


def lacks_obstore(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ModuleNotFoundError("No module named 'obstore'", name="obstore")


def test_library_that_executors_lack_is_told_in_one_line(spark: SparkSession) -> None:
    with pytest.raises(ExecutorNotReady) as raised, executor_errors():
        spark.range(1).mapInArrow(lacks_obstore, "id long").collect()

    assert str(raised.value).startswith("executors lack the Python package obstore: install it there")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'\n at org...", "lack the Python package pyarrow"),
        ("No module named 'zstandard.backend_c'", "lack the Python package zstandard"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however", "lack the Python package pyarrow"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver", "run Python 3.9"),
        ('java.io.IOException: Cannot run program "/opt/py": error=2', "cannot run /opt/py"),
    ],
)
def test_each_way_of_lacking_something_is_known(message: str, told: str) -> None:
    with pytest.raises(ExecutorNotReady, match=told), executor_errors():
        raise RuntimeError(message)


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), executor_errors():
        _ = 1 / 0


def test_archive_has_the_sources_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(package_archive.__wrapped__())) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        assert archive.read("objbuf_dagster/errors.py") == (_SOURCES / "errors.py").read_bytes()

    assert names == sorted(names)
    assert "objbuf_dagster/py.typed" in names
    assert set(names) == {
        path.relative_to(_SOURCES.parent).as_posix() for path in [*_SOURCES.rglob("*.py"), _SOURCES / "py.typed"]
    }


def test_archive_is_the_same_if_the_package_is_in_an_archive_itself(tmp_path: Path) -> None:
    (tmp_path / "package.zip").write_bytes(package_archive())
    code = "from objbuf_dagster.spark import shipping; print(shipping.__file__, shipping.archive_digest())"

    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "package.zip")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == [f"{tmp_path}/package.zip/objbuf_dagster/spark/shipping.py", archive_digest()]
