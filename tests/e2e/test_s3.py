"""The pipeline on a real S3 server: buffer and lake in a bucket, and every writer in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from objbuf_dagster.lake import LakeTable
from tests.cli.commands import environment as with_variables
from tests.cli.commands import finish, start
from tests.e2e.deployment import SETTINGS, Deployment
from tests.e2e.producing import durable
from tests.e2e.running import PATIENCE_SECONDS, UNFINISHED, is_jvm, is_run, quick_spark, running
from tests.prove.secrets import Commands
from tests.spark.landing import Filled, fill
from tests.spark.rows import batch
from tests.support.s3 import S3Location

pytestmark = pytest.mark.timeout(1800)


# Landing, without Dagster


def _key(filled: Filled, number: int) -> str:
    return f"{filled.ranges[number].start:012d}-{filled.ranges[number].end:012d}"


def test_processes_that_land_the_same_ranges_and_others_leave_each_once(real_s3: S3Location, tmp_path: Path) -> None:
    place = real_s3.fresh()
    made = [batch(number, [b"%d-%d" % (number, index) for index in range(20)]) for number in range(12)]
    filled = fill(place.below("buffer").open(), made, per_range=2)
    shares = [(0, 1, 2, 3), (2, 3, 4, 5)]
    given = with_variables(**place.environment("AWS_"), **quick_spark())

    where = ["--buffer", f"{place.url}/buffer", "--lake", f"{place.url}/lake", "--master", "local[1]"]
    landings = [
        start("land", *(_key(filled, number) for number in share), *where, cwd=tmp_path, env=given) for share in shares
    ]
    try:
        ended = [finish(process, PATIENCE_SECONDS) for process in landings]
    finally:
        for process in landings:
            process.kill()

    assert [code for code, _, _ in ended] == [0, 0], ended
    table = LakeTable(f"{place.url}/lake/entries", options=place.options)
    rows = table.delta().to_pyarrow_table(columns=["_odb_sequence", "_odb_entry_index", "entry"]).to_pylist()
    landed = sorted((row["_odb_sequence"], row["_odb_entry_index"], row["entry"]) for row in rows)
    assert landed == [(one.descriptor.sequence, *pair) for one in filled.batches for pair in enumerate(one.entries)]
    said = [commit.get("objbuf", {}) for commit in table.delta().history()]
    assert sorted(one["range"] for one in said if "range" in one) == sorted(
        _key(filled, number) for share in shares for number in share
    )


# `dagster dev`


@pytest.fixture(scope="module")
def s3(real_s3: S3Location) -> S3Location:
    """Where the deployments here have their buffer and their lakes."""
    return real_s3.fresh()


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    """The command lines of all that the first deployment starts."""
    with Commands(seconds=0.25) as seen:
        yield seen


@pytest.fixture(scope="module")
def first(s3: S3Location, commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("s3")
    with running(place, s3, **SETTINGS, **commands.variables) as dagster:
        yield Deployment(dagster, place)


def test_what_is_durable_in_a_bucket_is_in_its_table_exactly_once_though_a_run_was_killed(first: Deployment) -> None:
    dagster = first.dagster
    with first.producing():
        for pid in dagster.wait_until_a_run_lands():
            os.kill(pid, signal.SIGKILL)
    first.settle()

    assert dagster.runs("FAILURE")
    assert len(dagster.materialised()) > 1
    first.assert_exactly_once()
    assert dagster.failed_ticks() == []
    assert not list(first.place.glob("lake*"))
    assert not list(first.place.glob("buffer*"))


def test_the_secret_key_is_in_no_command_line_of_a_deployment(
    first: Deployment, s3: S3Location, commands: Commands
) -> None:
    if not first.ledgers:
        first.produce_a_few_ranges()
    first.settle()
    seen = sorted(command for command in commands.seen if command.strip())  # one that has ended has none

    for kind in (_is_daemon, _is_code_server, _is_webserver, is_run, is_jvm, _is_worker):
        assert any(map(kind, seen)), f"the search has not seen what {kind.__name__} tells, in {seen}"
    secret = s3.options["secret_access_key"]
    assert [command for command in seen if secret in command] == []


def _is_daemon(command: str) -> bool:
    return "dagster._daemon" in command


def _is_code_server(command: str) -> bool:
    return "dagster" in command and " api grpc" in command


def _is_webserver(command: str) -> bool:
    return "dagster_webserver" in command


def _is_worker(command: str) -> bool:
    return "pyspark.daemon" in command


def _fenced(deployment: Deployment) -> list[str]:
    return [message for message in deployment.dagster.failed_ticks() if "another consumer took over" in message]


def test_a_second_deployment_fences_the_first_and_neither_lake_has_anything_twice(
    first: Deployment, s3: S3Location, tmp_path: Path
) -> None:
    if not first.ledgers:
        first.produce_a_few_ranges()
    first.settle()
    with ExitStack() as stack:
        producers = stack.enter_context(ExitStack())
        producers.enter_context(first.producing())
        # Two Dagsters with a lake each, on one buffer. Whatever the first one has begun may end in its own lake.
        dagster = stack.enter_context(running(tmp_path, s3, "other-lake", **SETTINGS))
        second = Deployment(dagster, tmp_path, first.ledgers)
        dagster.wait_until("the first one says that it is fenced", lambda: _fenced(first))
        producers.close()
        shared = len(first.ledgers)
        second.produce_a_few_ranges()
        second.settle()
        dagster.wait_until("the first one is idle", lambda: not first.dagster.runs(*UNFINISHED))
        assert dagster.failed_ticks() == []
        landed_by_second = second.rows()

        # Taking it back, as the error advises.
        first.dagster.command("sensor", "cursor", "buffer_sensor", "--delete")
        dagster.wait_until("the second one says that it is fenced", lambda: _fenced(second))
        taken_back = len(first.ledgers)
        first.produce_a_few_ranges()
        first.settle()
        dagster.wait_until("the second one is idle", lambda: not dagster.runs(*UNFINISHED))
        assert second.rows() == landed_by_second, "a fenced deployment landed what came later"

    for message in _fenced(first):
        assert "holds epoch 1, the manifest says 2" in message
        assert "dagster sensor cursor buffer_sensor --delete" in message
    told = sorted(entry for ledger in first.ledgers for entry in durable(ledger))
    later = {entry for ledger in first.ledgers[shared:taken_back] for entry in durable(ledger)}
    back = {entry for ledger in first.ledgers[taken_back:] for entry in durable(ledger)}
    landed = first.rows()
    assert len(landed) == len(set(landed))
    assert len(landed_by_second) == len(set(landed_by_second))
    assert sorted({*landed, *landed_by_second}) == told
    assert later
    assert later <= set(landed_by_second), "what came after the takeover is the second one's"
    assert later.isdisjoint(landed), "a fenced deployment landed what came later"
    assert back
    assert back <= set(landed), "what came after it was taken back is the first one's"
    assert first.dagster.frontier == told[-1][0] + 1
