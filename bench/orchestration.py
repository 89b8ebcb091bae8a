"""The sensor and the runs: what a tick costs as Dagster's knowledge grows, where the time of a range goes,
and what a range costs for itself and for its bytes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from bench.harness import Bench, best_of
from dev.demo import request
from objbuf_dagster.buffer import Consumer, ManifestStore, Producer
from objbuf_dagster.decode import Envelope, Signal
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
from objbuf_dagster.orchestration.regulation import Memory
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.protocol.range_object import range_path
from objbuf_dagster.ranges import Gate, Limits, RangeLedger, Regulator, SequenceRange, plan, range_of
from objbuf_dagster.store import LocalStore

ROOT = Path(__file__).parent.parent
_KNOWN = (100, 5_000, 20_000)
_IN_FLIGHT = 3
_LIMITS = Limits(max_batches=1, max_wait=0)
_SENSOR = "buffer_sensor"
_REGULATOR = Regulator.of("balanced", expected_room=16.0)
"""That starts a run for what waits, whatever runs beside it."""

_GATE = Gate(pause_above=1.0, resume_below=0.99)
"""That is open on any machine."""


def main(quick: bool) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="objbuf-bench-"))
    try:
        kept = _ticks(quick, folder)
        _stages(quick, folder)
        if not quick:  # four Sparks at a time take minutes on a small machine
            _parallel(folder)
            _one_or_many(folder)
        return kept
    finally:
        shutil.rmtree(folder)


def _ticks(quick: bool, folder: Path) -> bool:
    """A tick that learns from ranges that landed and plans one while others run, and one with nothing to do."""
    bench = Bench(quick, rounds=5 if quick else 20)
    known = (100, 2_000) if quick else _KNOWN
    bench.heading(f"a tick, with {', '.join(map(str, known))} ranges known to Dagster")
    with contextlib.ExitStack() as stack:
        homes = {number: stack.enter_context(_home(folder / str(number), number)) for number in known}
        names = {number: f"{number:,} ranges known" for number in known}
        logging.disable(logging.INFO)  # each tick's sentence
        busy = best_of({names[number]: home.busy for number, home in homes.items()}, bench.rounds)
        idle = best_of({names[number]: home.idle for number, home in homes.items()}, bench.rounds)
        logging.disable(logging.NOTSET)
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
        SensorSettings(regulator=_REGULATOR, gate=_GATE, max_in_flight=_IN_FLIGHT + 1),
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
            Cursor(
                buffer.identity(),
                consumer.epoch,
                total,
                range_of(planned[-1]),
                range_of(planned[known]),
                # three of them landed since the last look, and the last one was cut long ago: the next one is due
                regulation=replace(Memory().with_planned(planned[known - 3 :]), cut_ms=0),
            ),
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
            _send(store, number)
            _until(lambda: ManifestStore(store).read().entry_count == 0, 600)
            if number:  # the first one also pays for a cold start
                _print_stages(instance, produced)


def _send(store: LocalStore, number: int, requests: int = 100) -> None:
    """A batch of requests of 100 log records each, as the OpenTelemetry Collector's exporter writes it."""
    with Producer(store, compression="zstd") as producer:
        first = number * requests
        records = (range((first + one) * 100, (first + one + 1) * 100) for one in range(requests))
        producer.produce([request(some, "bench", 0, time.time()) for some in records], Envelope(Signal.LOGS).to_bytes())


