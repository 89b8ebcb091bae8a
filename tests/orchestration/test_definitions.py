"""What `buffer_definitions` gives Dagster, and this repo's own code location."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import BufferResource, BufferSource, LakeResource, SparkResource, buffer_definitions
from tests.orchestration.deployments import entries_asset, plain_asset

_REPOSITORY = Path(__file__).parents[2]
_LAKE = LakeResource(url="memory://lake")


def made(source: BufferSource, *assets: str, **settings: Any) -> dg.Definitions:
    resources = {source.name: BufferResource(url="memory://buffer"), "lake": _LAKE}
    return buffer_definitions(source, [plain_asset(source, name) for name in assets], resources, **settings)


def jobs(defs: dg.Definitions) -> set[str]:
    dg.Definitions.validate_loadable(defs)
    return {job.name for job in defs.get_repository_def().get_all_jobs() if not job.name.startswith("__")}


def test_tables_that_landings_fill_are_looked_after() -> None:
    source = BufferSource()
    resources = {"buffer": BufferResource(url="memory://x"), "lake": LakeResource(url="x"), "spark": SparkResource()}
    assert jobs(buffer_definitions(source, [entries_asset(source), plain_asset(source, "other")], resources)) == {
        "land_buffer",
        "collect_buffer_job",
        "upkeep_buffer_tables_job",
        "check_buffer_tables_job",
    }


def test_definitions_of_two_buffers_join() -> None:
    orders = BufferSource("orders", ack_after=["raw/orders"])
    joined = dg.Definitions.merge(made(BufferSource(), "entries"), made(orders, "raw/orders"))
    assert {"land_buffer", "land_orders"} < jobs(joined)


def test_pipeline_without_tables_has_no_jobs_for_them() -> None:
    defs = made(BufferSource(), "entries")
    assert jobs(defs) == {"land_buffer", "collect_buffer_job"}
    assert len(list(defs.schedules or [])) == 1


def test_tables_are_looked_after_under_their_names() -> None:
    defs = made(BufferSource(), "entries", "typed", tables={"typed": "typed_v2"})
    checks = {key for one in defs.asset_checks or [] for key in one.check_keys}
    assert {key.asset_key for key in checks} == {dg.AssetKey("typed")}


@pytest.mark.parametrize("assets", [["other"], []])
def test_ack_after_that_names_nothing_is_refused(assets: list[str]) -> None:
    with pytest.raises(InvalidInput, match="ack_after names entries, which is no asset"):
        made(BufferSource(), *assets)


def test_ack_after_that_names_one_thing_too_many_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ack_after names typed, which"):
        made(BufferSource(ack_after=["entries", "typed"]), "entries")


@pytest.mark.parametrize(("left_out", "kind"), [("buffer", "BufferResource"), ("lake", "LakeResource")])
def test_missing_resource_is_named_with_its_kind(left_out: str, kind: str) -> None:
    source = BufferSource()
    resources = {"buffer": BufferResource(url="memory://buffer"), "lake": _LAKE}
    del resources[left_out]
    with pytest.raises(InvalidInput, match=f"needs the resource '{left_out}': a {kind}"):
        buffer_definitions(source, [plain_asset(source)], resources)


@pytest.mark.parametrize(
    "settings",
    [{"name": "Orders"}, {"name": ""}, {"ack_after": "entries"}, {"ack_after": []}, {"ack": "later"}],
)
def test_source_that_cannot_work_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        BufferSource(**settings)


def test_this_repos_code_location_loads_without_what_is_heavy(tmp_path: Path) -> None:
    """dagster-pyspark imports PySpark, which costs half a second; its JVM, Delta, Arrow and pandas can wait."""
    program = """
import sys
import dagster as dg
from definitions import defs
dg.Definitions.validate_loadable(defs)
heavy = {"boto3", "dagster_aws", "deltalake", "numpy", "obstore", "pandas", "pyarrow", "zstandard"}
print(sorted(heavy & set(sys.modules)))
from pyspark import SparkContext
print(SparkContext._gateway)
"""
    variables = {"OBJBUF_BUFFER_URL": f"{tmp_path}/buffer", "OBJBUF_LAKE_URL": f"{tmp_path}/lake"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables, "DAGSTER_HOME": str(tmp_path)},
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["[]", "None"], done.stderr
    assert list(tmp_path.iterdir()) == []


def test_code_location_without_settings_says_which(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OBJBUF_")}
    done = subprocess.run(
        [sys.executable, "-c", "import definitions"],
        env=environment,
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InvalidInput: OBJBUF_BUFFER_URL is not set" in done.stderr
