"""Lag is never negative, wherever it is told, whatever times batches carry and whichever way a clock jumps."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner

from objbuf_dagster.buffer import Consumer, peek
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.cli.app import main
from objbuf_dagster.orchestration.landing import numbers
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import Limits, RangeLedger, plan, range_of
from objbuf_dagster.spark import Landed
from objbuf_dagster.store import LocalStore, MemoryStore, Store
from tests.orchestration.sensing import sensing
from tests.prove.proof import Proof, timed
from tests.support.buffers import append, batch_name, manifests, put_batch

HOUR = 3600.0
JUMPS = (-HOUR, 0.0, HOUR)


def cases() -> list[tuple[int | None, int]]:
    """The ingestion time of a batch, if it carries one, and the time of its name."""
    now = int(time.time() * 1000)
    hour = int(HOUR * 1000)
    carried = (-(2**63), -1, 0, now - hour, now, now + hour, 2**48, 2**63 - 1)
    named = (0, now - hour, now + hour, 2**48 - 1)
    return [*((time_ms, now) for time_ms in carried), *((None, time_ms) for time_ms in named)]


def _wanted() -> dict[str, int]:
    """How many lags each place tells."""
    told = len(cases()) * len(JUMPS)
    dated = sum(carried is not None for carried, _ in cases()) * len(JUMPS)
    by_command = dict.fromkeys(("stat", "stat --json"), len(cases()))
    once = dict.fromkeys(("peek", "Consumer.peek", "BufferResource.peek", "materialisation"), told)
    return {**by_command, **once, "observation": 2 * told, "gauge": dated}


def prove_lags() -> Proof:
    proof = Proof("the lag of a batch of any time, with clocks that jump", "lags told", wanted_parts=_wanted())
    proof.wanted = sum(proof.wanted_parts.values())
    with timed(proof):
        for carried, named in cases():
            with tempfile.TemporaryDirectory() as folder:
                _fill(LocalStore(folder), carried, named)
                told = [*_told_by_stat(folder)]
            store = MemoryStore()
            _fill(store, carried, named)
            told += [lag for jump in JUMPS for lag in _told(store, jump)]
            proof.tried += len(told)
            proof.parts.update(where for where, _ in told)
            if negative := [(where, lag) for where, lag in told if not lag >= 0]:
                proof.invented += len(negative)
                proof.notes.append(f"ingested at {carried}, named at {named}: {negative}")
    return proof


def _fill(store: Store, carried: int | None, named: int) -> None:
    location = put_batch(store, batch_name(named))
    append(store, location, [] if carried is None else [Metadata(0, carried, b"")])


def _told_by_stat(folder: str) -> Iterator[tuple[str, float]]:
    """By the command that people use: `objbuf stat`."""
    found = CliRunner().invoke(main, ["stat", Path(folder).as_uri(), "--json"])
    shown = CliRunner().invoke(main, ["stat", Path(folder).as_uri()])
    assert (found.exit_code, shown.exit_code) == (0, 0), found.output + shown.output
    lag = json.loads(found.output)["lag_seconds"]
    if lag is not None:
        yield "stat --json", lag
    (line,) = [line for line in shown.output.splitlines() if line.startswith("lag ")]
    yield "stat", -1.0 if line.removeprefix("lag").strip().startswith("-") else 0.0


def _told(store: Store, jump: float) -> Iterator[tuple[str, float]]:
    true = time.time

    def clock() -> float:
        return true() + jump

    yield "peek", peek(store, clock=clock).lag_seconds
    with Consumer.open(store, gc_interval=None, clock=clock) as consumer:
        yield "Consumer.peek", consumer.peek().lag_seconds
        consumer.next_batch()
        gauges = consumer.metrics.snapshot().gauges
        if m.CONSUMER_LAG_SECONDS in gauges:
            yield "gauge", gauges[m.CONSUMER_LAG_SECONDS]
    with sensing(store) as sensor:
        sensor.later = jump
        yield "BufferResource.peek", sensor.buffer.peek().lag_seconds
        for outcome in (sensor.tick(), sensor.tick()):
            for event in outcome.observations:
                yield "observation", float(str(event.metadata["lag_seconds"].value))
    plan(manifests(store), RangeLedger(store), Limits(max_wait=0), clock=clock)
    (planned,) = RangeLedger(store).list()
    with patch.object(time, "time", clock):
        landed = numbers(Landed(range_of(planned), 1, 1, 1, 1, 1, 1.0, None), planned)
    if "lag_seconds" in landed:
        yield "materialisation", landed["lag_seconds"]
