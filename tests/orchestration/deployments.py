"""A Dagster deployment in this process: a real instance on disk, real runs, and ticks applied as the daemon does it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.automation_tick_evaluation_context import build_run_requests_with_backfill_policies
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG

from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    RangeFailure,
    RangeResult,
    SensorSettings,
    SparkResource,
    buffer_definitions,
    range_asset,
)
from objbuf_dagster.orchestration.cursor import Cursor
from objbuf_dagster.ranges import Limits, range_of

AT_ONCE = Limits(max_batches=2, max_wait=0)
"""Ranges of two batches, and no waiting for more."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a tick did."""

    sentence: str
    partitions: list[str]
    requests: list[dg.RunRequest]
    observations: list[dg.AssetObservation]
    runs: list[dg.ExecuteInProcessResult]


@dataclass(slots=True)
class Deployment:
    """One DAGSTER_HOME with one code location. The cursor is kept here, as the daemon keeps it in its storage."""

    instance: dg.DagsterInstance
    defs: dg.Definitions
    source: BufferSource
    cursor: str | None = None
    seen: list[Ticked] = field(default_factory=list)

    @property
    def sensor(self) -> dg.SensorDefinition:
        return self.defs.resolve_sensor_def(f"{self.source.name}_sensor")

    @property
    def state(self) -> Cursor:
        assert self.cursor is not None
        return Cursor.from_text(self.cursor, self.buffer.identity(), self.sensor.name)

    @property
    def buffer(self) -> BufferResource:
        found = (self.defs.resources or {})[self.source.name]
        assert isinstance(found, BufferResource)
        return found

    def tick(self, *, launch: bool = True) -> Ticked:
        """Evaluate the sensor and do what it asks for, in the daemon's order: observations, partitions, runs, cursor.

        With `launch=False` the runs are only asked for, as if the daemon had died before it started them.
        """
        with dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            cursor=self.cursor,
            definitions=self.defs,
            sensor_name=self.sensor.name,
            resources={self.source.name: self.buffer},
        ) as context:
            data = self.sensor.evaluate_tick(context)
        observations = [event for event in data.asset_events if isinstance(event, dg.AssetObservation)]
        for event in observations:
            self.instance.report_runless_asset_event(event)
        added: list[str] = []
        for request in data.dynamic_partitions_requests or []:
            assert isinstance(request, dg.AddDynamicPartitionsRequest)
            added += request.partition_keys
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        requests = list(data.run_requests or [])
        runs = [self.launch(request) for request in requests if not self._has_run(request)] if launch else []
        self.cursor = data.cursor
        ticked = Ticked(data.skip_message or "", added, requests, observations, runs)
        self.seen.append(ticked)
        return ticked

    def settle(self, ticks: int = 50) -> None:
        """Tick until nothing is left to do."""
        for _ in range(ticks):
            done = self.tick()
            has_begun = done.sentence.startswith(("took the buffer", "goes on with"))
            if not done.requests and not done.partitions and not has_begun:
                return
        raise AssertionError(f"not settled after {ticks} ticks: {done}")

    def launch(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def(f"land_{self.source.name}").execute_in_process(
            instance=self.instance,
            partition_key=request.partition_key,
            asset_selection=None if request.asset_selection is None else list(request.asset_selection),
            tags={**request.tags, SENSOR_NAME_TAG: self.sensor.name, RUN_KEY_TAG: str(request.run_key)},
            raise_on_error=False,
        )

    def materialise(
        self, key: str, *, tags: Mapping[str, str] | None = None, config: Mapping[str, Any] | None = None
    ) -> dg.ExecuteInProcessResult:
        """What "Materialize" in the UI starts for one partition."""
        return self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance,
            partition_key=key,
            tags=dict(tags or {}),
            run_config=config,
            asset_selection=list(self.source.gates),
            raise_on_error=False,
        )

    def backfill(self, first: str, last: str) -> dg.ExecuteInProcessResult:
        """What a backfill with `BackfillPolicy.single_run` starts: one run for all ranges from one to another."""
        return self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance,
            asset_selection=list(self.source.gates),
            raise_on_error=False,
            tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
        )

    def backfill_by_policy(self, *keys: str) -> list[dg.ExecuteInProcessResult]:
        """What the daemon starts for a backfill of these, as the asset's BackfillPolicy says."""
        with partition_loading_context(dynamic_partitions_store=self.instance):
            asked = build_run_requests_with_backfill_policies(
                [AssetKeyPartitionKey(gate, key) for gate in self.source.gates for key in keys],
                self.defs.resolve_asset_graph(),
                self.instance,
            )
        return [
            self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
                instance=self.instance,
                asset_selection=list(request.asset_selection or []),
                partition_key=request.partition_key,
                tags=dict(request.tags),
                raise_on_error=False,
            )
            for request in sorted(asked, key=lambda request: sorted(request.tags.items()))
        ]

    def materialised(self, asset: str = "entries") -> list[str]:
        """One key per materialisation event, oldest first: a range that materialised twice is there twice."""
        found = self.instance.fetch_materializations(dg.AssetKey(asset), limit=1000, ascending=True)
        return [str(record.partition_key) for record in found.records]

    @property
    def partitions(self) -> list[str]:
        return list(self.instance.get_dynamic_partitions(str(self.source.partitions.name)))

    @property
    def frontier(self) -> int:
        return self.buffer.peek().frontier

    def _has_run(self, request: dg.RunRequest) -> bool:
        tags = {SENSOR_NAME_TAG: self.sensor.name, RUN_KEY_TAG: str(request.run_key)}
        return bool(self.instance.get_runs(dg.RunsFilter(tags=tags), limit=1))


