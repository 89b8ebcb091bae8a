"""Store calls that go wrong, one at a time: the small size of the proof, and that it would see what it looks for."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.orchestration import acking
from objbuf_dagster.ranges import SequenceRange
from tests.prove import lake_requests, ticks
from tests.prove.lake_requests import FEW
from tests.prove.points import KINDS, POLICIES, Point, ways
from tests.prove.proof import FULL, SMALL, Proof, recorded
from tests.prove.small_pipeline import SmallPipeline
from tests.prove.store_calls import LATENESS, calls, late_points, points, prove, run
from tests.support.proxy import Request, Spoiling, proxied
from tests.support.s3 import s3_server


@pytest.fixture(scope="module")
def proofs() -> list[Proof]:
    return recorded(prove(SMALL))


def test_nothing_is_lost_or_doubled_whichever_store_call_goes_wrong(proofs: list[Proof]) -> None:
    proof = proofs[0]
    assert proof.holds, proof
    assert proof.tried == len(points(SMALL)) + len(ticks.points(SMALL)) > 60


def test_nothing_is_lost_or_doubled_whichever_request_to_the_table_goes_wrong(proofs: list[Proof]) -> None:
    proof = proofs[1]
    assert proof.holds, proof
    assert proof.tried == FEW


def test_a_request_that_a_landing_does_not_come_to_counts_for_nothing() -> None:
    with s3_server() as root:
        trial = lake_requests.run(root.fresh(), 1_000, 503)
    assert len(trial.requests) < 1_000
    assert (trial.spoiled, trial.errors, trial.wrongs) == ([], [], [])


def test_of_requests_that_come_at_once_each_has_a_number_of_its_own() -> None:
    """Else a point could be passed over, and count as tried."""
    writers, each = 8, 10
    with s3_server() as root, proxied(root.fresh()) as proxy:
        numbers: list[int] = []

        def spoil(request: Request) -> Spoiling:
            time.sleep(0.001)  # in which another comes
            numbers.append(request.number)
            return 503

        proxy.spoil = spoil

        def ask(_: int) -> None:
            connection = http.client.HTTPConnection(proxy.location.options["endpoint"].removeprefix("http://"))
            with contextlib.closing(connection):
                for _ in range(each):
                    connection.request("GET", "/")
                    connection.getresponse().read()

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(ask, range(writers)))

    assert sorted(numbers) == list(range(1, writers * each + 1))


def test_at_full_size_every_call_goes_wrong_in_every_way_that_makes_a_difference() -> None:
    every = points(FULL)
    assert len(every) == len(set(every)) == sum(len(ways(call)) for call in calls()) > 1_000
    tried = {(calls()[point.call - 1].method, point.kind) for point in every}
    assert {kind for method, kind in tried if method == "put"} == set(KINDS)
    assert not {("get", "twice"), ("get", "lost"), ("head", "twice"), ("list", "twice")} & tried


def test_every_call_of_a_tick_and_of_a_hook_is_a_point() -> None:
    every = ticks.points(FULL)
    for act in ticks.ACTS:
        assert {point.call for what, point in every if what == act} == {call.number for call in ticks.calls(act)}
    assert len(every) == len(set(every)) > 100


def all_that_is_planned(current: int, ranges: Iterable[SequenceRange], done: object) -> int:
    """A frontier that asks nobody what has materialised."""
    return max([current, *(one.end + 1 for one in ranges)])


def test_an_ack_that_runs_ahead_of_what_landed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acking, "frontier", all_that_is_planned)

    wrongs = run(None, tmp_path / "lake").wrongs

    assert any("not all before it has landed" in wrong for wrong in wrongs)


def test_a_collector_that_lets_ranges_expire_too_early_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By when they were acked: what the collector itself says of that would excuse it."""
    monkeypatch.setattr(GarbageCollector, "_retention_to_keep", lambda *_: 0.0)

    wrongs = run(None, tmp_path / "lake").wrongs

    assert any("expired, and only those before 0 were due" in wrong for wrong in wrongs)


