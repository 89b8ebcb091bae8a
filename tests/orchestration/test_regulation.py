"""The sensor finds the size of its ranges from what really happened, and remembers it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import SensorSettings, ack_materialised
from objbuf_dagster.orchestration.regulation import Flight, Memory
from objbuf_dagster.orchestration.runs import Attempts, Going, Runs
from objbuf_dagster.orchestration.tick import Kept, TickResult
from objbuf_dagster.protocol import BatchDescriptor, Metadata, PlannedBatch, RangeObject
from objbuf_dagster.ranges import Limits, SequenceRange
from objbuf_dagster.ranges.regulator import Observation, Regulator, State
from objbuf_dagster.ranges.regulator_cost import Sample
from tests.orchestration.sensing import Sensing, key, keys, produce, sensing

REGULATED = SensorSettings(retry_seconds=0)
FIRST = key(0, 3)


@pytest.fixture
def regulated() -> Iterator[Sensing]:
    """A sensor as it is without any settings, that has taken the buffer over at a time `later` that stands still."""
    with sensing(settings=REGULATED) as made:
        produce(made.store, 4, size=1000)
        made.tick()
        yield made


def numbers(outcome: TickResult) -> dict[str, Any]:
    (event,) = outcome.observations
    return {name: value.value for name, value in event.metadata.items()}


def run(sensor: Sensing, one: str, seconds: float) -> None:
    """The range's run begins now and lands it after so long."""
    sensor.begin(one)
    sensor.later += seconds
    sensor.land(one)


@pytest.mark.parametrize("by_a_hook", [True, False])
def test_a_range_that_landed_teaches_the_regulator(regulated: Sensing, by_a_hook: bool) -> None:
    # given
    assert keys(regulated.tick()) == [FIRST], "all that is there, at once"
    run(regulated, FIRST, 90)
    # when
    if by_a_hook:
        ack_materialised(regulated.instance, regulated.source, regulated.buffer)
    seen = numbers(regulated.tick())
    # then
    state = regulated.state.regulation.state
    assert state.counted == (0,)
    assert state.batches == 4
    assert state.seconds == pytest.approx(60, abs=1), "90 are more than three times what was expected"
    assert seen["rho"] > 1, "four batches arrived within a second"
    assert regulated.state.regulation.flights == ()


def test_before_anything_landed_what_waits_has_its_real_size(regulated: Sensing) -> None:
    # given a range of batches of a kilobyte runs
    regulated.tick()
    # when as many wait as would be a lot if each were a megabyte
    produce(regulated.store, 100, size=1000)
    seen = numbers(regulated.tick())
    # then
    assert (seen["budget_bytes"], seen["catch_up_seconds"]) == (1 << 20, 0)


def test_a_burst_of_larger_batches_makes_a_range_large(regulated: Sensing) -> None:
    # given ranges of small batches landed, and one of them runs
    regulated.settings = SensorSettings(regulator=Regulator.of("balanced", min_bytes=4000))
    regulated.tick()
    run(regulated, FIRST, 20)
    produce(regulated.store, 4, size=1000, at=time.time() + regulated.later)
    regulated.later += 60
    regulated.tick()
    regulated.begin(key(4, 7))
    # when no more batches wait than before, each a hundred times as large
    produce(regulated.store, 4, size=100_000, at=time.time() + regulated.later)
    regulated.tick()
    regulated.later += 60
    regulated.land(key(4, 7))
    outcome = regulated.tick()
    # then they are not cut by what batches were before
    assert keys(outcome) == [key(8, 11)]
    assert numbers(outcome)["budget_bytes"] >= 400_000


def test_a_range_teaches_once(regulated: Sensing) -> None:
    # given
    regulated.tick()
    run(regulated, FIRST, 30)
    regulated.evaluate()
    regulated.evaluate()
    # when
    regulated.tick()
    once = regulated.state.regulation.state
    regulated.tick()
    # then
    assert regulated.state.regulation.state == once
    assert once.seconds == pytest.approx(30, abs=1)


