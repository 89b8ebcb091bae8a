"""Kill -9, anything, at any moment: the real deployment is restarted, settles, and has every durable entry once.

Each round starts producers, waits for a moment of its target's life, kills it, lets the producers end, starts again
what ended, waits until all is landed and acked, and compares the table with what the producers were told.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dev.home import fail_lost_runs
from objbuf_dagster.buffer import ManifestStore
from objbuf_dagster.errors import NotFound
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import LocalStore
from tests.dev.launches import CODE, environment
from tests.e2e.deployment import SETTINGS, Deployment
from tests.e2e.producing import durable, sent, start
from tests.e2e.running import is_jvm, is_run, running
from tests.prove.proof import Proof, Size, timed
from tests.spark.processes import descendants, is_alive, wait_until
from tests.support.buffers import batch_name

_LOOK_SECONDS = 0.002
"""Between two looks for a moment that lasts for milliseconds."""

_RUNS_SECONDS = 0.5
"""Between two looks for the processes that are then to be killed."""

_ATTEMPTS = 5
"""At the moment of a target's life that is meant."""

_LITTER = 3_000
"""Batches that nobody names: collecting them takes long enough to be killed in between."""

_PRODUCERS = 2
_CALLS = 25
"""Of each producer in a round, over some seconds: a range or two, so that a round takes no longer than it must."""


def prove(size: Size) -> Iterator[Proof]:
    proof = Proof("kill -9, then restart, settle and compare", "kills")
    targets = _targets(size)
    with timed(proof), tempfile.TemporaryDirectory(prefix="objbuf-kills-") as folder, _stage(Path(folder)) as stage:
        for number, target in enumerate(targets, 1):
            started = time.monotonic()
            for attempt in range(1, _ATTEMPTS + 1):
                hit = TARGETS[target](stage, size.chance("kill", number, attempt))
                stage.recover()
                stage.compare(proof)
                if hit or proof.lost or proof.doubled or proof.invented:
                    break  # else it was over before its moment came
            assert hit, f"{target}: missed {_ATTEMPTS} times"
            proof.tried += 1
            seconds = time.monotonic() - started
            print(f"    {number} of {len(targets)}: {target}; {stage.landed:,} rows, {seconds:.0f} s", flush=True)
            if not proof.holds:
                break  # the first kill that breaks a promise is the one to look at
        proof.notes.append(", ".join(f"{target} {times}" for target, times in sorted(Counter(targets).items())))
        proof.notes.append(f"{stage.landed:,} rows at the end")
    yield proof


def _targets(size: Size) -> list[str]:
    """Each target once, or 200 in turns of all; every turn in an order of its own."""
    wanted = size.pick(len(TARGETS), 200)
    drawn: list[str] = []
    while len(drawn) < wanted:
        turn = sorted(TARGETS)
        size.chance("turn", len(drawn)).shuffle(turn)
        drawn += turn
    return drawn[:wanted]


@dataclass(slots=True)
class Stage:
    """The deployment, its producers, and what is known of them."""

    deployed: Deployment
    producers: list[subprocess.Popen[bytes]]
    landed: int = 0
    haste: float = 1.0
    """Lives last as long as the machine is slow. Whoever missed one waits for half as long the next time."""

    def produce(self) -> None:
        """Start producers, and return when they produce."""
        begun = len(self.deployed.ledgers)
        new = [self.deployed.place / f"producer-{begun + one}" for one in range(_PRODUCERS)]
        self.producers += [start(self.deployed.dagster.buffer.as_uri(), ledger, _CALLS) for ledger in new]
        self.deployed.ledgers += new
        wait_until(lambda: all(ledger.exists() for ledger in new), seconds=300)

    def first(self, what: str, found: Callable[[str], bool]) -> int:
        """A process of the deployment with such a command line, as soon as there is one."""
        dagster = self.deployed.dagster
        there: list[int] = []

        def look() -> bool:
            there[:] = [pid for pid, line in dagster.left().items() if found(line)]
            return bool(there)

        dagster.wait_until(f"there is {what}", look)
        return there[0]

    def wait(self, chance: random.Random, most: float) -> None:
        """Let a life go on for up to so many seconds."""
        time.sleep(chance.uniform(0, most) / self.haste)

    def kill_runs_when(self, moment: Callable[[], object]) -> bool:
        """Kill what runs as soon as the moment has come: all runs, since nobody knows whose it was.

        False if none was left: between two looks it may be over, on a machine that is slow at the wrong time.
        """
        self.first("a run", is_run)
        deadline = time.monotonic() + 300
        runs: list[int] = []
        seen = 0.0
        while not moment():
            assert time.monotonic() < deadline, "the moment never came"
            if time.monotonic() - seen > _RUNS_SECONDS:
                runs, seen = self._runs(), time.monotonic()
            time.sleep(_LOOK_SECONDS)
        return kill(*runs) > 0

    def _runs(self) -> list[int]:
        return [pid for pid, line in self.deployed.dagster.left().items() if is_run(line)]

    def committed(self) -> set[int]:
        """The sequences in the table."""
        with contextlib.suppress(NotFound):
            entries = LakeTable(self.deployed.dagster.lake / "entries").delta()
            return set(entries.to_pyarrow_table(columns=["_odb_sequence"])["_odb_sequence"].to_pylist())
        return set()

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
        self.deployed.settle()

    def compare(self, proof: Proof) -> None:
        """Hold the table, the frontier and the buffer against what producers were told."""
        ledgers = self.deployed.ledgers
        rows = self.deployed.rows()
        self.landed = len(rows)
        proof.compare(
            (entry for ledger in ledgers for entry in durable(ledger)),
            {text for ledger in ledgers for text in sent(ledger)},
            rows,
        )
        dagster = self.deployed.dagster
        self.deployed.assert_settled()
        assert {sequence for sequence, _, _ in rows} == set(range(dagster.frontier))
        assert missing_batches(dagster.buffer) == []


