"""The JVM of a classic session. This module alone looks behind PySpark's public surface.

PySpark launches a JVM with the first session of a process and keeps it until the process ends, even when no session is
left; it has no call to end it. The JVM watches its standard input, a pipe from this process, and exits at its end: so
a process that is killed leaves none behind, and closing that pipe is the way to end it sooner.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXIT_SECONDS = 60.0


def running_session() -> SparkSession | None:
    """The classic session that runs in this process, whoever started it and in whichever thread."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # `SparkSession.getActiveSession` knows only those that were used in this thread.
    return None if SparkContext._active_spark_context is None else SparkSession.builder.getOrCreate()  # noqa: SLF001


def launch(settings: Mapping[str, str]) -> None:
    """Launches the JVM, unless one runs. These settings are on its command line, where everybody can read them.

    PySpark itself would put all settings there that a session is asked for. Once a JVM runs, they reach it otherwise.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))  # noqa: SLF001


@contextlib.contextmanager
def own_jvm() -> Iterator[None]:
    """Ends the JVM that PySpark launches inside, and waits for it. One that ran before is left alone.

    Sessions on it must be stopped before. PySpark launches another JVM for the next session. Errors that leave the
    context can be shown as usual.
    """
    from pyspark import SparkContext

    ran_before = SparkContext._gateway is not None  # noqa: SLF001
    try:
        yield
    except BaseException as error:
        if not ran_before:
            keep_message(error)
        raise
    finally:
        with SparkContext._lock:  # noqa: SLF001
            gateway = SparkContext._gateway  # noqa: SLF001
            process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)  # none if others launched it
            if not ran_before and gateway is not None and process is not None:
                SparkContext._gateway = None  # noqa: SLF001
                SparkContext._jvm = None  # noqa: SLF001
                gateway.shutdown()
                _end(process)


def keep_message(error: BaseException | None) -> None:
    """Lets an error be shown after the JVM is gone. PySpark asks the JVM for the text each time: this asks for good."""
    if error is None or getattr(error, "_objbuf_kept", False):
        return
    kind = type(error)
    if kind.__module__.startswith(("py4j.", "pyspark.")):
        try:
            text = str(error)
        except Exception as gone:  # noqa: BLE001, the JVM died: any of py4j's errors, and no reason to hide this one
            text = f"{error.args[0] if error.args else kind.__name__} (Spark cannot tell more: {gone!r})"
        kept = {"__str__": lambda _: text, "__module__": kind.__module__, "_objbuf_kept": True}
        error.__class__ = type(kind.__name__, (kind,), kept)
    for related in (error.__cause__, error.__context__):
        if related is not error:
            keep_message(related)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
