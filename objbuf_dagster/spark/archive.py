"""An archive of the classes that Spark loads, from which its JVM starts in two thirds of the time.

Most of what a JVM does for a small range is to find, check and link Spark's ten thousand classes, anew in every run.
Java can keep them as it needs them (class data sharing): `python -m objbuf_dagster.spark.archive` lands a tiny range
and keeps what that took, in the Python environment (160 MB), once for each Java and PySpark. `make setup` does it, and
an image should. Sessions use it where it is there; the JVM itself looks whether it fits, and goes without it if not.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from objbuf_dagster.spark.java import Java, NoJava, find_java

_OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark's own launcher hands to the driver's JVM, and to no other."""

IN_HASTE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds. What it keeps is for any."""


def archive_of(java: Java) -> Path:
    """Where the archive for this Java is, or would be."""
    from pyspark import __version__

    name = hashlib.sha256(f"{java.executable.resolve()} {__version__}".encode()).hexdigest()[:16]
    return Path(sys.prefix, "share", "objbuf-dagster", f"spark-{name}.jsa")


def environment(java: Java) -> dict[str, str]:
    """The variables with which Spark's JVM uses the archive; none if there is none."""
    archive = archive_of(java)
    return _with_options(f"-XX:SharedArchiveFile={_quoted(archive)} -Xshare:auto") if archive.is_file() else {}


def _make(java: Java) -> Path | None:
    """Make the archive, if there is none: whole, or not at all. None if this Java makes none.

    For a process of its own, whose environment it changes.
    """
    target = archive_of(java)
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
        made = Path(folder, "made.jsa")
        os.environ |= _with_options(f"-XX:ArchiveClassesAtExit={_quoted(made)} -Xlog:disable {IN_HASTE}")
        _use_spark(Path(folder))
        if not made.is_file():
            return None
        made.replace(target)
    return target


def _use_spark(folder: Path) -> None:
    """Let a JVM load what a run needs: land a range, and read it back."""
    from objbuf_dagster.buffer import BufferPlace, Producer
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.ranges import Limits, RangeLedger, plan
    from objbuf_dagster.spark.landing import land
    from objbuf_dagster.spark.reading import read
    from objbuf_dagster.spark.session import session
    from objbuf_dagster.store import LocalStore

    buffer = BufferPlace(LocalStore(folder / "buffer"))
    with Producer(buffer.store) as producer:
        producer.produce([b"a", b"b"]).await_durable()
    with session(master="local[1]") as spark:
        table = LakeTable(folder / "lake" / "entries")
        for planned in plan(buffer.manifests(), RangeLedger(buffer.store), Limits(max_wait=0)):
            land(spark, buffer, planned, table, verify=True)
        read(spark, table).collect()


def _with_options(options: str) -> dict[str, str]:
    """Before those that are set: of two that say the same, Java takes the last."""
    return {_OPTIONS: f"{options} {os.environ.get(_OPTIONS, '')}".strip()}


def _quoted(path: Path) -> str:
    text = str(path)
    return f'"{text}"' if " " in text else text


def _main() -> int:
    try:
        java = find_java()
    except NoJava as error:
        sys.stderr.write(f"{error}\n")
        return 1
    made = _make(java)
    told = "makes no archive of Spark's classes: Spark starts without" if made is None else f"starts Spark from {made}"
    sys.stdout.write(f"{java} {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