def missing_batches(buffer: Path) -> list[str]:
    """What a manifest entry or a retained range names and is not there: nothing, or something was lost."""
    store = LocalStore(buffer)
    ledger = RangeLedger(store)
    expired = ledger.retention().expired_before
    named = {entry.location for entry in ManifestStore(store).read().entries()}
    named |= {one.descriptor.location for planned in ledger.list() if planned.end >= expired for one in planned.batches}
    return sorted(named - {info.path for info in store.list("ingest")})


@contextlib.contextmanager
def _stage(folder: Path) -> Iterator[Stage]:
    with running(folder, **{**SETTINGS, "OBJBUF_MAX_WAIT": "1", "OBJBUF_MAX_BATCHES": "100"}) as dagster:
        stage = Stage(Deployment(dagster, folder), [])
        try:
            yield stage
        finally:
            for producer in stage.producers:
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
    time.sleep(chance.uniform(0.5, 4))
    return kill(stage.producers[0].pid) == 1


def _daemon(stage: Stage, chance: random.Random) -> bool:
    stage.produce()
    time.sleep(chance.uniform(0, 12))
    kill(stage.deployed.dagster.daemon())
    stage.deployed.dagster.wait_until_it_ended()
    return True


def _code_server(stage: Stage, chance: random.Random) -> bool:
    """`dagster dev` goes on without it, and nothing works any more: a person ends it, and starts it again."""
    stage.produce()
    time.sleep(chance.uniform(0, 12))
    killed = kill(stage.first("a code server", lambda line: "dagster api grpc" in line))
    stage.deployed.dagster.stop()
    return killed == 1


def _everything(stage: Stage, chance: random.Random) -> bool:
    """As if the machine lost its power."""
    stage.produce()
    time.sleep(chance.uniform(2, 20))
    kill(*stage.deployed.dagster.left())
    stage.deployed.dagster.wait_until_it_ended()
    return True


def _run(stage: Stage, chance: random.Random) -> bool:
    stage.produce()
    found = stage.first("a run", is_run)
    stage.wait(chance, 10)
    below = descendants(found)
    killed = kill(found) if found in stage.deployed.dagster.left() else 0
    wait_until(lambda: not any(map(is_alive, below)), seconds=300)  # its JVM and workers among them
    return killed == 1


def _jvm(stage: Stage, chance: random.Random) -> bool:
    stage.produce()
    found = stage.first("a JVM", is_jvm)
    stage.wait(chance, 6)
    return found in stage.deployed.dagster.left() and kill(found) == 1


def _worker(stage: Stage, chance: random.Random) -> bool:
    """Python's processes for Spark's tasks."""
    stage.produce()
    found = stage.first("a worker", lambda line: "pyspark.daemon" in line)
    stage.wait(chance, 0.3)
    return found in stage.deployed.dagster.left() and kill(*descendants(found), found) > 0


def _written(stage: Stage, chance: random.Random) -> bool:
    """From the first data file on: while tasks write, while the driver commits."""
    before = stage.committed()
    lake = stage.deployed.dagster.lake
    files = len(list(lake.rglob("*.parquet")))
    stage.produce()
    killed = stage.kill_runs_when(lambda: len(list(lake.rglob("*.parquet"))) > files)
    return killed and stage.committed() == before


def _committed(stage: Stage, chance: random.Random) -> bool:
    return _grown(stage, "entries") and stage.committed() > stage.materialised()


def _kept(stage: Stage, chance: random.Random) -> bool:
    """Dead letters are kept, and the rows of their range are not there yet, or just so."""
    return _grown(stage, "dead_letters")


def _decoded(stage: Stage, chance: random.Random) -> bool:
    return _grown(stage, "otel_logs") and max(stage.committed()) >= stage.deployed.dagster.frontier


def _grown(stage: Stage, table: str) -> bool:
    log = stage.deployed.dagster.lake / table / "_delta_log"
    commits = len(list(log.glob("*.json")))
    stage.produce()
    return stage.kill_runs_when(lambda: len(list(log.glob("*.json"))) > commits)


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
        killed = stage.kill_runs_when(lambda: count() > before)
    return killed and max(stage.materialised("otel_logs"), default=-1) >= dagster.frontier


def _collector(stage: Stage, chance: random.Random) -> bool:
    """A pass that lets everything acked expire, killed as soon as batches go; then another that ends."""
    stage.recover()  # nobody produces meanwhile: a grace of no seconds is not for buffers in use
    buffer = stage.deployed.dagster.buffer
    litter = [batch_name(number) for number in range(_LITTER)]
    for path in litter:
        (buffer / path).write_bytes(b"nobody names it")
    command = [sys.executable, "-m", "objbuf_dagster.cli", "gc", buffer.as_uri()]
    command += ["--grace", "0", "--retention", "0", "--yes"]
    collecting = subprocess.Popen(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL)
    wait_until(lambda: collecting.poll() is not None or not (buffer / litter[0]).exists(), seconds=300, every=0.001)
    collecting.kill()
    killed = collecting.wait() == -signal.SIGKILL
    assert missing_batches(buffer) == []
    again = subprocess.run(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL, check=True)
    assert again.returncode == 0
    assert missing_batches(buffer) == []
    assert not any((buffer / one).exists() for one in litter), "what nobody names is still there"
    stage.produce()
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