def test_all_attempts_of_a_range_count(regulated: Sensing) -> None:
    # given
    regulated.tick()
    regulated.begin(FIRST)
    regulated.later += 10
    regulated.fail_now(FIRST)
    assert keys(regulated.tick()) == [FIRST]
    # when
    run(regulated, FIRST, 30)
    regulated.tick()
    # then
    assert regulated.state.regulation.state.seconds == pytest.approx(40, abs=1)


def test_a_run_that_has_landed_its_range_and_goes_on_is_waited_for(regulated: Sensing) -> None:
    # given the range is materialised and acked, and its run has more to do
    regulated.tick()
    regulated.begin(FIRST)
    regulated.report(FIRST)
    ack_materialised(regulated.instance, regulated.source, regulated.buffer)
    # when
    regulated.tick()
    # then
    assert regulated.state.regulation.state == State()
    # when
    regulated.later += 25
    regulated.land(FIRST)
    regulated.tick()
    # then
    assert regulated.state.regulation.state.seconds == pytest.approx(25, abs=1)


def test_a_range_that_a_person_marked_teaches_nothing(regulated: Sensing) -> None:
    # given
    regulated.tick()
    regulated.cancel(FIRST)
    regulated.mark(FIRST)
    # when
    regulated.tick()
    # then
    assert (regulated.state.regulation.state, regulated.state.regulation.flights) == (State(), ())


def test_what_was_learned_survives_a_restart(regulated: Sensing) -> None:
    # given
    regulated.tick()
    run(regulated, FIRST, 30)
    regulated.tick()
    learned = regulated.state.regulation
    # when another process goes on
    regulated.kept = Kept()
    regulated.tick()
    # then
    assert regulated.state.regulation == learned
    assert learned.state.counted == (0,)


def test_ranges_follow_each_other_at_the_interval_that_was_found(regulated: Sensing) -> None:
    # given a range was cut, and has landed
    regulated.tick()
    regulated.settings = SensorSettings(regulator="throughput")
    run(regulated, FIRST, 20)
    cut = time.time() + regulated.later - 20
    regulated.tick()
    # when something comes soon after
    produce(regulated.store, 1, at=time.time() + regulated.later)
    # then: it waits for others
    assert regulated.tick().runs == []
    # when the interval is over
    regulated.later = cut - time.time() + 60
    # then
    assert keys(regulated.tick()) == [key(4, 4)]


def test_a_burst_makes_a_range_large_instead_of_many(regulated: Sensing) -> None:
    # given
    regulated.settings = SensorSettings(regulator=Regulator.of("balanced", min_bytes=4000))
    regulated.tick()
    run(regulated, FIRST, 20)
    small = numbers(regulated.tick())["budget_bytes"]
    # when a hundred times as much is there
    produce(regulated.store, 400, size=1000, at=time.time() + regulated.later)
    regulated.later += 60
    outcome = regulated.tick()
    # then
    assert keys(outcome) == [key(4, 403)]
    assert numbers(outcome)["budget_bytes"] > small


def test_no_more_runs_are_started_than_are_worth_it(regulated: Sensing) -> None:
    # given ranges that are full with two batches, and room for four runs
    regulator = Regulator.of("balanced", min_bytes=1, max_bytes=2000, expected_room=1.0)
    regulated.settings = SensorSettings(regulator=regulator)
    produce(regulated.store, 40, size=1000)
    # when
    regulated.later += 60
    started = keys(regulated.tick())
    # then: each would slow down the others as much as it helps; one more is ready for when the first has ended
    assert len(started) == 2
    assert regulated.tick().runs == []


def test_a_run_that_takes_far_too_long_is_not_waited_for(regulated: Sensing) -> None:
    # given
    regulated.settings = SensorSettings(regulator=Regulator.of("balanced", expected_room=1.0))
    regulated.tick()
    regulated.begin(FIRST)
    produce(regulated.store, 1)
    regulated.later += 60
    assert regulated.tick().runs == [], "one at a time is best"
    # when
    regulated.later += 3600
    # then
    assert keys(regulated.tick()) == [key(4, 4)]


