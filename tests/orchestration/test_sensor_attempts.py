"""Ranges that fail: how often they are tried, when, and what goes on meanwhile."""

from __future__ import annotations

import dataclasses
import re
import time

import dagster as dg
import pytest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    AUTO_RETRY_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    WILL_RETRY_TAG,
)

from objbuf_dagster.orchestration import BufferSource, SensorSettings
from objbuf_dagster.orchestration.runs import runs_of
from objbuf_dagster.ranges import SequenceRange
from tests.orchestration.sensing import ENTRIES, PAIRS, SENSOR, Sensing, key, keys, produce

FIRST = key(0, 1)


def begin(sensor: Sensing, batches: int = 2, **settings: float) -> None:
    """Take the buffer over and plan."""
    sensor.settings = dataclasses.replace(PAIRS, **settings)  # type: ignore[arg-type]
    produce(sensor.store, batches)
    sensor.tick()
    sensor.tick()


def run_keys(sensor: Sensing, partition: str = FIRST) -> list[str]:
    runs = sensor.instance.get_runs(dg.RunsFilter(tags={PARTITION_NAME_TAG: partition}))
    return [run.tags[RUN_KEY_TAG] for run in reversed(runs)]


def test_a_failing_range_gets_its_attempts_and_then_waits_for_a_person(sensor: Sensing) -> None:
    # given
    begin(sensor, max_attempts=3)
    # when
    for _ in range(2):
        sensor.fail(FIRST)
        assert keys(sensor.tick()) == [FIRST]
    sensor.fail(FIRST)
    given_up = sensor.tick()
    # then
    assert given_up.runs == []
    assert run_keys(sensor) == [f"{FIRST}:1", f"{FIRST}:2", f"{FIRST}:3"]
    assert f"1 range failed and waits for a person, the first is {FIRST}" in given_up.sentence
    assert "materialise that partition; or report it as materialised" in given_up.sentence
    assert sensor.tick().runs == []


def test_a_range_that_waits_for_a_person_names_every_asset_that_must_have_it(sensor: Sensing) -> None:
    """Marked in one of them only, it would wait on, and say the same again."""
    # given
    sensor.source = BufferSource(ack_after=["entries", "orders"])
    begin(sensor, max_attempts=1)
    sensor.fail(FIRST)
    # when
    said = sensor.tick().sentence
    # then
    told = "materialise that partition of entries and orders; or report it as materialised in each of them"
    assert told in said
    # when
    sensor.mark(FIRST)
    sensor.mark(FIRST, "orders")
    sensor.tick()
    # then
    assert sensor.frontier == 2


@pytest.mark.parametrize("ahead", [3600, 2**63 // 1000 - 2_000_000_000], ids=["an hour", "beyond all calendars"])
def test_a_person_hears_from_when_on_a_mark_counts_if_the_clock_was_ahead(sensor: Sensing, ahead: float) -> None:
    # given a range that was planned so much later than now
    sensor.later = ahead
    begin(sensor, max_attempts=1)
    sensor.later = 0
    sensor.fail(FIRST)
    # when
    said = sensor.tick().sentence
    sensor.mark(FIRST)
    sensor.tick()
    # then
    assert re.search(r"to go on without \(after (20[\d:T+-]+|\d+ ms): the clock was ahead when it was planned\)", said)
    assert sensor.frontier == 0


def test_a_clock_that_goes_back_by_an_hour_delays_no_attempt_by_an_hour(sensor: Sensing) -> None:
    # given
    begin(sensor, retry_seconds=100)
    sensor.fail(FIRST)
    assert sensor.tick().runs == []
    # when
    sensor.later = -3600
    # then
    assert keys(sensor.tick()) == [FIRST]


def test_more_than_twenty_attempts_are_counted(sensor: Sensing) -> None:
    # given
    begin(sensor, max_attempts=23)
    # when
    for _ in range(22):
        sensor.fail(FIRST)
        sensor.tick()
    # then: each had a run key of its own, or Dagster had not started it
    assert len(set(run_keys(sensor))) == 23
    sensor.fail(FIRST)
    assert "waits for a person" in sensor.tick().sentence


def test_attempts_are_spaced_by_a_pause_that_doubles(sensor: Sensing) -> None:
    # given
    begin(sensor, max_attempts=4, retry_seconds=100)
    for pause in (100, 200, 400):
        sensor.fail(FIRST)
        ended = time.time()
        # when
        sensor.later = ended + pause - 5 - time.time()
        early = sensor.tick()
        sensor.later = ended + pause + 1 - time.time()
        due = sensor.tick()
        # then
        assert early.runs == []
        assert keys(due) == [FIRST]


def test_a_cancelled_run_counts_as_an_attempt(sensor: Sensing) -> None:
    # given
    begin(sensor, max_attempts=2)
    # when
    sensor.cancel(FIRST)
    again = sensor.tick()
    sensor.cancel(FIRST)
    # then
    assert again.runs == [(SequenceRange(0, 1), 2)]
    assert "waits for a person" in sensor.tick().sentence


def test_a_deleted_run_does_not_bring_an_old_run_key_back(sensor: Sensing) -> None:
    # given
    begin(sensor)
    sensor.fail(FIRST)
    sensor.tick()
    sensor.fail(FIRST)
    # when a person deletes the first of two runs
    first = sensor.instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: f"{FIRST}:1"}))[0]
    sensor.instance.delete_run(first.run_id)
    sensor.tick()
    # then: with the key of the second, Dagster would have started nothing
    assert run_keys(sensor) == [f"{FIRST}:2", f"{FIRST}:3"]


