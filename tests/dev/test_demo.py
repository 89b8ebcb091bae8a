"""The demo producer, as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from dev.demo import EVENTS_PER_SECOND, Pace, event
from objbuf_dagster.buffer import Consumer, peek
from objbuf_dagster.decode import OtlpLogs
from objbuf_dagster.store import LocalStore
from tests.dev.launches import CODE, environment
from tests.spark.processes import wait_until

SECOND = 10**9
PAYLOAD = b"\x01\x02\x01\x00"
"""As the Collector's exporter writes it: version 1, logs, OTLP protobuf, reserved."""

DEMO = (sys.executable, "-m", "dev.demo")


def read(root: Path) -> list[dict[str, Any]]:
    """All events of the queue, as the decoder of such entries finds them."""
    decoder = OtlpLogs()
    events: list[dict[str, Any]] = []
    with Consumer.open(LocalStore(root)) as consumer:
        while (batch := consumer.next_batch()) is not None:
            assert {bytes(item.payload) for item in batch.metadata} == {PAYLOAD}
            assert decoder.takes(PAYLOAD)
            decoded = decoder.decode(pa.array([bytes(entry) for entry in batch.entries], pa.binary()))
            assert decoded.failures == ()
            events += decoded.rows.to_pylist()
    return events


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [int(dict(one["LogAttributes"])["number"]) for one in events]


def test_it_ends_when_told_and_everything_is_readable(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    started = time.time_ns()
    demo = subprocess.Popen([*DEMO, tmp_path.as_uri()], cwd=CODE, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: peek(store).queue_length >= 2)
    asked = time.monotonic()
    demo.send_signal(signal.SIGTERM)
    _, complaints = demo.communicate(timeout=20)
    assert (demo.returncode, complaints) == (0, "")
    assert time.monotonic() - asked < 5  # a second, and what a busy machine adds
    events = read(tmp_path)
    assert numbers(events) == list(range(len(events)))
    assert [one["ServiceName"] for one in events[::50]] == [
        ("checkout", "payments", "search", "sessions")[call % 4] for call in range(len(events) // 50)
    ]
    for one in events:
        resource, kinds = dict(one["ResourceAttributes"]), dict(one["ResourceAttributeKinds"])
        assert {"service.name", "service.instance.id"} <= resource.keys()
        assert kinds["_odb_gateway_received_at"] == "int"
        received = int(resource["_odb_gateway_received_at"])
        assert started - SECOND < received < time.time_ns() + SECOND, "nanoseconds, as the exporter stamps them"


def test_a_second_start_goes_on_behind_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run([*DEMO, tmp_path.as_uri(), "--events", "120"], cwd=CODE, env=environment(), check=True)
    assert peek(LocalStore(tmp_path)).next_sequence >= 2
    assert numbers(read(tmp_path)) == [*range(120), *range(120)]


def test_a_buffer_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    url = (tmp_path / "file" / "buffer").as_uri()
    ran = subprocess.run([*DEMO, url], cwd=CODE, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("demo: ")
    assert ran.stderr.count("\n") == 1


def test_events_differ_only_in_time() -> None:
    one, again, other = (event(7, "search", now) for now in (0.0, 0.0, 1.0))
    assert one == again
    assert (one.time_unix_nano, other.time_unix_nano) == (0, 1_000_000_000)
    other.time_unix_nano = other.observed_time_unix_nano = 0
    assert other == one


def test_the_rate_is_about_what_is_promised_with_bursts() -> None:
    pace = Pace()
    seconds = [pace.seconds(50) for _ in range(20_000)]
    assert EVENTS_PER_SECOND * 0.8 < 50 * len(seconds) / sum(seconds) < EVENTS_PER_SECOND * 1.6
    assert min(seconds) < 50 / EVENTS_PER_SECOND / 2.3