def test_a_run_in_the_queue_is_waited_for(regulated: Sensing) -> None:
    # given
    regulated.settings = SensorSettings(regulator=Regulator.of("balanced", expected_room=1.0))
    regulated.tick()
    produce(regulated.store, 1)
    # when
    regulated.later += 3600
    # then
    assert regulated.tick().runs == []


def test_a_cursor_with_a_damaged_regulation_is_refused(regulated: Sensing) -> None:
    # given
    regulated.tick()
    written = json.loads(regulated.cursor or "")
    damages: list[object] = [None, {}, [], written["regulation"] | {"flights": [["x", 1, 1, 1]]}]
    damages += [written["regulation"] | {name: 10**400} for name in ("cut_ms", "last_ms")]
    damages += [written["regulation"] | {"cut_ms": -1}]
    for damage in damages:
        regulated.cursor = json.dumps(written | {"regulation": damage})
        # then
        with pytest.raises(InvalidInput, match=r"cursor is damaged.*reset the cursor"):
            regulated.tick()


def range_at(start: int, planned_at_ms: int, produced_ms: int) -> RangeObject:
    batch = PlannedBatch(BatchDescriptor(start, f"ingest/{start}", (Metadata(0, produced_ms, b""),)), 10)
    return RangeObject(start, start, 1, planned_at_ms, (batch,))


def test_a_producer_whose_clock_is_ahead_is_believed_for_one_range_at_most() -> None:
    # given
    memory = Memory().with_planned([range_at(0, 1_000_000, 990_000)])
    # when one says that it is the year 2500
    memory = memory.with_planned([range_at(1, 1_020_000, 17 * 10**12)])
    # then its batch arrived when it was planned, and the next one some time after that
    assert memory.last_ms == 1_020_000
    memory = memory.with_planned([range_at(2, 1_040_000, 1_035_000)])
    assert [flight.arrival_seconds for flight in memory.flights] == [0.0, 30.0, 15.0]
    assert Memory.from_json(json.loads(json.dumps(memory.to_json()))) == memory


def test_a_clock_that_was_ahead_for_one_tick_is_forgotten_with_the_next_range() -> None:
    # given
    memory = Memory().with_planned([range_at(0, 10**15, 10**15)])
    # when it is right again
    memory = memory.with_planned([range_at(1, 1_020_000, 1_010_000), range_at(2, 1_040_000, 1_035_000)])
    # then
    assert (memory.cut_ms, memory.last_ms) == (1_040_000, 1_035_000)
    assert memory.flights[-1].arrival_seconds == 15.0


def test_more_ranges_than_are_remembered_leave_the_last_cut_where_it_was() -> None:
    # given 300 open ranges, cut one after the other
    ranges = [range_at(start, 1_000_000 + start * 10_000, 999_000 + start * 10_000) for start in range(300)]
    memory = Memory().with_planned(ranges)
    assert (memory.cut_ms, memory.last_ms) == (3_990_000, 3_989_000)
    assert [flight.of.start for flight in memory.flights] == list(range(44, 300))
    # when the next ticks see them again
    for _ in range(3):
        assert memory.with_planned(ranges) == memory
    # when those that are remembered land, and the first ones do not
    landed = [flight.of for flight in memory.flights]
    tries = {one: Attempts(count=1, spans=((4000.0, 4010.0),)) for one in landed}
    memory = memory.learned(Regulator(), Runs(tries), landed, now=4020)
    assert memory.flights == ()
    memory = memory.with_planned(ranges[:44])
    # then
    assert (memory.cut_ms, memory.last_ms) == (3_990_000, 3_989_000)
    # when one more is cut
    memory = memory.with_planned([*ranges[:44], range_at(300, 4_100_000, 4_099_000)])
    # then it is in flight, and arrived in the time since the last one
    assert [(flight.of.start, flight.arrival_seconds) for flight in memory.flights] == [(300, 110.0)]


