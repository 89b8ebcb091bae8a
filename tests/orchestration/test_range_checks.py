"""Checks of a range come before its materialisation, and those of a table are a job of their own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import dagster as dg
import pytest

from objbuf_dagster.lake import RangeCheck
from objbuf_dagster.orchestration import BufferResource, BufferSource, LakeResource, Outcome, RangeContext, RangeResult
from objbuf_dagster.ranges import range_of
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import DRY, Deployment, deployment, failure_of, scripted_asset

_WELL = RangeCheck("well", True, "all is well", {"rows": 3})
_ILL = RangeCheck("well", False, "sequence 1 is ill", {"sequence": 1})


def evaluations(deployed: Deployment, name: str) -> list[dg.AssetCheckEvaluation]:
    """All that were ever recorded of a check, latest first."""
    history = deployed.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(dg.AssetKey("entries"), name), limit=100
    )
    events = [record.event.dagster_event for record in history if record.event]
    return [
        event.asset_check_evaluation_data
        for event in events
        if event and event.event_type_value == "ASSET_CHECK_EVALUATION"
    ]


def planned(deployed: Deployment, produce: Produce, batches: int) -> list[str]:
    produce(batches)
    deployed.tick()
    deployed.tick(launch=False)
    return deployed.partitions


@pytest.fixture
def brought() -> list[list[RangeCheck]]:
    """What the results of the asset bring, range by range."""
    return []


@pytest.fixture
def checked(
    tmp_path: Path, buffer: BufferResource, lake: Path, brought: list[list[RangeCheck]]
) -> Iterable[Deployment]:
    """A deployment whose asset has a check named `well`."""

    def script(context: RangeContext, lake: LakeResource) -> Iterable[Outcome]:
        return [RangeResult(range_of(one), checks=checks) for one, checks in zip(context.planned, brought, strict=True)]

    asset = scripted_asset(BufferSource(), script, checks=["well"])
    with deployment(tmp_path / "home", buffer, lake, assets=[asset]) as made:
        yield made


def test_check_that_passes_is_shown_with_its_numbers(
    checked: Deployment, produce: Produce, brought: list[list[RangeCheck]]
) -> None:
    brought += [[_WELL]]
    (key,) = planned(checked, produce, 2)
    assert checked.materialise(key).success
    (found,) = evaluations(checked, "well")
    assert found.passed
    assert found.description == f"{key}: all is well"
    assert found.metadata["rows"].value == 3


def test_range_whose_check_fails_is_not_materialised(
    checked: Deployment, produce: Produce, brought: list[list[RangeCheck]]
) -> None:
    brought += [[_ILL]]
    (key,) = planned(checked, produce, 2)
    result = checked.materialise(key)
    assert "sequence 1 is ill" in failure_of(result)
    (found,) = evaluations(checked, "well")
    assert not found.passed
    assert found.metadata["sequence"].value == 1
    assert found.metadata["failed_ranges"].value == key
    checked.tick(launch=False)
    assert (checked.materialised(), checked.frontier) == ([], 0)


def test_failed_check_of_one_range_shows_although_others_pass(
    checked: Deployment, produce: Produce, brought: list[list[RangeCheck]]
) -> None:
    brought += [[_WELL], [_ILL], [_WELL]]
    keys = planned(checked, produce, 6)
    assert not checked.backfill(keys[0], keys[2]).success
    (found,) = evaluations(checked, "well")
    assert not found.passed
    assert found.description == f"{keys[1]}: sequence 1 is ill"
    assert sorted(checked.materialised()) == [keys[0], keys[2]]


@pytest.mark.parametrize("checks", [[], [_WELL, RangeCheck("other", True, "", {})], [_ILL, _WELL]])
def test_result_with_other_checks_than_promised_is_refused(
    checks: list[RangeCheck], checked: Deployment, produce: Produce, brought: list[list[RangeCheck]]
) -> None:
    brought += [checks]
    (key,) = planned(checked, produce, 2)
    assert "a result needs the checks ['well'], and brought" in failure_of(checked.materialise(key))
    assert (checked.materialised(), evaluations(checked, "well")) == ([], [])


def test_failed_check_fails_a_dry_run_too(
    checked: Deployment, produce: Produce, brought: list[list[RangeCheck]]
) -> None:
    brought += [[_ILL]]
    (key,) = planned(checked, produce, 2)
    assert "sequence 1 is ill" in failure_of(checked.materialise(key, config=DRY))


def test_runs_of_the_sensor_check_ranges_and_leave_tables_to_the_night(
    checked: Deployment, produce: Produce, brought: list[list[RangeCheck]]
) -> None:
    brought += [[_WELL]]
    produce(2)
    checked.tick()
    (run,) = checked.tick().runs
    assert run.success
    assert {event.step_key for event in run.all_events if event.is_step_event} == {"entries"}
    assert len(evaluations(checked, "well")) == 1
    assert evaluations(checked, "no_holes") == []


def test_tables_job_checks_tables_and_lands_nothing(deployed: Deployment, produce: Produce) -> None:
    # given: an asset that acks and has no table
    produce(2)
    deployed.settle()
    # when
    job = deployed.defs.resolve_job_def("check_buffer_tables_job")
    assert job.execute_in_process(instance=deployed.instance).success
    # then
    (holes,), (overlaps,) = evaluations(deployed, "no_holes"), evaluations(deployed, "no_overlaps")
    assert (holes.passed, overlaps.passed) == (False, True)
    assert "000000000000-000000000001" in str(holes.description)
    assert len(deployed.materialised()) == 1


def test_tables_job_passes_before_anything_has_landed(deployed: Deployment) -> None:
    job = deployed.defs.resolve_job_def("check_buffer_tables_job")
    assert job.execute_in_process(instance=deployed.instance).success
    assert [found.passed for found in evaluations(deployed, "no_holes")] == [True]
