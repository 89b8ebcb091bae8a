"""Hostile input at the size of a test suite, and the ways it can come in that no fuzzer tries."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import pytest

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.buffer.gc import GarbageCollector
from objbuf_dagster.errors import BufferReplaced, CorruptData, NotFound
from objbuf_dagster.orchestration import BufferResource, SensorSettings
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.ranges.planner import check_against
from objbuf_dagster.store import LocalStore, MemoryStore, Store
from tests.orchestration.deployments import deployment, failure_of
from tests.orchestration.sensing import key
from tests.prove import hostile
from tests.prove.hostile import SHARES, begin_process, processes, prove, some, try_all, try_some
from tests.prove.hostile_documents import cursors, retentions, sightings
from tests.prove.hostile_inputs import ODD_TEXTS, TARGETS, input_of
from tests.prove.hostile_uses import USES, check_message
from tests.prove.proof import SEED, SMALL, recorded
from tests.support.buffers import append, fill, manifests, put_batch
from tests.support.counting import CountingStore
from tests.support.proxy import proxied
from tests.support.s3 import S3Location

LOCATIONS = [text for text in ODD_TEXTS if len(text.encode()) <= 65_535]
YEARS = 10 * 365 * 86_400
_OLD = "00000000Z80000000000000000.batch"  # the same in every process that collects tests


@pytest.mark.timeout(900)  # other tests may have the machine
def test_hostile_input_ends_in_our_own_errors_soon_and_in_little_memory() -> None:
    proofs = recorded(prove(SMALL))

    assert [proof.notes for proof in proofs if not proof.holds] == []
    assert sum(proof.tried for proof in proofs if proof.unit == "inputs") == 30_000


def test_every_target_has_its_share_and_a_number_names_an_input() -> None:
    assert set(SHARES) == set(TARGETS)
    assert sum(SHARES.values()) == 1_000
    for target in TARGETS:
        inputs = [input_of(SEED, target, number) for number in range(200)]
        assert inputs == [input_of(SEED, target, number) for number in range(200)]
        assert len(set(inputs)) > 100


def test_every_target_takes_some_inputs_and_refuses_others() -> None:
    """Else the fuzzer would knock at a door that never opens."""
    for target in TARGETS:
        tried = try_some(SEED, target, 0, 2 * some(target))

        assert tried.findings == []
        assert 0 < tried.accepted < tried.inputs


def with_one_that(use: Callable[[bytes], bool], notes: str) -> None:
    """Begins a process in which one input of a target, that is not among those of the warm-up, is used so."""
    first = some("partition key")
    fatal = input_of(SEED, "partition key", first + 7)
    right = USES["partition key"]
    USES["partition key"] = lambda data: use(data) if data == fatal else right(data)
    hostile.ENDLESS_SECONDS = 1.0
    begin_process(notes, ["partition key"])


def never_end(_: bytes) -> bool:
    while True:
        pass


def take_too_much(_: bytes) -> bool:
    return not bytes(5 << 30)


def end(_: bytes) -> bool:
    os.kill(os.getpid(), signal.SIGSEGV)
    return True


@pytest.mark.parametrize("use", [never_end, end])
def test_an_input_that_ends_its_process_or_never_ends_is_told_with_its_number(
    use: Callable[[bytes], bool], tmp_path: Path
) -> None:
    number = some("partition key") + 7
    with processes(str(tmp_path), functools.partial(with_one_that, use)) as pool:
        tried = try_all(pool, str(tmp_path), SEED, "partition key", 2 * number)

    assert tried.is_broken
    assert any(f"at partition key {number}, begun" in finding for finding in tried.findings), tried.findings


def test_an_input_that_takes_more_memory_than_there_is_is_a_finding(tmp_path: Path) -> None:
    number = some("partition key") + 7
    with processes(str(tmp_path), functools.partial(with_one_that, take_too_much)) as pool:
        tried = try_all(pool, str(tmp_path), SEED, "partition key", 2 * number)

    (finding,) = tried.findings
    assert finding.startswith(f"partition key {number}: MemoryError: ")


def test_what_is_wrong_while_a_process_warms_up_is_told(tmp_path: Path) -> None:
    with processes(str(tmp_path), warm_up_wrongly) as pool:
        tried = try_all(pool, str(tmp_path), SEED, "partition key", 10)

    assert any("partition key 3: AssertionError" in finding for finding in tried.findings), tried.findings
    assert any("the process grew by" in finding for finding in tried.findings), tried.findings


def warm_up_wrongly(notes: str) -> None:
    wrong, large = (input_of(SEED, "partition key", number) for number in (3, 4))

    def use(data: bytes) -> bool:
        assert data != wrong
        return data != large or not bytearray(b"x") * (300 << 20)

    USES["partition key"] = use
    begin_process(notes, ["partition key"])


@pytest.mark.parametrize(
    ("target", "documents", "others"),
    [
        ("sensor cursor", cursors, 1),  # that of another buffer
        ("retention object", retentions, 0),
        ("note of garbage", sightings, 0),
    ],
)
def test_what_inputs_are_made_of_is_accepted(target: str, documents: Callable[[], list[bytes]], others: int) -> None:
    """Else what stands behind the first mistake in it would never be looked at."""
    assert [USES[target](one) for one in documents()].count(False) == others


# Locations that climb out.


CLIMBING = [f"../{_OLD}", f"secrets/{_OLD}", f"ingest/../secrets/{_OLD}"]
ENCODED = [
    f"ingest/%2e%2e/secrets/{_OLD}",
    f"ingest/%2E%2E/%2E%2E/{_OLD}",
    f"ingest/%2e%2e%2fsecrets%2f{_OLD}",
    f"ingest/%252e%252e/secrets/{_OLD}",
    f"ingest/..%2f..%2f{_OLD}",
]
"""Climb out where somebody unquotes once too often. To us they are names like others, of objects that are not there."""
INSIDE = {
    *ENCODED,
    *("ingest/%2e%2e%2fx", "ingest/\u202ehctab", "ingest/<b>x</b>", "ingest/\x9b31m", "ingest/'\""),
    *("ingest/\ufeff", "ingest/\u2028x"),
}
"""Odd names of what would be in the buffer."""

every_location = pytest.mark.parametrize("location", [*LOCATIONS, *CLIMBING, *ENCODED], ids=ascii)


def put_secrets(store: Store) -> None:
    """What an enemy would like to have, or to see deleted."""
    for path in (_OLD, f"secrets/{_OLD}", "etc/passwd", "x", f"ingest2/{_OLD}"):
        put_batch(store, path, [b"secret"])


def outside(store: Store, prefix: str = "ingest/") -> dict[str, bytes]:
    return {info.path: store.get(info.path).data for info in store.list() if not info.path.startswith(prefix)}


def follow(store: Store, location: str) -> None:
    """All that follows locations does so, and fails as it should: nothing is read, nothing outside is deleted."""
    wanted = NotFound if location in INSIDE else CorruptData
    consumer = Consumer.open(store, gc_interval=None)
    with pytest.raises(wanted) as fetched:
        consumer.next_batch()
    check_message(fetched.value)
    (planned,) = plan(manifests(store), RangeLedger(store), Limits(max_wait=0))
    with pytest.raises(wanted):
        consumer.fetch_handle().fetch(planned.batches[0].descriptor)
    consumer.ack_through(0)
    collector = GarbageCollector(store, grace_seconds=0, retention_seconds=0, clock=lambda: 2_000_000_000.0)
    collector.collect_once()
    later = GarbageCollector(store, grace_seconds=0, retention_seconds=0, clock=lambda: 2_000_000_000.0 + YEARS)
    report = later.collect_once()
    assert all(path.startswith("ingest/") for path in report.deleted)


@every_location
def test_whatever_a_location_says_nothing_outside_the_prefix_is_read_or_deleted(location: str, tmp_path: Path) -> None:
    # given
    inner = LocalStore(tmp_path / "store")
    put_secrets(inner)
    (tmp_path / _OLD).write_bytes(b"beside the store")
    store = CountingStore(inner)
    append(inner, location, [Metadata(0, 1_000, b"")])
    before = outside(inner)
    # when
    follow(store, location)
    # then
    touched = {path for method, path in store.calls if method != "list"}
    assert [path for path in touched if not path.startswith("ingest/") or ".." in path.split("/")] == []
    assert outside(inner) == before
    assert (tmp_path / _OLD).read_bytes() == b"beside the store"


@every_location
def test_whatever_a_location_says_a_bucket_is_asked_for_nothing_outside_the_prefix(
    location: str, s3: S3Location
) -> None:
    # given
    at = s3.below("buffer")
    put_secrets(s3.open())
    put_secrets(at.open())
    append(at.open(), location, [Metadata(0, 1_000, b"")])
    before = outside(s3.open(), "buffer/ingest/")
    # when
    with proxied(at) as proxy:
        follow(proxy.location.open(), location)
    # then: what was sent says so itself
    bucket, _, root = at.url.removeprefix("s3://").partition("/")
    of_all = [one for one in proxy.requests if one.object.strip("/") == bucket]
    asked = [one.object.removeprefix(f"/{bucket}/{root}/") for one in proxy.requests if one not in of_all]
    assert [path for path in asked if not path.startswith("ingest/") or ".." in path.split("/")] == []
    assert (location in asked) == (location in INSIDE)
    queries = [parse_qs(urlsplit(one.path).query) for one in of_all if one.method == "GET"]
    assert [query for query in queries if not query["prefix"][0].startswith(f"{root}/ingest/")] == []
    # and: nothing has changed
    assert len(before) == 10
    assert outside(s3.open(), "buffer/ingest/") == before


def test_what_a_range_and_a_manifest_disagree_about_is_told_in_one_line() -> None:
    first, second = MemoryStore(), MemoryStore()
    append(first, "ingest/\x1b[2J\n\u202ex.batch")
    append(second, "ingest/" + "y\n" * 30_000)
    (planned,) = plan(manifests(first), RangeLedger(first), Limits(max_wait=0))

    with pytest.raises(BufferReplaced) as raised:
        check_against(manifests(second).read(), planned)

    check_message(raised.value)


# Dagster.


def unprintable(text: str) -> list[str]:
    return [line for line in text.split("\n") if not line.replace("\t", " ").isprintable()]


def test_what_a_run_says_of_locations_that_it_refuses_can_be_printed(tmp_path: Path) -> None:
    """In the run's error and log, in the sensor's sentence, and in what is observed of the buffer."""
    odd = [_ODD, "../\x1b[2J\n\u202e", "ingest/\u202e\x9b31m<script>|.batch"]
    buffer = BufferResource(url=(tmp_path / "buffer").as_uri())
    for location in odd:
        append(LocalStore(tmp_path / "buffer"), location, [Metadata(0, 1, b"\x1b[2J")])

    once = SensorSettings(limits=Limits(max_batches=1, max_wait=0), max_attempts=1)
    with deployment(tmp_path / "home", buffer, tmp_path / "lake", settings=once) as deployed:
        deployed.settle()

        ticks = deployed.seen
        runs = [run for tick in ticks for run in tick.runs]
        assert len({run.run_id for run in runs if not run.success}) == len(runs) == len(odd)
        assert deployed.frontier == 0
        said = [failure_of(run) for run in runs]
        assert all("batch" in one or "2J" in one for one in said), said
        said += [entry.message for run in runs for entry in deployed.instance.all_logs(run.run_id)]
        said += [tick.sentence for tick in ticks]
        said += [str(value.value) for tick in ticks for seen in tick.observations for value in seen.metadata.values()]
        assert [bad for one in said for bad in unprintable(one)] == []


def test_a_batch_with_an_odd_location_is_materialised_and_acked_under_a_name_that_can_be_printed(
    tmp_path: Path,
) -> None:
    odd = "ingest/\u202e\x9b31m<script>|'\".batch"
    store = LocalStore(tmp_path / "buffer")
    append(store, put_batch(store, odd), [Metadata(0, 1, b"\x1b[2J")])
    buffer = BufferResource(url=(tmp_path / "buffer").as_uri())

    with deployment(tmp_path / "home", buffer, tmp_path / "lake") as deployed:
        deployed.settle()

        assert deployed.frontier == 1
        (record,) = deployed.instance.fetch_materializations(dg.AssetKey("entries"), limit=10).records
        assert record.asset_materialization is not None
        shown = {name: str(value.value) for name, value in record.asset_materialization.metadata.items()}
        assert "last_batch" in shown
        assert [text for text in shown.values() if not text.isprintable()] == []


@pytest.mark.parametrize("odd", ["\x1b[2J\u202e\x9b31m", "a\nb", "000000000000-000000000001\x7f"], ids=ascii)
def test_a_partition_key_that_is_no_range_fails_its_run_in_our_words_and_stops_nothing(
    odd: str, tmp_path: Path
) -> None:
    # given: somebody added it in the UI
    store = LocalStore(tmp_path / "buffer")
    fill(store, 2)
    with deployment(
        tmp_path / "home", BufferResource(url=(tmp_path / "buffer").as_uri()), tmp_path / "lake"
    ) as deployed:
        deployed.settle()
        deployed.instance.add_dynamic_partitions(str(deployed.source.partitions.name), [odd])
        # when
        ran = deployed.materialise(odd)
        fill(store, 2)
        deployed.settle()
        # then
        (failure,) = (event.step_failure_data.error for event in ran.all_events if event.is_step_failure)
        assert failure is not None
        assert failure.cause is not None
        assert failure.cause.cls_name == "InvalidInput"
        assert "not a range" in failure.cause.message
        assert unprintable(failure_of(ran)) == []
        assert deployed.partitions == [key(0, 1), odd, key(2, 3)]
        assert deployed.frontier == 4


# A terminal.

_REPOSITORY = Path(__file__).parents[2]
_ODD = "ingest/\x1b[2J\x9b31m\u202e<b>\r\nx\x07.batch"


@pytest.mark.parametrize(
    "command",
    [
        ["stat", "URL"],
        ["manifest", "dump", "URL"],
        ["tail", "URL"],
        ["tail", "URL", "--json"],
        ["ranges", "list", "URL"],
        ["ranges", "show", "URL", "000000000000-000000000000"],
        ["ranges", "show", "URL", "\x1b[2J\n\u202e"],
        ["ranges", "plan", "URL", "--max-wait", "0"],
        ["gc", "URL", "--yes"],
        ["ack", "URL", "\x1b[2J"],
        ["quarantine", "URL", "0", "--reason", "\x1b[2J", "--yes"],
        ["land", "\x1b[2J\u202e", "--buffer", "URL", "--lake", "URL/lake"],
        ["lake", "stat", "URL/\x1b[2J"],
        ["dead-letters", "list", "URL/\x1b[2J"],
        ["state", "show", "URL/\x1b[2J\u202e"],
        ["export", "URL/\x1b[2J", "URL/\u202e"],
        ["import", "URL/\x1b[2J", "URL/\u202e"],
        ["stat", "URL", "--data-prefix", "\x1b[2J"],
        ["stat", "URL\x1b[2J\u202e"],
        ["\x1b[2J\u202e"],
    ],
    ids=ascii,
)
@pytest.mark.parametrize("debug", ["0", "1"], ids=["plain", "debugging"])
def test_what_others_wrote_moves_no_cursor_of_a_terminal(command: list[str], debug: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    append(store, _ODD, [Metadata(0, 1, b"\x1b[2J")])
    plan(manifests(store), RangeLedger(store), Limits(max_wait=0))

    ran = subprocess.run(
        [sys.executable, "-m", "objbuf_dagster.cli", *(arg.replace("URL", str(tmp_path)) for arg in command)],
        capture_output=True,
        check=False,
        cwd=_REPOSITORY,
        env={**os.environ, "OBJBUF_DEBUG": debug, "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        timeout=250,
    )

    shown = (ran.stdout + ran.stderr).decode()
    assert shown
    assert [line for line in shown.split("\n") if not line.isprintable()] == []
