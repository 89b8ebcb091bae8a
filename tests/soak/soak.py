"""Ten minutes of the real thing under a load that no fixed setting fits, in a memory limit like a container's.

A trickle of events goes on all the time. When the deployment has shown how long a run takes, bursts come: three times
what one run at a time can take, which is the largest range in the time of a run, for the time of two runs or more. It
must hold back before memory runs out, cut larger ranges while it is behind, and be back where it was when the burst is
over. At the end: every entry is in the table once, no run failed, memory stayed below the limit, and lag is what the
trickle alone has.

Then somebody else fills its memory for a while (`ballast.py`): new ranges are held back, at most one at a time lands,
and all goes on when memory is free again.

How large bursts were is measured, from the batches that they left, and how large ranges became, from their objects:
batches are far smaller than the largest range, so that it is the regulator that makes ranges large. A soak that is
`brief` has bursts of seconds, and is never behind: it shows that nothing is lost and that lag is back, and nothing of
how ranges grow.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.store import LocalStore
from tests.e2e.deployment import Deployment
from tests.e2e.producing import CALL_ENTRIES, CALLS_PER_SECOND, OTHERS, durable, sent, start
from tests.e2e.running import Dagster
from tests.prove.proof import Proof
from tests.soak.memory import Group, limited
from tests.soak.plot import draw
from tests.soak.report import LARGEST_RANGE, LEVEL, MEMORY_LIMIT, TIMES, Planned, Report
from tests.soak.sample import Sample, Sampler

_BURSTS = ((0.2, 0.05), (0.5, 0.05))
"""When they begin and how long they take at the least, in parts of the whole time."""

_BURST_RUNS = 2.0
"""How long they take at the least, in times of a run: else the next range would hold all of one."""

_PADDED = 1 - 1 / OTHERS
_SHRUNK = 0.76
_MORE = 1.15
"""The part of calls that have noise in them, what is left of noise of 64 characters, and what is sent to be sure."""

_BURST_CALLS = 4 * CALLS_PER_SECOND
_BATCH_BYTES = 1 << 20
"""Calls in a second of a burst, and bytes before compression after which a batch is done: so a batch is about 1 MiB."""

_HELD_RUNS = 3.0
_HELD_SECONDS = 10.0
"""How long memory stays full once ranges are held back: times of a run, and at the least."""

_NEAR_SECONDS = 2.0
"""Of samples around a moment that all must say the same: what the sensor did is seen a little later."""

_PATIENCE_SECONDS = 300.0
_TRICKLE_CALLS = 1.0
_TRICKLE_BYTES = 200
_MOST_CALLS = 10_000_000


def soak(
    seconds: float, plot: Path, patience: float | None = None, *, brief: bool = False, unlimited: bool = False
) -> Report:
    """Soak for so long, then until lag is back, then until all has landed, and compare.

    `patience`: seconds that lag may take to be back; unless given, as long again, or longer where runs are slow.
    `unlimited`: where no control group may be made, go on without.
    """
    report = Report(Proof("a soak", "entries"), is_brief=brief, is_unlimited=unlimited)
    with (
        tempfile.TemporaryDirectory(prefix="objbuf-soak-") as folder,
        limited(MEMORY_LIMIT) as group,
        _deployed(Path(folder), group) as deployed,
    ):
        report.is_enforced = group is not None
        with Sampler(deployed.dagster, group) as sampler:
            try:
                with _producing(deployed, _TRICKLE_CALLS, _TRICKLE_BYTES):
                    _load(deployed, sampler, report, seconds, patience)
                    if group:
                        _fill_memory(sampler, report, group)
                deployed.settle()
            finally:
                report.samples = sampler.samples
                report.planned = _planned(deployed, time.time() - sampler.now)
                sizes = [(one.at, one.size) for one in report.planned]
                taken = list(sampler.samples)  # it goes on taking them
                draw(taken, sizes, list(report.bursts.values()), report.ballast, report.limit, plot)
        if group:
            report.killed, report.kernel_peak = group.killed, group.peak
            report.beside = begun_beside(_runs(deployed.dagster, time.time() - sampler.now), report.samples)
        report.failed = _failed(deployed.dagster)
        report.burst_rate = _burst_rate(deployed, report.bursts)
        _compare(deployed, report.proof)
    return report


def _load(deployed: Deployment, sampler: Sampler, report: Report, seconds: float, patience: float | None) -> None:
    """The trickle alone, the bursts, and the trickle until lag is back."""
    dagster = deployed.dagster
    dagster.wait_until("something is acked", lambda: dagster.frontier > 0)
    dagster.wait_until("the run that did it has ended", lambda: not math.isnan(_run_seconds(dagster)))
    warm, begun = sampler.now, time.monotonic()
    for number, (when, lasting) in enumerate(_BURSTS):
        _until(begun + when * seconds)
        if not number:
            report.level = _median_lag(sampler.since(warm))
            report.run_seconds = _run_seconds(deployed.dagster)
        rate = _MORE * TIMES * LARGEST_RANGE / report.run_seconds
        padding = int(rate / _BURST_CALLS / CALL_ENTRIES / _PADDED / _SHRUNK)
        with _producing(deployed, _BURST_CALLS, padding) as ledger:
            start_at = sampler.now
            time.sleep(max(lasting * seconds, 0.0 if report.is_brief else _BURST_RUNS * report.run_seconds))
        report.bursts[ledger.name] = (start_at, sampler.now)
    _until(begun + seconds)
    if report.is_brief:
        return  # what lag is on a machine with other work to do says nothing; that all lands, does
    if patience is None:
        loaded = sum(end_at - start_at for start_at, end_at in report.bursts.values())
        patience = max(seconds, 2 * TIMES * loaded)  # one run at a time needs so often as long, and others may be busy
    window = max(20.0, seconds / 10)
    while True:
        report.end_level = _median_lag(sampler.since(sampler.now - window))
        report.caught_up = report.end_level <= LEVEL * report.level
        if report.caught_up or time.monotonic() > begun + seconds + patience:
            return
        time.sleep(1.0)


def _fill_memory(sampler: Sampler, report: Report, group: Group) -> None:
    """Until ranges are held back, then for some runs' time; and until they are not."""
    start_at = sampler.now
    lasting = max(_HELD_SECONDS, 0.0 if report.is_brief else _HELD_RUNS * report.run_seconds)
    with group.ballast(_PATIENCE_SECONDS + lasting):
        _wait(lambda: any(one.held for one in sampler.since(start_at)))
        time.sleep(lasting)
    report.ballast = (start_at, sampler.now)
    _wait(lambda: not sampler.samples[-1].held)


