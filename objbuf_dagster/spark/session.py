"""Spark sessions: one of our own for as long as it is needed, or somebody else's made ready for our code.

Importing this starts nothing. A session of our own leaves nothing behind when it is closed: no JVM, no file, no
environment variable; a killed process takes its JVM along.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.spark.shipping import archive_digest, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"

_PREPARED = "spark.objbuf.prepared"
_LOOPBACK = "127.0.0.1"
_SET_BY_PYSPARK = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
_LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"

_SECRET = re.compile(r"secret|password|token|credential|access[.]?key|[a-z][.]?key\b|[.]sas[.]", re.IGNORECASE)
"""Names of settings that may be secrets."""

_SECRET_IN_VALUE = re.compile(
    r"//[^/\s]*@|(?:secret|password|token|credential|\bsig|signature|(?:access|account|private|api)[._-]?key)[\w.-]*=\S",
    re.IGNORECASE,
)
"""Values that may hold one: a URL with a password, or `password=...` among options."""

_READ_AT_LAUNCH = re.compile(r"spark[.](?:jars|driver|submit)[.]")

_REMOTE = "SPARK_CONNECT_MODE_ENABLED"

_log = logging.getLogger(__name__)
_lock = threading.RLock()


@contextlib.contextmanager
def session(
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    app_name: str = "objbuf",
) -> Iterator[SparkSession]:
    """A Spark session that is ready for our code (see `prepare`), stopped at the end.

        with session(master="spark://host:7077", config={"spark.executor.memory": "4g"}) as spark:
            spark.read.format("objbuf")...

    `remote` (or `spark.remote` in `config`) is the address of a Spark Connect server, `sc://host:port`: each call has a
    session of its own there. Otherwise `master` (or `spark.master`), by default `local[*]`. `config` is passed to
    Spark and wins over what is set here.

    A classic session that already runs in this process is used instead, and left as it is: Spark allows only one. It
    must have the master and settings asked for, else `InvalidInput` says which one differs. A session that this
    function started ends with its last user, together with its JVM; another one can be started afterwards.

    Raises `NoJava` if there is no Java to start it on.
    """
    settings = dict(config or {})
    remote = _one("spark.remote", remote, settings.pop("spark.remote", None)) or os.environ.get("SPARK_REMOTE")
    master = _one("spark.master", master, settings.pop("spark.master", None))
    if remote and master:
        raise InvalidInput(f"a session has a master ({master}) or a remote server ({_shown(remote)}), not both")
    if remote and not remote.startswith("sc://"):
        raise InvalidInput(f"spark.remote is {_shown(remote)!r}, but must be an address as sc://host:15002")
    with _connect(remote, settings) if remote else _classic(master, settings, app_name) as spark:
        yield prepare(spark)


def prepare(spark: SparkSession) -> SparkSession:
    """Make any session ready for our code, classic or Spark Connect, ours or somebody else's; returns it.

    Sends this package to the executors and registers the data source `objbuf`, unless `register` was called already
    (with the `storage` and credentials that only the caller knows). Everything else of the session stays as it is.
    Repeating it costs one look at a setting, and changes nothing.

    What it can't do afterwards is choose the workers' Python: call `set_environment` before somebody else's code
    starts a session.
    """
    from objbuf_dagster.spark.source import is_registered, register

    if spark.conf.get(_PREPARED, "") == archive_digest():
        return spark
    ship(spark)
    if not is_registered(spark):
        try:
            register(spark)
        except InvalidInput as error:  # a second session of an application can land, but has no `objbuf`
            _log.warning("this session cannot read the format objbuf: %s", error)
    spark.conf.set(_PREPARED, archive_digest())
    return spark


def set_environment() -> None:
    """What a session that other code starts in this process (dagster-pyspark's resource) needs to have before.

    Sets `PYSPARK_PYTHON` to this interpreter unless it is set, since workers take `python3` from the PATH otherwise,
    and `JAVA_HOME` if Spark would not find Java or not start with the one it finds. Raises `NoJava` if there is none.
    """
    from objbuf_dagster.spark.java import find_java

    os.environ.update(find_java().environment())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _shown(address: str) -> str:
    """Without what may follow it: a token."""
    return address.partition(";")[0]


def _one(name: str, argument: str | None, setting: str | None) -> str | None:
    if argument and setting and argument != setting:
        raise InvalidInput(f"{name} is given twice: {_shown(argument)!r} and, in config, {_shown(setting)!r}")
    return argument or setting


@contextlib.contextmanager
def _connect(remote: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    with _marked_as_remote():
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote(remote)
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.create()
        try:
            yield spark
        finally:
            spark.stop()


class _Remote:
    """The Connect sessions that are open in this process, and what the variable was before the first of them."""

    users = 0
    before: str | None = None


@contextlib.contextmanager
def _marked_as_remote() -> Iterator[None]:
    """PySpark marks the whole process as remote by a variable, and `functions` then make remote columns only: it must
    be there as long as any Connect session is, in whichever order they are closed."""
    with _lock:
        if _Remote.users == 0:
            _Remote.before = os.environ.get(_REMOTE)
        _Remote.users += 1
        os.environ[_REMOTE] = "1"
    try:
        yield
    finally:
        with _lock:
            _Remote.users -= 1
            if _Remote.users == 0:
                _put_back({_REMOTE: _Remote.before})


class _Started:
    """The session that `session` started in this process: the last of its users closes it."""

    closing: contextlib.ExitStack | None = None
    users = 0


@contextlib.contextmanager
def _classic(master: str | None, settings: Mapping[str, str], app_name: str) -> Iterator[SparkSession]:
    from objbuf_dagster.spark.jvm import keep_message, running_session

    with _lock:
        spark = running_session()
        if spark is None:
            _close()  # somebody stopped ours
            with contextlib.ExitStack() as stack:
                spark = stack.enter_context(_start(master or DEFAULT_MASTER, settings, app_name))
                _Started.closing = stack.pop_all()
        else:
            _must_be(spark, {**settings, **({"spark.master": master} if master else {})})
        mine = _Started.closing
        _Started.users += mine is not None
    try:
        yield spark
    except BaseException as error:
        if mine is not None:
            keep_message(error)
        raise
    finally:
        with _lock:
            if mine is not None and mine is _Started.closing:
                _Started.users -= 1
                if _Started.users == 0:
                    _close()


def _close() -> None:
    closing, _Started.closing, _Started.users = _Started.closing, None, 0
    if closing is not None:
        closing.close()


def _must_be(spark: SparkSession, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if (has := spark.conf.get(name, None)) != value:
            secret = is_secret(name, value) or is_secret(name, has or "")
            differs = f"another {name}" if secret else f"{name}={has}, not {value}"
            raise InvalidInput(
                f"a Spark session already runs in this process with {differs}: stop it first, or use it as it is"
            )


@contextlib.contextmanager
def _start(master: str, settings: Mapping[str, str], app_name: str) -> Iterator[SparkSession]:
    from pyspark import SparkFiles
    from pyspark.sql import SparkSession

    from objbuf_dagster.spark import archive
    from objbuf_dagster.spark.java import find_java
    from objbuf_dagster.spark.jvm import launch, own_jvm

    scratch = Path(tempfile.gettempdir(), f"objbuf-{uuid.uuid4().hex}")  # Spark makes it if it needs it
    handler = signal.getsignal(signal.SIGINT)
    java = find_java()
    environment = {
        **java.environment(quiet=True),
        **archive.environment(java),
        **_unset_variables(local=master.startswith("local")),
    }
    with _environment(environment), own_jvm():
        builder = SparkSession.builder.appName(app_name).master(master)
        settings = {**_defaults(master, scratch), **settings}
        for name, value in settings.items():
            builder = builder.config(name, value)
        secret = {name for name, value in settings.items() if is_secret(name, value)}
        if secret:
            _warn_of(secret)
            public = {name: value for name, value in settings.items() if name not in secret}
            launch({"spark.app.name": app_name, "spark.master": master, **public})
        try:
            spark = builder.getOrCreate()
            root = SparkFiles.getRootDirectory()
            try:
                yield spark
            finally:
                spark.stop()
                sys.path[:] = [entry for entry in sys.path if not entry.startswith(root)]
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if threading.current_thread() is threading.main_thread() and handler is not None:
                signal.signal(signal.SIGINT, handler)  # PySpark's would cancel jobs of a session that is gone


def is_secret(name: str, value: str) -> bool:
    """Whether a setting may be a secret, or hold one. Such a one is no part of a command line or of a message."""
    return bool(_SECRET.search(name) or _SECRET_IN_VALUE.search(value))


def _warn_of(secret: Iterable[str]) -> None:
    if late := sorted(name for name in secret if _READ_AT_LAUNCH.match(name)):
        _log.warning(
            "%s may hold a secret and is kept off the command line of the JVM, where alone Spark would read it: "
            "it has no effect; set it in conf/spark-defaults.conf instead",
            ", ".join(late),
        )


def _defaults(master: str, scratch: Path) -> dict[str, str]:
    defaults = {
        "spark.redaction.regex": f"(?i){_SECRET.pattern}|{_SECRET_IN_VALUE.pattern}",  # Spark's has no Azure keys
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):  # everything is on this machine, and nobody else's business
        defaults |= {
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.host": _LOOPBACK,
            "spark.sql.warehouse.dir": str(scratch),  # instead of the working directory
            "spark.ui.enabled": "false",
        }
    return defaults


def _unset_variables(*, local: bool) -> dict[str, str]:
    """What can be set by environment variables only, and is not."""
    wanted = {"PYSPARK_PYTHON": sys.executable}  # workers take `python3` from the PATH otherwise
    if local:
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    own_log_settings = Path(os.environ.get("SPARK_CONF_DIR", os.devnull), "log4j2.properties")
    if not own_log_settings.exists():
        wanted["LOG4J_CONFIGURATION_FILE"] = str(_LOG_SETTINGS)
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables, and puts back what was there before."""
    before = {name: os.environ.get(name) for name in (*variables, *_SET_BY_PYSPARK)}
    os.environ.update(variables)
    try:
        yield
    finally:
        _put_back(before)


def _put_back(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
