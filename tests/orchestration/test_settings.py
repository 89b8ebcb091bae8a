"""What the environment of this repo's pipeline sets, and how it is refused."""

from __future__ import annotations

import os

import dagster as dg
import pytest

from objbuf_dagster.buffer import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import BufferResource, LakeResource, SensorSettings, SparkResource
from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.regulator import Regulator
from resources import resources, settings


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OBJBUF_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OBJBUF_BUFFER_URL", "file:///tmp/buffer")
    monkeypatch.setenv("OBJBUF_LAKE_URL", "file:///tmp/lake")


def test_what_is_not_set_is_the_librarys_default() -> None:
    assert settings.sensor() == SensorSettings()
    found = resources()
    assert set(found) == {"buffer", "lake", "spark"}
    buffer = found["buffer"]
    assert isinstance(buffer, BufferResource)
    assert (buffer.manifest_path, buffer.data_prefix) == (DEFAULT_MANIFEST_PATH, DEFAULT_DATA_PREFIX)
    assert buffer.s3 is None


def test_variables_of_the_buffer_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_BUFFER_URL", "file:///tmp/other")
    monkeypatch.setenv("OBJBUF_MANIFEST_PATH", "in/manifest")
    monkeypatch.setenv("OBJBUF_DATA_PREFIX", "in")
    monkeypatch.setenv("OBJBUF_MAX_BATCH_BYTES", "12345")
    buffer = resources()["buffer"]
    assert buffer.url == "file:///tmp/other"
    place = buffer.place()
    assert (place.manifest_path, place.data_prefix, place.max_bytes) == ("in/manifest", "in", 12345)


