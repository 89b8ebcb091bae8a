"""Ten things that can be killed, once each; `make prove` kills 200 times."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector, peek
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.store import LocalStore, ObjectInfo
from tests.e2e.deployment import Deployment
from tests.prove import kill_stage
from tests.prove.kill_stage import Stage, missing_batches
from tests.prove.kill_targets import TARGETS, plant
from tests.prove.kills import prove, shares, wanted_parts
from tests.prove.proof import FULL, SMALL, Size, recorded
from tests.support.buffers import fill, manifests
from tests.support.watching import Created

HOUR = 3600.0

MOMENTS = {
    "a producer",
    "the daemon",
    "a run",
    "Spark's JVM",
    "Spark's Python",
    "a run that commits",
    "a run that committed",
    "a run that materialised",
    "garbage collection",
    "everything at once",
}


@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_doubled_whatever_is_killed() -> None:
    (proof,) = recorded(prove(SMALL))

    assert proof.holds, proof
    assert proof.parts == dict.fromkeys(MOMENTS, 1), proof


def test_at_full_size_moments_that_are_missed_are_made_up_for() -> None:
    given = shares(FULL)

    assert sum(share.wanted for share in given) == 200
    assert all(len(share.rounds) > share.wanted for share in given)
    assert sorted(number for share in given for number, _ in share.rounds) == list(range(1, 401))


def test_at_full_size_no_moment_may_be_missing() -> None:
    assert wanted_parts(FULL) == dict.fromkeys(TARGETS, 5)
    assert wanted_parts(SMALL) == dict.fromkeys(MOMENTS, 1)


@pytest.mark.parametrize("size", [SMALL, FULL], ids=["small", "full"])
@pytest.mark.parametrize("number", [1, 2, 7, 10])
def test_a_round_alone_is_what_it_was_among_the_others(size: Size, number: int) -> None:
    (whole,) = (share for share in shares(size) if number in dict(share.rounds))

    (alone,) = shares(dataclasses.replace(size, round=number))

    assert alone.rounds == ((number, dict(whole.rounds)[number]),)
    assert (alone.max_wait, alone.wanted) == (whole.max_wait, 1)


class Careless(GarbageCollector):
    """Takes whatever is old for garbage, whoever names it."""

    def _garbage(self, candidates: Iterable[ObjectInfo], *_: object) -> list[ObjectInfo]:
        return [info for info in candidates if self._is_garbage(info.path, None, int(time.time() * 1000))]


@pytest.mark.parametrize(("kind", "loses"), [(Careless, True), (GarbageCollector, False)])
def test_a_collector_that_does_not_ask_who_names_a_batch_would_be_seen(
    tmp_path: Path, kind: type[GarbageCollector], loses: bool
) -> None:
    store = LocalStore(tmp_path)
    before = time.time() - HOUR
    for path in fill(store, 4, time_ms=int(before * 1000)):
        os.utime(tmp_path / path, (before, before))
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2))
    Consumer.open(store, gc_interval=None).ack_through(1)

    litter, at_stake = plant(tmp_path)
    kind(store, grace_seconds=30, retention_seconds=60).collect_once()

    assert len(at_stake) == 2
    assert not any((tmp_path / path).exists() for path in litter)
    missing = set(missing_batches(tmp_path))
    assert missing >= at_stake if loses else not missing


@dataclasses.dataclass
class Held:
    """A buffer whose frontier can be asked for, and nothing around it."""

    buffer: Path

    @property
    def frontier(self) -> int:
        return peek(LocalStore(self.buffer)).frontier


@pytest.mark.parametrize(("retention", "early"), [(0.0, True), (HOUR, False)])
def test_a_range_that_expires_as_soon_as_it_is_acked_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: float, early: bool
) -> None:
    monkeypatch.setattr(kill_stage, "RETENTION_SECONDS", 1.0)
    monkeypatch.setattr(kill_stage, "_FRONTIER_SECONDS", 0.05)
    store = LocalStore(tmp_path)
    fill(store, 4)
    plan(manifests(store), RangeLedger(store), Limits(max_batches=2))
    stage = Stage(cast("Deployment", SimpleNamespace(dagster=Held(tmp_path))))

    with stage.watched():
        time.sleep(1.5)  # longer than its retention, as a round may be
        Consumer.open(store, gc_interval=None).ack_through(1)
        GarbageCollector(store, retention_seconds=retention).collect_once()
        GarbageCollector(store, retention_seconds=retention).collect_once()

        assert (RangeLedger(store).retention().expired_before > 0) is early
        with pytest.raises(AssertionError, match="before its retention") if early else nullcontext():
            stage.assert_nothing_expired_early()


def test_what_appears_in_a_directory_is_heard_of(tmp_path: Path) -> None:
    (tmp_path / "before").touch()

    with Created(tmp_path) as created:
        assert not created.wait(0)
        (tmp_path / "after").touch()
        assert created.wait(10)
