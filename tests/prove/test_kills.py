"""Ten things that can be killed, once each; `make prove` kills 200 times."""

from __future__ import annotations

import dataclasses

import pytest

from tests.prove.kill_targets import TARGETS
from tests.prove.kills import prove, shares, wanted_parts
from tests.prove.proof import FULL, SMALL, Size, recorded

MOMENTS = {
    "a producer",
    "the daemon",
    "a run",
    "Spark's JVM",
    "Spark's Python",
    "a run that writes",
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
