"""A little load; `make prove` has 16 producers, 100,000 entries a batch of a GiB and one of more than two."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.prove.load import CONFLICTS, MEANWHILE, produce_and_land, prove
from tests.prove.proof import SMALL, Proof, recorded


@pytest.mark.timeout(900)
def test_many_producers_a_long_queue_and_a_large_batch_land_exactly(spark: SparkSession) -> None:
    proofs = recorded(prove(SMALL))  # in the session that there is

    assert [proof.holds for proof in proofs] == [True] * 4, proofs
    producers, *others = proofs
    assert producers.tried >= producers.wanted == 4_000
    assert producers.parts[CONFLICTS] >= 1
    assert producers.parts[MEANWHILE] >= 2
    assert [proof.tried for proof in others] == [6_000, 192, 126]


@pytest.mark.timeout(900)
def test_producers_that_met_nobody_prove_nothing(spark: SparkSession, tmp_path: Path) -> None:
    # given: one producer, done with its first write
    proof = Proof("a producer alone", "entries", wanted_parts={CONFLICTS: 1, MEANWHILE: 2})
    # when
    produce_and_land(proof, spark, tmp_path, 1, 1, most_calls=1)
    # then: what it wrote is there, and shows nothing of what was wanted
    assert (proof.tried, proof.lost, proof.doubled, proof.invented) == (50, 0, 0, 0)
    assert proof.short == [CONFLICTS, MEANWHILE]
    assert not proof.holds
