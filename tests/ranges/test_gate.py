"""When nothing new is started, and when work goes on."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.ranges.gate import VERSION, Gate, GateState, Pressure
from tests.protocol.hostile import REPEATABLE

GATE = Gate()
BUSY = 0.25
"""Of the ranges: some are in flight."""


def walk(*levels: float, is_idle: bool = False) -> list[tuple[bool, bool]]:
    """Held or not, and changed or not, after each level of memory."""
    state, found = GateState(), []
    for level in levels:
        state, changed = GATE.step(state, Pressure(memory=level, ranges=BUSY), is_idle=is_idle)
        found.append((state.held, changed))
    return found


def test_it_closes_at_pause_above_and_opens_at_resume_below() -> None:
    assert [held for held, _ in walk(0.5, 0.79, 0.80, 0.95, 0.79, 0.66, 0.65, 0.7)] == [
        *[False, False],
        *[True, True, True, True],
        *[False, False],
    ]


def test_a_change_is_told_once() -> None:
    assert [changed for _, changed in walk(0.5, 0.9, 0.9, 0.7, 0.9, 0.6, 0.6)] == [
        *[False, True, False, False, False, True, False]
    ]


def test_in_between_it_stays_as_it_is() -> None:
    for level in (0.66, 0.7, 0.79):
        assert GATE.step(GateState(), Pressure(memory=level, ranges=BUSY)) == (GateState(), False)
        held = GateState(True, "memory")
        assert GATE.step(held, Pressure(memory=level, ranges=BUSY)) == (held, False)


def test_with_none_of_ours_in_flight_it_does_not_wait_for_what_others_use() -> None:
    assert walk(0.9, 0.7, is_idle=True) == [(True, True), (False, True)]
    assert walk(0.9, 0.85, is_idle=True) == [(True, True), (True, False)], "above pause_above, it stays closed"
    assert walk(0.9, 0.7) == [(True, True), (True, False)], "nor where some are"


@pytest.mark.parametrize(
    ("pressure", "is_idle", "passes"),
    [
        (Pressure(memory=0.94, ranges=0.0, bytes=0.0, disk=0.2), True, 1),
        (Pressure(memory=0.94, ranges=BUSY, bytes=0.0, disk=0.2), True, 1),  # a backfill runs
        (Pressure(memory=0.95, ranges=0.0, bytes=0.0, disk=0.2), True, 0),  # a run would bring the machine down
        (Pressure(memory=0.9, ranges=BUSY), False, 0),
        (Pressure(memory=0.1, ranges=0.0, disk=0.9), True, 0),
        (Pressure(memory=0.9, ranges=0.0, disk=0.8), True, 0),
        (Pressure(memory=0.9, ranges=0.8), True, 0),
    ],
)
def test_a_closed_gate_lets_one_through_where_only_memory_of_others_closes_it(
    pressure: Pressure, is_idle: bool, passes: int
) -> None:
    assert GATE.passes(GateState(True, "memory"), pressure, is_idle=is_idle) == passes
    assert GATE.passes(GateState(), pressure, is_idle=is_idle) == math.inf


@pytest.mark.parametrize("stop_above", [0.8, 0.5], ids=["the same as pause_above", "below it"])
@pytest.mark.parametrize("is_idle", [True, False])
def test_with_stop_above_at_pause_above_nothing_at_all_is_started_there(stop_above: float, is_idle: bool) -> None:
    strict, state = Gate(stop_above=stop_above), GateState()
    for level in (0.8, 0.82, 0.94, 0.95, 1.0, 0.8):
        pressure = Pressure(memory=level, ranges=0.0, bytes=0.0, disk=0.2)
        state, _ = strict.step(state, pressure, is_idle=is_idle)
        assert strict.passes(state, pressure, is_idle=is_idle) == 0
        assert "Until then, nothing is started at all" in strict.tell(state, pressure)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("memory", "one range at a time is started when none of ours is in flight, below 0.95 of memory"),
        ("disk", "Free some space on the lake's disk"),
        ("bytes", "What is in flight lowers it"),
    ],
)
def test_what_a_closed_gate_waits_for_is_told(name: str, what: str) -> None:
    pressure = Pressure(**{name: 0.9})
    assert what in GATE.tell(GateState(True, name), pressure)


@pytest.mark.parametrize("name", ["memory", "ranges", "bytes", "disk"])
def test_the_worst_decides_and_is_named(name: str) -> None:
    calm: dict[str, Any] = dict.fromkeys(("memory", "ranges", "bytes", "disk"), 0.3)
    pressure = Pressure(**{**calm, name: 0.81})
    assert pressure.worst() == (name, 0.81)
    state, changed = GATE.step(GateState(), pressure)
    assert (state, changed) == (GateState(True, name), True)
    assert f"the pressure of {name} is 0.81" in GATE.tell(state, pressure)


def test_what_is_not_known_holds_nothing_back() -> None:
    assert Pressure().worst() == ("nothing", 0.0)
    assert GATE.step(GateState(), Pressure()) == (GateState(), False)
    assert GATE.step(GateState(True, "disk"), Pressure(memory=math.nan)) == (GateState(), True)


def test_limits_in_flight_make_the_pressure() -> None:
    gate = Gate(max_ranges=10, max_bytes=1000)
    assert gate.pressure(memory=0.4, ranges=3, size=700) == Pressure(0.4, 0.3, 0.7, None)


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        (100 << 30, 2000 << 30, 0.1),  # nearly full by parts, and yet much room
        (12 << 30, 2000 << 30, 10 / 12),
        (5 << 30, 2000 << 30, 1.0),
        (10 << 30, 20 << 30, 0.2),  # a small disk is not full from the start
        (0, 20 << 30, 1.0),
    ],
)
def test_a_disk_presses_by_what_is_free(free: int, total: int, level: float) -> None:
    assert Gate().pressure(disk=(free, total)).disk == pytest.approx(level)


def test_a_disk_without_a_size_says_nothing() -> None:
    assert Gate().pressure(disk=(0, 0)).disk is None


def test_limits_that_plain_work_would_reach_are_refused() -> None:
    Gate().check_room(4, 1 << 30)
    with pytest.raises(InvalidInput, match=r"max_ranges is 4, .*Set it to more than 5"):
        Gate(max_ranges=4).check_room(4, 1)
    with pytest.raises(InvalidInput, match="max_bytes is"):
        Gate().check_room(4, 2 << 30)


def test_room_that_the_refusal_asks_for_is_enough() -> None:
    Gate(max_ranges=6).check_room(4, 1)


def test_up_to_where_one_passes_can_be_set() -> None:
    nearly_full = Pressure(memory=0.93, ranges=0.0, bytes=0.0, disk=0.2)
    held = GateState(True, "memory")
    assert Gate().passes(held, nearly_full, is_idle=True) == 1
    assert Gate(stop_above=0.93).passes(held, nearly_full, is_idle=True) == 0
    assert "below 0.93" in Gate(stop_above=0.93).tell(held, nearly_full)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("pause_above", 0.0),
        ("pause_above", 1.2),
        ("pause_above", float("nan")),
        ("pause_above", "0.8"),
        ("resume_below", -0.1),
        ("resume_below", 0.80),
        ("resume_below", 0.9),
        ("stop_above", 0.0),
        ("stop_above", 1.2),
        ("max_ranges", 0),
        ("max_ranges", 1.5),
        ("max_bytes", 0),
        ("min_free_bytes", 0),
        ("run_memory_bytes", -1),
        ("run_memory_bytes", 1.5),
        ("run_memory_bytes", (1 << 60) + 1),
        ("settle_seconds", -0.1),
        ("settle_seconds", 86_401),
        ("settle_seconds", float("nan")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(setting: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"gate's {setting} must be"):
        Gate(**{setting: value})


@pytest.mark.parametrize("state", [GateState(), GateState(True, "disk")])
def test_a_state_comes_back_as_it_was_written(state: GateState) -> None:
    assert GateState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_no_state_is_an_open_gate() -> None:
    assert GateState.from_json(None) == GateState()


@pytest.mark.parametrize(
    "given",
    [
        [],
        "held",
        {},
        {"version": VERSION + 1, "held": True, "why": ""},
        {"version": True, "held": True, "why": ""},
        {"version": VERSION, "held": 1, "why": ""},
        {"version": VERSION, "held": True, "why": "the weather"},
        {"version": VERSION, "held": True, "why": []},
        {"version": VERSION, "held": True},
        {"version": VERSION, "held": True, "why": "", "more": 1},
    ],
)
def test_a_damaged_or_foreign_state_is_refused_with_what_to_do(given: object) -> None:
    with pytest.raises(InvalidInput, match="Reset the sensor's cursor"):
        GateState.from_json(given)


LEVELS = st.one_of(st.none(), st.floats(), st.floats(0, 1.2))


@settings(REPEATABLE, max_examples=100)
@given(st.lists(st.tuples(st.builds(Pressure, LEVELS, LEVELS, LEVELS, LEVELS), st.booleans()), max_size=30))
def test_whatever_the_pressure_it_is_held_above_open_below_and_changes_alternate(
    pressures: list[tuple[Pressure, bool]],
) -> None:
    state = GateState()
    for pressure, is_idle in pressures:
        before = state.held
        state, changed = GATE.step(state, pressure, is_idle=is_idle)
        level = pressure.worst()[1]
        assert changed == (state.held != before)
        assert not math.isnan(level)
        if level >= GATE.pause_above:
            assert state.held
        if level <= GATE.resume_below:
            assert not state.held
        assert GATE.tell(state, pressure)


class TestRoom:
    GIB = float(1 << 30)
    GATE = Gate(run_memory_bytes=1 << 30, settle_seconds=30)

    def test_runs_fit_until_memory_would_be_where_the_gate_closes(self) -> None:
        assert self.GATE.room([(0.0, 10 * self.GIB)], []) == 8
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [100.0]) == 4
        assert self.GATE.room([(7.5 * self.GIB, 10 * self.GIB)], [100.0]) == 0

    def test_a_young_run_has_its_memory_yet_to_take(self) -> None:
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [100.0, 29.0, 0.0]) == 2
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [0.0] * 9) == 0

    def test_one_may_be_tried_where_none_runs(self) -> None:
        assert self.GATE.room([(self.GIB, self.GIB)], []) == 1
        assert self.GATE.room([(self.GIB, self.GIB)], [50.0]) == 0

    def test_a_backfill_takes_memory_and_leaves_one_to_what_is_new(self) -> None:
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [100.0], [0.0, 0.0]) == 2
        assert self.GATE.room([(self.GIB, self.GIB)], [], [50.0, 0.0]) == 1

    def test_memory_is_kept_by_what_a_driver_may_take_unless_it_is_set(self) -> None:
        assert Gate().room([(0.0, 10 * self.GIB)], []) == 8
        assert Gate().room([(0.0, 10 * self.GIB)], [], driver=2 << 30) == 4
        assert self.GATE.room([(0.0, 10 * self.GIB)], [], driver=2 << 30) == 8

    def test_where_runs_start_slowly_they_stay_young_for_longer(self) -> None:
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [50.0]) == 4
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [50.0], starting=80.0) == 3
        assert self.GATE.room([(4 * self.GIB, 10 * self.GIB)], [25.0], starting=5.0) == 3

    def test_what_is_not_known_or_not_wanted_limits_nothing(self) -> None:
        assert self.GATE.room([], [1.0]) == math.inf

    def test_a_small_container_counts_though_a_large_machine_is_fuller(self) -> None:
        assert self.GATE.room([(8 * self.GIB, 32 * self.GIB), (0.25 * self.GIB, 4 * self.GIB)], []) == 2

    def test_no_memory_is_kept_where_none_is_to_be(self) -> None:
        assert Gate(run_memory_bytes=0).room([(self.GIB, self.GIB)], [1.0]) == math.inf