def test_times_that_no_clock_shows_are_kept_within_bounds() -> None:
    for planned in (-(2**63), 2**63 - 1):
        memory = Memory().with_planned([range_at(0, planned, planned)])
        assert Memory.from_json(json.loads(json.dumps(memory.to_json()))) == memory


def test_a_last_cut_in_the_future_delays_nothing(regulated: Sensing) -> None:
    # given ranges that wait for an interval, and a clock that was a year ahead when the last one was cut
    regulated.settings = SensorSettings(regulator="throughput")
    regulated.later = 365 * 86_400.0
    assert keys(regulated.tick()) == [FIRST]
    regulated.later = 0
    regulated.land(FIRST)
    # when
    produce(regulated.store, 1)
    regulated.later = 31
    # then
    assert keys(regulated.tick()) == [key(4, 4)]


def test_bytes_in_flight_are_to_be_caught_up_with(regulated: Sensing) -> None:
    # given
    regulated.settings = SensorSettings(regulator=Regulator.of("balanced", min_bytes=1, max_bytes=40_000))
    produce(regulated.store, 30, size=1000)
    # when all that there is runs
    started = numbers(regulated.tick())
    seen = numbers(regulated.tick()) if started["in_flight"] == 0 else started
    after = regulated.tick()
    # then
    assert seen["in_flight_bytes"] > 30_000
    assert after.observations == [] or numbers(after)["catch_up_seconds"] > 0
    assert regulated.kept.metrics.snapshot().gauges["regulator.catch_up_seconds"] > 0


def test_gauges_follow_the_regulator(regulated: Sensing) -> None:
    # when
    regulated.tick()
    # then
    gauges = regulated.kept.metrics.snapshot().gauges
    assert (gauges["regulator.in_flight"], gauges["regulator.held"]) == (1, 0)
    assert gauges["regulator.in_flight_bytes"] == 4 * 1011
    assert gauges["regulator.budget_bytes"] >= 1 << 20
    assert gauges["regulator.rho"] != gauges["regulator.rho"], "not a number: nothing has landed"
    # when
    run(regulated, FIRST, 30)
    regulated.tick()
    # then
    assert regulated.kept.metrics.snapshot().gauges["regulator.rho"] > 0
    assert regulated.kept.metrics.snapshot().gauges["regulator.in_flight"] == 0


