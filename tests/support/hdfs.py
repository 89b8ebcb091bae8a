"""A real HDFS for tests: a NameNode and a DataNode of Hadoop's own, in one JVM.

Maven fetches them by name, 56 MB in one jar beside those that PySpark has, so only with OBJBUF_TEST_HDFS=1. The jar is
kept in OBJBUF_TEST_TOOLS, or in .pytest_cache. A JDK is needed, since Java compiles Hdfs.java as it starts: that of
OBJBUF_TEST_JDK, for a machine whose tests shall run on another Java, or of JAVA_HOME, or else the one on the PATH.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark

from objbuf_dagster.spark.java import find_java

_JDK = "OBJBUF_TEST_JDK"
_REPOSITORY = Path(__file__).parents[2]
_PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
_FETCH_SECONDS = 600
_START_SECONDS = 120


def hadoop() -> str:
    """The version that PySpark brings along, which other jars of Hadoop have to have."""
    (jar,) = _PYSPARK_JARS.glob("hadoop-client-api-*.jar")
    found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", jar.name)
    assert found is not None
    return found[1]


def jdk_named() -> dict[str, str]:
    """JAVA_HOME for what shall run on that JDK: it trusts whom the machine trusts, as what fetches jars must."""
    return {"JAVA_HOME": home} if (home := os.environ.get(_JDK)) else {}


def fetch() -> Path:
    """The jar with both nodes in it."""
    tools = Path(os.environ.get("OBJBUF_TEST_TOOLS") or _REPOSITORY / ".pytest_cache" / "tools").absolute()
    target = tools / f"hadoop-client-minicluster-{hadoop()}.jar"
    tools.mkdir(parents=True, exist_ok=True)
    with open(tools / ".hdfs.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait, and then find what is fetched here
        if not target.exists():
            if shutil.which("mvn") is None:
                raise RuntimeError("OBJBUF_TEST_HDFS=1 fetches an HDFS with Maven, and there is no mvn on the PATH")
            with tempfile.TemporaryDirectory(dir=tools) as place:
                artefact = f"org.apache.hadoop:hadoop-client-minicluster:{hadoop()}"
                command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={place}/repository", "dependency:copy"]
                command += [f"-Dartifact={artefact}", f"-DoutputDirectory={place}"]
                environment = {**os.environ, **jdk_named()}
                subprocess.run(command, cwd=place, check=True, timeout=_FETCH_SECONDS, env=environment)
                os.replace(Path(place) / target.name, target)  # whole, or not there
    return target


def jdk() -> Path:
    """The Java to start it with."""
    java = find_java(jdk_named() or None)
    ran = subprocess.run([java.executable, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    if "jdk.compiler@" not in ran.stdout:
        raise RuntimeError(f"OBJBUF_TEST_HDFS=1 needs a JDK, and {java} compiles nothing: set {_JDK} to one")
    return java.executable


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Its URL, for as long as the context lasts, or this process; all files are below this directory."""
    java = str(jdk())
    temporary = directory / "tmp"
    temporary.mkdir(parents=True)
    jars = [fetch(), *_PYSPARK_JARS.glob("*.jar")]
    # Its performance data it would keep in /tmp, wherever its temporary directory is.
    command = [java, "-Xmx512m", f"-Djava.io.tmpdir={temporary}", "-XX:-UsePerfData", "-cp", ":".join(map(str, jars))]
    command += [str(Path(__file__).with_name("Hdfs.java")), str(directory)]
    log = directory / "log"
    with log.open("wb") as said:
        server = subprocess.Popen(
            command,
            cwd=temporary,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )
    assert server.stdout is not None
    overdue = threading.Timer(_START_SECONDS, server.kill)
    overdue.start()
    try:
        url = ""
        for line in server.stdout:
            if line.startswith(b"hdfs://"):
                url = line.decode().strip()
                break
        overdue.cancel()
        assert url, f"HDFS did not start in {_START_SECONDS} s: {log.read_text()[-5000:]}"
        yield url
    finally:
        overdue.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        server.communicate()
