"""The real thing: `dagster dev` with this repo's code location, in a directory of a test's own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dev.processes import send, session
from objbuf_dagster.buffer import peek
from objbuf_dagster.spark.archive import IN_HASTE
from tests.dev.launches import CODE, environment, free_port
from tests.spark.processes import descendants
from tests.support import jvm
from tests.support.s3 import S3Location

HOST = "127.0.0.1"

PATIENCE_SECONDS = 600.0
"""For whatever is waited for: a quiet machine needs a tenth, and one with other work to do shall not fail a test."""

LEASH_SECONDS = 10.0

UNFINISHED = ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")

_LANDS = "Spark is ready"
"""A run says so in the deployment's log, and then lands its ranges."""

_PARTITIONS = """query($asset: AssetKeyInput!) { assetNodeOrError(assetKey: $asset) { ... on AssetNode {
    assetPartitionStatuses { ... on DefaultPartitionStatuses {
        materialised: materializedPartitions missing: unmaterializedPartitions failed: failedPartitions } } } } }"""

_MATERIALISATIONS = """query($partitions: [String!]) { assetNodeOrError(assetKey: {path: ["entries"]}) {
    ... on AssetNode { assetMaterializations(partitions: $partitions) { runId } } } }"""

_CHECKS = """query($check: String!) {
    assetCheckExecutions(assetKey: {path: ["entries"]}, checkName: $check, limit: 1000) { runId status } }"""

_TAGS = "query($run: ID!) { runOrError(runId: $run) { ... on Run { tags { key value } } } }"

_FAILURES = """query($run: ID!) { runOrError(runId: $run) { ... on Run { eventConnection { events {
    ... on ExecutionStepFailureEvent { error { message errorChain { error { message } } } } } } } } }"""

_START = "mutation($of: SensorSelector!) { startSensor(sensorSelector: $of) { __typename } }"
_STOP = "mutation($id: String!) { stopSensor(id: $id) { __typename } }"
_SENSOR_ID = "query($of: SensorSelector!) { sensorOrError(sensorSelector: $of) { ... on Sensor { id } } }"

_RUNS = "query($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { results { runId } } } }"

_FAILED_TICKS = """query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor {
    sensorState { ticks(limit: 200, statuses: [FAILURE]) {
        error { message errorChain { error { message } } } } } } } }"""

_BACKFILL = """mutation($of: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $of) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""

_ADD = """mutation($of: RepositorySelector!, $name: String!, $key: String!) {
    addDynamicPartition(repositorySelector: $of, partitionsDefName: $name, partitionKey: $key) { __typename } }"""

_DELETE = """mutation($of: RepositorySelector!, $name: String!, $keys: [String!]!) {
    deleteDynamicPartitions(repositorySelector: $of, partitionsDefName: $name, partitionKeys: $keys) { __typename } }"""

_REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "objbuf"}
_SENSOR = {**_REPOSITORY, "sensorName": "buffer_sensor"}
_RANGES = "buffer_ranges"


def quick_spark() -> dict[str, str]:
    """Settings of a deployment whose runs land little."""
    return {"OBJBUF_SPARK_MASTER": "local[1]", "SPARK_LAUNCHER_OPTS": IN_HASTE, **jvm.variables()}


def is_run(command: str) -> bool:
    """Whether this is the process of a run, by its command line."""
    return "multiprocessing.spawn" in command


def is_jvm(command: str) -> bool:
    """Whether this is Spark's JVM, and not the short-lived one that only says how to start it."""
    return command.split(maxsplit=1)[0].endswith("java") and " org.apache.spark.launcher.Main " not in command


