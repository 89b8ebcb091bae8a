"""A real HDFS for tests: a NameNode and a DataNode of Hadoop's own, in one JVM.

Maven fetches them by name, 56 MB in one jar beside those that PySpark has, so only with OBJBUF_TEST_HDFS=1. The jar is
kept in OBJBUF_TEST_TOOLS, or in .pytest_cache. A JDK is needed, since Java compiles Hdfs.java as it starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark

_REPOSITORY = Path(__file__).parents[2]
_PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
_FETCH_SECONDS = 600


def hadoop() -> str:
    """The version that PySpark brings along, which other jars of Hadoop have to have."""
    (jar,) = _PYSPARK_JARS.glob("hadoop-client-api-*.jar")
    found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", jar.name)
    assert found is not None
    return found[1]


def fetch() -> Path:
    """The jar with both nodes in it."""
    tools = Path(os.environ.get("OBJBUF_TEST_TOOLS") or _REPOSITORY / ".pytest_cache" / "tools").absolute()
    target = tools / f"hadoop-client-minicluster-{hadoop()}.jar"
    tools.mkdir(parents=True, exist_ok=True)
    with open(tools / ".hdfs.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait, and then find what is fetched here
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=tools) as place:
                artefact = f"org.apache.hadoop:hadoop-client-minicluster:{hadoop()}"
                command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={place}/repository", "dependency:copy"]
                command += [f"-Dartifact={artefact}", f"-DoutputDirectory={place}"]
                subprocess.run(command, cwd=place, check=True, timeout=_FETCH_SECONDS)
                os.replace(Path(place) / target.name, target)  # whole, or not there
    return target


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Its URL, for as long as the context lasts, or this process; all files are below this directory."""
    temporary = directory / "tmp"
    temporary.mkdir(parents=True)
    jars = [fetch(), *_PYSPARK_JARS.glob("*.jar")]
    # Its performance data it would keep in /tmp, wherever its temporary directory is.
    command = ["java", "-Xmx512m", f"-Djava.io.tmpdir={temporary}", "-XX:-UsePerfData", "-cp", ":".join(map(str, jars))]
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
    try:
        url = ""
        for line in server.stdout:
            if line.startswith(b"hdfs://"):
                url = line.decode().strip()
                break
        assert url, log.read_text()[-5000:]
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
        server.communicate()
