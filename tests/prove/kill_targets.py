"""What there is to kill, each at a moment of its life, and the deployment that it is a part of."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.home import fail_lost_runs
from objbuf_dagster.buffer import BufferPlace, ManifestStore
from objbuf_dagster.buffer.sightings import Sightings, uptime
from objbuf_dagster.errors import NotFound
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import LocalStore
from tests.dev.launches import CODE, environment
from tests.e2e.deployment import SETTINGS, Deployment
from tests.e2e.producing import CALLS_PER_SECOND, durable, sent, start
from tests.e2e.running import is_jvm, is_run, running
from tests.prove.proof import Proof
from tests.spark.processes import descendants, is_alive, wait_until
from tests.support.buffers import batch_name

_LOOK_SECONDS = 0.002
"""Between two looks for a moment that lasts for milliseconds."""

_RUNS_SECONDS = 0.5
"""Between two looks for the processes that are then to be killed."""

_AFTER_SECONDS = 0.05
"""At most, from a moment to the kill."""

_LITTER = 3_000
"""Batches that nobody names: collecting them takes long enough to be killed in between."""

_GRACE_SECONDS = 600.0
_RETENTION_SECONDS = 60.0
_DAY = 24 * 3600.0

_PRODUCERS = 2
_CALLS = 25
"""Of each producer in a round, over some seconds: a range or two, so that a round takes no longer than it must."""


@dataclass(slots=True)
class Stage:
    """The deployment, its producers, and what is known of them."""

    deployed: Deployment
    producers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    waiting: list[tuple[Path, subprocess.Popen[bytes]]] = field(default_factory=list)
    """Producers that are ready, with their ledgers: they wait for their gate, and have written nothing."""
    landed: int = 0
    frontiers: list[tuple[float, int]] = field(default_factory=list)
    """Where the frontier was, and when, by a clock that never jumps."""
    haste: float = 1.0
    """Lives last as long as the machine is slow. Whoever missed one waits for half as long the next time."""

    def prepare(self) -> None:
        """Have producers ready for the next time: to start takes them seconds."""
        if self.waiting:
            return
        begun = len(self.deployed.ledgers)
        for ledger in [self.deployed.place / f"producer-{begun + one}" for one in range(_PRODUCERS)]:
            url = self.deployed.dagster.buffer.as_uri()
            started = start(url, ledger, _CALLS, CALLS_PER_SECOND, 0, self._gate(ledger))
            self.waiting.append((ledger, started))

    def produce(self) -> None:
        """Let producers begin, and return when they produce."""
        self.prepare()
        self.note_frontier()
        ready, self.waiting = self.waiting, []
        self.producers += [process for _, process in ready]
        self.deployed.ledgers += [ledger for ledger, _ in ready]
        for ledger, _ in ready:
            self._gate(ledger).touch()
        wait_until(lambda: all(ledger.exists() for ledger, _ in ready), seconds=300)

    def _gate(self, ledger: Path) -> Path:
        return ledger.with_suffix(".gate")

    def first(self, what: str, found: Callable[[str], bool]) -> int:
        """A process of the deployment with such a command line, as soon as there is one."""
        dagster = self.deployed.dagster
        there: list[int] = []

        def look() -> bool:
            there[:] = [pid for pid, line in dagster.left().items() if found(line)]
            return bool(there)

        dagster.wait_until(f"there is {what}", look)
        return there[0]

    def landing(self, chance: random.Random) -> int:
        """Every other time, a run that has just begun to land: half of a run's life is its start. Else 0."""
        found = self.deployed.dagster.wait_until_a_run_lands() if chance.random() < 0.5 else []
        return found[0] if found else 0  # it may be over already

    def wait(self, chance: random.Random, most: float) -> None:
        """Let a life go on for up to so many seconds."""
        time.sleep(chance.uniform(0, most) / self.haste)

    def kill_runs_when(self, chance: random.Random, moment: Callable[[], object]) -> bool:
        """Kill what runs as the moment has come, or some milliseconds later: all runs, as nobody knows whose it was.

        False if none was left: between two looks it may be over, on a machine that is slow at the wrong time.
        """
        self.first("a run", is_run)
        deadline = time.monotonic() + 300
        runs: list[int] = []
        seen = 0.0
        while not moment():
            assert time.monotonic() < deadline, "the moment never came"
            if time.monotonic() - seen > _RUNS_SECONDS:
                runs, seen = self.runs(), time.monotonic()
            time.sleep(_LOOK_SECONDS)
        self.wait(chance, _AFTER_SECONDS)
        return kill(*runs) > 0

    def note_frontier(self) -> None:
        # The time first: what is acked in between shall not count as acked earlier.
        self.frontiers.append((time.monotonic(), self.deployed.dagster.frontier))

    def assert_nothing_expired_early(self) -> None:
        """Whatever the collector's notes say of when it was: what was not acked a retention ago cannot have expired."""
        self.note_frontier()
        since = self.frontiers[-1][0] - _RETENTION_SECONDS
        expired_before = RangeLedger(LocalStore(self.deployed.dagster.buffer)).retention().expired_before
        not_acked_then = next(frontier for at, frontier in self.frontiers if at >= since)
        assert expired_before <= not_acked_then, "it expired before its retention was over"

    def is_behind(self) -> bool:
        """Whether something is not acked: a kill with nothing at stake shows nothing."""
        return self.deployed.dagster.frontier < self.deployed.dagster.next_sequence

    def runs(self) -> list[int]:
        """The processes of those that go on."""
        return [pid for pid, line in self.deployed.dagster.left().items() if is_run(line)]

    def committed(self) -> set[int]:
        """The sequences in the table."""
        return set(self._column("entries", "_odb_sequence"))

    def ranges_in(self, table: str) -> set[str]:
        """Those that it has rows of."""
        return set(self._column(table, "_odb_range"))

    def _column(self, table: str, name: str) -> list[Any]:
        with contextlib.suppress(NotFound):
            delta = LakeTable(self.deployed.dagster.lake / table, None).delta()
            found: list[Any] = delta.to_pyarrow_table(columns=[name])[name].to_pylist()
            return found
        return []

    def materialised(self, asset: str = "entries") -> set[int]:
        """The sequences of materialised ranges."""
        ranges = map(SequenceRange.from_key, self.deployed.dagster.materialised(asset))
        return {sequence for one in ranges for sequence in range(one.start, one.end + 1)}

    def recover(self) -> None:
        """Let producers end, start Dagster again if it ended, and wait until all is landed and acked."""
        for producer in self.producers:
            producer.terminate()
        for producer in self.producers:
            assert producer.wait(300) in {0, -signal.SIGKILL}
        self.producers.clear()
        dagster = self.deployed.dagster
        if not dagster.is_running:
            fail_lost_runs(dagster.home)  # as `make dev` does
            dagster.start()
        self.prepare()
        self.deployed.settle()

    def compare(self, proof: Proof) -> None:
        """Hold the table, the frontier and the buffer against what producers were told."""
        ledgers = self.deployed.ledgers
        assert any(map(durable, ledgers[-_PRODUCERS:])), "no producer was told of anything, so nothing was at stake"
        rows = self.deployed.rows()
        self.landed = len(rows)
        proof.compare(
            (entry for ledger in ledgers for entry in durable(ledger)),
            {text for ledger in ledgers for text in sent(ledger)},
            rows,
        )
        dagster = self.deployed.dagster
        self.deployed.assert_settled()
        self.deployed.assert_in_order()
        assert {sequence for sequence, _, _ in rows} == set(range(dagster.frontier))
        assert missing_batches(dagster.buffer) == []
        self.assert_nothing_expired_early()