def planned(deployed: Deployment) -> list[str]:
    """Take the buffer over and plan what is there; the runs are left to the test."""
    deployed.tick()
    deployed.tick(launch=False)
    return deployed.partitions


def entries_asset(source: BufferSource, **settings: Any) -> dg.AssetsDefinition:
    """The asset of the README's first example."""
    from objbuf_dagster.lake import CHECKS

    @range_asset(source, checks=CHECKS, **settings)
    def entries(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterator[Outcome]:
        return context.land(spark.session, lake.table("entries"))

    return entries


def plain_asset(source: BufferSource, name: str = "entries", **settings: Any) -> dg.AssetsDefinition:
    """One without Spark, which starts in no time: each entry is a line of a file that is replaced as a whole."""

    @range_asset(source, name=name, **settings)
    def lines(context: RangeContext, lake: LakeResource) -> Iterator[Outcome]:
        return write_lines(context, Path(lake.url) / name)

    return lines


def scripted_asset(
    source: BufferSource,
    script: Callable[[RangeContext, LakeResource], Iterable[Outcome]],
    name: str = "entries",
    **settings: Any,
) -> dg.AssetsDefinition:
    """One whose function is a test's own."""

    @range_asset(source, name=name, **settings)
    def scripted(context: RangeContext, lake: LakeResource) -> Iterable[Outcome]:
        return script(context, lake)

    return scripted


def write_lines(context: RangeContext, folder: Path) -> Iterator[Outcome]:
    """What `plain_asset` does."""
    folder.mkdir(parents=True, exist_ok=True)
    fetcher = context.place.fetcher()
    for planned in context.planned:
        try:
            found = [
                f"{batch.descriptor.sequence}/{index}={entry!r}"
                for batch in planned.batches
                for index, entry in enumerate(fetcher.fetch(batch.descriptor).entries)
            ]
        except ObjbufError as error:
            yield RangeFailure(range_of(planned), error)
            continue
        if not context.dry_run:
            new = folder / f"{range_of(planned)}.{context.run_id}"
            new.write_text("\n".join(found))
            new.rename(folder / f"{range_of(planned)}.txt")
        yield RangeResult(range_of(planned), {"rows": len(found)})


def lines_of(lake: Path, name: str = "entries") -> list[str]:
    """What `plain_asset` has landed, in the order of ranges."""
    return [line for file in sorted((lake / name).glob("*.txt")) for line in file.read_text().splitlines()]


@functools.cache
def _new_home() -> tempfile.TemporaryDirectory[str]:
    """A DAGSTER_HOME in which nothing happened yet, to copy: setting up its databases takes seconds."""
    home = tempfile.TemporaryDirectory()
    Path(home.name, "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(home.name)) as instance:
        instance.get_runs(limit=1)
        instance.get_dynamic_partitions("none")
        instance.all_instigator_state()
    atexit.register(home.cleanup)
    return home


@contextmanager
def deployment(
    home: Path,
    buffer: BufferResource,
    lake: Path | str,
    *,
    source: BufferSource | None = None,
    settings: SensorSettings | None = None,
    assets: Sequence[dg.AssetsDefinition] | None = None,
    **asset_settings: Any,
) -> Iterator[Deployment]:
    """A deployment at `home`, new or as it was left; with a plain asset unless others are given."""
    source = source or BufferSource()
    defs = buffer_definitions(
        source,
        assets or [plain_asset(source, **asset_settings)],
        {source.name: buffer, "lake": LakeResource(url=str(lake)), "spark": SparkResource()},
        settings or SensorSettings(limits=AT_ONCE, retry_seconds=0),
        tables={name: name for name in source.ack_after},
    )
    if not home.exists():
        shutil.copytree(_new_home().name, home)
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home))) as instance:
        yield Deployment(instance, defs, source)


DRY = {"ops": {"entries": {"config": {"dry_run": True}}}}
"""The run config of a dry run."""


def told(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """What a run's log says, in order: messages of our own, and the kinds of Dagster's events."""
    entries = instance.all_logs(run_id)
    return [entry.dagster_event.event_type_value if entry.dagster_event else entry.user_message for entry in entries]


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """Why the run failed, as the UI shows it."""
    return "\n".join(
        str(event.step_failure_data.error_display_string) for event in result.all_events if event.is_step_failure
    )
