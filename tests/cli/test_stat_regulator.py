"""`objbuf stat` with a pipeline's DAGSTER_HOME: what its regulator does, as the sensor said it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dagster as dg
import pytest

from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.orchestration import BufferResource, BufferSource, SensorSettings
from objbuf_dagster.orchestration.observations import observation
from objbuf_dagster.orchestration.tick import Kept, Tick
from tests.cli.commands import fill, ok, run

NAMES = {"at", "budget_bytes", "rho", "pressure", "held", "in_flight", "in_flight_bytes", "catch_up_seconds"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


def tick(buffer: BufferResource, source: BufferSource, times: int, kept: Kept | None = None) -> None:
    """The sensor's ticks, as the daemon would let Dagster know of them."""
    cursor, kept, name = None, kept or Kept(), f"{source.name}_sensor"
    with dg.DagsterInstance.get() as instance:
        for _ in range(times):
            outcome = Tick(instance, source, name, SensorSettings(), buffer, kept).run(cursor)
            for event in outcome.observations:
                instance.report_runless_asset_event(event)
            instance.add_dynamic_partitions(str(source.partitions.name), [one.key for one in outcome.partitions])
            cursor = outcome.cursor.to_text()


def test_what_the_sensor_said_last_is_shown_with_its_age(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "buffer"
    fill(root, [b"a"], [b"b"])
    tick(BufferResource(url=root.as_uri()), BufferSource(), 2)

    shown = json.loads(ok("stat", root, "--json"))["regulator"]
    line = next(line for line in ok("stat", root).splitlines() if line.startswith("regulator"))

    assert shown.keys() == NAMES
    assert shown["budget_bytes"] >= 1 << 20
    assert (shown["held"], shown["in_flight"], shown["rho"]) == (0, 1, None)
    assert shown["in_flight_bytes"] > 0
    assert re.fullmatch(
        r"regulator      budget .* a range, rho unknown, pressure \d\.\d\d, not held, "
        r"1 range in flight \(\d+ bytes\), caught up, .* ago",
        line,
    ), line


def say(root: Path, **numbers: float) -> str:
    """What is shown of these numbers, if the sensor said no others."""
    url = BufferResource(url=root.as_uri())
    event = observation(BufferSource(), url.identity(), {"epoch": 1, **numbers}, None)
    with dg.DagsterInstance.get() as instance:
        instance.report_runless_asset_event(event)
    return next(line for line in ok("stat", root).splitlines() if line.startswith("regulator"))


def test_a_takeover_raises_no_alarm(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "buffer"
    fill(root, [b"a"])
    tick(BufferResource(url=root.as_uri()), BufferSource(), 1)

    line = next(line for line in ok("stat", root).splitlines() if line.startswith("regulator"))

    assert "pressure unknown, not held, 0 ranges in flight (0 bytes), time to catch up unknown" in line


def test_every_number_that_is_known_is_shown(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "buffer"
    fill(root, [b"a"])
    known = {"budget_bytes": 1 << 20, "rho": 0.914, "pressure": 0.852, "in_flight": 2, "in_flight_bytes": 9}

    line = say(root, **known, held=0, catch_up_seconds=90.0)
    assert "rho 0.91, pressure 0.85, not held, 2 ranges in flight (9 bytes), caught up in " in line
    line = say(root, **known, held=1)
    assert "new ranges are held back, 2 ranges in flight (9 bytes), time to catch up unknown while held" in line
    line = say(root, **known, held=0)
    assert "not held, 2 ranges in flight (9 bytes), no end of catching up in sight" in line


def test_the_sensors_conflict_rate_is_shown_once_it_has_written(tmp_path: Path, home: Path) -> None:
    # given: a range that the sensor acks, at the second try
    root = tmp_path / "buffer"
    fill(root, [b"a"])
    buffer, source = BufferResource(url=root.as_uri()), BufferSource()
    tick(buffer, source, 2)
    assert json.loads(ok("stat", root, "--json"))["conflict_rate"] is None
    with dg.DagsterInstance.get() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("entries", partition="000000000000-000000000000"))
    metrics = Metrics()
    metrics.count("buffer.manifest_writes{role=consumer}")
    metrics.count("buffer.manifest_conflicts{role=consumer}")
    # when
    tick(buffer, source, 2, Kept(metrics=metrics))
    # then
    assert buffer.peek().frontier == 1
    assert json.loads(ok("stat", root, "--json"))["conflict_rate"] == 50.0
    assert "conflict rate  50.0% of the sensor's manifest writes" in ok("stat", root).splitlines()


def test_the_asset_of_a_source_with_another_name_is_found_by_its_key(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "buffer"
    fill(root, [b"a"])
    tick(BufferResource(url=root.as_uri()), BufferSource(name="clicks"), 1)

    assert json.loads(ok("stat", root, "--json", "--asset", "clicks"))["regulator"]["in_flight"] == 0


@pytest.mark.parametrize("others", [0, 1], ids=["nothing said", "said of another buffer"])
def test_a_deployment_that_does_not_know_the_buffer_is_noted_and_all_else_is_shown(
    tmp_path: Path, home: Path, others: int
) -> None:
    root, other = tmp_path / "buffer", tmp_path / "other"
    fill(root, [b"a"])
    fill(other, [b"a"])
    tick(BufferResource(url=other.as_uri()), BufferSource(), others)

    result = run("stat", root)

    assert result.exit_code == 0
    assert "regulator      unknown, see the note" in result.stdout
    assert "next sequence  1" in result.stdout
    assert ("is for" if others else "has said nothing of 'buffer'") in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_home_that_is_none_is_noted_and_all_else_is_shown(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "buffer"
    fill(root, [b"a"])
    monkeypatch.setenv("DAGSTER_HOME", str(home / "not there"))

    result = run("stat", root)

    assert result.exit_code == 0
    assert "next sequence  1" in result.stdout
    assert "cannot be asked" in result.stderr
    assert result.stderr.count("\n") == 1
