"""Garbage in a directory, whose clock is its machine's: what an earlier pass saw goes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from objbuf_dagster.buffer import GarbageCollector, Producer
from objbuf_dagster.buffer import sightings as module
from objbuf_dagster.buffer.sightings import Sightings, read_sightings, uptime
from objbuf_dagster.errors import CorruptData, StorageUnavailable
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.store import LocalStore, MemoryStore, RetryingStore
from tests.support.buffers import batch_name, manifest_of, put_batch
from tests.support.clocked import ClockedStore
from tests.support.faults import Call, FaultStore

HOUR = 3600.0
T0 = 1_700_000_000.0


class Machine:
    """One clock for all, which jumps; the time since its start does not."""

    def __init__(self) -> None:
        self.up = 1_000.0
        self.ahead = 0.0
        self.store = ClockedStore(self.clock, own=False)
        used = Manifest.empty()  # and all that was in it is acked
        used.append("ingest/acked.batch")
        used.dequeue(0)
        self.store.put("ingest/manifest", used.to_bytes())

    def clock(self) -> float:
        return T0 + self.up + self.ahead

    def collect(self, grace: float = 600) -> tuple[str, ...]:
        collector = GarbageCollector(self.store, grace_seconds=grace, clock=self.clock, uptime=lambda: self.up)
        return collector.collect_once().deleted


def test_a_batch_on_its_way_is_kept_when_the_clock_of_a_directory_jumps_by_an_hour_and_back() -> None:
    # given
    machine = Machine()

    def jump(call: Call) -> None:
        if (call.method, call.path) == ("put", "ingest/manifest"):
            machine.ahead = HOUR
            machine.collect()
            machine.ahead = 0.0

    # when
    with Producer(FaultStore(machine.store, jump), clock=machine.clock, uptime=lambda: machine.up) as producer:
        durable = producer.produce([b"a"]).await_durable(30)
    # then
    assert machine.store.head(durable.location)


def test_garbage_of_a_directory_goes_once_a_pass_has_seen_it_for_the_grace_period() -> None:
    machine = Machine()
    orphan = put_batch(machine.store, batch_name(0))
    machine.up += HOUR

    assert machine.collect() == ()
    machine.up += 599
    assert machine.collect() == ()
    machine.up += 1
    assert machine.collect() == (orphan,)


def test_without_a_grace_period_one_pass_is_enough() -> None:
    machine = Machine()
    orphan = put_batch(machine.store, batch_name(0))

    assert machine.collect(grace=0) == (orphan,)


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"first":[]}', b'{"first":{"x":"1"}}', b'{"first":{"x":NaN}}'])
def test_a_damaged_note_is_no_error_and_makes_garbage_wait(note: bytes) -> None:
    machine = Machine()
    put_batch(machine.store, batch_name(0))
    machine.store.put("ingest/ranges/clock", note)
    machine.up += HOUR

    assert machine.collect() == ()
    with pytest.raises(CorruptData):
        Sightings.from_bytes(note)


def test_what_was_seen_before_a_restart_or_on_another_machine_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    put_batch(machine.store, batch_name(0))
    machine.collect()
    machine.up += HOUR
    monkeypatch.setattr(module, "boot", lambda: "another")

    assert read_sightings(machine.store, "ingest/ranges/clock") == Sightings()
    assert machine.collect() == ()


def test_a_batch_that_is_late_by_the_time_since_the_start_is_not_appended_whatever_the_clock_says() -> None:
    machine = Machine()

    def sleep(call: Call) -> None:
        if call.method == "get":
            machine.up += 301
            machine.ahead -= 301

    producer = Producer(FaultStore(machine.store, sleep), clock=machine.clock, uptime=lambda: machine.up)
    handle = producer.produce([b"a"])
    with pytest.raises(StorageUnavailable, match="produce it again"):
        producer.close()

    assert isinstance(handle.result(), StorageUnavailable)
    assert manifest_of(machine.store).entry_count == 0


def test_a_directory_has_no_clock_of_its_own_however_it_is_wrapped(tmp_path: Path) -> None:
    assert not RetryingStore(LocalStore(tmp_path)).has_own_clock
    assert RetryingStore(MemoryStore()).has_own_clock


def test_uptime_goes_on() -> None:
    before = uptime()

    assert uptime() >= before > 0