def test_later_ranges_go_on_and_wait_behind_a_failed_one(sensor: Sensing) -> None:
    # given
    begin(sensor, 6, max_attempts=1, max_in_flight=2)
    # when
    sensor.fail(FIRST)
    sensor.land(key(2, 3))
    later = sensor.tick()
    sensor.land(key(4, 5))
    sensor.tick()
    # then
    assert keys(later) == [key(4, 5)]
    assert sensor.frontier == 0
    # when a person has mended it
    sensor.report(FIRST)
    mended = sensor.tick()
    # then
    assert sensor.frontier == 6
    assert "acked sequences 0 to 5" in mended.sentence
    assert "for a person" not in mended.sentence


def test_nothing_new_is_planned_while_too_many_ranges_wait_for_a_person(sensor: Sensing) -> None:
    # given
    begin(sensor, 10, max_attempts=1, max_in_flight=2)
    # when
    sensor.fail(key(0, 1))
    sensor.fail(key(2, 3))
    stuck = sensor.tick()
    # then
    assert (stuck.runs, stuck.partitions) == ([], [])
    assert "2 ranges failed and wait for a person" in stuck.sentence
    # when a person has mended one
    sensor.report(key(0, 1))
    # then: only the other one waits, and takes no room
    assert keys(sensor.tick()) == [key(4, 5), key(6, 7)]


def test_nothing_new_is_planned_when_too_many_finished_ranges_wait_for_one(sensor: Sensing) -> None:
    # given
    begin(sensor, 10, max_attempts=1, max_in_flight=2, max_ahead=3)
    sensor.fail(key(0, 1))
    sensor.land(key(2, 3))
    assert keys(sensor.tick()) == [key(4, 5)]
    # when
    sensor.land(key(4, 5))
    stuck = sensor.tick()
    # then
    assert (stuck.runs, stuck.partitions) == ([], [])
    assert "3 ranges lie past the frontier, and nothing new is planned until it moves" in stuck.sentence
    # when a person has mended it
    sensor.report(key(0, 1))
    # then
    assert keys(sensor.tick()) == [key(6, 7), key(8, 9)]


def test_a_pause_grows_no_longer_than_an_hour(sensor: Sensing) -> None:
    # given
    begin(sensor, retry_seconds=3000)
    for _ in range(2):
        sensor.fail(FIRST)
        sensor.later += 3601
        sensor.tick()
    # when
    sensor.fail(FIRST)
    sensor.later += 3601
    # then
    assert keys(sensor.tick()) == [FIRST]


def test_a_range_that_waits_for_its_next_attempt_takes_room(sensor: Sensing) -> None:
    # given
    begin(sensor, 10, retry_seconds=1000, max_in_flight=2)
    # when
    sensor.fail(key(0, 1))
    sensor.land(key(2, 3))
    ticked = sensor.tick()
    # then
    assert keys(ticked) == [key(4, 5)]