def test_variable_of_the_lake_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_LAKE_URL", "file:///tmp/other")
    lake = resources()["lake"]
    assert isinstance(lake, LakeResource)
    assert lake.table("entries").url == "file:///tmp/other/entries"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OBJBUF_MAX_BATCHES", "7", SensorSettings(limits=Limits(max_batches=7))),
        ("OBJBUF_MAX_BYTES", "7", SensorSettings(limits=Limits(max_bytes=7))),
        ("OBJBUF_MAX_WAIT", "0.5", SensorSettings(limits=Limits(max_wait=0.5))),
        ("OBJBUF_REGULATOR", "off", SensorSettings(regulator="off")),
        ("OBJBUF_REGULATOR", "throughput", SensorSettings(regulator="throughput")),
        ("OBJBUF_REGULATOR", "balanced", SensorSettings(regulator="balanced")),
        ("OBJBUF_REGULATOR", "low_latency", SensorSettings(regulator="low_latency")),
        ("OBJBUF_MAX_IN_FLIGHT", "7", SensorSettings(max_in_flight=7)),
        ("OBJBUF_MAX_AHEAD", "70", SensorSettings(max_ahead=70)),
        ("OBJBUF_MAX_ATTEMPTS", "7", SensorSettings(max_attempts=7)),
        ("OBJBUF_RETRY_SECONDS", "0.5", SensorSettings(retry_seconds=0.5)),
        ("OBJBUF_ON_GAP", "skip", SensorSettings(on_gap="skip")),
    ],
)
def test_variables_of_the_sensor_reach_it(
    name: str, value: str, expected: SensorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert settings.sensor() == expected


def test_the_sensor_regulates_itself_unless_limits_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.sensor().regulation()[0] == Regulator()
    monkeypatch.setenv("OBJBUF_MAX_BYTES", "1000")
    fixed, _ = settings.sensor().regulation()
    assert (fixed.on, fixed.limits) == (False, Limits(max_bytes=1000))


@pytest.mark.parametrize("profile", ["throughput", "balanced", "low_latency"])
def test_limits_beside_a_profile_are_as_far_as_it_goes(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setenv("OBJBUF_REGULATOR", profile)
    monkeypatch.setenv("OBJBUF_MAX_BYTES", "1000")
    plain = Regulator.of(profile)
    # when
    regulator, _ = settings.sensor().regulation()
    # then: what is not named stays the profile's
    assert (regulator.on, regulator.min_bytes, regulator.max_bytes) == (True, 1000, 1000)
    assert (regulator.max_batches, regulator.min_wait, regulator.max_wait) == (
        plain.max_batches,
        plain.min_wait,
        plain.max_wait,
    )
    # when
    monkeypatch.setenv("OBJBUF_MAX_WAIT", "3")
    monkeypatch.setenv("OBJBUF_MAX_BATCHES", "7")
    regulator, _ = settings.sensor().regulation()
    # then
    assert (regulator.max_wait, regulator.max_batches, regulator.target) == (3, 7, plain.target)
    assert regulator.min_wait <= 3


def test_limits_apply_as_they_are_with_the_regulator_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_REGULATOR", "off")
    monkeypatch.setenv("OBJBUF_MAX_BATCHES", "7")
    regulator, _ = settings.sensor().regulation()
    assert (regulator.on, regulator.limits) == (False, Limits(max_batches=7))


def test_a_profile_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_REGULATOR", "on")
    with pytest.raises(InvalidInput, match="OBJBUF_REGULATOR is 'on', and must be off, throughput, balanced, low_late"):
        settings.sensor()


def test_interval_of_the_sensor_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.sensor_interval() == 5
    monkeypatch.setenv("OBJBUF_SENSOR_SECONDS", "30")
    assert settings.sensor_interval() == 30
    monkeypatch.setenv("OBJBUF_SENSOR_SECONDS", "0")
    with pytest.raises(InvalidInput, match="OBJBUF_SENSOR_SECONDS is '0', and must be a number from 1 up"):
        settings.sensor_interval()


def test_variables_of_spark_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_SPARK_CONFIG", '{"spark.executor.memory": "4g"}')
    monkeypatch.setenv("OBJBUF_SPARK_MASTER", "spark://host:7077")
    spark = resources()["spark"]
    assert isinstance(spark, SparkResource)
    assert (spark.spark_config, spark.more_config) == ({"spark.master": "spark://host:7077"}, "OBJBUF_SPARK_CONFIG")
    monkeypatch.setenv("OBJBUF_SPARK_REMOTE", "sc://host:15002")
    assert settings.spark()["remote"] == dg.EnvVar("OBJBUF_SPARK_REMOTE")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("endpoint_url", "OBJBUF_S3_ENDPOINT_URL"),
        ("region_name", "OBJBUF_S3_REGION"),
        ("profile_name", "OBJBUF_S3_PROFILE"),
        ("aws_access_key_id", "OBJBUF_S3_ACCESS_KEY_ID"),
        ("aws_secret_access_key", "OBJBUF_S3_SECRET_ACCESS_KEY"),
        ("aws_session_token", "OBJBUF_S3_SESSION_TOKEN"),
    ],
)
def test_variables_of_s3_reach_both_buckets_by_name_only(
    field: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OBJBUF_BUFFER_URL", "s3://bucket/buffer")
    monkeypatch.setenv("OBJBUF_LAKE_URL", "s3://bucket/lake")
    monkeypatch.setenv(name, "hush-hush")
    found = resources()
    for key in ("buffer", "lake"):
        assert getattr(found[key].s3, field) == dg.EnvVar(name)
        assert "hush-hush" not in repr(found[key])


def test_only_what_is_in_a_bucket_gets_the_s3_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_LAKE_URL", "s3://bucket/lake")
    found = resources()
    assert found["buffer"].s3 is None
    assert found["lake"].s3 is found["s3"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OBJBUF_MAX_BATCHES", "many"),
        ("OBJBUF_MAX_BATCHES", "0"),
        ("OBJBUF_MAX_BYTES", "1.5"),
        ("OBJBUF_MAX_BYTES", "-1"),
        ("OBJBUF_MAX_WAIT", "soon"),
        ("OBJBUF_MAX_WAIT", "-1"),
        ("OBJBUF_MAX_WAIT", "nan"),
        ("OBJBUF_MAX_WAIT", "inf"),
        ("OBJBUF_MAX_IN_FLIGHT", "0"),
        ("OBJBUF_MAX_ATTEMPTS", "0"),
        ("OBJBUF_RETRY_SECONDS", "-0.1"),
        ("OBJBUF_RETRY_SECONDS", "nan"),
        ("OBJBUF_ON_GAP", "ignore"),
        ("OBJBUF_MAX_BATCH_BYTES", "0"),
        ("OBJBUF_SPARK_CONFIG", "spark.executor.memory=4g"),
        ("OBJBUF_SPARK_CONFIG", "[]"),
    ],
)
def test_wrong_value_is_refused_with_its_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=name):
        _ = resources(), settings.sensor()


def test_settings_of_spark_are_not_shown_when_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJBUF_SPARK_CONFIG", '{"spark.hadoop.fs.s3a.secret.key": "hush-hush"')
    with pytest.raises(InvalidInput, match="OBJBUF_SPARK_CONFIG") as caught:
        settings.spark()
    assert "hush-hush" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["OBJBUF_BUFFER_URL", "OBJBUF_LAKE_URL"])
def test_missing_url_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(InvalidInput, match=rf"{name} is not set: give it file:///dir.* s3://bucket/prefix.*make dev"):
        resources()
