"""Clocks that jump: the small size of the proof, and that it would see what it looks for."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from objbuf_dagster.buffer import GarbageCollector
from objbuf_dagster.store import MemoryStore
from tests.prove.clocks import CLOCKS, HOUR, STEPS, Acked, World, live_through, prove
from tests.prove.proof import SMALL, Proof, recorded
from tests.support.clocked import ClockedStore


@pytest.fixture(scope="module")
def proofs() -> list[Proof]:
    return recorded(prove(SMALL))


def test_no_entry_is_lost_to_garbage_collection_when_clocks_jump(proofs: list[Proof]) -> None:
    proof = proofs[0]
    assert proof.holds, proof
    assert proof.tried == 300


def test_lag_is_never_negative(proofs: list[Proof]) -> None:
    proof = proofs[1]
    assert proof.holds, proof
    assert proof.tried > 150


def test_every_clock_jumps_at_every_step_and_there_is_garbage() -> None:
    tally = live_through(Proof("", ""), 60, SMALL)

    assert all(tally[step, clock] for step in STEPS for clock in CLOCKS)
    assert tally["produced", "durable"] > 60
    assert tally["collected", "batches"] > 10
    assert tally["collected", "with one clock"] > 5
    assert tally["collected", "ranges"] > 10
    assert tally["collected", "ranges with one clock"] > 5


def test_without_the_store_s_clock_entries_would_be_lost() -> None:
    """So these interleavings do hit the moment between upload and append. Only a store in memory tells no time.

    One in 70 such buffers loses some, and every other world has one: of fewer worlds it could be none.
    """
    proof = Proof("", "")

    live_through(proof, 600, SMALL, bucket=lambda clock: MemoryStore())

    assert proof.lost > 0


@pytest.mark.parametrize("one_clock", [False, True], ids=["bucket", "directory"])
def test_a_collector_that_lets_ranges_expire_at_once_is_seen(one_clock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the one clock that there is beside a directory: a clock that does not jump has no excuse."""
    monkeypatch.setattr(GarbageCollector, "_retention_to_keep", lambda *_: 0.0)
    make = functools.partial(ClockedStore, own=not one_clock)
    worlds = [World(SMALL.chance("early", number), Counter(), make, one_clock) for number in range(150)]
    for world in worlds:
        world.live(actions=5)

    assert any("expired, but only those before" in wrong for world in worlds for wrong in world.wrongs)


def test_of_a_clock_that_jumps_a_range_is_due_once_it_went_on_by_the_retention() -> None:
    acked = Acked(3, 10_000.0)
    for reading in (10_000.0 - HOUR, 10_000.0 - 0.6 * HOUR):  # back, and not far enough from there
        acked.see(reading)
    assert not acked.is_due

    acked.see(10_000.0 - 0.5 * HOUR)

    assert acked.is_due


def test_without_what_earlier_passes_saw_batches_in_a_directory_would_be_lost() -> None:
    """Its clock is its machine's: here one that is taken for a clock of its own."""
    proof = Proof("", "")

    live_through(proof, 200, SMALL, directory=ClockedStore)

    assert any("which is deleted" in note for note in proof.notes)
