"""Settings that cannot be meant."""

from __future__ import annotations

import re
from typing import Any

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import BufferSource, SensorSettings
from objbuf_dagster.orchestration.sensor import landing_job, range_sensor
from objbuf_dagster.ranges import Limits
from objbuf_dagster.ranges.gate import Gate
from objbuf_dagster.ranges.regulator import Regulator


def brief(value: object) -> str:
    return repr(value)[:12]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_in_flight": 0},
        {"max_in_flight": -1},
        {"max_ahead": 0},
        {"max_attempts": 0},
        {"retry_seconds": -0.1},
        {"retry_seconds": float("nan")},
        {"retry_seconds": float("inf")},
        {"on_gap": "ignore"},
    ],
    ids=str,
)
def test_a_sensor_refuses_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        SensorSettings(**settings)


def test_a_sensor_regulates_itself_unless_it_has_limits() -> None:
    limits = Limits(max_batches=7)
    assert SensorSettings().regulation()[0] == Regulator.of("balanced")
    assert SensorSettings(regulator="off").regulation()[0] == Regulator(on=False)
    assert SensorSettings(limits=limits).regulation()[0] == Regulator(on=False, limits=limits)


def test_numbers_of_the_sensor_and_its_own_reach_the_regulator() -> None:
    settings = SensorSettings(regulator=Regulator.of("throughput", target=0.5, smoothing=0.1), max_in_flight=9)
    regulator, gate = settings.regulation(tick_seconds=30)
    assert regulator == Regulator.of("throughput", target=0.5, smoothing=0.1, parallel=9, tick_seconds=30)
    gate.check_room(9, regulator.max_bytes)


def test_numbers_of_a_gate_reach_it() -> None:
    gate = Gate(0.9, 0.5, max_ranges=100, max_bytes=1 << 40, min_free_bytes=1, run_memory_bytes=7, settle_seconds=5)
    assert SensorSettings(gate=gate).regulation()[1] == gate


@pytest.mark.parametrize("profile", ["throughput", "balanced", "low_latency"])
@pytest.mark.parametrize("max_in_flight", [1, 4, 100, 5000])
def test_the_default_gate_has_room_for_plain_work(profile: Any, max_in_flight: int) -> None:
    regulator, gate = SensorSettings(regulator=profile, max_in_flight=max_in_flight).regulation()
    gate.check_room(max_in_flight, regulator.max_bytes)


def test_a_gate_that_plain_work_would_close_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"max_ranges is 4, and 4 ranges in flight .* would close in plain work"):
        SensorSettings(gate=Gate(max_ranges=4))
    assert SensorSettings(limits=Limits(), gate=Gate(max_ranges=4)), "which never closes"


def test_limits_that_nothing_would_go_by_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"limits apply with the regulator off.*Regulator.of\('balanced', max_bytes"):
        SensorSettings(limits=Limits(), regulator="balanced")


def test_a_regulator_that_is_not_on_is_off_and_may_have_the_limits() -> None:
    limits = Limits(5, 5, 5)
    off = Regulator(on=False)
    assert SensorSettings(regulator=off).regulation()[0] == off
    assert SensorSettings(regulator=off, limits=limits).regulation()[0] == Regulator(on=False, limits=limits)
    own = Regulator(on=False, limits=limits)
    assert SensorSettings(regulator=own).regulation()[0] == own
    assert SensorSettings(regulator=own, limits=limits).regulation()[0] == own
    with pytest.raises(InvalidInput, match="limits are given twice"):
        SensorSettings(regulator=own, limits=Limits(6, 6, 6))


@pytest.mark.parametrize("given", ["fast", "", "Off", False, True, 0, ["balanced"], {}, Gate()], ids=brief)
def test_a_regulator_that_is_none_is_refused_with_what_may_be_given(given: Any) -> None:
    may_be = r"regulator is throughput, balanced, low_latency, off, a Regulator or None, not "
    for limits in (None, Limits()):
        with pytest.raises(InvalidInput, match=may_be + re.escape(repr(given)[:20])):
            SensorSettings(regulator=given, limits=limits)


@pytest.mark.parametrize("regulator", [None, "off", "balanced"])
@pytest.mark.parametrize("given", ["nonsense", "", 3, False, {}, Limits()], ids=brief)
def test_a_gate_that_is_none_is_refused_also_where_none_applies(given: Any, regulator: Any) -> None:
    with pytest.raises(InvalidInput, match=r"gate is Gate\(\.\.\.\), .* or None, not "):
        SensorSettings(gate=given, regulator=regulator)


@pytest.mark.parametrize("given", [0, "", {"max_batches": 7}, Gate()], ids=brief)
def test_limits_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"limits is Limits\(\.\.\.\), .* or None, not "):
        SensorSettings(limits=given)


@pytest.mark.parametrize("settings", [SensorSettings(), SensorSettings(regulator="off")], ids=["regulated", "off"])
def test_an_interval_that_would_fail_every_tick_is_refused_when_the_sensor_is_made(settings: SensorSettings) -> None:
    source = BufferSource()
    job = landing_job(source, [])
    with pytest.raises(InvalidInput, match=r"interval cannot be 20000000 seconds: .*tick_seconds must be"):
        range_sensor(source, job, settings, interval_seconds=20_000_000)
    assert range_sensor(source, job, settings, interval_seconds=86_400).minimum_interval_seconds == 86_400


@pytest.mark.parametrize("limits", [{"max_batches": 0}, {"max_bytes": 0}, {"max_wait": -1}], ids=str)
def test_a_range_refuses_limits_out_of_range(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(limits))):
        Limits(**limits)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": ""}, "begins with a letter"),
        ({"name": "Buffer"}, "begins with a letter"),
        ({"name": "1st"}, "begins with a letter"),
        ({"name": "a-b"}, "begins with a letter"),
        ({"name": "a\n"}, "begins with a letter"),
        ({"ack_after": []}, "lists the assets"),
        ({"ack_after": "entries"}, "lists the assets"),
        ({"ack": "never"}, "auto or manual"),
    ],
    ids=str,
)
def test_a_source_refuses_settings_out_of_range(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        BufferSource(**settings)