def test_an_owner_that_is_fenced_though_nobody_took_over_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a fault that fenced its own deployment would be healed by the person who takes the buffer back."""
    monkeypatch.setattr(SmallPipeline, "collect_meanwhile", take_the_epoch)
    number = next(n for n, call in enumerate(calls(), 1) if call.method == "list")

    wrongs = run(Point(number, "collected", "repeated"), tmp_path / "lake").wrongs

    assert wrongs == ["its owner was fenced, and nobody took the buffer over"]


def take_the_epoch(pipeline: SmallPipeline) -> None:
    """What a collector must not do."""
    Consumer.open(pipeline.world.buffer, gc_interval=None)


@pytest.mark.parametrize("act", ticks.ACTS)
def test_an_ack_that_runs_ahead_is_seen_in_a_tick(act: ticks.Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acking, "frontier", all_that_is_planned)

    assert any("only 0 to 1 has materialised" in wrong for wrong in ticks.run(act, Point(99, "fail", "repeated")))


def test_the_regulator_learns_in_a_tick_that_goes_wrong() -> None:
    """Else it would be one with fixed limits under another name."""
    with ticks.staged("regulated tick", "repeated") as (sensor, _, _):
        sensor.tick()
        assert sensor.state.regulation.state.counted == (0,)
    assert ticks.run("regulated tick", Point(99, "fail", "repeated")) == ["it did not come to that call"]


def test_a_pipeline_in_which_nothing_goes_wrong_tells_all_and_lands_all(tmp_path: Path) -> None:
    trial = run(None, tmp_path / "lake")

    assert (trial.errors, trial.wrongs) == ([], [])
    assert sorted(trial.pipeline.world.rows()) == sorted(trial.pipeline.told)
    assert {text for _, _, text in trial.pipeline.told} == trial.pipeline.sent
    assert {call.method for call in trial.strike.calls} == {"get", "read", "put", "head", "list", "delete"}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_append_whose_answer_is_lost_is_told_or_in_doubt_and_lands_once(tmp_path: Path, policy: str) -> None:
    number = next(n for n, call in enumerate(calls(), 1) if (call.method, call.path) == ("put", "ingest/manifest"))

    trial = run(Point(number, "lost", policy), tmp_path / "other")

    assert not trial.wrongs
    assert len(trial.pipeline.world.rows()) == len(trial.pipeline.sent)
    assert bool(trial.pipeline.doubtful) is (policy == "not repeated")
    assert trial.pipeline.repeated == 0


def test_who_is_taken_over_at_the_last_call_of_all_takes_the_buffer_back_and_goes_on(tmp_path: Path) -> None:
    """Nothing in that run can tell it: a collector asks who owns the buffer before its last delete, not after."""
    last = len(calls())
    assert calls()[-1].method == "delete"

    trial = run(Point(last, "taken over", "repeated"), tmp_path / "lake")

    assert trial.strike.hit is not None
    assert (trial.errors, trial.wrongs) == ([], [])
    assert sorted(trial.pipeline.world.rows()) == sorted(trial.pipeline.told)


def test_nothing_is_lost_or_doubled_whichever_write_arrives_after_its_client_gave_up(proofs: list[Proof]) -> None:
    proof = proofs[2]
    assert proof.holds, proof
    assert proof.tried == len(late_points(SMALL))


def test_at_full_size_every_write_arrives_late_in_every_way() -> None:
    every = late_points(FULL)
    writes = [call for call in calls() if call.method in ("put", "delete")]
    assert len(every) == len(set(every)) == len(writes) * len(POLICIES) * len(LATENESS) > 200


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lateness", LATENESS)
def test_an_append_that_arrives_late_lands_once_or_not_at_all(tmp_path: Path, policy: str, lateness: int) -> None:
    number = next(n for n, call in enumerate(calls(), 1) if (call.method, call.path) == ("put", "ingest/manifest"))

    trial = run(Point(number, "overdue", policy, lateness), tmp_path / "lake")

    assert not trial.wrongs
    rows = trial.pipeline.world.rows()
    assert len(set(rows)) == len(rows)
    assert set(trial.pipeline.told) <= set(rows)
    assert bool(trial.pipeline.doubtful) is (policy == "not repeated")
    assert trial.pipeline.repeated == 0
