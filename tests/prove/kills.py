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
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import LocalStore
from tests.dev.launches import CODE, environment
from tests.e2e.deployment import SETTINGS, Deployment
from tests.e2e.producing import durable, sent, start
from tests.e2e.running import running
from tests.prove.proof import Proof, Size, timed
from tests.spark.processes import descendants, is_alive, wait_until

_LOOK_SECONDS = 0.002
"""Between two looks for a moment that lasts for milliseconds."""

_PRODUCERS = 2
_CALLS = 40
"""Of each producer in a round, over four seconds: a range or two, so that a round takes no longer than it must."""


def prove(size: Size) -> Iterator[Proof]:
    proof = Proof("kill -9, then restart, settle and compare", "kills")
    targets = _targets(size)
    with timed(proof), tempfile.TemporaryDirectory(prefix="objbuf-kills-") as folder, _stage(Path(folder)) as stage:
        for number, target in enumerate(targets, 1):
            started = time.monotonic()
            TARGETS[target](stage, size.chance("kill", number))
            stage.recover()
            stage.compare(proof)
            proof.tried += 1
            seconds = time.monotonic() - started
            print(f"    {number} of {len(targets)}: {target}; {stage.landed:,} rows, {seconds:.0f} s", flush=True)
            if not proof.holds:
                break  # the first kill that breaks a promise is the one to look at
        proof.notes.append(", ".join(f"{target} {times}" for target, times in sorted(Counter(targets).items())))
        proof.notes.append(
            f"found committed and not materialised {stage.hits['committed']} times, "
            f"materialised and not acked {stage.hits['materialised']} times; {stage.landed:,} rows at the end"
        )
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
    hits: Counter[str]
    landed: int = 0

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

    def kill_runs_when(self, what: str, moment: Callable[[], object]) -> None:
        """Kill what runs right after the moment has come: all runs, since nobody knows whose it was."""
        self.first("a run", _is_run)
        deadline = time.monotonic() + 300
        while not moment():
            assert time.monotonic() < deadline, f"not in time: {what}"
            time.sleep(_LOOK_SECONDS)
        kill(*(pid for pid, line in self.deployed.dagster.left().items() if _is_run(line)))
        self._tell_what_was_hit()

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
        ranges = [SequenceRange.from_key(key) for key in dagster.materialised()]
        assert dagster.not_materialised() == []
        assert [one.start for one in ranges] == [0, *(one.end + 1 for one in ranges[:-1])], "the ranges have a hole"
        assert dagster.frontier == dagster.next_sequence == ranges[-1].end + 1
        assert {sequence for sequence, _, _ in rows} == set(range(dagster.frontier))
        assert missing_batches(dagster.buffer) == []

    def _tell_what_was_hit(self) -> None:
        dagster = self.deployed.dagster
        materialised = {SequenceRange.from_key(key) for key in dagster.materialised()}
        committed = {SequenceRange(sequence, sequence) for sequence, _, _ in self.deployed.rows()}
        covered = {sequence for one in materialised for sequence in range(one.start, one.end + 1)}
        self.hits["committed"] += any(one.start not in covered for one in committed)
        self.hits["materialised"] += any(one.start >= dagster.frontier for one in materialised)


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
        stage = Stage(Deployment(dagster, folder), [], Counter())
        try:
            yield stage
        finally:
            for producer in stage.producers:
                producer.kill()
                producer.wait()


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _producer(stage: Stage, chance: random.Random) -> None:
    stage.produce()
    time.sleep(chance.uniform(0.5, 4))
    kill(stage.producers[0].pid)


def _daemon(stage: Stage, chance: random.Random) -> None:
    stage.produce()
    time.sleep(chance.uniform(0, 12))
    kill(stage.deployed.dagster.daemon())
    stage.deployed.dagster.wait_until_it_ended()


