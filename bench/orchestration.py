"""The sensor and the runs: what a tick costs as Dagster's knowledge grows, and where the time of a range goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.events import DagsterEventType
from dagster._core.instance.ref import InstanceRef

from bench.harness import Bench, best_of
from objbuf_dagster.buffer import Consumer, ManifestStore, Producer
from objbuf_dagster.orchestration import (
    BufferResource,
    BufferSource,
    LakeResource,
    Outcome,
    RangeContext,
    SensorSettings,
    buffer_definitions,
    range_asset,
)
from objbuf_dagster.orchestration.cursor import Cursor
from objbuf_dagster.orchestration.materialised import LAST_BATCH, last_batch
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.protocol.range_object import range_path
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.store import LocalStore

ROOT = Path(__file__).parent.parent
_KNOWN = (100, 5_000, 20_000)
_IN_FLIGHT = 3
_LIMITS = Limits(max_batches=1, max_wait=0)
_SENSOR = "buffer_sensor"


def main(quick: bool) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="objbuf-bench-"))
    try:
        kept = _ticks(quick, folder)
        _stages(quick, folder)
        if not quick:  # four Sparks at a time take minutes on a small machine
            _parallel(folder)
        return kept
    finally:
        shutil.rmtree(folder)


def _ticks(quick: bool, folder: Path) -> bool:
    """A tick that plans one range while others run, and one with nothing to do."""
    bench = Bench(quick, rounds=5 if quick else 20)
    known = (100, 2_000) if quick else _KNOWN
    bench.heading(f"a tick, with {', '.join(map(str, known))} ranges known to Dagster")
    with contextlib.ExitStack() as stack:
        homes = {number: stack.enter_context(_home(folder / str(number), number)) for number in known}
        names = {number: f"{number:,} ranges known" for number in known}
        busy = best_of({names[number]: home.busy for number, home in homes.items()}, bench.rounds)
        idle = best_of({names[number]: home.idle for number, home in homes.items()}, bench.rounds)
    first, last = names[known[0]], names[known[-1]]
    kept = True
    for what, times in (("plans a range while three run", busy), ("has nothing to do", idle)):
        for name, seconds in times.items():
            print(f"  {what}, {name:<24} {seconds * 1e3:>8.1f} ms")
        ratio, bound = times[last] / times[first], 6.0 if quick else 3.0
        kept = kept and ratio <= bound
        verdict = "OK" if ratio <= bound else "MISSED"
        print(f"  {what}: {last} takes {ratio:.2f} of at most {bound:g} times {first}  {verdict}", flush=True)
    return kept


@dataclass(frozen=True, slots=True)
class _Home:
    """A deployment with a history, and two moments of it that can be repeated."""

    instance: dg.DagsterInstance
    defs: dg.Definitions
    buffer: BufferResource
    idle_buffer: BufferResource
    cursor: Cursor
    idle_cursor: Cursor
    new: Path

    def busy(self) -> None:
        data = self._evaluate(self.buffer, self.cursor)
        assert [request.partition_key for request in data.run_requests or []] == [_key(self.cursor.next_sequence - 1)]
        self.new.unlink()

    def idle(self) -> None:
        data = self._evaluate(self.idle_buffer, self.idle_cursor)
        assert "nothing to do" in (data.skip_message or "")

    def _evaluate(self, buffer: BufferResource, cursor: Cursor) -> dg.SensorExecutionData:
        sensor = self.defs.resolve_sensor_def(_SENSOR)
        with dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            cursor=cursor.to_text(),
            definitions=self.defs,
            sensor_name=_SENSOR,
            resources={"buffer": buffer},
        ) as context:
            return sensor.evaluate_tick(context)


def _key(sequence: int) -> str:
    return SequenceRange(sequence, sequence).key


@contextlib.contextmanager
def _home(folder: Path, known: int) -> Iterator[_Home]:
    """`known` ranges that the sensor's runs landed; three more in flight, and a batch that waits."""
    source = BufferSource()

    @range_asset(source)
    def entries(context: RangeContext) -> Iterator[Outcome]:
        raise AssertionError(context)

    store = LocalStore(folder / "buffer")
    total = known + _IN_FLIGHT + 1
    _produce(store, total)
    planned = plan(ManifestStore(store), RangeLedger(store), _LIMITS, max_ranges=known + _IN_FLIGHT, dry_run=True)
    (folder / "buffer" / "ingest" / "ranges").mkdir()
    for one in planned:  # without the ledger, which makes sure that each is on the disk
        (folder / "buffer" / range_path("ingest", one.start)).write_bytes(one.to_bytes())
    consumer = Consumer.open(store, gc_interval=None)
    consumer.ack_through(known - 1)
    buffer = BufferResource(url=(folder / "buffer").as_uri())
    defs = buffer_definitions(
        source,
        [entries],
        {"buffer": buffer, "lake": LakeResource(url=str(folder / "lake"))},
        SensorSettings(limits=_LIMITS, max_in_flight=_IN_FLIGHT + 1),
    )
    shutil.copytree(folder / "buffer", folder / "idle")
    idle = BufferResource(url=(folder / "idle").as_uri())
    (folder / "idle" / "ingest" / "ranges" / f"{known + _IN_FLIGHT:020d}").unlink(missing_ok=True)
    plan(ManifestStore(LocalStore(folder / "idle")), RangeLedger(LocalStore(folder / "idle")), _LIMITS)
    Consumer.attach(LocalStore(folder / "idle"), epoch=consumer.epoch).ack_through(total - 1)
    (folder / "home").mkdir()
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(folder / "home"))) as instance:
        _remember(instance, source, planned, known)
        yield _Home(
            instance,
            defs,
            buffer,
            idle,
            Cursor(buffer.identity(), consumer.epoch, total, range_of(planned[-1]), range_of(planned[known])),
            Cursor(idle.identity(), consumer.epoch, total, SequenceRange(total - 1, total - 1), None),
            folder / "buffer" / "ingest" / "ranges" / f"{known + _IN_FLIGHT:020d}",
        )


