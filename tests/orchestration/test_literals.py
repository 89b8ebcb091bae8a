"""A credential that was written into a resource gets into no definition, and so not into what Dagster stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef
from dagster_aws.s3 import S3Resource

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import BufferResource, BufferSource, LakeResource, SparkResource, buffer_definitions
from objbuf_dagster.orchestration.source import resolved
from tests.orchestration.deployments import plain_asset
from tests.prove.secrets import PASSWORD, SIGNATURE, SPARK_KEY, SPARK_TOKEN, TOKEN, leaks, written

BUCKETS: list[tuple[str, dict[str, Any]]] = [
    ("'token'", {"options": {"token": TOKEN, "region": "x"}}),
    ("'AWS_SESSION_TOKEN'", {"options": {"AWS_SESSION_TOKEN": TOKEN}}),
    ("'secret_access_key'", {"options": {"secret_access_key": TOKEN, "access_key_id": dg.EnvVar("TEST_ID")}}),
    ("'sas_key'", {"options": {"sas_key": TOKEN}}),
    ("'some_future_key'", {"options": {"some_future_key": TOKEN}}),
    ("'endpoint'", {"options": {"endpoint": f"http://me:{PASSWORD}@127.0.0.1:1"}}),
    ("'endpoint'", {"options": {"endpoint": f"http://127.0.0.1:1/?x={TOKEN}"}}),
    ("'dfs.some.password'", {"url": "hdfs://node/lake", "options": {"dfs.some.password": PASSWORD}}),
    ("the url", {"url": f"https://a.blob.core.windows.net/c?sig={SIGNATURE}"}),
    ("the url", {"url": f"s3://b/p?X-Amz-Signature={SIGNATURE}"}),
    ("the url", {"url": f"az://c/p#{TOKEN}"}),
    ("the url", {"url": f"s3://me:{PASSWORD}@b/p"}),
    ("the url", {"url": f"https://{PASSWORD}@b/p"}),
    ("the url", {"url": f"abfss://c:{PASSWORD}@a.dfs.core.windows.net/p"}),
]
SPARKS: list[tuple[str, dict[str, Any]]] = [
    ("spark.hadoop.fs.s3a.secret.key", {"spark_config": {"spark.hadoop.fs.s3a.secret.key": SPARK_KEY}}),
    ("spark.hadoop.fs.s3a.secret.key", {"spark_config": {"spark": {"hadoop.fs.s3a": {"secret.key": SPARK_KEY}}}}),
    ("spark.jars.repositories", {"spark_config": {"spark.jars.repositories": f"https://me:{PASSWORD}@host/"}}),
    ("spark.x", {"spark_config": {"spark.x": f"-Dpassword={PASSWORD}"}}),
    ("spark.remote", {"spark_config": {"spark.remote": f"sc://host:15002/;token={SPARK_TOKEN}"}}),
    ("spark.remote", {"remote": f"sc://host:15002/;use_ssl=true;token={SPARK_TOKEN}"}),
    ("spark.remote", {"remote": f"sc://host:15002/;x-of-the-proxy={SPARK_TOKEN}"}),
    ("spark.ssl.keyPassword", {"more_config": f'{{"spark.ssl.keyPassword": "{PASSWORD}"}}'}),
]
REFUSED: list[Any] = [
    *(
        (kind, named, {"url": "s3://b/p", **given})
        for named, given in BUCKETS
        for kind in (BufferResource, LakeResource)
    ),
    *((SparkResource, named, given) for named, given in SPARKS),
]
KINDS = {BufferResource: "buffer", LakeResource: "lake", SparkResource: "spark"}

ALLOWED: list[tuple[Any, dict[str, Any]]] = [
    (BufferResource, {"url": "s3://b/p", "options": {"region": "x", "endpoint": "http://127.0.0.1:1"}}),
    (BufferResource, {"url": "s3://b/p", "options": {"aws_endpoint_url": "https://h:9000", "AWS_REGION": "x"}}),
    (BufferResource, {"url": "s3://b/p", "options": {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:x"}}),
    (BufferResource, {"url": "abfss://c@a.dfs.core.windows.net/p"}),
    (BufferResource, {"url": "/a/directory?/with#odd@names"}),
    (BufferResource, {"url": dg.EnvVar("TEST_URL")}),
    (LakeResource, {"url": "hdfs://ns/lake", "options": {"dfs.ha.namenodes.ns": "one,two"}}),
    (SparkResource, {}),
    (SparkResource, {"spark_config": {"spark.master": "local[1]", "spark": {"ui.enabled": False}}}),
    (SparkResource, {"spark_config": {"spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.x.Y"}}),
    (SparkResource, {"spark_config": {"spark.security.credentials.hive.enabled": "false"}}),
    (SparkResource, {"remote": "sc://host:15002/;use_ssl=true;user_id=me"}),
    (SparkResource, {"remote": dg.EnvVar("TEST_URL"), "more_config": dg.EnvVar("TEST_CONFIG")}),
]


def pipeline(**resources: Any) -> dg.Definitions:
    source = BufferSource()
    others = {"buffer": BufferResource(url="memory://buffer"), "lake": LakeResource(url="memory://lake")}
    return buffer_definitions(source, [plain_asset(source, "entries")], {**others, **resources})


@dg.op(required_resource_keys={"resource"})
def use() -> None:
    """Needs it."""


def job(resource: Any) -> dg.JobDefinition:
    @dg.job(resource_defs={"resource": resource})
    def one() -> None:
        use()

    return one


class Outer(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Somebody's own resource around the buffer's."""

    buffer: BufferResource


