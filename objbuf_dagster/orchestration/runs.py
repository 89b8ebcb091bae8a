"""Which ranges are being run, how often each was tried, and for how long: read from Dagster's runs, so that nothing is
remembered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES, RunRecord
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    AUTO_RETRY_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    WILL_RETRY_TAG,
)

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.ranges import SequenceRange

_RETRIED_WITHIN_SECONDS = 600.0  # Dagster does it within seconds, or has given it up without a word
_MOST_ACTIVE = 1_000
_LONGEST_PAUSE = 3600.0

Span = tuple[float, float]
"""From when to when, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """What became of one range so far.

    active: a run is queued or running, whoever started it, or Dagster is about to retry one.
    count: runs that the sensor started, re-executions of them included.
    last_ended: when the last of them did, as seconds since 1970.
    spans: of those of them that began and ended, from when to when.
    """

    active: bool = False
    count: int = 0
    last_ended: float = 0.0
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Going:
    """A run that has not ended.

    since: when it began, or (until it has) when Dagster last did something about it; None if it waits in the queue.
    has_begun: whether it has.
    ranges: that it is about, of those that were asked for; none for a backfill of others.
    is_backfill: whether it lands all ranges between two, one after the other, however many those are.
    """

    since: float | None
    has_begun: bool
    ranges: tuple[SequenceRange, ...] = ()
    is_backfill: bool = False


@dataclass(frozen=True, slots=True)
class Runs:
    """What Dagster's runs say of a buffer.

    tries: for each of the ranges that were asked for.
    going: the runs that are about them, or land others of the buffer.
    """

    tries: dict[SequenceRange, Attempts] = field(default_factory=dict)
    going: tuple[Going, ...] = ()


def runs_of(
    instance: dg.DagsterInstance,
    source: BufferSource,
    sensor: str,
    ranges: Iterable[SequenceRange],
    now: float,
) -> Runs:
    """Of these ranges, and of whatever else runs: two queries in all, however many runs Dagster has."""
    by_key = {one.key: one for one in ranges}
    active: set[SequenceRange] = set()
    going: list[Going] = []
    counts = dict.fromkeys(by_key.values(), 0)
    numbers = dict.fromkeys(by_key.values(), 0)
    ended = dict.fromkeys(by_key.values(), 0.0)
    spans: dict[SequenceRange, list[Span]] = {one: [] for one in by_key.values()}
    unfinished = dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES))
    for record in instance.get_run_records(unfinished, limit=_MOST_ACTIVE):
        if not is_about(record, source):
            continue
        covered = tuple(_covered(record, by_key))
        active.update(covered)
        if covered or (record.start_time is not None and _lands(record, sensor)):
            is_backfill = ASSET_PARTITION_RANGE_START_TAG in record.dagster_run.tags
            going.append(Going(_since(record), record.start_time is not None, covered, is_backfill))
    tagged = dg.RunsFilter(tags={PARTITION_NAME_TAG: list(by_key)})
    for record in instance.get_run_records(tagged) if by_key else []:
        run = record.dagster_run
        one = by_key[run.tags[PARTITION_NAME_TAG]]
        will_retry = run.tags.get(WILL_RETRY_TAG) == "true" and AUTO_RETRY_RUN_ID_TAG not in run.tags
        will_retry = will_retry and now - (record.end_time or now) < _RETRIED_WITHIN_SECONDS
        if (will_retry or not run.is_finished) and is_about(record, source):
            active.add(one)
        if run.tags.get(SENSOR_NAME_TAG) == sensor:
            counts[one] += 1
            numbers[one] = max(numbers[one], attempt_of(run.tags.get(RUN_KEY_TAG, "")))
            ended[one] = max(ended[one], record.end_time or 0.0)
            if record.start_time is not None and record.end_time is not None:
                spans[one].append((record.start_time, record.end_time))
    tries = {
        one: Attempts(one in active, max(counts[one], numbers[one]), ended[one], tuple(spans[one]))
        for one in by_key.values()
    }
    return Runs(tries, tuple(going))


def is_due(attempts: int, last_ended: float, seconds: float, now: float) -> bool:
    """Whether the next attempt is: the pause before it is doubled each time, up to an hour.

    One that ended in the future is as long ago as that is away: the clock went back, and nobody waits for it.
    """
    pause = min(seconds * 2.0 ** min(attempts - 1, 60), _LONGEST_PAUSE) if attempts else 0.0
    return abs(now - last_ended) >= pause


def run_key(one: SequenceRange, attempt: int) -> str:
    """Dagster never runs a key again, so each attempt needs its own."""
    return f"{one.key}:{attempt}"


def attempt_of(key: str) -> int:
    """The attempt in a run key: runs can be deleted, and what is left must not be counted up to a key that was used."""
    tail = key.rpartition(":")[2]
    return int(tail) if tail.isdecimal() and len(tail) < 10 else 0


def is_about(record: RunRecord, source: BufferSource, others: Collection[dg.AssetKey] = ()) -> bool:
    """Whether a run may land ranges of this buffer, or is about one of these assets.

    Other buffers have the same keys. A run with no selection is one of a whole job, of the sensor's or a backfill's.
    """
    selected = record.dagster_run.asset_selection
    if selected is None:
        return record.dagster_run.job_name == source.job_name
    return bool(selected & {*source.gates, *others})


def _since(record: RunRecord) -> float | None:
    if record.start_time is not None or record.dagster_run.status == dg.DagsterRunStatus.QUEUED:
        return record.start_time
    return record.update_timestamp.timestamp()


def _lands(record: RunRecord, sensor: str) -> bool:
    """Whether a run of no range that was asked for is for others: of a backfill, or of what is acked already.

    `dagster job backfill` selects no assets, and says for which partition each of its runs is.
    """
    run = record.dagster_run
    is_partitioned = PARTITION_NAME_TAG in run.tags or ASSET_PARTITION_RANGE_START_TAG in run.tags
    return run.asset_selection is not None or is_partitioned or run.tags.get(SENSOR_NAME_TAG) == sensor


def _covered(record: RunRecord, by_key: dict[str, SequenceRange]) -> Iterable[SequenceRange]:
    """Of these ranges, those that a run is about: one, or (a backfill in a single run) all between two."""
    tags = record.dagster_run.tags
    single = by_key.get(tags.get(PARTITION_NAME_TAG, ""))
    if single is not None:
        return [single]
    try:
        first = SequenceRange.from_key(tags.get(ASSET_PARTITION_RANGE_START_TAG, ""))
        last = SequenceRange.from_key(tags.get(ASSET_PARTITION_RANGE_END_TAG, ""))
    except InvalidInput:
        return []
    return [one for one in by_key.values() if first.start <= one.start <= last.start]
