"""Resources take nothing over by being there, reach what they are set to, and keep secrets."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef
from dagster_aws.s3 import S3Resource
from pydantic import ValidationError
from pyspark.sql import SparkSession

from objbuf_dagster.errors import InvalidInput, ObjbufError
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    SensorSettings,
    SparkResource,
    buffer_definitions,
)
from objbuf_dagster.orchestration.s3 import settings_of
from objbuf_dagster.store import SessionCredentials
from tests.orchestration.deployments import AT_ONCE, Deployment, entries_asset, failure_of
from tests.support.proxy import proxied
from tests.support.s3 import S3Location

_REPOSITORY = Path(__file__).parents[2]
_SECRET = "hush-hush-very-secret-key"  # noqa: S105, nobody's
_KEY_ID = "AKIAOFTHERESOURCE"


# The buffer.


def test_only_a_consumer_takes_the_buffer_over(buffer: BufferResource) -> None:
    with buffer.producer() as producer:
        producer.produce([b"one"])
    buffer.ledger().list()
    descriptor = next(iter(buffer.place().manifests().read().entries()))
    assert list(buffer.fetcher().fetch(descriptor).entries) == [b"one"]
    buffer.attach(0).close()
    assert buffer.peek().epoch == 0
    with buffer.consumer() as consumer:
        assert buffer.peek().epoch == consumer.epoch == 1
        buffer.attach(consumer.epoch).close()
    assert buffer.peek().epoch == 1


def test_identity_is_the_same_for_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    urls = [f"file://{tmp_path}/real", f"file://{tmp_path}/real/", f"{tmp_path}/real", "real", f"{tmp_path}/link"]
    assert len({BufferResource(url=url).identity() for url in urls}) == 1
    assert len({BufferResource(url=url).identity() for url in ("s3://b/p", "s3://b/p/", "s3a://b/p")}) == 1


def test_identity_tells_places_apart_and_no_secret() -> None:
    s3 = S3Resource(region_name="x", aws_access_key_id=_KEY_ID, aws_secret_access_key=_SECRET)
    found = [
        BufferResource(url="s3://bucket/a", s3=s3).identity(),
        BufferResource(url="s3://bucket/b", s3=s3).identity(),
        BufferResource(url="s3://bucket/a", s3=s3, manifest_path="other/manifest").identity(),
        BufferResource(url="s3://bucket/a", s3=s3, data_prefix="other").identity(),
    ]
    assert len(set(found)) == 4
    assert not any(_SECRET in one or _KEY_ID in one for one in found)


def test_timeout_and_options_reach_the_store() -> None:
    options = {"region": "eu-central-1", "endpoint": "http://127.0.0.1:1"}
    buffer = BufferResource(url="s3://bucket/a", timeout_seconds=3, options=options)
    given = buffer.store().inner._settings  # type: ignore[attr-defined]
    assert (given[0], given[2]) == (options, 3)
    lake = LakeResource(url="s3://bucket/a", timeout_seconds=3, options=options).table("entries")
    assert lake.store.inner._settings[2] == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("setting", [{"max_batch_bytes": 0}, {"timeout_seconds": 0}])
def test_settings_that_cannot_work_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BufferResource(url="memory://", **setting)


@pytest.mark.parametrize("name", ["../entries", "/entries", ""])
def test_table_stays_in_its_lake(name: str, tmp_path: Path) -> None:
    with pytest.raises(ObjbufError):
        LakeResource(url=str(tmp_path / "lake")).table(name)


def test_variable_is_read_when_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @dg.op
    def look(buffer: BufferResource) -> None:
        seen.append(buffer.identity())

    @dg.job(resource_defs={"buffer": BufferResource(url=dg.EnvVar("TEST_BUFFER_URL"))})
    def job() -> None:
        look()

    monkeypatch.setenv("TEST_BUFFER_URL", f"{tmp_path}/later")
    assert job.execute_in_process().success
    assert seen == [BufferResource(url=f"{tmp_path}/later").identity()]


# S3.


def test_session_credentials_travel_and_print_no_secret() -> None:
    made = SessionCredentials(None, _KEY_ID, _SECRET, "token-of-" + _SECRET)
    made()
    assert _SECRET not in repr(made)
    assert _KEY_ID not in repr(made)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    found = again()
    assert (found["access_key_id"], found["secret_access_key"]) == (_KEY_ID, _SECRET)


def test_no_credentials_at_all_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="boto3 finds no credentials"):
        SessionCredentials()()


@pytest.mark.parametrize(
    ("url", "s3", "message"),
    [
        ("file:///tmp/x", S3Resource(), "an S3Resource is for s3:// URLs"),
        ("gs://bucket", S3Resource(), "an S3Resource is for s3:// URLs"),
        ("s3://bucket", LakeResource(url="memory://"), "must be dagster-aws' S3Resource, not LakeResource"),
        ("s3://bucket", S3Resource(verify=False), "verify=False"),
        ("s3://bucket", S3Resource(use_ssl=False), "use_ssl=False"),
    ],
)
def test_combination_that_cannot_work_is_refused(url: str, s3: Any, message: str) -> None:
    for use in (BufferResource(url=url, s3=s3).peek, lambda: LakeResource(url=url, s3=s3).table("entries")):
        with pytest.raises(InvalidInput, match=message):
            use()


def test_settings_of_the_s3_resource_reach_the_store() -> None:
    s3 = S3Resource(region_name="eu-central-1", endpoint_url="http://127.0.0.1:1", aws_session_token=_SECRET)
    options, credentials = settings_of(s3)
    assert options == {"region": "eu-central-1", "endpoint": "http://127.0.0.1:1"}
    assert credentials == SessionCredentials(session_token=_SECRET)
    assert settings_of(S3Resource(use_unsigned_session=True, region_name="x"))[1] is None


def stored(home: Path) -> Iterator[bytes]:
    """All that the instance has written down, also what it has compressed."""
    for path in home.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
    for path in home.rglob("*.db"):
        with sqlite3.connect(path) as database:
            for (body,) in database.execute("select snapshot_body from snapshots") if _has_snapshots(database) else []:
                yield zlib.decompress(body)
        database.close()


def _has_snapshots(database: sqlite3.Connection) -> bool:
    return bool(database.execute("select 1 from sqlite_master where name = 'snapshots'").fetchall())


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated")  # Dagster's own, for nested ones
def test_pipeline_in_buckets_uses_the_s3_resources_keys_and_stores_no_secret(
    tmp_path: Path, trusting_s3: S3Location, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: credentials that only the S3Resource has, by the names of variables
    monkeypatch.setenv("TEST_KEY_ID", _KEY_ID)
    monkeypatch.setenv("TEST_SECRET", _SECRET)
    s3 = trusting_s3
    with proxied(s3) as proxy:
        resource = S3Resource(
            endpoint_url=proxy.location.options["endpoint"],
            region_name="us-east-1",
            aws_access_key_id=dg.EnvVar("TEST_KEY_ID"),
            aws_secret_access_key=dg.EnvVar("TEST_SECRET"),
        )
        plain = resource.model_copy(update={"aws_access_key_id": _KEY_ID, "aws_secret_access_key": _SECRET})
        outside = BufferResource(url=f"{s3.url}/buffer", s3=plain)
        for _ in range(3):
            with outside.producer() as producer:
                producer.produce([b"a", b"b"])
        source = BufferSource()
        defs = buffer_definitions(
            source,
            [entries_asset(source)],
            {
                "s3": resource,
                "buffer": BufferResource(url=f"{s3.url}/buffer", s3=resource),
                "lake": LakeResource(url=f"{s3.url}/lake", s3=resource),
                "spark": SparkResource(),
            },
            SensorSettings(limits=AT_ONCE),
        )
        home = tmp_path / "home"
        home.mkdir()
        # when
        with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home))) as instance:
            deployed = Deployment(instance, defs, source)
            deployed.tick()
            runs = deployed.tick().runs
            assert all(run.success for run in runs), "".join(map(failure_of, runs))
            assert len(runs) == 2
        # then
        assert outside.peek().frontier == 3
        landed = LakeResource(url=f"{s3.url}/lake", s3=plain).table("entries")
        assert sum(one.rows or 0 for one in landed.ranges().values()) == 6
        signed = [one.headers.get("authorization", "") for one in proxy.requests]
        assert all(f"Credential={_KEY_ID}/" in header for header in signed), set(signed)
    assert any(b"max_batch_bytes" in data for data in stored(home))  # so this is where to look
    assert not any(_SECRET.encode() in data for data in stored(home))


# Spark.

_LAZY = """
import dagster as dg
from pathlib import Path
from objbuf_dagster.orchestration import SparkResource

