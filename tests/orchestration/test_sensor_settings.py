"""Settings that cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration import BufferSource, SensorSettings
from objbuf_dagster.ranges import Limits


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
