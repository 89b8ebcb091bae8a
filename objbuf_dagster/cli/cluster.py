"""The Spark that a command runs on: started or joined, and its failures told in one line."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from objbuf_dagster.cli.shared import Command, debugging, key_values
from objbuf_dagster.errors import ObjbufError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As in shared.py: a test compares it with the library's.
MASTER = "local[*]"

_MASTERS = "local[4], spark://host:7077, yarn, k8s://host or the like"
_MASTER = re.compile(r"(local(\[|-cluster\[|$)|spark://|yarn|k8s://)")
_OWN_SETTINGS = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")  # these may have Java options that must stay
_QUICK_START = "-XX:TieredStopAtLevel=1"  # Python does the work: optimising the JVM's part costs more than it gains
_CONNECT_PORT = 15002
_ANSWER_SECONDS = 10.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Spark as the command line names it."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    @contextlib.contextmanager
    def session(self) -> Iterator[SparkSession]:
        """A session there, ended with the block. Raises NoJava, InvalidInput, and ClickException if it can't be had."""
        from objbuf_dagster.spark.session import session

        if (master := self._master()) is not None and not _MASTER.match(master):
            raise click.UsageError(f"a master is {_MASTERS}, not {master!r}")
        self.check_reachable()
        with _quiet(), contextlib.ExitStack() as stack:
            on_interrupt = signal.getsignal(signal.SIGINT)
            try:
                spark = stack.enter_context(session(master=self.master, remote=self.remote, config=self._settings()))
            except ObjbufError:
                raise
            except Exception as error:
                _raise_interrupt(error)
                raise click.ClickException(f"Spark does not start on {self}: {reason(error)}") from error
            if threading.current_thread() is threading.main_thread() and on_interrupt is not None:
                signal.signal(signal.SIGINT, on_interrupt)  # PySpark's asks the JVM, also amid an answer of the JVM
            yield spark

    def _settings(self) -> dict[str, str]:
        """What was given, and what suits a session that only this command uses."""
        from objbuf_dagster.spark.jvm import running_session

        settings = dict(self.conf)
        if self._remote() is not None or running_session() is not None:
            return settings
        if not debugging():
            settings.setdefault("spark.log.level", "OFF")  # what matters of it becomes a line of ours
        is_local = (self._master() or MASTER).startswith("local")
        if is_local and not any(name in os.environ for name in _OWN_SETTINGS):
            settings.setdefault("spark.driver.extraJavaOptions", _QUICK_START)
        return settings

    def check_answers(self, spark: SparkSession) -> None:
        """After a failed job: raises ClickException if there is no Spark any more, which no other job will survive."""
        self.check_reachable()
        try:
            spark.range(1).count()
        except Exception as error:
            _raise_interrupt(error)
            raise click.ClickException(f"Spark on {self} does not answer any more: {reason(error)}") from error

    def check_reachable(self) -> None:
        """Spark itself would try for many minutes. Raises ClickException if no address accepts a connection."""
        addresses = self._addresses()
        why = ""
        for host, port in addresses:
            try:
                socket.create_connection((host, port), _ANSWER_SECONDS).close()
            except OSError as error:
                why = error.strerror or str(error)
            else:
                return
        if addresses:
            flag = "--remote" if self._remote() else "--master"
            raise click.ClickException(f"no Spark answers at {self} ({why}): start one there, or correct {flag}")

    def _remote(self) -> str | None:
        return self.remote or self.conf.get("spark.remote") or os.environ.get("SPARK_REMOTE")

    def _master(self) -> str | None:
        return self.master or self.conf.get("spark.master")

    def _addresses(self) -> list[tuple[str, int]]:
        """Where a connection must be possible; none where that can't be known."""
        if (remote := self._remote()) is not None:
            proxied = any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
            found = [] if proxied else [_address(remote, _CONNECT_PORT)]
        else:
            master = self._master() or ""
            masters = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
            found = [_address(f"spark://{one}", None) for one in masters]
        return [address for address in found if address is not None]

    def __str__(self) -> str:
        remote = self._remote()
        return remote.partition(";")[0].rstrip("/") if remote else self._master() or MASTER  # a token may follow


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what PySpark says of an interrupted call, and of the end that follows, off stderr.

    Py4J logs such a call to the root logger, which without a handler makes one for stderr.
    """
    import logging
    import warnings

    if debugging():
        yield
        return
    nowhere = logging.NullHandler()
    logging.getLogger().addHandler(nowhere)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark", RuntimeWarning)
            yield
    finally:
        logging.getLogger().removeHandler(nowhere)


def _address(url: str, default_port: int | None) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or default_port
    except ValueError:
        return None  # Spark says what is wrong with it
    return (parts.hostname, port) if parts.hostname and port else None


def reason(error: BaseException) -> str:
    """What Spark says, in one line."""
    from objbuf_dagster.spark import tasks  # what only a failure needs

    return tasks.reason(error)


def _raise_interrupt(error: BaseException) -> None:
    from objbuf_dagster.spark import tasks

    tasks.raise_interrupt(error)


def cluster_options(command: Command) -> Command:
    """The options that say which Spark; hands it to the command as its argument `cluster`."""

    @functools.wraps(command)
    def run(master: str | None, remote: str | None, conf: dict[str, str], **rest: Any) -> Any:
        if master and remote:
            raise click.UsageError("--master and --remote are two ways to a Spark: give one of them")
        return command(cluster=Cluster(master, remote, conf), **rest)

    for option in (
        click.option(
            "--conf",
            metavar="KEY=VALUE",
            multiple=True,
            callback=key_values("spark.executor.memory=4g"),
            help="A setting of Spark. May be repeated.",
        ),
        click.option(
            "--remote",
            metavar="URL",
            help="A Spark Connect server, sc://host:15002, instead of a master.",
        ),
        click.option(
            "--master", metavar="URL", help=f"Where Spark runs: local[4], spark://host:7077, ...  [default: {MASTER}]"
        ),
    ):
        run = option(run)
    return run
