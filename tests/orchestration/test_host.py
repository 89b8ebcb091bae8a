"""Memory and disk are of the machine that runs are on, or not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.orchestration import LakeResource, SparkResource
from objbuf_dagster.orchestration.host import RunHost
from tests.orchestration.deployments import Deployment


@pytest.fixture
def instance(deployed: Deployment) -> dg.DagsterInstance:
    return deployed.instance


def test_local_runs_are_on_this_machine(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    for lake in (LakeResource(url=str(tmp_path / "lake")), LakeResource(url=(tmp_path / "a b").as_uri())):
        for spark in (None, SparkResource(), SparkResource(spark_config={"spark.master": "local[2]"})):
            host = RunHost(lake, spark)
            assert host.memory(instance)
            assert all(0 < used < limit for used, limit in host.memory(instance))
            free, total = host.disk(instance) or (0, 0)
            assert 0 < free <= total


def test_the_disk_of_a_bucket_is_not_known(instance: dg.DagsterInstance) -> None:
    host = RunHost(LakeResource(url="s3://bucket/lake"))
    assert host.disk(instance) is None
    assert host.memory(instance)


def test_a_lake_that_the_environment_names_is_found(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_LAKE", str(tmp_path))
    assert RunHost(LakeResource(url=dg.EnvVar("TEST_LAKE"))).disk(instance) is not None
    monkeypatch.delenv("TEST_LAKE")
    assert RunHost(LakeResource(url=dg.EnvVar("TEST_LAKE"))).disk(instance) is None


@pytest.mark.parametrize(
    "spark",
    [
        {"spark_config": {"spark.master": "spark://host:7077"}},
        {"spark_config": {"spark": {"master": "yarn"}}},
        {"spark_config": {"spark.remote": "sc://host:15002"}},
        {"remote": "sc://host:15002"},
        {"remote": dg.EnvVar("TEST_REMOTE")},
        {"more_config": '{"spark.master": "k8s://host"}'},
        {"more_config": dg.EnvVar("TEST_MORE")},
        {"more_config": "damaged"},
    ],
    ids=str,
)
def test_of_a_cluster_nothing_is_known(
    instance: dg.DagsterInstance, tmp_path: Path, spark: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_REMOTE", "sc://host:15002")
    monkeypatch.setenv("TEST_MORE", '{"spark.master": "yarn"}')
    host = RunHost(LakeResource(url=str(tmp_path)), SparkResource(**spark))
    assert (host.memory(instance), host.disk(instance)) == ([], None)


def test_of_another_launcher_nothing_is_known(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert RunHost(LakeResource(url=str(tmp_path))).memory(instance) == []


@pytest.mark.parametrize(
    ("config", "driver"),
    [
        ({"spark.driver.memory": "8g"}, 8 << 30),
        ({"spark": {"driver": {"memory": "512m"}}}, 512 << 20),
        ({"spark.driver.memory": "2048"}, 2 << 30),
        ({"spark.driver.memory": "3GB"}, 3 << 30),
        ({"spark.driver.memory": "much"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_memory_of_a_run_is_what_the_driver_may_take_and_some(config: dict[str, Any], driver: int | None) -> None:
    host = RunHost(spark=SparkResource(spark_config=config))
    assert host.run_memory() == (None if driver is None else driver + max(384 << 20, driver // 10))


def test_the_memory_of_a_run_without_spark_or_with_damaged_settings_is_not_known() -> None:
    assert RunHost().run_memory() is None
    assert RunHost(spark=SparkResource(more_config="damaged")).run_memory() is None
    more = SparkResource(more_config='{"spark.driver.memory": "1g"}')
    assert RunHost(spark=more).run_memory() == (1 << 30) + (384 << 20)