def named_batches(buffer: Path) -> set[str]:
    """What a manifest entry or a retained range names."""
    store = LocalStore(buffer)
    named = {entry.location for entry in ManifestStore(store).read().entries()}
    return named | {one.descriptor.location for planned in _retained(store) for one in planned.batches}


def missing_batches(buffer: Path) -> list[str]:
    """What is named and is not there: nothing, or something was lost."""
    return sorted(named_batches(buffer) - {info.path for info in LocalStore(buffer).list("ingest")})


def _retained(store: LocalStore) -> list[RangeObject]:
    ledger = RangeLedger(store)
    expired = ledger.retention().expired_before
    return [planned for planned in ledger.list() if planned.end >= expired]


@contextlib.contextmanager
def deployed(folder: Path, max_wait: str) -> Iterator[Stage]:
    with running(folder, **{**SETTINGS, "OBJBUF_MAX_WAIT": max_wait, "OBJBUF_MAX_BATCHES": "100"}) as dagster:
        stage = Stage(Deployment(dagster, folder))
        try:
            yield stage
        finally:
            for producer in (*stage.producers, *(process for _, process in stage.waiting)):
                producer.kill()
                producer.wait()


def kill(*pids: int) -> int:
    """How many of them were there."""
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def _producer(stage: Stage, chance: random.Random) -> bool:
    stage.produce()
    time.sleep(chance.uniform(0.1, 3))
    return kill(stage.producers[0].pid) == 1


