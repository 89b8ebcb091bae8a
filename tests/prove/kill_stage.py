"""The deployment of which things are killed, its producers, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.home import fail_lost_runs
from objbuf_dagster.buffer import ManifestStore
from objbuf_dagster.errors import NotFound
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import LocalStore
from tests.e2e.deployment import SETTINGS, Deployment
from tests.e2e.producing import CALLS_PER_SECOND, durable, sent, start
from tests.e2e.running import is_run, running
from tests.prove.proof import Proof
from tests.spark.processes import wait_until

RETENTION_SECONDS = 60.0
"""That garbage collection is given."""

_LOOK_SECONDS = 0.002
"""Between two looks for a moment that lasts for milliseconds."""

_RUNS_SECONDS = 0.5
"""Between two looks for the processes that are then to be killed."""

_FRONTIER_SECONDS = 1.0
"""Between two looks at the frontier: by so much what expires too early may go unseen."""

AFTER_SECONDS = 0.05
"""At most, from a moment to the kill."""

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

    def kill_runs_when(self, chance: random.Random, moment: Callable[[], object], after: float = AFTER_SECONDS) -> bool:
        """Kill what runs as the moment has come, or so many seconds later: all runs, as nobody knows whose it was.

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
        self.wait(chance, after)
        return kill(*runs) > 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Notes where the frontier is all the time, or raises at the end what kept it from that."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_FRONTIER_SECONDS):
                self.note_frontier()

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                yield
            finally:
                over.set()
        watching.result()

    def note_frontier(self) -> None:
        # The time first: what is acked in between shall not count as acked earlier.
        self.frontiers.append((time.monotonic(), self.deployed.dagster.frontier))

    def assert_nothing_expired_early(self) -> None:
        """Whatever the collector's notes say of when it was: what was not acked a retention ago cannot have expired."""
        self.note_frontier()
        since = self.frontiers[-1][0] - RETENTION_SECONDS
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
    return named | {one.descriptor.location for planned in retained(store) for one in planned.batches}


def missing_batches(buffer: Path) -> list[str]:
    """What is named and is not there: nothing, or something was lost."""
    return sorted(named_batches(buffer) - {info.path for info in LocalStore(buffer).list("ingest")})


def retained(store: LocalStore) -> list[RangeObject]:
    ledger = RangeLedger(store)
    expired = ledger.retention().expired_before
    return [planned for planned in ledger.list() if planned.end >= expired]


@contextlib.contextmanager
def deployed(folder: Path, max_wait: str) -> Iterator[Stage]:
    with running(folder, **{**SETTINGS, "OBJBUF_MAX_WAIT": max_wait, "OBJBUF_MAX_BATCHES": "100"}) as dagster:
        stage = Stage(Deployment(dagster, folder))
        try:
            with stage.watched():
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