def test_a_run_that_dagster_should_have_retried_long_ago_is_started_again(sensor: Sensing) -> None:
    # given
    begin(sensor)
    run = sensor.instance.get_runs()[0]
    sensor.fail(FIRST)
    sensor.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    assert keys(sensor.tick()) == []
    # when
    sensor.later += 601
    # then
    assert keys(sensor.tick()) == [FIRST]


def test_a_range_that_failed_is_told_before_it_is_given_up(sensor: Sensing) -> None:
    # given
    begin(sensor, retry_seconds=1000)
    # when
    sensor.fail(FIRST)
    # then
    assert f"1 range failed and is tried again, the first is {FIRST}" in sensor.tick().sentence


def test_a_run_that_dagster_is_going_to_retry_is_not_started_again(sensor: Sensing) -> None:
    # given
    begin(sensor)
    run = sensor.instance.get_runs()[0]
    sensor.fail(FIRST)
    # when
    sensor.instance.add_run_tags(run.run_id, {WILL_RETRY_TAG: "true"})
    # then
    about_to = sensor.tick()
    assert about_to.runs == []
    assert "1 range in flight" in about_to.sentence
    # when Dagster has retried it, in vain
    tags = {SENSOR_NAME_TAG: SENSOR, PARTITION_NAME_TAG: FIRST, RUN_KEY_TAG: f"{FIRST}:1"}
    retry = sensor.record(tags)
    sensor.instance.add_run_tags(run.run_id, {AUTO_RETRY_RUN_ID_TAG: retry.run_id})
    sensor.instance.report_run_failed(retry)
    # then: its retry was an attempt
    assert sensor.tick().runs == [(SequenceRange(0, 1), 3)]


@pytest.mark.parametrize(
    "tags",
    [
        {PARTITION_NAME_TAG: FIRST},
        {ASSET_PARTITION_RANGE_START_TAG: FIRST, ASSET_PARTITION_RANGE_END_TAG: key(4, 5)},
    ],
    ids=["one partition", "a run of partitions"],
)
def test_a_range_that_somebody_else_queued_is_not_started_too(sensor: Sensing, tags: dict[str, str]) -> None:
    # given
    begin(sensor)
    sensor.fail(FIRST)
    # when
    run = sensor.record(tags, frozenset({ENTRIES}))
    # then
    assert sensor.tick().runs == []
    # when it has failed: it was not the sensor's
    sensor.instance.report_run_failed(run)
    # then
    assert sensor.tick().runs == [(SequenceRange(0, 1), 2)]


@pytest.mark.parametrize("started_by", ["its sensor", "a person", "a backfill of its job"])
def test_runs_of_another_buffer_with_the_same_keys_are_not_mistaken(sensor: Sensing, started_by: str) -> None:
    # given
    begin(sensor, retry_seconds=0)
    sensor.fail(FIRST)
    # when another pipeline of this deployment runs a range of the same sequences
    tags = {PARTITION_NAME_TAG: FIRST}
    if started_by == "its sensor":
        sensor.record({**tags, SENSOR_NAME_TAG: "orders_sensor", RUN_KEY_TAG: f"{FIRST}:9"}, job="land_orders")
    elif started_by == "a person":
        sensor.record(tags, frozenset({dg.AssetKey("orders")}))
    else:
        sensor.record(tags, job="land_orders")
    # then
    assert sensor.tick().runs == [(SequenceRange(0, 1), 2)]


def test_a_run_in_a_very_long_queue_is_still_found(sensor: Sensing, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a queue that is longer than what is looked through
    monkeypatch.setattr("objbuf_dagster.orchestration.runs._MOST_ACTIVE", 3)
    begin(sensor)
    for _ in range(4):
        sensor.record({})
    # when
    found = runs_of(sensor.instance, sensor.source, SENSOR, [SequenceRange(0, 1)], time.time()).tries
    # then
    assert found[SequenceRange(0, 1)].active
    assert sensor.tick().runs == []


def test_the_default_settings_try_for_about_an_hour() -> None:
    plain = SensorSettings()
    pauses = [plain.retry_seconds * 2**number for number in range(plain.max_attempts - 1)]
    assert 3000 < sum(pauses) < 5000
