"""Something to watch: a few services whose logs a collector writes into a buffer.

What is written is what the OpenTelemetry Collector's exporter writes: an export request in protobuf per entry, and an
envelope of four bytes as its metadata.

`python -m dev.demo URL` writes until it is told to stop, and what it wrote is durable then. `--events N` stops by
itself.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from objbuf_dagster.buffer import BufferPlace, Producer, WriteHandle, peek
from objbuf_dagster.decode import Envelope, Signal
from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.store import open_store

EVENTS_PER_SECOND = 200
CALL_EVENTS = 50
FLUSH_SECONDS = 1.0  # so about one batch object per second
LONGEST_QUEUE = 3600
"""Batches. With an hour of them unread nobody is consuming, and a forgotten demo must not fill the disk."""

_LOOK_SECONDS = 10.0
_TICK_SECONDS = 0.1
_SERVICES = ("checkout", "payments", "search", "sessions")
_INSTANCES = 2
_PATHS = ("/cart", "/charge", "/find", "/login")
_LEVELS = ("INFO",) * 17 + ("WARN",) * 2 + ("ERROR",)
_STATUS = {"INFO": 200, "WARN": 404, "ERROR": 500}


def event(number: int, service: str, now: float) -> LogRecord:
    """The event of that number. All but its time follows from the number and the service."""
    chance = random.Random(f"{service}/{number}")
    level = chance.choice(_LEVELS)
    path = chance.choice(_PATHS)
    nanos = int(now * 1e9)
    return LogRecord(
        time_unix_nano=nanos,
        observed_time_unix_nano=nanos,
        severity_number=SeverityNumber.Value(f"SEVERITY_NUMBER_{level}"),
        severity_text=level,
        body=AnyValue(string_value=f"GET {path} {_STATUS[level]}"),
        attributes=_attributes(
            {
                "number": number,
                "http.route": path,
                "http.response.status_code": _STATUS[level],
                "duration_ms": round(chance.lognormvariate(3, 1), 1),
                "user.id": f"user-{chance.randrange(1000)}",
            }
        ),
        trace_id=chance.randbytes(16),
        span_id=chance.randbytes(8),
    )


def request(numbers: Iterable[int], service: str, instance: int, now: float) -> bytes:
    """The events of one instance of a service, as a collector hands them on."""
    where = {"service.name": service, "service.instance.id": f"{service}-{instance}", "service.version": "1.4.2"}
    resource = Resource(attributes=_attributes({**where, "_odb_gateway_received_at": int(now * 1e9)}))
    scope = ScopeLogs(
        scope=InstrumentationScope(name="demo"), log_records=[event(number, service, now) for number in numbers]
    )
    logs = ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=resource, scope_logs=[scope])])
    return bytes(logs.SerializeToString())


def _attributes(values: Mapping[str, str | int | float]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(one)) for key, one in values.items()]


def _value(one: str | float) -> AnyValue:
    if isinstance(one, str):
        return AnyValue(string_value=one)
    return AnyValue(int_value=one) if isinstance(one, int) else AnyValue(double_value=one)


class Pace:
    """How fast it goes: wanders gently around the usual rate, with a burst now and then."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._factor = 1.0
        self._burst = 0

    def seconds(self, events: int) -> float:
        """How long these events take to happen."""
        self._factor = min(1.4, max(0.6, self._factor + self._chance.uniform(-0.05, 0.05)))
        if self._burst:
            self._burst -= 1
        elif self._chance.random() < 0.005:
            self._burst = 60
        return events / (EVENTS_PER_SECOND * self._factor * (4 if self._burst else 1))


class Demo:
    """Writes events until `stopped` says so. What was handed over is durable when `run` returns."""

    def __init__(self, place: BufferPlace, stopped: Callable[[], bool], *, most: int | None = None) -> None:
        self._place = place
        self._stopped = stopped
        self._most = most
        self._handles: deque[WriteHandle] = deque()

    def run(self) -> int:
        """How many events it wrote. Raises ObjbufError if a write failed."""
        pace = Pace()
        envelope = Envelope(Signal.LOGS).to_bytes()
        written = calls = 0
        due = looked = time.monotonic()
        where = (self._place.store, self._place.manifest_path, self._place.data_prefix)
        with Producer(*where, compression="zstd", flush_interval=FLUSH_SECONDS) as producer:
            while self._sleep_until(due) and (self._most is None or written < self._most):
                service = _SERVICES[calls % len(_SERVICES)]
                count = CALL_EVENTS if self._most is None else min(CALL_EVENTS, self._most - written)
                instance = calls // len(_SERVICES) % _INSTANCES
                entry = request(range(written, written + count), service, instance, time.time())
                self._handles.append(producer.produce([entry], envelope))
                self._raise_failures()
                written += count
                calls += 1
                if time.monotonic() - looked > _LOOK_SECONDS:
                    self._wait_for_consumer()
                    looked = time.monotonic()
                # A machine that slept does not make up for it.
                due = max(due, time.monotonic() - 1.0) + pace.seconds(count)
        return written

    def _sleep_until(self, due: float) -> bool:
        """Whether to go on."""
        while not self._stopped():
            left = due - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, _TICK_SECONDS))
        return False

    def _raise_failures(self) -> None:
        while self._handles and (outcome := self._handles[0].result()) is not None:
            self._handles.popleft()
            if isinstance(outcome, ObjbufError):
                raise outcome

    def _wait_for_consumer(self) -> None:
        told = False
        where = (self._place.store, self._place.manifest_path)
        while not self._stopped() and peek(*where).queue_length >= LONGEST_QUEUE:
            if not told:
                print(f"demo: {LONGEST_QUEUE} batches wait and nobody consumes them: pausing", file=sys.stderr)
                told = True
            self._sleep_until(time.monotonic() + _LOOK_SECONDS)


def deployments_place() -> BufferPlace:
    """The buffer of the deployment, with all the settings that its resources read from the environment."""
    import dagster as dg

    from resources import resources

    with dg.build_resources(resources()) as made:
        place: BufferPlace = made.buffer.place()
        return place


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.demo", description=__doc__)
    parser.add_argument("url", nargs="?", help="file:///dir, s3://bucket/prefix, ...; default: the deployment's buffer")
    parser.add_argument("--events", type=int, help="stop after so many; default: go on until told")
    arguments = parser.parse_args()
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: told.append(received))
    try:
        place = BufferPlace(open_store(arguments.url)) if arguments.url else deployments_place()
        Demo(place, lambda: bool(told), most=arguments.events).run()
    except ObjbufError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