def _produce(store: LocalStore, batches: int) -> None:
    """That many entries in the manifest, all of one batch's bytes: producing each would take minutes."""
    with Producer(store, compression="zstd") as producer:
        producer.produce([b"x" * 100] * 10, b"meta")
    (entry,) = ManifestStore(store).read().entries()
    body = store.read(entry.location)
    folder = store.root / entry.location.rpartition("/")[0]
    stem = entry.location.rpartition("/")[2]
    locations = [entry.location]
    for number in range(1, batches):
        name = f"{stem[:12]}{number:014d}{stem[26:]}"
        (folder / name).write_bytes(body)
        locations.append(f"{entry.location.rpartition('/')[0]}/{name}")

    def fill(manifest: Manifest, _: bool) -> bool:
        for location in locations[1:]:
            manifest.append(location, entry.metadata)
        return True

    ManifestStore(store, role="producer").update(fill)


def _remember(instance: dg.DagsterInstance, source: BufferSource, planned: list[RangeObject], known: int) -> None:
    """What Dagster would have stored of these ranges: partitions, runs, materialisations.

    The first of each is stored by Dagster, the others are copies of its rows: 20,000 of them would take an hour.
    """
    keys = [range_of(one).key for one in planned]
    for start in range(0, len(keys), 500):
        instance.add_dynamic_partitions(str(source.partitions.name), keys[start : start + 500])
    runs = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(len(keys))]
    instance.run_storage.add_run(_run(runs[0], keys[0], dg.DagsterRunStatus.SUCCESS))
    instance.report_runless_asset_event(
        dg.AssetMaterialization("entries", partition=keys[0], metadata={LAST_BATCH: last_batch(planned[0]), "rows": 10})
    )
    names = [
        {runs[0]: runs[number], keys[0]: keys[number], last_batch(planned[0]): last_batch(planned[number])}
        for number in range(1, known)
    ]
    history = Path(instance.root_directory) / "history"
    _copy_rows(history / "runs.db", "runs", names)
    _copy_rows(history / "runs.db", "run_tags", names)
    _copy_rows(history / "runs" / "index.db", "event_logs", names)
    for number in range(known, len(keys)):
        instance.run_storage.add_run(_run(runs[number], keys[number], dg.DagsterRunStatus.STARTED))