def _print_stages(instance: dg.DagsterInstance, produced: float) -> None:
    (record,) = instance.get_run_records(limit=1)
    run = record.dagster_run
    _until(lambda: instance.get_runs_count(dg.RunsFilter([run.run_id], statuses=NOT_FINISHED_STATUSES)) == 0, 120)
    logs = instance.all_logs(run.run_id)
    at = {_what(entry): entry.timestamp for entry in reversed(logs)}  # the first of each
    spark = next(entry.timestamp for entry in logs if "Spark is ready" in (entry.user_message or ""))
    created = record.create_timestamp.timestamp()
    entries, decoded = at["entries", "ASSET_MATERIALIZATION"], at["otel_logs", "ASSET_MATERIALIZATION"]
    steps = [
        ("until the sensor planned it", produced, created),
        ("until the queue let it go", created, at["", "PIPELINE_STARTING"]),
        ("until its process ran", at["", "PIPELINE_STARTING"], at["entries", "STEP_START"]),
        ("until Spark was ready", at["entries", "STEP_START"], spark),
        ("landing, checks, commit of entries", spark, entries),
        ("decoding, checks, commit of otel_logs", entries, decoded),
        ("until it was acked", decoded, at["otel_logs", "HOOK_COMPLETED"]),
        ("service_latest, and until the process ended", at["otel_logs", "HOOK_COMPLETED"], at["", "PIPELINE_SUCCESS"]),
    ]
    for name, start, end in steps:
        print(f"  {name:<46} {end - start:>8.2f}")
    print(f"  {'in all, from produce to entries materialised':<46} {entries - produced:>8.2f}")
    print(f"  {'in all, from produce to ack':<46} {at['otel_logs', 'HOOK_COMPLETED'] - produced:>8.2f}", flush=True)


def _what(entry: dg.EventLogEntry) -> tuple[str, str]:
    event = entry.dagster_event
    return (event.step_key or "", str(event.event_type_value)) if event else ("", "")


def _parallel(folder: Path) -> None:
    bench = Bench(quick=False, rounds=1)
    ranges = 12
    bench.heading(f"{ranges} ranges with 4 runs in parallel, on {os.cpu_count()} cores")
    with _daemon(folder / "parallel", runs=4) as (instance, store):
        for number in range(ranges):
            _send(store, number)
        _until(lambda: ManifestStore(store).read().entry_count == 0, 600)
        _until(lambda: not instance.get_runs_count(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)), 120)
        records = instance.get_run_records(dg.RunsFilter(job_name="land_buffer"))
        first = min(record.create_timestamp.timestamp() for record in records)
        last = max(record.end_time or 0.0 for record in records)
        print(f"  {ranges / (last - first) * 60:>8.1f} ranges per minute, {last - first:.1f} s in all", flush=True)


def _one_or_many(folder: Path, parts: int = 8, requests: int = 2_000) -> None:
    """The same bytes as one range and as several, one run at a time: is growing or shrinking right when behind?

    A range costs a fixed time and time for each byte, which is what the regulator learns, too.
    """
    Bench(quick=False, rounds=1).heading(f"the same {parts} batches as one range and as {parts}, a run at a time")
    seconds: dict[int, list[float]] = {}
    size = 0
    for per_range in (parts, 1):
        with _daemon(folder / f"parts-{per_range}", runs=1, batches=per_range) as (instance, store):
            for number in range(per_range):  # a range that pays for a cold start
                _send(store, number, requests=1)
            _until(lambda store=store: ManifestStore(store).read().frontier > 0, 600)  # type: ignore[misc]
            for number in range(parts):
                _send(store, number, requests)
            size = sum(store.head(entry.location).size for entry in ManifestStore(store).read().entries())
            _until(lambda store=store: ManifestStore(store).read().entry_count == 0, 1800)  # type: ignore[misc]
            _until(lambda: not instance.get_runs_count(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)), 120)
            records = instance.get_run_records(dg.RunsFilter(job_name="land_buffer"), ascending=True)[1:]
            seconds[per_range] = [(record.end_time or 0.0) - (record.start_time or 0.0) for record in records]
            assert len(records) == parts // per_range, "ranges were cut elsewhere"
    (one,), many = seconds[parts], seconds[1]
    per_byte = (one - sum(many) / parts) / (size - size / parts)
    print(f"  {size / 1e6:.1f} MB: one range takes {one:.1f} s, {parts} ranges {sum(many):.1f} s in all")
    print(f"  {parts} ranges take {sum(many) / one:.2f} times as long as one")
    fixed = one - per_byte * size
    print(f"  a range costs {fixed:.1f} s and {per_byte * 1e6:.3f} s for each MB", flush=True)


@contextlib.contextmanager
def _daemon(folder: Path, runs: int, batches: int = 1) -> Iterator[tuple[dg.DagsterInstance, LocalStore]]:
    """The daemon of this repo's pipeline, in processes of its own, with so many batches in every range."""
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
        "OBJBUF_MAX_WAIT": "3600",  # a range is full before
        "OBJBUF_MAX_BATCHES": str(batches),
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
