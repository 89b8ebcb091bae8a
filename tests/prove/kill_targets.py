"""What there is to kill, each at a moment of its life."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from objbuf_dagster.buffer import BufferPlace, ManifestStore
from objbuf_dagster.buffer.sightings import Sightings, uptime
from objbuf_dagster.protocol.ulid import batch_time_ms
from objbuf_dagster.store import LocalStore
from tests.dev.launches import CODE, environment
from tests.e2e.producing import durable, sent
from tests.e2e.running import is_jvm, is_run
from tests.prove.kill_stage import (
    AFTER_SECONDS,
    RETENTION_SECONDS,
    Stage,
    kill,
    missing_batches,
    named_batches,
    retained,
)
from tests.spark.processes import descendants, is_alive, wait_until
from tests.support.buffers import batch_name
from tests.support.watching import Created

_LITTER = 3_000
"""Batches that nobody names: collecting them takes long enough to be killed in between."""

_GRACE_SECONDS = 30.0
"""Shorter than a round, so that batches of rounds before are garbage but for what names them."""

_DAY = 24 * 3600.0


def _producer(stage: Stage, chance: random.Random) -> bool:
    """With calls on their way of which it has not been told."""
    stage.produce()
    time.sleep(chance.uniform(0.1, 2.5))
    killed = kill(stage.producers[0].pid)
    stage.producers[0].wait()
    ledger = stage.deployed.ledgers[-len(stage.producers)]
    return killed == 1 and len(sent(ledger)) > len(durable(ledger))


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


def _commits(stage: Stage, chance: random.Random) -> bool:
    """As its file appears: before it is the next one of the log, or just after. Nobody has been told of it."""
    log = stage.deployed.dagster.lake / "entries" / "_delta_log"
    stage.produce()
    wait_until(log.is_dir, seconds=300)
    staged = set(log.glob("*.json#*"))
    with Created(log) as created:
        killed = stage.kill_runs_when(chance, lambda: created.wait(0.1), after=0.0)
    return killed and bool(set(log.glob("*.json#*")) - staged or stage.committed() > stage.materialised())


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


def plant(buffer: Path) -> tuple[list[str], set[str]]:
    """Batches that nobody names; and all that are old enough to go but for who names them, which must stay.

    An earlier pass is said to have seen both, as if all of them were garbage to it.
    """
    litter = [batch_name(number) for number in range(_LITTER)]
    yesterday = time.time() - _DAY
    for path in litter:
        (buffer / path).write_bytes(b"nobody names it")
        os.utime(buffer / path, (yesterday, yesterday))
    queued = {entry.location for entry in ManifestStore(LocalStore(buffer)).read().entries()}
    named = named_batches(buffer)
    seen = Sightings(dict.fromkeys([*litter, *named], uptime() - _DAY))
    LocalStore(buffer).put("ingest/ranges/clock", seen.to_bytes())
    old_ms = (time.time() - _GRACE_SECONDS) * 1000
    return litter, {path for path in named - queued if (batch_time_ms(path) or old_ms) < old_ms}


def _collector(stage: Stage, chance: random.Random) -> bool:
    """A pass over a buffer in use, killed as batches go; then another that ends. What is named is all there."""
    dagster = stage.deployed.dagster
    buffer = dagster.buffer
    litter, at_stake = plant(buffer)
    stage.produce()
    stage.first("a run", is_run)
    command = [sys.executable, "-m", "objbuf_dagster.cli", "gc", buffer.as_uri(), "--yes"]
    command += ["--grace", str(_GRACE_SECONDS), "--retention", str(RETENTION_SECONDS)]
    stage.note_frontier()
    with subprocess.Popen(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL) as collecting:
        try:
            wait_until(
                lambda: collecting.poll() is not None or not (buffer / litter[0]).exists(), seconds=300, every=0.001
            )
            stage.wait(chance, AFTER_SECONDS)
        finally:
            collecting.kill()
    killed = collecting.returncode == -signal.SIGKILL and any((buffer / one).exists() for one in litter)
    assert missing_batches(buffer) == []
    stage.assert_nothing_expired_early()
    subprocess.run(command, cwd=CODE, env=environment(), stdout=subprocess.DEVNULL, check=True, timeout=300)
    assert missing_batches(buffer) == []
    stage.assert_nothing_expired_early()
    assert not any((buffer / one).exists() for one in litter), "what nobody names is still there"
    fetcher = BufferPlace(LocalStore(buffer)).fetcher()
    for planned in retained(LocalStore(buffer)):
        for one in planned.batches:
            assert fetcher.fetch(one.descriptor).entries
    return killed and bool(at_stake)


TARGETS: dict[str, Callable[[Stage, random.Random], bool]] = {
    "a producer": _producer,
    "the daemon": _daemon,
    "the code server": _code_server,
    "everything at once": _everything,
    "a run": _run,
    "Spark's JVM": _jvm,
    "Spark's Python": _worker,
    "a run that writes": _written,
    "a run that commits": _commits,
    "a run that committed": _committed,
    "a run that kept dead letters": _kept,
    "a run that decoded": _decoded,
    "a run that materialised": _materialised,
    "garbage collection": _collector,
}
