"""What a range asset does with what its function says, range by range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, StorageUnavailable
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    RangeFailure,
    RangeResult,
    range_asset,
)
from objbuf_dagster.orchestration.materialised import LAST_BATCH
from objbuf_dagster.ranges import SequenceRange, range_of
from tests.orchestration.conftest import Produce
from tests.orchestration.deployments import (
    Deployment,
    deployment,
    failure_of,
    lines_of,
    scripted_asset,
    told,
    write_lines,
)

Script = Callable[[RangeContext, LakeResource], Iterable[Outcome]]
Scripted = Callable[..., AbstractContextManager[Deployment]]


@pytest.fixture
def scripted(tmp_path: Path, buffer: BufferResource, lake: Path) -> Scripted:
    """A deployment whose asset has this function."""

    def made(script: Script, **settings: Any) -> AbstractContextManager[Deployment]:
        asset = scripted_asset(BufferSource(), script, **settings)
        return deployment(tmp_path / "home", buffer, lake, assets=[asset])

    return made


def planned(deployed: Deployment, produce: Produce, batches: int) -> list[str]:
    produce(batches)
    deployed.tick()
    deployed.tick(launch=False)
    return deployed.partitions


def results(context: RangeContext) -> list[Outcome]:
    return [RangeResult(range_of(one)) for one in context.planned]


# Failures.


def test_batch_that_is_garbage_fails_its_range_and_no_other(
    deployed: Deployment, produce: Produce, lake: Path, buffer: BufferResource
) -> None:
    # given: the third of four ranges has a batch that cannot be read
    keys = planned(deployed, produce, 8)
    bad = buffer.ledger().list()[2].batches[1].descriptor
    buffer.store().put(bad.location, b"garbage")
    # when
    result = deployed.backfill(keys[0], keys[-1])
    # then
    assert not result.success
    for part in ("1 of 4 ranges failed", keys[2], str(bad.sequence), bad.location):
        assert part in failure_of(result)
    assert sorted(deployed.materialised()) == [keys[0], keys[1], keys[3]]
    assert len(lines_of(lake)) == 18
    deployed.tick(launch=False)  # a step that failed has no hook
    assert deployed.frontier == 4


def test_function_that_raises_midway_keeps_what_it_has_done(scripted: Scripted, produce: Produce) -> None:
    def half(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        yield RangeResult(range_of(context.planned[0]), {"rows": 1})
        raise CorruptData("something", "as the test asked")

    with scripted(half) as deployed:
        keys = planned(deployed, produce, 4)
        result = deployed.backfill(*keys)
        assert f"range {keys[1]}" in failure_of(result)
        assert "as the test asked" in failure_of(result)
        assert deployed.materialised() == keys[:1]
        (record,) = deployed.instance.fetch_materializations(dg.AssetKey("entries"), limit=1).records
        assert record.asset_materialization is not None
        assert set(record.asset_materialization.metadata) >= {"rows", LAST_BATCH}


def test_step_that_is_cancelled_keeps_what_it_has_done(scripted: Scripted, produce: Produce) -> None:
    def cancelled(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        yield RangeResult(range_of(context.planned[0]), {"rows": 6})
        raise KeyboardInterrupt

    with scripted(cancelled) as deployed:
        keys = planned(deployed, produce, 4)
        assert not deployed.backfill(*keys).success
        assert deployed.materialised() == keys[:1]
        # and the next tick acks it
        deployed.tick(launch=False)
        assert deployed.frontier == 2


def test_range_without_a_result_has_failed(scripted: Scripted, produce: Produce) -> None:
    with scripted(lambda context, lake: results(context)[1:]) as deployed:
        keys = planned(deployed, produce, 4)
        result = deployed.backfill(*keys)
        assert f"range {keys[0]}: the function of entries gave no result for it" in failure_of(result)
        assert deployed.materialised() == keys[1:]


def test_range_that_was_not_asked_for_is_refused(scripted: Scripted, produce: Produce) -> None:
    with scripted(lambda context, lake: [RangeResult(SequenceRange(7, 9))]) as deployed:
        keys = planned(deployed, produce, 2)
        assert "000000000007-000000000009, which was not asked for" in failure_of(deployed.materialise(*keys))
        assert deployed.materialised() == []


def test_range_that_failed_stays_so_whatever_is_said_later(scripted: Scripted, produce: Produce) -> None:
    def twice(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        yield RangeFailure(range_of(context.planned[0]), CorruptData("something", "as the test asked"))
        yield from results(context)

    with scripted(twice) as deployed:
        (key,) = planned(deployed, produce, 2)
        assert "as the test asked" in failure_of(deployed.materialise(key))
        assert (deployed.materialised(), deployed.frontier) == ([], 0)


def test_function_that_gives_nothing_fails_and_says_so(scripted: Scripted, produce: Produce) -> None:
    with scripted(lambda context, lake: None) as deployed:
        (key,) = planned(deployed, produce, 2)
        assert "'NoneType' object is not iterable" in failure_of(deployed.materialise(key))


def test_error_without_words_is_named(scripted: Scripted, produce: Produce) -> None:
    def fail(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        raise MemoryError

    with scripted(fail) as deployed:
        (key,) = planned(deployed, produce, 2)
        assert f"range {key}: MemoryError" in failure_of(deployed.materialise(key))


def test_retry_that_the_function_asks_for_is_granted(scripted: Scripted, produce: Produce) -> None:
    tries: list[str] = []

    def recover(context: RangeContext, lake: LakeResource) -> Iterable[Outcome]:
        tries.append(context.run_id)
        if len(tries) == 1:
            raise dg.RetryRequested(max_retries=1)
        return results(context)

    with scripted(recover) as deployed:
        (key,) = planned(deployed, produce, 2)
        assert deployed.materialise(key).success
        assert deployed.materialised() == [key]


def test_nothing_is_tried_again_that_a_second_try_cannot_mend(scripted: Scripted, produce: Produce) -> None:
    calls: list[int] = []

    def mixed(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        calls.append(len(context.planned))
        errors = [StorageUnavailable("passing"), CorruptData("it", "for good")]
        for one, error in zip(context.planned, errors, strict=True):
            yield RangeFailure(range_of(one), error)

    with scripted(mixed, retry_seconds=0) as deployed:
        keys = planned(deployed, produce, 4)
        assert "2 of 2 ranges failed" in failure_of(deployed.backfill(*keys))
    assert calls == [2]


def test_expired_range_fails_with_since_when(deployed: Deployment, produce: Produce, lake: Path) -> None:
    # given: acked ranges whose retention is over
    produce(4)
    deployed.settle()
    config = {"ops": {"collect_buffer": {"config": {"retention_seconds": 0.0, "grace_seconds": 0.0}}}}
    collect = deployed.defs.resolve_job_def("collect_buffer_job")
    for _ in range(2):
        assert collect.execute_in_process(instance=deployed.instance, run_config=config).success
    before = lines_of(lake)
    # when
    result = deployed.materialise(deployed.partitions[0])
    # then
    assert "RangeExpired" in failure_of(result)
    assert deployed.partitions[0] in failure_of(result)
    assert "retention" in failure_of(result)
    assert lines_of(lake) == before
    assert len(deployed.materialised()) == 2
    assert deployed.frontier == 4


def test_partition_that_was_never_planned_is_refused(deployed: Deployment, produce: Produce) -> None:
    planned(deployed, produce, 2)
    deployed.instance.add_dynamic_partitions(str(deployed.source.partitions.name), ["000000000100-000000000199"])
    assert "RangeNotPlanned" in failure_of(deployed.materialise("000000000100-000000000199"))


# Settings.


def test_settings_reach_dagster() -> None:
    source = BufferSource("orders", ack_after=["a/b"])

    @range_asset(
        source,
        name="a/b",
        deps=["above"],
        pool="mine",
        backfill_policy=dg.BackfillPolicy.multi_run(7),
        group_name="grouped",
        kinds={"delta"},
        metadata={"owner": "us"},
        tags={"a": "b"},
        code_version="3",
    )
    def asset(context: RangeContext) -> Iterable[Outcome]:
        """Told to people."""
        return []

    key = dg.AssetKey(["a", "b"])
    spec = asset.get_asset_spec(key)
    assert {dep.asset_key for dep in spec.deps} == {dg.AssetKey("above")}
    assert (spec.group_name, spec.code_version, spec.description) == ("grouped", "3", "Told to people.")
    assert (spec.kinds, spec.tags["a"], spec.metadata["owner"]) == ({"delta"}, "b", "us")
    assert asset.op.pool == "mine"
    assert asset.backfill_policy == dg.BackfillPolicy.multi_run(7)
    assert isinstance(asset.partitions_def, dg.DynamicPartitionsDefinition)
    assert asset.partitions_def.name == "orders_ranges"
    assert {hook.name for hook in asset.hook_defs} == {"ack_orders"}


@pytest.mark.parametrize("settings", [{"retries": -1}, {"retry_seconds": -0.1}])
def test_negative_retries_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="must not be negative"):
        range_asset(BufferSource(), **settings)


def test_context_has_what_a_function_needs(scripted: Scripted, produce: Produce, lake: Path) -> None:
    seen: list[tuple[list[str], bool, str]] = []

    def look(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        seen.append(([range_of(one).key for one in context.planned], context.dry_run, context.run_id))
        context.log.info("a word from the function")
        return write_lines(context, Path(lake.url) / "entries")

    with scripted(look) as deployed:
        keys = planned(deployed, produce, 4)
        result = deployed.backfill(*keys)
        assert seen == [(keys, False, result.run_id)]
        assert "a word from the function" in told(deployed.instance, result.run_id)
