"""What a tick and an ack ask of the store, counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from objbuf_dagster.orchestration import SensorSettings, ack_materialised
from objbuf_dagster.orchestration.acking import survey
from objbuf_dagster.orchestration.tick import Kept
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import Limits
from objbuf_dagster.store import LocalStore, MemoryStore, ObjectInfo, local, open_store
from tests.orchestration.deployments import deployment
from tests.orchestration.gates import Machine
from tests.orchestration.sensing import Sensing, buffer_in, key, keys, produce, sensing
from tests.support.bucket import fake_bucket
from tests.support.buffers import append, batch_name, manifest_of, put_batch
from tests.support.counting import CountingStore
from tests.support.reading import bytes_read

MANIFEST = "ingest/manifest"


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryStore())


@pytest.fixture(params=[2, 300], ids=["a short range", "a long range"])
def counted(store: CountingStore, request: pytest.FixtureRequest) -> Iterator[Sensing]:
    """One range of so many batches is running."""
    batches: int = request.param
    produce(store, batches)
    with sensing(store, SensorSettings(limits=Limits(max_batches=batches, max_wait=3600))) as sensor:
        sensor.tick()
        sensor.tick()
        store.reset()
        yield sensor


def manifest_calls(store: CountingStore) -> tuple[int, int]:
    """GETs, those without a body among them, and PUTs."""
    return store.count("get", "read", "unchanged", path=MANIFEST), store.count("put", path=MANIFEST)


def last(sensor: Sensing) -> str:
    return sensor.partitions[-1]


def test_a_tick_without_acks_reads_the_manifest_once(counted: Sensing, store: CountingStore) -> None:
    # when nothing is new
    counted.tick()
    # then
    assert manifest_calls(store) == (1, 0)
    assert store.count("put", "delete", "head") == 0


def test_a_tick_that_plans_reads_the_manifest_once(store: CountingStore) -> None:
    with sensing(store) as sensor:
        # given
        produce(store, 4)
        sensor.tick()
        store.reset()
        # when
        ticked = sensor.tick()
        # then
        assert len(ticked.runs) == 2
        assert manifest_calls(store) == (1, 0)
        assert store.count("put") == 2


def test_a_tick_that_waits_for_more_data_reads_the_manifest_once(store: CountingStore) -> None:
    with sensing(store, SensorSettings(limits=Limits(max_wait=3600))) as sensor:
        # given
        produce(store, 4)
        sensor.tick()
        sensor.tick()
        store.reset()
        # when
        sensor.tick()
        # then
        assert manifest_calls(store) == (1, 0)
        assert store.count("put", "head") == 0


def test_a_tick_that_acks_reads_and_writes_the_manifest_once(counted: Sensing, store: CountingStore) -> None:
    # given
    counted.land(last(counted))
    store.reset()
    # when
    counted.tick()
    # then
    assert counted.frontier == counted.state.next_sequence
    assert manifest_calls(store) == (2, 1), "one of the reads is this test's own"


def test_the_ack_of_a_hook_reads_and_writes_the_manifest_once(counted: Sensing, store: CountingStore) -> None:
    # given
    counted.land(last(counted))
    store.reset()
    # when
    acked = ack_materialised(counted.instance, counted.source, counted.buffer)
    # then
    assert acked.after == counted.state.next_sequence
    assert manifest_calls(store) == (1, 1)
    assert store.count("put") == 1
    # when it is repeated
    store.reset()
    ack_materialised(counted.instance, counted.source, counted.buffer)
    # then
    assert manifest_calls(store) == (1, 0)


class Busy(CountingStore):
    """Somebody appends to the manifest whenever somebody else lists, as producers do while a bucket takes its time."""

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        produce(self.inner)
        return super().list(prefix, after=after)


@pytest.mark.parametrize("by", ["a tick", "a hook"])
def test_an_ack_gets_through_however_often_producers_append_meanwhile(by: str) -> None:
    """What was seen holds for a manifest that has only grown: looking at it all again would be overtaken again."""
    store = Busy(MemoryStore())
    produce(store, 2)
    with sensing(store) as sensor:
        sensor.tick()
        (landed, *_) = keys(sensor.tick())
        sensor.land(landed)
        store.reset()

        if by == "a tick":
            sensor.tick()
        else:
            ack_materialised(sensor.instance, sensor.source, sensor.buffer)

        assert store.count("put", path=MANIFEST) == 2  # one that lost against the append, and one that did not
        assert sensor.frontier == 2


def test_what_was_seen_before_another_ack_is_looked_at_again() -> None:
    """Only appends leave it as it is."""
    store = MemoryStore()
    produce(store, 4)
    with sensing(store) as sensor:
        sensor.tick()
        first, second = keys(sensor.tick())
        sensor.land(first)
        manifest = manifest_of(store)
        seen = survey(sensor.instance, sensor.source, sensor.buffer.ledger(), manifest)
        produce(store)
        grown = seen.grown(manifest_of(store))
        assert grown is not None
        assert (grown.frontier, grown.next_sequence, grown.reached) == (0, 5, 2)
        sensor.land(second)
        sensor.tick()

        assert sensor.frontier == 4
        assert seen.grown(manifest_of(store)) is None


def test_a_run_reads_and_writes_the_manifest_once(store: CountingStore, tmp_path: Path) -> None:
    # given
    produce(store, 2)
    with deployment(tmp_path / "home", buffer_in(store), tmp_path / "lake") as deployed:
        deployed.tick()
        (request,) = deployed.tick(launch=False).requests
        store.reset()
        # when
        assert deployed.launch(request).success
        # then: by its hook
        assert manifest_calls(store) == (1, 1)
        assert deployed.frontier == 2


def test_an_idle_tick_is_one_read_and_nothing_else(counted: Sensing, store: CountingStore) -> None:
    # given
    counted.land(last(counted))
    counted.tick()
    store.reset()
    # when
    ticked = counted.tick()
    # then
    assert store.calls == {("get", MANIFEST): 1}
    assert ticked.sentence.endswith("nothing to do")
    # when the manifest is the same as before
    ticked = counted.tick()
    # then: not even its body is read
    assert store.calls == {("get", MANIFEST): 1, ("unchanged", MANIFEST): 1}
    assert (ticked.sentence.endswith("nothing to do"), ticked.observations) == (True, [])


def test_an_idle_tick_with_a_closed_gate_is_one_read_and_nothing_else(store: CountingStore) -> None:
    with sensing(store, SensorSettings()) as sensor:
        # given it was closed when the last range landed, by memory that others take
        produce(store, 1)
        sensor.tick()
        (started,) = keys(sensor.tick())
        sensor.host = Machine(used=0.88)
        sensor.tick()
        sensor.land(started)
        sensor.tick()
        sensor.tick()
        store.reset()
        for used in (0.96, 0.88, 0.96):
            # when theirs goes up and down
            sensor.host = Machine(used=used)
            ticked = sensor.tick()
            # then
            assert sensor.state.regulation.gate.held
            assert (ticked.sentence.endswith("; nothing to do"), ticked.observations) == (True, [])
        assert store.calls == {("unchanged", MANIFEST): 3}


def test_an_unchanged_manifest_is_not_read_again_while_ranges_run(counted: Sensing, store: CountingStore) -> None:
    # when
    counted.tick()
    # then
    assert (store.count("get", path=MANIFEST), store.count("unchanged", path=MANIFEST)) == (0, 1)
    # when
    produce(counted.store, 1)
    store.reset()
    counted.tick()
    # then
    assert (store.count("get", path=MANIFEST), store.count("unchanged", path=MANIFEST)) == (1, 0)


def test_a_new_process_reads_the_manifest_once_more(counted: Sensing, store: CountingStore) -> None:
    # given
    counted.kept = Kept()
    # when
    counted.tick()
    counted.tick()
    # then
    assert (store.count("get", path=MANIFEST), store.count("unchanged", path=MANIFEST)) == (1, 1)


def test_an_idle_tick_on_an_empty_buffer_is_one_read_and_nothing_else(store: CountingStore) -> None:
    with sensing(store) as sensor:
        # given
        sensor.tick()
        store.reset()
        # when
        sensor.tick()
        # then
        assert store.calls == {("get", MANIFEST): 1}


def test_a_takeover_takes_the_epoch_with_its_last_call(store: CountingStore) -> None:
    # given
    produce(store, 2)
    with sensing(store) as sensor:
        sensor.tick()
        sensor.tick()
        buffer_in(store).consumer().close()
        sensor.cursor = None
        store.reset()
        # when
        sensor.tick()
        # then
        assert store.count("put") == store.count("put", path=MANIFEST) == 1
        assert list(store.calls)[-1] == ("put", MANIFEST)


def test_old_ranges_are_neither_listed_nor_read(store: CountingStore) -> None:
    with sensing(store) as sensor:
        # given
        produce(store, 20)
        for start in range(0, 20, 2):
            while key(start, start + 1) not in sensor.partitions:
                sensor.tick()
            sensor.land(key(start, start + 1))
        sensor.tick()
        produce(store, 2)
        store.reset()
        # when
        sensor.tick()
        # then: of eleven ranges, at most the last one that is acked and the one in flight
        assert store.count("read") <= 3


def test_an_idle_tick_behind_ranges_of_others_is_one_read_and_nothing_else(store: CountingStore) -> None:
    # given a queue that was consumed without a range of ours
    produce(store, 5)
    with buffer_in(store).consumer() as consumer:
        consumer.ack_through(4)
    with sensing(store, SensorSettings()) as sensor:
        sensor.tick()
        sensor.tick()
        store.reset()
        # when
        sensor.tick()
        # then
        assert store.calls == {("unchanged", MANIFEST): 1}
        # when something comes
        produce(store, 1)
        # then it is found
        sensor.later = 120
        assert keys(sensor.tick()) == [key(5, 5)]


def test_a_cursor_that_was_reset_looks_for_ranges_again(store: CountingStore) -> None:
    # given
    produce(store, 5)
    with buffer_in(store).consumer() as consumer:
        consumer.ack_through(4)
    with sensing(store, SensorSettings()) as sensor:
        for _ in range(3):
            sensor.tick()
        # when
        sensor.cursor = None
        store.reset()
        sensor.tick()
        # then
        assert store.count("list") > 0


@pytest.mark.parametrize(
    "settings", [SensorSettings(limits=Limits(max_wait=3600)), SensorSettings()], ids=["waits", "in flight"]
)
def test_an_idle_tick_over_a_directory_does_not_read_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: SensorSettings
) -> None:
    monkeypatch.setattr(local, "_STAMPS_DIFFER", 0.0)  # seconds that nobody wants to wait for
    store = LocalStore(tmp_path)
    with sensing(store, settings) as sensor:

        def reads() -> int:
            before = bytes_read()
            sensor.tick()
            return (bytes_read() - before) // (1 << 20)

        # given a manifest of a megabyte
        now = int(time.time() * 1000)
        append(store, put_batch(store, batch_name(now)), [Metadata(0, now, b"x" * (1 << 20))])
        sensor.tick()
        # when nothing is new
        counts = [reads() for _ in range(6)]
        # then its file tells so, after it was read twice more
        assert counts == [1, 1, 1, 0, 0, 0]
        # when something comes
        produce(store, 1)
        # then it is found
        assert reads() == 1
        assert sensor.state.next_sequence == 2


class TestRegulated:
    """With the regulator as it is by itself."""

    @pytest.mark.parametrize("held", [False, True], ids=["an open gate", "a closed gate"])
    def test_a_tick_that_waits_asks_for_nothing_twice(self, store: CountingStore, held: bool) -> None:
        with sensing(store, SensorSettings(regulator="throughput")) as sensor:
            # given a range runs, something waits, and a batch of it is gone
            sensor.host = Machine()
            produce(store, 2)
            sensor.tick()
            sensor.tick()
            produce(store, 4)
            store.delete([one.location for one in manifest_of(store).entries() if one.sequence == 3])
            sensor.host = Machine(used=0.95 if held else 0.5)
            sensor.tick()
            store.reset()
            # when
            outcome = sensor.tick()
            # then
            assert (outcome.runs, sensor.state.regulation.gate.held) == ([], held)
            assert manifest_calls(store) == (1, 0)
            assert store.count("get", path=MANIFEST) == 0
            assert store.count("put", "delete", "head") == 0

    def test_an_idle_tick_on_a_bucket_is_one_request_without_a_body(self) -> None:
        with fake_bucket() as bucket, sensing(settings=SensorSettings()) as sensor:
            # given
            store = open_store("s3://bucket", options=bucket.s3_options)
            sensor.store = store
            produce(store, 2)
            sensor.tick()
            sensor.tick()
            sensor.land(key(0, 1))
            sensor.tick()
            sensor.tick()
            bucket.fail(None)
            bucket.sent = 0
            # when
            outcome = sensor.tick()
            # then
            assert (bucket.requests, bucket.sent) == (["GET"], 0)
            assert outcome.observations == []
