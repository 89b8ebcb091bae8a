"""The environment of a deployment, read here and nowhere else. The README's table lists it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, get_args

import dagster as dg

from objbuf_dagster.buffer import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import SensorSettings
from objbuf_dagster.protocol import DEFAULT_MAX_BYTES
from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.regulator import Profile, Regulator

N = TypeVar("N", int, float)


def buffer() -> dict[str, Any]:
    return {
        "url": _needed("OBJBUF_BUFFER_URL", "file:///dir or s3://bucket/prefix, where the producers write"),
        "manifest_path": os.environ.get("OBJBUF_MANIFEST_PATH") or DEFAULT_MANIFEST_PATH,
        "data_prefix": os.environ.get("OBJBUF_DATA_PREFIX") or DEFAULT_DATA_PREFIX,
        "max_batch_bytes": _number("OBJBUF_MAX_BATCH_BYTES", DEFAULT_MAX_BYTES, int, least=1),
    }


def lake() -> dict[str, Any]:
    return {
        "url": _needed("OBJBUF_LAKE_URL", "file:///dir, s3://bucket/prefix or hdfs://..., where the tables shall be")
    }


def spark() -> dict[str, Any]:
    """What SparkResource takes. `OBJBUF_SPARK_CONFIG` is JSON; master and remote have names of their own.

    An `EnvVar` keeps secrets, in settings or in an address, out of Dagster's storage.
    """
    try:
        config = json.loads(os.environ.get("OBJBUF_SPARK_CONFIG") or "{}")
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InvalidInput('OBJBUF_SPARK_CONFIG is not JSON as {"spark.executor.memory": "4g"}')
    variables = {"more_config": "OBJBUF_SPARK_CONFIG", "remote": "OBJBUF_SPARK_REMOTE"}
    given: dict[str, Any] = {field: dg.EnvVar(name) for field, name in variables.items() if os.environ.get(name)}
    master = os.environ.get("OBJBUF_SPARK_MASTER")
    return given | ({"spark_config": {"spark.master": master}} if master else {})


def sensor() -> SensorSettings:
    plain = SensorSettings()
    on_gap = os.environ.get("OBJBUF_ON_GAP") or plain.on_gap
    if on_gap not in ("fail", "skip"):
        raise InvalidInput(f"OBJBUF_ON_GAP is {on_gap!r}, and must be fail or skip")
    limits, regulator = _limits_or_regulator()
    return SensorSettings(
        limits=limits,
        regulator=regulator,
        max_in_flight=_number("OBJBUF_MAX_IN_FLIGHT", plain.max_in_flight, int, least=1),
        max_ahead=_number("OBJBUF_MAX_AHEAD", plain.max_ahead, int, least=1),
        max_attempts=_number("OBJBUF_MAX_ATTEMPTS", plain.max_attempts, int, least=1),
        retry_seconds=_number("OBJBUF_RETRY_SECONDS", plain.retry_seconds, float),
        on_gap=on_gap,  # type: ignore[arg-type]  # checked above
    )


def _limits_or_regulator() -> tuple[Limits | None, Any]:
    """Limits are fixed ones, unless a profile is named: then they are as far as its regulator may go."""
    plain = Limits()
    limits = Limits(
        max_batches=_number("OBJBUF_MAX_BATCHES", plain.max_batches, int, least=1),
        max_bytes=_number("OBJBUF_MAX_BYTES", plain.max_bytes, int, least=1),
        max_wait=_number("OBJBUF_MAX_WAIT", plain.max_wait, float),
    )
    named = [name for name in ("max_batches", "max_bytes", "max_wait") if os.environ.get(f"OBJBUF_{name.upper()}")]
    choice = os.environ.get("OBJBUF_REGULATOR") or None
    if choice not in (None, "off", *get_args(Profile)):
        raise InvalidInput(f"OBJBUF_REGULATOR is {choice!r}, and must be off, {', '.join(get_args(Profile))}")
    if choice in (None, "off") or not named:
        return limits if named else None, choice
    profile = Regulator.of(str(choice))
    return None, replace(
        profile,
        **{name: getattr(limits, name) for name in named},
        min_bytes=min(profile.min_bytes, limits.max_bytes),
        min_wait=min(profile.min_wait, limits.max_wait) if "max_wait" in named else profile.min_wait,
    )


def sensor_interval() -> int:
    """Seconds between two ticks, at least."""
    return _number("OBJBUF_SENSOR_SECONDS", 5, int, least=1)


def is_bucket(url: str) -> bool:
    return url.startswith(("s3://", "s3a://"))


def is_s3() -> bool:
    return is_bucket(buffer()["url"]) or is_bucket(lake()["url"])


def _needed(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise InvalidInput(f"{name} is not set: give it {what}; `make dev` does that for a buffer of its own")
    return value


def _number(name: str, default: N, kind: Callable[[str], N], least: int = 0) -> N:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        raise InvalidInput(f"{name} is {text!r}, which is no number") from None
    if not least <= value < math.inf:
        raise InvalidInput(f"{name} is {text!r}, and must be a number from {least} up")
    return value