@pytest.mark.parametrize(("kind", "named", "given"), REFUSED)
def test_a_credential_written_into_a_resource_is_refused_by_its_name(
    kind: Any, named: str, given: dict[str, Any]
) -> None:
    ways: list[Callable[[], object]] = [
        lambda: pipeline(**{KINDS[kind]: kind(**given)}),
        lambda: job(kind(**given)),
        lambda: kind.configure_at_launch(**given),
        lambda: dg.Definitions(jobs=[job(kind(**given))]).get_repository_def(),
    ]
    for way in ways:
        with pytest.raises(InvalidInput) as raised:
            way()
        assert named in str(raised.value)
        assert 'EnvVar("NAME")' in str(raised.value)
        assert leaks(str(raised.value)) == []


@pytest.mark.parametrize("kind", [BufferResource, LakeResource])
def test_a_resource_of_a_plain_code_location_is_refused_when_that_is_loaded(kind: Any) -> None:
    defs = dg.Definitions(jobs=[], resources={"it": kind(url="s3://b/p", options={"token": TOKEN})}, assets=[])
    with pytest.raises(InvalidInput, match="'token'"):
        defs.get_repository_def()


@pytest.mark.parametrize(("kind", "given"), ALLOWED)
def test_what_is_no_credential_or_a_variable_becomes_a_definition(kind: Any, given: dict[str, Any]) -> None:
    dg.Definitions.validate_loadable(pipeline(**{KINDS[kind]: kind(**given)}))


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("aws_secret_access_key", {"aws_access_key_id": "AKID", "aws_secret_access_key": TOKEN}),
        ("aws_session_token", {"aws_session_token": TOKEN}),
        ("endpoint_url", {"endpoint_url": f"http://me:{PASSWORD}@127.0.0.1:1"}),
    ],
)
def test_an_s3_resource_beside_them_is_refused_likewise(named: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"{named} of the resource 's3'.*EnvVar") as raised:
        pipeline(s3=S3Resource(**given))
    assert leaks(str(raised.value)) == []
    by_variables: dict[str, Any] = dict.fromkeys(given, dg.EnvVar("TEST_ID"))
    pipeline(s3=S3Resource(**by_variables))


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated")  # Dagster's own, for nested ones
@pytest.mark.parametrize("nested", [False, True])
def test_a_variable_reaches_the_run_and_only_its_name_is_stored(
    nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a resource with variables, alone or inside somebody's own
    monkeypatch.setenv("TEST_TOKEN", TOKEN)
    monkeypatch.setenv("TEST_ENDPOINT", f"http://me:{PASSWORD}@127.0.0.1:1")
    options = {"token": dg.EnvVar("TEST_TOKEN"), "endpoint": dg.EnvVar("TEST_ENDPOINT"), "region": "x"}
    buffer = BufferResource(url="s3://b/p", options=options)
    seen: list[dict[str, str]] = []

    @dg.op(required_resource_keys={"resource"})
    @resolved
    def look(context: dg.OpExecutionContext) -> None:
        given = context.resources.resource
        seen.append((given.buffer if nested else given).options)

    @dg.job(resource_defs={"resource": Outer(buffer=buffer) if nested else buffer})
    def one() -> None:
        look()

    # when
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(tmp_path))) as instance:
        assert one.execute_in_process(instance=instance).success
    # then
    assert seen == [{"token": TOKEN, "endpoint": f"http://me:{PASSWORD}@127.0.0.1:1", "region": "x"}]
    stored = written(tmp_path)
    assert nested or any(b"TEST_TOKEN" in data for where, data in stored.items() if "unpacked" in where)
    assert {where: found for where, data in stored.items() if (found := leaks(data))} == {}


@pytest.mark.parametrize(("kind", "given"), [(kind, given) for kind, _, given in REFUSED])
def test_a_resource_shows_no_credential_of_its_own(kind: Any, given: dict[str, Any]) -> None:
    resource = kind(**given)
    assert leaks(f"{resource!r} {resource} {[resource]}") == []


def test_a_resource_shows_where_it_is_and_no_key_of_its_s3_resource() -> None:
    s3 = S3Resource(aws_access_key_id="AKID", aws_secret_access_key=TOKEN)
    assert repr(BufferResource(url="s3://b/p", s3=s3)) == "BufferResource('s3://b/p')"
    assert str(LakeResource(url="s3://b/l", s3=s3)) == "LakeResource('s3://b/l')"
    assert repr(LakeResource(url=dg.EnvVar("TEST_URL"))) == "LakeResource(EnvVar('TEST_URL'))"


def test_a_variable_among_sparks_settings_is_refused_since_dagster_does_not_read_it() -> None:
    spark = SparkResource(spark_config={"spark": {"x": dg.EnvVar("TEST_CONFIG")}})
    with pytest.raises(InvalidInput, match=r"spark\.x is an EnvVar.*more_config=EnvVar"):
        pipeline(spark=spark)
