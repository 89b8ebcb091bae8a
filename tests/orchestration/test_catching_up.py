"""States that a run left behind: the sensor starts one for them alone, when nothing else would."""

from __future__ import annotations

import dataclasses

import dagster as dg
import pytest

from objbuf_dagster.orchestration import SensorSettings
from tests.orchestration.gates import SMALL, Machine
from tests.orchestration.sensing import Sensing, key, produce

STATE = dg.AssetKey("service_latest")


@pytest.fixture
def late(sensor: Sensing) -> Sensing:
    """0 and 1 landed and are acked; the run was killed before the state had them."""
    sensor.states = (STATE,)
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    sensor.report(key(0, 1))
    sensor.tick()
    assert sensor.frontier == 2
    return sensor


def state_is_at(sensor: Sensing, sequence: int) -> None:
    sensor.instance.report_runless_asset_event(dg.AssetMaterialization(STATE, metadata={"next_sequence": sequence}))


def attempts(sensor: Sensing) -> list[dg.DagsterRun]:
    """Of the state alone, the latest first."""
    return [run for run in sensor.instance.get_runs() if run.asset_selection == frozenset({STATE})]


def test_a_state_is_left_to_the_run_that_is_still_at_it(late: Sensing) -> None:
    assert late.tick().catch_up is None
    assert late.state.caught_up == 0


def test_a_state_that_was_left_behind_gets_a_run_of_its_own(late: Sensing) -> None:
    # given
    late.fail(key(0, 1))
    # when
    ticked = late.tick()
    # then
    (run,) = attempts(late)
    assert not run.is_finished
    assert ticked.sentence.endswith("service_latest stayed behind the frontier: started a run (attempt 1)")
    assert late.tick().catch_up is None, "one at a time"
    # when it has ended well
    state_is_at(late, 2)
    late.instance.report_run_canceled(run)
    late.tick()
    # then: nothing is looked at again until the frontier moves
    assert (late.state.caught_up, len(attempts(late))) == (2, 1)


@pytest.mark.parametrize(("machine", "starts"), [(Machine(used=0.9), True), (Machine(free=0), False)])
def test_a_closed_gate_lets_it_through_as_it_would_a_range(late: Sensing, machine: Machine, starts: bool) -> None:
    """Memory that others keep full for days must not keep a state behind for days; a full disk must."""
    # given
    late.settings = SensorSettings(regulator=SMALL, retry_seconds=0)
    late.host = machine
    late.fail(key(0, 1))
    produce(late.store)  # so that something is to be held back
    late.tick()
    assert late.state.regulation.gate.held
    # when
    late.later = 1.0
    ticked = late.tick()
    # then
    assert bool(ticked.catch_up or attempts(late)) is starts


def test_a_state_that_its_landing_run_brought_up_to_date_gets_none(late: Sensing) -> None:
    # given
    state_is_at(late, 2)
    late.fail(key(0, 1))
    # when
    late.tick()
    # then
    assert (late.state.caught_up, attempts(late)) == (2, [])


def test_a_state_that_fails_is_tried_ever_more_rarely_and_then_left_to_a_person(late: Sensing) -> None:
    # given
    late.settings = dataclasses.replace(late.settings, max_attempts=2, retry_seconds=600)
    late.fail(key(0, 1))
    late.tick()
    # when
    late.instance.report_run_failed(attempts(late)[0])
    # then
    assert late.tick().catch_up is None
    late.later = 601
    assert "attempt 2" in late.tick().sentence
    # when
    late.instance.report_run_failed(attempts(late)[0])
    late.later = 100_000
    gave_up = late.tick()
    # then
    assert (gave_up.catch_up, len(attempts(late))) == (None, 2)
    assert "service_latest stayed behind the frontier, which is 2, and 2 runs for that failed" in gave_up.note
    assert late.tick().note == ""


def test_a_clock_that_goes_back_by_an_hour_delays_no_attempt_by_an_hour(late: Sensing) -> None:
    # given
    late.settings = dataclasses.replace(late.settings, retry_seconds=600)
    late.fail(key(0, 1))
    late.tick()
    late.instance.report_run_failed(attempts(late)[0])
    assert late.tick().catch_up is None
    # when
    late.later = -3600
    # then
    assert "attempt 2" in late.tick().sentence


def test_a_state_that_waits_for_something_is_not_asked_again_and_again(late: Sensing) -> None:
    # given
    late.fail(key(0, 1))
    late.tick()
    # when its run went well, and the state is where it was
    (run,) = attempts(late)
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name, message="as the test asked")
    late.instance.report_dagster_event(event, run.run_id)
    late.tick()
    late.tick()
    # then
    assert len(attempts(late)) == 1


def test_a_state_waits_while_ranges_are_to_run(late: Sensing) -> None:
    # given
    late.fail(key(0, 1))
    produce(late.store, 2)
    # when
    ticked = late.tick()
    # then: their run does it
    assert (len(ticked.runs), ticked.catch_up) == (1, None)


def test_without_a_state_nothing_is_asked(late: Sensing) -> None:
    late.states = ()
    late.fail(key(0, 1))
    assert late.tick().catch_up is None
