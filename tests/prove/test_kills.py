"""Each thing that can be killed, once; `make prove` kills 200 times."""

from __future__ import annotations

import pytest

from tests.prove.kills import TARGETS, prove
from tests.prove.proof import SMALL


@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_doubled_whatever_is_killed() -> None:
    (proof,) = prove(SMALL)

    assert proof.holds, proof
    assert proof.tried == len(TARGETS) >= 10
