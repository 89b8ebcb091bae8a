"""A little load; `make prove` has 16 producers, 100,000 entries a batch of a GiB and one of more than two."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.prove.load import prove
from tests.prove.proof import SMALL, recorded


@pytest.mark.timeout(900)
def test_many_producers_a_long_queue_and_a_large_batch_land_exactly(spark: SparkSession) -> None:
    proofs = recorded(prove(SMALL))  # in the session that there is

    assert [proof.holds for proof in proofs] == [True] * 4, proofs
    assert [proof.tried for proof in proofs] == [4_000, 6_000, 192, 126]