def _code_server(stage: Stage, chance: random.Random) -> None:
    """`dagster dev` goes on without it, and nothing works any more: a person ends it, and starts it again."""
    stage.produce()
    time.sleep(chance.uniform(0, 12))
    kill(stage.first("a code server", lambda line: "dagster api grpc" in line))
    stage.deployed.dagster.stop()


def _everything(stage: Stage, chance: random.Random) -> None:
    """As if the machine lost its power."""
    stage.produce()
    time.sleep(chance.uniform(2, 20))
    kill(*stage.deployed.dagster.left())
    stage.deployed.dagster.wait_until_it_ended()


def _run(stage: Stage, chance: random.Random) -> None:
    stage.produce()
    found = stage.first("a run", _is_run)
    time.sleep(chance.uniform(0, 12))
    below = descendants(found)
    kill(found)
    wait_until(lambda: not any(map(is_alive, below)), seconds=300)  # its JVM and workers among them


def _jvm(stage: Stage, chance: random.Random) -> None:
    stage.produce()
    found = stage.first("a JVM", _is_jvm)
    time.sleep(chance.uniform(0, 8))
    kill(found)


def _worker(stage: Stage, chance: random.Random) -> None:
    """Python's process for Spark's tasks. It may have ended by itself when its time has come."""
    stage.produce()
    found = stage.first("a worker", lambda line: "pyspark.daemon" in line)
    time.sleep(chance.uniform(0, 0.5))
    kill(*descendants(found), found)


def _written(stage: Stage, chance: random.Random) -> None:
    """From the first data file on: while tasks write, while the driver commits."""
    stage.produce()
    lake = stage.deployed.dagster.lake
    before = len(list(lake.rglob("*.parquet")))
    stage.kill_runs_when("a file is written", lambda: len(list(lake.rglob("*.parquet"))) > before)


def _committed(stage: Stage, chance: random.Random) -> None:
    stage.produce()
    log = stage.deployed.dagster.lake / "entries" / "_delta_log"
    before = len(list(log.glob("*.json")))

    def moment() -> bool:
        return len(list(log.glob("*.json"))) > before

    stage.kill_runs_when("a commit", moment)


def _materialised(stage: Stage, chance: random.Random) -> None:
    stage.produce()
    index = stage.deployed.dagster.home / "history" / "runs" / "index.db"
    with contextlib.closing(sqlite3.connect(f"{index.as_uri()}?mode=ro", uri=True, timeout=60)) as events:

        def count() -> int:
            query = "SELECT COUNT(*) FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION'"
            found: int = events.execute(query).fetchone()[0]
            return found

        before = count()
        stage.kill_runs_when("a materialisation", lambda: count() > before)


def _collector(stage: Stage, chance: random.Random) -> None:
    """A pass that lets everything acked expire, killed somewhere in between; then another that ends."""
    stage.produce()
    stage.recover()  # nobody produces meanwhile: a grace of no seconds is not for buffers in use
    url = stage.deployed.dagster.buffer.as_uri()
    command = [sys.executable, "-m", "objbuf_dagster.cli", "gc", url, "--grace", "0", "--retention", "0", "--yes"]
    for seconds in (chance.uniform(0.2, 1.5), None):
        collecting = subprocess.Popen(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            collecting.wait(seconds)
        collecting.kill()
        collecting.wait()
        assert missing_batches(stage.deployed.dagster.buffer) == []


def _is_run(line: str) -> bool:
    return "multiprocessing.spawn" in line


def _is_jvm(line: str) -> bool:
    return line.split(maxsplit=1)[0].endswith("java")


TARGETS: dict[str, Callable[[Stage, random.Random], None]] = {
    "a producer": _producer,
    "the daemon": _daemon,
    "the code server": _code_server,
    "everything at once": _everything,
    "a run": _run,
    "Spark's JVM": _jvm,
    "Spark's Python": _worker,
    "a run that writes": _written,
    "a run that committed": _committed,
    "a run that materialised": _materialised,
    "garbage collection": _collector,
}