def javas():
    return [p for p in Path("/proc").glob("[0-9]*/comm") if p.exists() and p.read_text().strip() == "java"
            and f"PPid:\\t{__import__('os').getpid()}\\n" in (p.parent / "status").read_text()]

class Config(dg.Config):
    fail: bool

@dg.op
def use(spark: SparkResource, config: Config) -> None:
    assert not javas()
    print(spark.session.conf.get("spark.sql.shuffle.partitions"), spark.session.range(3).count(), len(javas()))
    assert spark.session is spark.spark_session
    if config.fail:
        raise RuntimeError("as the test asked")

@dg.op
def leave(spark: SparkResource) -> None:
    assert not javas()

settings = {"spark.master": "local[1]", "spark.sql": {"shuffle.partitions": 3}, "spark.ui.enabled": False}

@dg.job(resource_defs={"spark": SparkResource(spark_config=settings)})
def job():
    use()

@dg.job(resource_defs={"spark": SparkResource()})
def other():
    leave()

assert other.execute_in_process().success
for fail in (True, False):
    run = job.execute_in_process(run_config={"ops": {"use": {"config": {"fail": fail}}}}, raise_on_error=False)
    print(run.success, len(javas()))
"""


def test_spark_starts_when_asked_for_and_ends_with_the_run_however_it_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LAZY],
        env={**os.environ, "DAGSTER_HOME": str(tmp_path)},
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.stdout.splitlines() == ["3 3 1", "False 0", "3 3 1", "True 0"], done.stderr


def test_spark_config_may_be_nested_and_typed() -> None:
    from objbuf_dagster.orchestration.spark import _flat

    given = json.loads('{"spark": {"ui.enabled": false, "sql": {"shuffle.partitions": 3}}, "spark.x": "y"}')
    assert _flat(given) == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "3", "spark.x": "y"}