def _daemon(stage: Stage, chance: random.Random) -> bool:
    """While a run goes on, and something is not acked."""
    dagster = stage.deployed.dagster
    stage.produce()
    stage.first("a run", is_run)
    stage.wait(chance, 8)
    is_behind = stage.is_behind() and bool(stage.runs())
    killed = kill(dagster.daemon())
    dagster.wait_until_it_ended()
    return is_behind and killed == 1


def _code_server(stage: Stage, chance: random.Random) -> bool:
    """`dagster dev` goes on without it, and nothing works any more: a person ends it, and starts it again."""
    stage.produce()
    stage.wait(chance, 12)
    is_behind = stage.is_behind()
    killed = kill(stage.first("a code server", lambda line: "dagster api grpc" in line))
    stage.deployed.dagster.stop()
    return is_behind and killed == 1


def _everything(stage: Stage, chance: random.Random) -> bool:
    """All processes of the deployment at once; not the machine: what they had written stays written."""
    stage.produce()
    stage.wait(chance, 20)
    is_behind = stage.is_behind()
    kill(*stage.deployed.dagster.left())
    stage.deployed.dagster.wait_until_it_ended()
    return is_behind


def _run(stage: Stage, chance: random.Random) -> bool:
    """While something is not acked, as the next two."""
    stage.produce()
    lands = stage.landing(chance)
    found = lands or stage.first("a run", is_run)
    stage.wait(chance, 4 if lands else 10)
    below = descendants(found)
    is_behind = stage.is_behind()
    killed = kill(found) if found in stage.deployed.dagster.left() else 0
    wait_until(lambda: not any(map(is_alive, below)), seconds=300)  # its JVM and workers among them
    return is_behind and killed == 1


def _jvm(stage: Stage, chance: random.Random) -> bool:
    stage.produce()
    run = stage.landing(chance)
    below = [pid for pid, line in descendants(run).items() if is_jvm(line)] if run else []
    found = below[0] if below else stage.first("a JVM", is_jvm)
    stage.wait(chance, 6)
    return stage.is_behind() and found in stage.deployed.dagster.left() and kill(found) == 1


def _worker(stage: Stage, chance: random.Random) -> bool:
    """Python's processes for Spark's tasks."""
    stage.produce()
    found = stage.first("a worker", lambda line: "pyspark.daemon" in line)
    stage.wait(chance, 0.3)
    return stage.is_behind() and found in stage.deployed.dagster.left() and kill(*descendants(found), found) > 0


def _written(stage: Stage, chance: random.Random) -> bool:
    """From the first data file on: while tasks write, while the driver commits."""
    before = stage.committed()
    lake = stage.deployed.dagster.lake
    files = len(list(lake.rglob("*.parquet")))
    stage.produce()
    killed = stage.kill_runs_when(chance, lambda: len(list(lake.rglob("*.parquet"))) > files)
    return killed and stage.committed() == before


def _committed(stage: Stage, chance: random.Random) -> bool:
    return _grown(stage, chance, "entries") and stage.committed() > stage.materialised()