class Dagster:
    """One deployment: a home, a buffer and a lake below `place`, and `dagster dev` for as long as it runs.

    With `s3`, the buffer and the lake are in that bucket instead, under these names.
    It may be stopped and started again, on the same home. Use `running`, which leaves nothing behind.
    """

    def __init__(self, place: Path, s3: S3Location | None = None, lake: str = "lake", /, **settings: str) -> None:
        self.home = place / "home"
        self.buffer = place / "buffer"
        self.lake = place / lake
        self.buffer_at = s3.below("buffer") if s3 else S3Location(self.buffer.as_uri(), {})
        self.lake_at = s3.below(lake) if s3 else S3Location(self.lake.as_uri(), {})
        self.port = free_port()
        self._place = place
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._leash: int | None = None
        self.home.mkdir(parents=True)
        shutil.copy(CODE / "dev" / "dagster.yaml", self.home)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def output(self) -> str:
        """What `dagster dev` has said, of all starts."""
        return (self._place / "log").read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and return when it answers."""
        assert self._process is None, "it was started already"
        given = self._environment()
        end, self._leash = os.pipe()
        # The leash ends it also if the tests are killed, and changes nothing else.
        leashed = ["-W", "ignore::FutureWarning", "-m", "dev.leash", str(end), str(LEASH_SECONDS)]
        told = ["-w", str(CODE / "workspace.yaml"), "-h", HOST, "-p", str(self.port), "--log-level", "warning"]
        # Tests that run in the background of a script ignore Ctrl-C, and what they start would, too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with (self._place / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, *leashed, "dagster", "dev", *told],
                    cwd=self._place,
                    env=given,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[end],
                    start_new_session=True,
                )
        finally:
            signal.signal(signal.SIGINT, before)
            os.close(end)
        self.wait_until("the webserver answers", self._answers)

    def command(self, *words: str) -> str:
        """What a command of Dagster's own prints, for this deployment's home and code location."""
        return subprocess.run(
            [sys.executable, "-m", "dagster", *words, "-w", str(CODE / "workspace.yaml")],
            cwd=self._place,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        ).stdout

    def _environment(self) -> dict[str, str]:
        return environment(
            DAGSTER_HOME=str(self.home),
            OBJBUF_BUFFER_URL=self.buffer_at.url,
            OBJBUF_LAKE_URL=self.lake_at.url,
            **self.buffer_at.environment("OBJBUF_S3_"),
            PYTHONPATH=str(CODE),
            **quick_spark(),
            **self._settings,
        )

    def wait_until_it_ended(self) -> int:
        """Wait for `dagster dev` to end by itself, and return its exit code."""
        assert self._process is not None, "it was not started"
        code = self._process.wait(PATIENCE_SECONDS)
        self._process = None
        self._let_go()
        return code

    def stop(self) -> int:
        """Ctrl-C, and the exit code."""
        assert self._process is not None, "it was not started"
        self._process.send_signal(signal.SIGINT)
        return self.wait_until_it_ended()

    def end(self) -> None:
        """Whatever is left of it is ended, by force if need be."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 60
            while session(self._process.pid) and time.monotonic() < deadline:
                self._process.poll()
                time.sleep(0.1)
            send(signal.SIGKILL, session(self._process.pid))
            self._process.wait()
        self._let_go()
        send(signal.SIGKILL, self.left())

    def daemon(self) -> int:
        """The process that ticks and starts runs: a child of `dagster dev`."""
        assert self._process is not None, "it was not started"
        below = descendants(self._process.pid)
        (found,) = (pid for pid, command in self.left().items() if pid in below and "dagster._daemon" in command)
        return found

    def wait_until_a_run_lands(self) -> list[int]:
        """Wait for the next run that begins to land, and return the processes of those that do."""
        before = self.output.count(_LANDS)
        self.wait_until("a run lands", lambda: self.output.count(_LANDS) > before and self._runs_with_spark())
        return self._runs_with_spark()

    def _runs_with_spark(self) -> list[int]:
        all_of_it = self.left()
        jvms = {pid for pid, command in all_of_it.items() if is_jvm(command)}
        runs = [pid for pid, command in all_of_it.items() if is_run(command)]
        return [pid for pid in runs if jvms & descendants(pid).keys()]

    def left(self) -> dict[int, str]:
        """Every process that was started with this home, whoever its parent is now: servers, runs, JVMs, workers.

        With the command line comes the environment.
        """
        listed = subprocess.run(["ps", "axewwo", "pid=,stat=,args="], capture_output=True, text=True, check=True)  # noqa: S607, ps
        rows = [
            line.split(None, 2) for line in listed.stdout.splitlines() if f"DAGSTER_HOME={self.home} " in f"{line} "
        ]
        return {int(pid): command for pid, state, command in rows if not state.startswith("Z")}

    def is_listening(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def wait_until(self, what: str, condition: Callable[[], object]) -> None:
        """Returns once the condition holds; fails when it does not in time, or when `dagster dev` has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.is_running, f"dagster dev ended before {what}:\n{self.output[-10_000:]}"
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.output[-10_000:]}"
            time.sleep(0.25)

    def query(self, text: str, **variables: Any) -> Any:
        """The answer to a GraphQL query, as the UI sends them."""
        status, body = self._ask("POST", "/graphql", json.dumps({"query": text, "variables": variables}))
        answer = json.loads(body)
        assert status == 200, answer
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    @property
    def frontier(self) -> int:
        return peek(self.buffer_at.open()).frontier

    @property
    def next_sequence(self) -> int:
        return peek(self.buffer_at.open()).next_sequence

    def materialised(self, asset: str = "entries") -> list[str]:
        """The partitions of an asset that the UI shows as such, in order."""
        found: list[str] = self._partitions(asset)["materialised"]
        return found

    def not_materialised(self, asset: str = "entries") -> list[str]:
        found = self._partitions(asset)
        return [*found["missing"], *found["failed"]]

    def _partitions(self, asset: str) -> Any:
        return self.query(_PARTITIONS, asset={"path": [asset]})["assetNodeOrError"]["assetPartitionStatuses"]

    def add_partition(self, key: str) -> None:
        """As a person does in the UI, whatever the key is."""
        added = self.query(_ADD, of=_REPOSITORY, name=_RANGES, key=key)["addDynamicPartition"]
        assert added["__typename"] == "AddDynamicPartitionSuccess", added

    def delete_partitions(self, *keys: str) -> None:
        deleted = self.query(_DELETE, of=_REPOSITORY, name=_RANGES, keys=keys)["deleteDynamicPartitions"]
        assert deleted["__typename"] == "DeleteDynamicPartitionsSuccess", deleted

    def backfill(self, *keys: str, assets: Sequence[str] = ("entries",)) -> None:
        """What the UI sends for a selection of partitions."""
        selected = [{"path": [asset]} for asset in assets]
        chosen = {"assetSelection": selected, "partitionNames": list(keys), "fromFailure": False}
        launched = self.query(_BACKFILL, of=chosen)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched

    def runs_of(self, partition: str) -> list[str]:
        """The runs that materialised it, the latest first."""
        found = self.query(_MATERIALISATIONS, partitions=[partition])["assetNodeOrError"]["assetMaterializations"]
        return [one["runId"] for one in found]

    def checked_by(self, check: str) -> dict[str, str]:
        """How this check of `entries` ended in each run."""
        found = self.query(_CHECKS, check=check)["assetCheckExecutions"]
        return {one["runId"]: one["status"] for one in found}

    def runs(self, *statuses: str) -> list[str]:
        """The runs that have one of these statuses."""
        found = self.query(_RUNS, filter={"statuses": statuses})["runsOrError"]["results"]
        return [one["runId"] for one in found]

    def tags_of(self, run: str) -> dict[str, str]:
        """A run's, those of Dagster's own among them."""
        return {one["key"]: one["value"] for one in self.query(_TAGS, run=run)["runOrError"]["tags"]}

    def failures_of(self, run: str) -> str:
        """Why the steps of a run failed, as the UI shows it."""
        events = self.query(_FAILURES, run=run)["runOrError"]["eventConnection"]["events"]
        errors = [event["error"] for event in events if event.get("error")]
        return "\n".join(one["message"] for error in errors for one in [error, *_chain(error)])

    def failed_ticks(self) -> list[str]:
        """What the sensor's failed ticks said, each with what caused it."""
        found = self.query(_FAILED_TICKS, sensor=_SENSOR)["sensorOrError"]["sensorState"]["ticks"]
        return ["".join(error["message"] for error in [one["error"], *_chain(one["error"])]) for one in found]

    @contextmanager
    def sensor_off(self) -> Iterator[None]:
        """While nothing but hooks can ack."""
        sensor = self.query(_SENSOR_ID, of=_SENSOR)["sensorOrError"]["id"]
        assert self.query(_STOP, id=sensor)["stopSensor"]["__typename"] == "StopSensorMutationResult"
        try:
            yield
        finally:
            assert self.query(_START, of=_SENSOR)["startSensor"]["__typename"] == "Sensor"

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/server_info")[0] == 200
        except OSError:
            return False

    def _let_go(self) -> None:
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None


def _chain(error: Any) -> list[Any]:
    return [link["error"] for link in error["errorChain"]]


@contextmanager
def running(place: Path, s3: S3Location | None = None, lake: str = "lake", /, **settings: str) -> Iterator[Dagster]:
    """A started deployment. No process of it is left afterwards, whatever happened."""
    dagster = Dagster(place, s3, lake, **settings)
    try:
        dagster.start()
        yield dagster
    finally:
        dagster.end()
