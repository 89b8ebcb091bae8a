"""What a run materialised is acked, whatever started it; what failed is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from objbuf_dagster.errors import CorruptData, StorageUnavailable
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
)
from tests.orchestration import location
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import (
    Deployment,
    deployment,
    failure_of,
    lines_of,
    planned,
    scripted_asset,
    told,
    write_lines,
)


def _fail(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
    raise RuntimeError("as the test asked")


@pytest.fixture
def failing(tmp_path: Path, buffer: BufferResource, lake: Path) -> Iterator[Deployment]:
    source = BufferSource()
    with deployment(tmp_path / "home", buffer, lake, assets=[scripted_asset(source, _fail)]) as made:
        yield made


def test_run_of_the_sensor_acks_once_its_materialisation_is_stored(deployed: Deployment, produce: Produce) -> None:
    produce(2)
    deployed.tick()
    (run,) = deployed.tick().runs
    assert deployed.frontier == 2
    log = told(deployed.instance, run.run_id)
    acked = next(number for number, line in enumerate(log) if "acked sequences 0 to 1" in line)
    assert log.index("ASSET_MATERIALIZATION") < acked


def test_failed_run_of_the_sensor_acks_nothing(failing: Deployment, produce: Produce) -> None:
    produce(2)
    failing.tick()
    (run,) = failing.tick().runs
    assert not run.success
    failing.tick(launch=False)
    assert (failing.frontier, failing.materialised()) == (0, [])


def test_materialise_in_the_ui_acks(deployed: Deployment, produce: Produce) -> None:
    produce(2)
    (key,) = planned(deployed)
    assert deployed.materialise(key).success
    assert deployed.frontier == 2


def test_failed_materialise_in_the_ui_acks_nothing(failing: Deployment, produce: Produce) -> None:
    produce(2)
    (key,) = planned(failing)
    result = failing.materialise(key)
    assert "as the test asked" in failure_of(result)
    assert key in failure_of(result)
    assert (failing.frontier, failing.materialised()) == (0, [])


def test_backfill_in_one_run_materialises_and_acks_every_range(
    deployed: Deployment, produce: Produce, lake: Path
) -> None:
    produce(6)
    keys = planned(deployed)
    assert deployed.backfill(keys[0], keys[2]).success
    assert sorted(deployed.materialised()) == keys
    assert deployed.frontier == 6
    assert len(lines_of(lake)) == 18


def test_failed_backfill_in_one_run_acks_nothing(failing: Deployment, produce: Produce) -> None:
    produce(4)
    keys = planned(failing)
    assert not failing.backfill(keys[0], keys[1]).success
    assert (failing.frontier, failing.materialised()) == (0, [])


def test_backfill_of_a_run_per_range_acks_after_each(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    policy = dg.BackfillPolicy.multi_run(1)
    with deployment(tmp_path / "home", buffer, lake, backfill_policy=policy) as deployed:
        produce(4)
        keys = planned(deployed)
        done = deployed.backfill_by_policy(*keys)
        assert [run.success for run in done] == [True, True]
        acks = [line for run in done for line in told(deployed.instance, run.run_id) if "acked sequences" in line]
    assert [line.partition(": ")[2].partition(":")[0] for line in acks] == [
        "acked sequences 0 to 1",
        "acked sequences 2 to 3",
    ]


def test_backfill_without_another_policy_is_one_run(deployed: Deployment, produce: Produce) -> None:
    produce(4)
    (done,) = deployed.backfill_by_policy(*planned(deployed))
    assert done.success
    assert deployed.frontier == 4


def test_failed_run_of_a_backfill_of_a_run_per_range_holds_up_the_others_acks(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    def fail_first(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        if context.planned[0].start == 0:
            raise CorruptData("it", "as the test asked")
        return write_lines(context, Path(lake.url) / "entries")

    asset = scripted_asset(BufferSource(), fail_first, backfill_policy=dg.BackfillPolicy.multi_run(1))
    with deployment(tmp_path / "home", buffer, lake, assets=[asset]) as deployed:
        produce(4)
        first, second = planned(deployed)
        assert [run.success for run in deployed.backfill_by_policy(first, second)] == [False, True]
        assert (deployed.frontier, deployed.materialised()) == (0, [second])


@pytest.mark.parametrize("fault", ["", "fail"])
def test_dagsters_own_command_acks_what_it_materialised(
    fault: str, tmp_path: Path, deployed: Deployment, buffer: BufferResource, produce: Produce, lake: Path
) -> None:
    produce(2)
    (key,) = planned(deployed)
    variables = location.environment(tmp_path / "home", buffer, lake, fault)
    done = location.dagster(f"asset materialize --select entries --partition {key}", variables)
    assert (done.returncode == 0) == (fault == ""), done.stderr
    assert deployed.frontier == (0 if fault else 2)
    assert deployed.materialised() == ([] if fault else [key])


def test_dagsters_own_backfill_queues_a_run_of_the_landing_job_per_range(
    tmp_path: Path, deployed: Deployment, buffer: BufferResource, produce: Produce, lake: Path
) -> None:
    """A daemon would start them; this one ends where the command does."""
    produce(6)
    keys = planned(deployed)
    variables = location.environment(tmp_path / "home", buffer, lake)
    done = location.dagster(f"job backfill -j land_buffer --from {keys[0]} --to {keys[1]} --noprompt", variables)
    assert done.returncode == 0, done.stderr
    queued = deployed.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
    assert sorted(run.tags["dagster/partition"] for run in queued) == keys[:2]
    assert deployed.frontier == 0


def test_reexecution_of_a_failed_run_acks_if_it_succeeds(
    tmp_path: Path,
    deployed: Deployment,
    buffer: BufferResource,
    produce: Produce,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: a run that failed
    produce(2)
    (key,) = planned(deployed)
    for name, value in location.environment(tmp_path / "home", buffer, lake, "fail").items():
        monkeypatch.setenv(name, value)
    repository = ReconstructableRepository.for_file(str(location.__file__), "defs")
    job = repository.get_reconstructable_job("land_buffer")
    tags = {"dagster/partition": key}
    with dg.execute_job(job, deployed.instance, tags=tags) as failed:
        assert not failed.success
    assert deployed.frontier == 0
    # when: it is started again before the cause is mended
    again = dg.ReexecutionOptions.from_failure(failed.run_id, deployed.instance)
    with dg.execute_job(job, deployed.instance, tags=tags, reexecution_options=again) as failed_again:
        assert not failed_again.success
    assert (deployed.frontier, deployed.materialised()) == (0, [])
    # and once it is
    monkeypatch.setenv("TEST_FAULT", "")
    with dg.execute_job(job, deployed.instance, tags=tags, reexecution_options=again) as done:
        assert done.success
    # then
    assert deployed.frontier == 2
    assert deployed.materialised() == [key]


def test_retry_within_the_run_materialises_and_acks_once(
    tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    tries: list[str] = []

    def recover(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        tries.append(context.run_id)
        if len(tries) < 3:
            raise StorageUnavailable("as the test asked")
        return write_lines(context, Path(lake.url) / "entries")

    source = BufferSource()
    asset = scripted_asset(source, recover, retries=2, retry_seconds=0)
    with deployment(tmp_path / "home", buffer, lake, assets=[asset]) as deployed:
        produce(2)
        (key,) = planned(deployed)
        run = deployed.materialise(key)
        assert run.success
        assert len(tries) == 3
        assert (deployed.materialised(), deployed.frontier) == ([key], 2)
        assert sum("acked sequences" in line for line in told(deployed.instance, run.run_id)) == 1


@pytest.mark.parametrize(("retries", "error"), [(1, StorageUnavailable), (5, RuntimeError)])
def test_retries_end_and_are_for_what_may_pass(
    retries: int, error: type[Exception], tmp_path: Path, buffer: BufferResource, lake: Path, produce: Produce
) -> None:
    tries: list[str] = []

    def fail(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        tries.append(context.run_id)
        raise error("as the test asked")

    asset = scripted_asset(BufferSource(), fail, retries=retries, retry_seconds=0)
    with deployment(tmp_path / "home", buffer, lake, assets=[asset]) as deployed:
        produce(2)
        (key,) = planned(deployed)
        result = deployed.materialise(key)
        assert "as the test asked" in failure_of(result)
        assert (deployed.materialised(), deployed.frontier) == ([], 0)
    assert len(tries) == (2 if error is StorageUnavailable else 1)


def test_run_killed_between_commit_and_materialisation_is_run_again(
    tmp_path: Path, deployed: Deployment, buffer: BufferResource, produce: Produce, lake: Path
) -> None:
    # given: a run that died after it wrote
    produce(2)
    (key,) = planned(deployed)
    variables = location.environment(tmp_path / "home", buffer, lake, "kill")
    done = location.dagster(f"asset materialize --select entries --partition {key}", variables)
    assert done.returncode == -9, done.stderr
    assert len(lines_of(lake)) == 6
    deployed.tick(launch=False)
    assert (deployed.frontier, deployed.materialised()) == (0, [])
    # when: Dagster has noticed
    (died,) = deployed.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    deployed.instance.report_run_failed(died)
    deployed.settle()
    # then
    assert (deployed.frontier, deployed.materialised()) == (2, [key])
    assert len(lines_of(lake)) == 6