def _run(run_id: str, key: str, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    tags = {"dagster/partition": key, "dagster/sensor_name": _SENSOR, "dagster/run_key": f"{key}:1"}
    return dg.DagsterRun(job_name="land_buffer", run_id=run_id, status=status, tags=tags)


def _copy_rows(database: Path, table: str, names: list[dict[str, str]]) -> None:
    """All rows of a table once more for each of these, under other names."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        found = connection.execute(f"SELECT * FROM {table}")  # noqa: S608  our own three
        columns = [column[0] for column in found.description]
        first = [dict(zip(columns, row, strict=True)) for row in found]
        rows = [[_renamed(value, new) for name, value in row.items() if name != "id"] for new in names for row in first]
        kept = [name for name in columns if name != "id"]
        marks = ", ".join("?" * len(kept))
        connection.executemany(f"INSERT INTO {table} ({', '.join(kept)}) VALUES ({marks})", rows)  # noqa: S608


def _renamed(value: object, names: dict[str, str]) -> object:
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
    return value


def _stages(quick: bool, folder: Path) -> None:
    """From `produce` to the ack, on the real daemon with real runs."""
    bench = Bench(quick, rounds=1)
    bench.heading("from produce to materialised, on a real daemon: seconds")
    repeats = 1 if quick else 3
    with _daemon(folder / "stages", runs=1) as (instance, store):
        for number in range(repeats + 1):
            produced = time.time()
            with Producer(store, compression="zstd") as producer:
                producer.produce([b"x" * 200] * 10_000, b"meta")
            _until(lambda: ManifestStore(store).read().entry_count == 0, 600)
            if number:  # the first one also pays for a cold start
                _print_stages(instance, produced)


def _print_stages(instance: dg.DagsterInstance, produced: float) -> None:
    (record,) = instance.get_run_records(limit=1)
    run = record.dagster_run
    _until(lambda: any(_kind(entry) == "HOOK_COMPLETED" for entry in instance.all_logs(run.run_id)), 120)
    at = {_kind(entry): entry.timestamp for entry in reversed(instance.all_logs(run.run_id))}
    spark = [
        entry.timestamp for entry in instance.all_logs(run.run_id) if "Spark is ready" in (entry.user_message or "")
    ]
    steps = [
        ("until the sensor planned it", produced, record.create_timestamp.timestamp()),
        ("until the queue let it go", record.create_timestamp.timestamp(), at["PIPELINE_STARTING"]),
        ("until its process ran", at["PIPELINE_STARTING"], at["STEP_START"]),
        ("until Spark was ready", at["STEP_START"], spark[0]),
        ("landing, checks, commit", spark[0], at["ASSET_MATERIALIZATION"]),
        ("until it was acked", at["ASSET_MATERIALIZATION"], at["HOOK_COMPLETED"]),
    ]
    for name, start, end in steps:
        print(f"  {name:<46} {end - start:>8.2f}")
    print(f"  {'in all, from produce to materialised':<46} {at['ASSET_MATERIALIZATION'] - produced:>8.2f}", flush=True)


def _kind(entry: dg.EventLogEntry) -> str:
    return str(entry.dagster_event.event_type_value) if entry.dagster_event else ""


def _parallel(folder: Path) -> None:
    bench = Bench(quick=False, rounds=1)
    ranges = 12
    bench.heading(f"{ranges} ranges with 4 runs in parallel, on {os.cpu_count()} cores")
    with _daemon(folder / "parallel", runs=4) as (instance, store):
        for _ in range(ranges):
            with Producer(store, compression="zstd") as producer:
                producer.produce([b"x" * 200] * 10_000, b"meta")
        _until(lambda: ManifestStore(store).read().entry_count == 0, 600)
        records = instance.get_run_records(dg.RunsFilter(job_name="land_buffer"))
        first = min(record.create_timestamp.timestamp() for record in records)
        landed = instance.get_event_records(dg.EventRecordsFilter(DagsterEventType.ASSET_MATERIALIZATION))
        last = max(record.timestamp for record in landed)
        print(f"  {ranges / (last - first) * 60:>8.1f} ranges per minute, {last - first:.1f} s in all", flush=True)


@contextlib.contextmanager
def _daemon(folder: Path, runs: int) -> Iterator[tuple[dg.DagsterInstance, LocalStore]]:
    """The daemon of this repo's pipeline, in processes of its own, with one range per batch and no waiting."""
    home = folder / "home"
    home.mkdir(parents=True)
    settings = (ROOT / "dev" / "dagster.yaml").read_text()
    settings = settings.replace("max_concurrent_runs: 2", f"max_concurrent_runs: {runs}")
    (home / "dagster.yaml").write_text(settings.replace("default_limit: 2", f"default_limit: {runs}"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DAGSTER_HOME": str(home),
        "OBJBUF_BUFFER_URL": (folder / "buffer").as_uri(),
        "OBJBUF_LAKE_URL": (folder / "lake").as_uri(),
        "OBJBUF_MAX_WAIT": "0",
        "OBJBUF_MAX_BATCHES": "1",
        "OBJBUF_MAX_IN_FLIGHT": str(runs),
    }
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(ROOT / "workspace.yaml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home))) as instance:
                yield instance, LocalStore(folder / "buffer")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _until(done: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not done():
        if time.monotonic() > give_up:
            raise TimeoutError(f"not done after {seconds} s")
        time.sleep(0.2)