def _runs(dagster: Dagster, started: float) -> list[tuple[float, float]]:
    """When runs that land were started and ended, in seconds since this time."""
    with dg.DagsterInstance.from_config(str(dagster.home)) as instance:
        records = instance.get_run_records(dg.RunsFilter(job_name="land_buffer"))
    return [(one.create_timestamp.timestamp() - started, (one.end_time or math.inf) - started) for one in records]


def begun_beside(runs: Sequence[tuple[float, float]], samples: Sequence[Sample]) -> int:
    """Runs that were started while ranges were held back and another one was not over: the gate lets one through."""
    found = 0
    for begun, _ in runs:
        near = [one.held for one in samples if abs(one.at - begun) <= _NEAR_SECONDS]
        is_held = bool(near) and all(near)
        found += is_held and any(other < begun < end for other, end in runs)
    return found


@contextmanager
def _deployed(place: Path, group: Group | None) -> Iterator[Deployment]:
    dagster = Dagster(
        place,
        OBJBUF_REGULATOR="balanced",
        OBJBUF_MAX_BYTES=str(LARGEST_RANGE),
        OBJBUF_SPARK_CONFIG=json.dumps({"spark.driver.memory": "1g"}),
    )
    try:
        if group is None:
            dagster.start()
        else:
            with group.inside():
                dagster.start()
        yield Deployment(dagster, place)
    finally:
        dagster.end()


@contextmanager
def _producing(deployed: Deployment, per_second: float, padding: int) -> Iterator[Path]:
    ledger = deployed.place / f"producer-{len(deployed.ledgers)}"
    deployed.ledgers.append(ledger)
    process = start(deployed.dagster.buffer.as_uri(), ledger, _MOST_CALLS, per_second, padding, None, _BATCH_BYTES)
    try:  # before its first call, it would die of a SIGTERM, and have sent nothing
        _wait(lambda: process.poll() is not None or (ledger.exists() and ledger.stat().st_size > 0))
        yield ledger
    finally:
        process.terminate()
        code = process.wait(120)
    assert code == 0, "a producer failed"


def _compare(deployed: Deployment, proof: Proof) -> None:
    deployed.assert_settled()
    told = [entry for ledger in deployed.ledgers for entry in durable(ledger)]
    proof.tried = len(told)
    proof.compare(told, {text for ledger in deployed.ledgers for text in sent(ledger)}, deployed.rows())


def _run_seconds(dagster: Dagster) -> float:
    """How long a run takes, of those that ended well; not a number if none has."""
    with dg.DagsterInstance.from_config(str(dagster.home)) as instance:
        ended = instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS]))
    taken = [one.end_time - one.start_time for one in ended if one.end_time and one.start_time]
    return statistics.median(taken) if taken else math.nan


def _failed(dagster: Dagster) -> int:
    bad = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.CANCELING]
    with dg.DagsterInstance.from_config(str(dagster.home)) as instance:
        return len(instance.get_run_records(dg.RunsFilter(statuses=bad)))


def _planned(deployed: Deployment, started: float) -> list[Planned]:
    """All of them: none expires in so short a time."""
    planned = RangeLedger(LocalStore(deployed.dagster.buffer)).list(0)
    return [Planned(one.planned_at_ms / 1000 - started, one.size, len(one.batches)) for one in planned]


def _burst_rate(deployed: Deployment, bursts: dict[str, tuple[float, float]]) -> float:
    """Bytes that arrived in a second of a burst, by the batches of its producer, in the burst that had the fewest."""
    planned = RangeLedger(LocalStore(deployed.dagster.buffer)).list(0)
    sizes = {batch.descriptor.sequence: batch.size or 0 for one in planned for batch in one.batches}
    rates = []
    for ledger in deployed.ledgers:
        if ledger.name in bursts:
            start_at, end_at = bursts[ledger.name]
            rates.append(sum(sizes[one] for one in {entry[0] for entry in durable(ledger)}) / (end_at - start_at))
    return min(rates, default=math.nan)


def _median_lag(samples: list[Sample]) -> float:
    return statistics.median([one.lag for one in samples] or [math.nan])


def _wait(done: Callable[[], bool]) -> None:
    """Until it is so, or for as long as there is patience: what was missed is in the report."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(0.5)


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
