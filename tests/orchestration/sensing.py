"""The sensor without a daemon: ticks on an instance in memory, at a time that the test sets, and runs that are records.

For all that needs no code to run. What a tick asks for is done in the daemon's order; a run waits in the queue until
the test says what became of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import dagster as dg
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import PARTITION_NAME_TAG, RUN_KEY_TAG, SENSOR_NAME_TAG

from objbuf_dagster.orchestration import BufferResource, BufferSource, SensorSettings
from objbuf_dagster.orchestration.cursor import Cursor
from objbuf_dagster.orchestration.host import RunHost
from objbuf_dagster.orchestration.materialised import LAST_BATCH, last_batch
from objbuf_dagster.orchestration.runs import run_key
from objbuf_dagster.orchestration.tick import Kept, Tick, TickResult
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import Limits, SequenceRange
from objbuf_dagster.store import MemoryStore, Store
from tests.support.buffers import append, batch_name, put_batch

PAIRS = SensorSettings(limits=Limits(max_batches=2, max_wait=0), retry_seconds=0)
"""Ranges of two batches, and no waiting."""

SENSOR = "buffer_sensor"
ENTRIES = dg.AssetKey("entries")


class StoreResource(BufferResource):
    """A buffer in the store that a test put under its URL, so that the test can count calls or let them fail."""

    def store(self) -> Store:
        return _stores[self.url]


_stores: dict[str, Store] = {}


def buffer_in(store: Store) -> BufferResource:
    """The buffer in this store; the same store again is the same buffer."""
    url = f"memory://test-{id(store)}"
    _stores[url] = store  # for as long as the tests run: an id must not come again
    return StoreResource(url=url)


def _never_runs(name: str) -> dg.AssetsDefinition:
    @dg.asset(name=name)
    def asset() -> None:
        """Its runs are records."""

    return asset


_NAMES = ("entries", "orders", "service_latest")
_DEFS = dg.Definitions(
    assets=[_never_runs(name) for name in _NAMES],
    jobs=[dg.define_asset_job(name, dg.AssetSelection.assets(*_NAMES)) for name in ("land_buffer", "land_orders")],
)
_ORIGIN = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "__repository__"), "land")


@dataclass(slots=True)
class Sensing:
    """One deployment's sensor. `later` is added to the time, in seconds."""

    instance: dg.DagsterInstance
    store: Store
    settings: SensorSettings = PAIRS
    source: BufferSource = field(default_factory=BufferSource)
    cursor: str | None = None
    later: float = 0.0
    kept: Kept = field(default_factory=Kept)
    host: RunHost | None = None
    states: tuple[dg.AssetKey, ...] = ()

    @property
    def buffer(self) -> BufferResource:
        return buffer_in(self.store)

    @property
    def state(self) -> Cursor:
        return Cursor.from_text(self.cursor or "", self.buffer.identity(), SENSOR)

    @property
    def frontier(self) -> int:
        return self.buffer.peek().frontier

    @property
    def partitions(self) -> list[str]:
        return list(self.instance.get_dynamic_partitions(str(self.source.partitions.name)))

    def evaluate(self) -> TickResult:
        """A tick of which Dagster hears nothing, as if the daemon had died in it."""
        tick = Tick(
            self.instance,
            self.source,
            SENSOR,
            self.settings,
            self.buffer,
            self.kept,
            self.host,
            clock=lambda: time.time() + self.later,
            states=self.states,
        )
        return tick.run(self.cursor)

    def tick(self, *, launch: bool = True) -> TickResult:
        outcome = self.evaluate()
        for event in outcome.observations:
            self.instance.report_runless_asset_event(event)
        keys = [one.key for one in outcome.partitions]
        self.instance.add_dynamic_partitions(str(self.source.partitions.name), keys)
        self.cursor = outcome.cursor.to_text()
        if launch:
            for one, attempt in outcome.runs:
                self.queue(one.key, {SENSOR_NAME_TAG: SENSOR, RUN_KEY_TAG: run_key(one, attempt)})
            if late := outcome.catch_up:
                tags = {**late.tags, SENSOR_NAME_TAG: SENSOR, RUN_KEY_TAG: late.run_key}
                self.record(tags, frozenset(late.states))
        return outcome

    def queue(self, key: str, tags: Mapping[str, str]) -> dg.DagsterRun | None:
        """A run for this partition, unless its run key was there before; then Dagster starts none."""
        if RUN_KEY_TAG in tags and self.instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: tags[RUN_KEY_TAG]})):
            return None
        return self.record({PARTITION_NAME_TAG: key, **tags})

    def record(
        self, tags: Mapping[str, str], selection: frozenset[dg.AssetKey] | None = None, job: str | None = None
    ) -> dg.DagsterRun:
        """Of the landing job, or with a selection of the one that all assets have, unless it is of another job."""
        name = self.source.job_name if selection is None else "__ASSET_JOB"
        return self.instance.create_run_for_job(
            _DEFS.resolve_job_def(job or name),
            tags=dict(tags),
            status=dg.DagsterRunStatus.QUEUED,
            asset_selection=selection,
            remote_job_origin=_ORIGIN,
        )

    def fail(self, key: str) -> None:
        """The run of this range that has not ended fails."""
        self.instance.report_run_failed(self._running(key))

    def cancel(self, key: str) -> None:
        self.instance.report_run_canceled(self._running(key))

    def land(self, key: str) -> None:
        """The run of this range materialises it and ends well, but its hook never ran."""
        self.report(key)
        self._happens(dg.DagsterEventType.RUN_SUCCESS, key)

    def begin(self, key: str) -> None:
        """The run of this range leaves the queue."""
        self._happens(dg.DagsterEventType.RUN_START, key)

    def starting(self, key: str) -> None:
        """Dagster has a process started for the run of this range, which has not begun."""
        self._happens(dg.DagsterEventType.RUN_STARTING, key)

    def _happens(self, what: dg.DagsterEventType, key: str) -> None:
        run = self._running(key)
        event = dg.DagsterEvent(what.value, run.job_name, message="as the test asked")
        self.instance.report_dagster_event(event, run.run_id, timestamp=time.time() + self.later)

    def fail_now(self, key: str) -> None:
        """As `fail`, at the time that the test set."""
        self._happens(dg.DagsterEventType.RUN_FAILURE, key)

    def is_running(self, key: str) -> bool:
        runs = self.instance.get_runs(dg.RunsFilter(tags={PARTITION_NAME_TAG: key}))
        return any(not run.is_finished for run in runs)

    def report(self, key: str) -> None:
        """The range is materialised, as a range asset says it."""
        planned = self.buffer.ledger().at(SequenceRange.from_key(key).start)
        self._materialise(key, {LAST_BATCH: last_batch(planned)})

    def mark(self, key: str, asset: str = "entries") -> None:
        """A person reports it as materialised in the UI."""
        self._materialise(key, {}, asset)

    def _materialise(self, key: str, metadata: Mapping[str, str], asset: str = "entries") -> None:
        self.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key, metadata=metadata))

    def _running(self, key: str) -> dg.DagsterRun:
        runs = self.instance.get_runs(dg.RunsFilter(tags={PARTITION_NAME_TAG: key}))
        return next(run for run in runs if not run.is_finished)


@contextmanager
def sensing(store: Store | None = None, settings: SensorSettings = PAIRS) -> Iterator[Sensing]:
    """A deployment with nothing in it, on this store or a new one."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Sensing(instance, store or MemoryStore(), settings)


def produce(store: Store, batches: int = 1, *, size: int = 1, at: float | None = None) -> None:
    """Batches with an entry of so many bytes each, produced at this time, or now."""
    time_ms = int((time.time() if at is None else at) * 1000)
    for _ in range(batches):
        append(store, put_batch(store, batch_name(time_ms), [b"x" * size]), [Metadata(0, time_ms, b"")])


def keys(outcome: TickResult) -> list[str]:
    """What a tick asked to run."""
    return [one.key for one, _ in outcome.runs]


def key(start: int, end: int) -> str:
    return SequenceRange(start, end).key
