"""Real Spark deployments for tests, all on loopback and made of nothing but the installed PySpark."""

from __future__ import annotations

import contextlib
import os
import re
import site
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.spark.java import find_java
from objbuf_dagster.spark.session import session

_WHEEL = Path(pyspark.__file__).parent
_START_SECONDS = 120.0


class ClassicSessions:
    """Hands out classic sessions of different masters. A process can have only one, so asking for another closes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kind: str | None = None
        self._open = contextlib.ExitStack()

    def local(self) -> SparkSession:
        """Two threads of one JVM."""
        return self._use("local")

    def cluster(self) -> SparkSession:
        """Two executors in processes of their own, whose Python cannot import this package by itself."""
        return self._use("cluster")

    def close(self) -> None:
        self._kind = None
        self._open.close()

    def _use(self, kind: str) -> SparkSession:
        if self._kind != kind:
            self.close()
            self._spark = self._open.enter_context(_local() if kind == "local" else _cluster(self._directory))
            self._kind = kind
        return self._spark


@contextlib.contextmanager
def _local() -> Iterator[SparkSession]:
    with session(master="local[2]", app_name="tests") as spark:
        yield spark


@contextlib.contextmanager
def _cluster(directory: Path) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home(directory / "spark")))
        patch.setenv("PYSPARK_PYTHON", str(python_without_this_package(directory / "python")))
        with session(master="local-cluster[2,1,1024]", app_name="tests") as spark:
            yield spark


def spark_home(directory: Path) -> Path:
    """The installed Spark under another name: a local cluster's workers write below their SPARK_HOME."""
    directory.mkdir(exist_ok=True)
    for name in ("bin", "jars", "python"):
        if not (directory / name).exists():
            (directory / name).symlink_to(_WHEEL / name)
    return directory


def python_without_this_package(script: Path) -> Path:
    """This interpreter with all that is installed in site-packages, except what is there as a link to its sources."""
    packages = ":".join(dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()]))
    return executable(script, f'PYTHONPATH="{packages}:$PYTHONPATH" exec "{sys.executable}" -S "$@"')


def executable(path: Path, body: str) -> Path:
    """A shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(stat.S_IRWXU)
    return path


@contextlib.contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """The address of a Spark Connect server whose workers' Python cannot import this package by itself."""
    directory.mkdir(exist_ok=True)
    log = directory / "log"
    command = [
        str(_WHEEL / "bin" / "spark-submit"),
        *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.connect.grpc.binding.port=0", "spark-internal"),
    ]
    loud = {name: value for name, value in os.environ.items() if name != "LOG4J_CONFIGURATION_FILE"}  # it logs its port
    environment = {
        **loud,
        **find_java().environment(quiet=True),
        "SPARK_HOME": str(_WHEEL),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python_without_this_package(directory / "python")),
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT) as server,
    ):
        try:
            yield f"sc://127.0.0.1:{_announced_port(server, log)}"
        finally:
            server.terminate()
            server.wait()


def _announced_port(server: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"Spark Connect server started at: \S+:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(f"the Spark Connect server did not start:\n{log.read_text()[-4000:]}")
