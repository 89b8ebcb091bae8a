"""Which ranges are being run, and how often each was tried: read from Dagster's runs, so that nothing is remembered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

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
from objbuf_dagster.ranges import SequenceRange

_RETRIED_WITHIN_SECONDS = 600.0  # Dagster does it within seconds, or has given it up without a word
_MOST_ACTIVE = 1_000


@dataclass(frozen=True, slots=True)
class Attempts:
    """What became of one range so far.

    active: a run is queued or running, whoever started it, or Dagster is about to retry one.
    count: runs that the sensor started, re-executions of them included.
    last_ended: when the last of them did, as seconds since 1970.
    """

    active: bool = False
    count: int = 0
    last_ended: float = 0.0


def attempts(
    instance: dg.DagsterInstance,
    sensor: str,
    gates: Collection[dg.AssetKey],
    ranges: Iterable[SequenceRange],
    now: float,
) -> dict[SequenceRange, Attempts]:
    """For each of the ranges: two queries in all, however many runs Dagster has."""
    by_key = {one.key: one for one in ranges}
    if not by_key:
        return {}
    active: set[SequenceRange] = set()
    counts = dict.fromkeys(by_key.values(), 0)
    numbers = dict.fromkeys(by_key.values(), 0)
    ended = dict.fromkeys(by_key.values(), 0.0)
    unfinished = dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES))
    for record in instance.get_run_records(unfinished, limit=_MOST_ACTIVE):
        if _is_about(record, sensor, gates):
            active.update(_covered(record, by_key))
    for record in instance.get_run_records(dg.RunsFilter(tags={PARTITION_NAME_TAG: list(by_key)})):
        run = record.dagster_run
        one = by_key[run.tags[PARTITION_NAME_TAG]]
        will_retry = run.tags.get(WILL_RETRY_TAG) == "true" and AUTO_RETRY_RUN_ID_TAG not in run.tags
        will_retry = will_retry and now - (record.end_time or now) < _RETRIED_WITHIN_SECONDS
        if (will_retry or not run.is_finished) and _is_about(record, sensor, gates):
            active.add(one)
        if run.tags.get(SENSOR_NAME_TAG) == sensor:
            counts[one] += 1
            numbers[one] = max(numbers[one], _number(run.tags.get(RUN_KEY_TAG, "")))
            ended[one] = max(ended[one], record.end_time or 0.0)
    return {one: Attempts(one in active, max(counts[one], numbers[one]), ended[one]) for one in by_key.values()}


def run_key(one: SequenceRange, attempt: int) -> str:
    """Dagster never runs a key again, so each attempt needs its own."""
    return f"{one.key}:{attempt}"


def _number(key: str) -> int:
    """The attempt in a run key: runs can be deleted, and what is left must not be counted up to a key that was used."""
    tail = key.rpartition(":")[2]
    return int(tail) if tail.isdecimal() and len(tail) < 10 else 0


def _is_about(record: RunRecord, sensor: str, gates: Collection[dg.AssetKey]) -> bool:
    """Whether a run may land ranges of this buffer. Others have the same keys, and the sensor's runs no selection."""
    selected = record.dagster_run.asset_selection
    if selected is None:
        return record.dagster_run.tags.get(SENSOR_NAME_TAG, sensor) == sensor
    return bool(selected & set(gates))


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
