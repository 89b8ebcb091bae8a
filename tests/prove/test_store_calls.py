"""Store calls that go wrong, one at a time: the small size of the proof, and that it would see what it looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prove.lake_requests import FEW
from tests.prove.proof import FULL, SMALL, Proof
from tests.prove.store_calls import LATENESS, POLICIES, Point, calls, late_points, points, prove, run


@pytest.fixture(scope="module")
def proofs() -> list[Proof]:
    return list(prove(SMALL))


def test_nothing_is_lost_or_doubled_whichever_store_call_goes_wrong(proofs: list[Proof]) -> None:
    proof = proofs[0]
    assert proof.holds, proof
    assert proof.tried == len(points(SMALL)) > 60


def test_nothing_is_lost_or_doubled_whichever_request_to_the_table_goes_wrong(proofs: list[Proof]) -> None:
    proof = proofs[1]
    assert proof.holds, proof
    assert proof.tried == FEW


def test_at_full_size_every_call_goes_wrong_in_every_way() -> None:
    every = points(FULL)
    assert len(every) == len(set(every)) == len(calls()) * 8 > 1_000


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