class TestQueries:
    """Of Dagster's runs: their number does not grow with what it knows, nor with what was learned."""

    @pytest.fixture
    def queries(self, regulated: Sensing, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        asked: list[object] = []
        ask = regulated.instance.get_run_records

        def counted(*given: Any, **named: Any) -> Any:
            asked.append(given)
            return ask(*given, **named)

        monkeypatch.setattr(regulated.instance, "get_run_records", counted)
        return asked

    def test_an_idle_tick_asks_nothing(self, regulated: Sensing, queries: list[object]) -> None:
        # given
        regulated.tick()
        run(regulated, FIRST, 30)
        regulated.tick()
        queries.clear()
        # when
        outcome = regulated.tick()
        # then
        assert (queries, outcome.observations) == ([], [])

    def test_a_run_that_hangs_after_its_range_landed_is_not_asked_for_for_ever(
        self, regulated: Sensing, queries: list[object]
    ) -> None:
        # given it materialised the range, which is acked, and never ends
        regulated.tick()
        regulated.begin(FIRST)
        regulated.report(FIRST)
        regulated.later = 60
        regulated.tick()
        queries.clear()
        # when it may still end: what it took is to be learned
        regulated.tick()
        assert len(queries) == 2
        # when nobody believes that any more
        regulated.later = 10 * 3600
        regulated.tick()
        queries.clear()
        outcome = regulated.tick()
        # then
        assert (queries, outcome.observations) == ([], [])
        assert regulated.state.regulation.flights == ()

    def test_learning_costs_no_query_of_its_own(self, regulated: Sensing, queries: list[object]) -> None:
        # given
        regulator = Regulator.of("balanced", min_bytes=1, max_bytes=1, expected_room=16.0)
        regulated.settings = SensorSettings(regulator=regulator)
        started = keys(regulated.tick())
        assert len(started) == 4
        for one in started[:3]:
            run(regulated, one, 10)
        queries.clear()
        # when
        regulated.tick()
        # then
        assert len(queries) == 2
        assert len(regulated.state.regulation.state.counted) == 3


class TestOff:
    """With the regulator off, exactly the fixed limits apply."""

    LIMITS = Limits(max_batches=3, max_bytes=5000, max_wait=20)

    def test_ticks_are_those_of_fixed_limits_whatever_was_learned(self) -> None:
        """The same story for two sensors: one knows nothing, the other was told lies at every tick."""
        settings = SensorSettings(limits=self.LIMITS, max_in_flight=3, retry_seconds=0)
        with sensing(settings=settings) as plain, sensing(settings=settings) as lied_to:
            for number in range(12):
                state = State(1e6, 1.0, 1e12, 1.0, (Sample(9e9, 9e9, 1.0),), tuple(range(100)))
                lie = Memory(state, dataclasses.replace(Memory().gate, held=True, why="memory"), cut_ms=2**60)
                if lied_to.cursor:
                    cursor = dataclasses.replace(lied_to.state, regulation=lie)
                    lied_to.cursor = cursor.to_text()
                ticks = [self.story(sensor, number) for sensor in (plain, lied_to)]
                assert ticks[0] == ticks[1]
            assert plain.frontier > 0

    @staticmethod
    def story(sensor: Sensing, number: int) -> tuple[object, ...]:
        if number % 3 == 0:
            produce(sensor.store, 4 + number % 5, size=700 * (1 + number % 4), at=1e9 + number)
        outcome = sensor.tick()
        running = [run for run in sensor.partitions if sensor.is_running(run)]
        for position, one in enumerate(running):
            (sensor.fail if (position + number) % 3 == 0 else sensor.land)(one)
        return keys(outcome), outcome.partitions, outcome.sentence, sensor.partitions

    def test_ranges_are_cut_where_the_limits_say(self) -> None:
        # given
        with sensing(settings=SensorSettings(limits=self.LIMITS, max_in_flight=9)) as sensor:
            produce(sensor.store, 4, size=1000)
            produce(sensor.store, 2, size=3000)
            produce(sensor.store, 1, size=10)
            # when
            sensor.tick()
            # then: by their number, by their bytes; and one waits for its time
            assert keys(sensor.tick()) == [key(0, 2), key(3, 4)]
            sensor.later = 21
            assert keys(sensor.tick()) == [key(5, 6)]


def test_runs_that_ended_before_count_for_those_they_ran_beside() -> None:
    # given: 0 to 9 ran alone for 10 s, then beside 10 to 19, which ended first
    first, second = SequenceRange(0, 9), SequenceRange(10, 19)
    memory = Memory(flights=(Flight(first, 100, 10, 5.0), Flight(second, 200, 10, 7.0)))
    regulator = Regulator()
    tries = {first: Attempts(active=True, count=1), second: Attempts(count=1, spans=((110.0, 120.0),))}
    # when
    memory = memory.learned(regulator, Runs(tries, (Going(100.0, True, (first,)),)), [second], now=121)
    # then
    of_second = Observation(10, 200, 10, 10.0, 7.0, at_once=2.0)
    assert memory.state == regulator.update(State(), [of_second])
    assert (memory.flights, memory.ended) == ((Flight(first, 100, 10, 5.0),), ((110.0, 120.0),))
    # when
    tries = {first: Attempts(count=1, spans=((100.0, 140.0),))}
    memory = memory.learned(regulator, Runs(tries), [first], now=150)
    # then
    of_first = Observation(0, 100, 10, 40.0, 5.0, at_once=1.25)
    assert memory.state == regulator.update(State(), [of_second, of_first])
    assert memory.ended == (), "nothing runs that they could have slowed down"