def _kept(stage: Stage, chance: random.Random) -> bool:
    """Dead letters are kept, and the rows of their range are not there yet."""
    killed = _grown(stage, chance, "dead_letters")
    without_rows = stage.ranges_in("dead_letters") - stage.ranges_in("otel_logs")
    return killed and bool(without_rows.difference(stage.deployed.dagster.materialised("otel_logs")))


def _decoded(stage: Stage, chance: random.Random) -> bool:
    return _grown(stage, chance, "otel_logs") and max(stage.committed()) >= stage.deployed.dagster.frontier


def _grown(stage: Stage, chance: random.Random, table: str) -> bool:
    log = stage.deployed.dagster.lake / table / "_delta_log"
    commits = len(list(log.glob("*.json")))
    stage.produce()
    return stage.kill_runs_when(chance, lambda: len(list(log.glob("*.json"))) > commits)


def _materialised(stage: Stage, chance: random.Random) -> bool:
    dagster = stage.deployed.dagster
    index = dagster.home / "history" / "runs" / "index.db"
    with contextlib.closing(sqlite3.connect(f"{index.as_uri()}?mode=ro", uri=True, timeout=60)) as events:

        def count() -> int:
            query = (
                "SELECT COUNT(*) FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION' AND asset_key = ?"
            )
            found: int = events.execute(query, ['["otel_logs"]']).fetchone()[0]
            return found

        before = count()
        stage.produce()
        killed = stage.kill_runs_when(chance, lambda: count() > before)
    return killed and max(stage.materialised("otel_logs"), default=-1) >= dagster.frontier


def _collector(stage: Stage, chance: random.Random) -> bool:
    """A pass over a buffer in use, killed as batches go; then another that ends. What is named is all there."""
    dagster = stage.deployed.dagster
    buffer = dagster.buffer
    litter = [batch_name(number) for number in range(_LITTER)]
    yesterday = time.time() - _DAY
    for path in litter:
        (buffer / path).write_bytes(b"nobody names it")
        os.utime(buffer / path, (yesterday, yesterday))
    seen = Sightings(dict.fromkeys(litter, uptime() - _DAY))  # by an earlier pass
    LocalStore(buffer).put("ingest/ranges/clock", seen.to_bytes())
    stage.produce()
    stage.first("a run", is_run)
    command = [sys.executable, "-m", "objbuf_dagster.cli", "gc", buffer.as_uri(), "--yes"]
    command += ["--grace", str(_GRACE_SECONDS), "--retention", str(_RETENTION_SECONDS)]
    stage.note_frontier()
    with subprocess.Popen(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL) as collecting:
        try:
            wait_until(
                lambda: collecting.poll() is not None or not (buffer / litter[0]).exists(), seconds=300, every=0.001
            )
            stage.wait(chance, _AFTER_SECONDS)
        finally:
            collecting.kill()
    killed = collecting.returncode == -signal.SIGKILL and any((buffer / one).exists() for one in litter)
    assert named_batches(buffer), "there was nothing that might have been deleted"
    assert missing_batches(buffer) == []
    stage.assert_nothing_expired_early()
    subprocess.run(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL, check=True, timeout=300)
    assert missing_batches(buffer) == []
    stage.assert_nothing_expired_early()
    assert not any((buffer / one).exists() for one in litter), "what nobody names is still there"
    fetcher = BufferPlace(LocalStore(buffer)).fetcher()
    for planned in _retained(LocalStore(buffer)):
        for one in planned.batches:
            assert fetcher.fetch(one.descriptor).entries
    return killed


TARGETS: dict[str, Callable[[Stage, random.Random], bool]] = {
    "a producer": _producer,
    "the daemon": _daemon,
    "the code server": _code_server,
    "everything at once": _everything,
    "a run": _run,
    "Spark's JVM": _jvm,
    "Spark's Python": _worker,
    "a run that writes": _written,
    "a run that committed": _committed,
    "a run that kept dead letters": _kept,
    "a run that decoded": _decoded,
    "a run that materialised": _materialised,
    "garbage collection": _collector,
}
