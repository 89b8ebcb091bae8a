"""Packing: everything once, in order, in shares as equal as can be."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, RangeObject
from objbuf_dagster.spark.packing import jobs, pack

sizes_of_any_kind = st.lists(st.integers(0, 1 << 40), max_size=300)


@given(sizes_of_any_kind, st.integers(1, 1 << 41), st.integers(1, 400))
def test_everything_is_in_exactly_one_share_in_order(sizes: list[int], target: int, at_least: int) -> None:
    shares = pack(sizes, target, at_least)

    assert list(chain.from_iterable(shares)) == list(range(len(sizes)))
    assert all(shares)


@given(sizes_of_any_kind, st.integers(1, 1 << 41), st.integers(1, 400))
def test_there_are_as_many_shares_as_wanted_if_there_are_enough_things(
    sizes: list[int], target: int, at_least: int
) -> None:
    assert len(pack(sizes, target, at_least)) == min(len(sizes), max(at_least, -(-sum(sizes) // target)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.integers(1, 9))
def test_no_other_cut_has_a_smaller_largest_share(sizes: list[int], at_least: int) -> None:
    shares = pack(sizes, 1_000, at_least)

    cuts = combinations(range(1, len(sizes)), len(shares) - 1)
    best = min(max(sum(sizes[a:b]) for a, b in pairwise((0, *cut, len(sizes)))) for cut in cuts)
    assert max(sum(sizes[share.start : share.stop]) for share in shares) == best


def test_things_without_a_size_are_shared_out_by_number() -> None:
    assert [len(share) for share in pack([0] * 8, 100, at_least=4)] == [2, 2, 2, 2]


def test_one_large_thing_is_alone_and_the_rest_is_spread() -> None:
    assert pack([100, 1, 1, 1, 1], 1_000, at_least=3) == [range(1), range(1, 3), range(3, 5)]


def test_many_things_are_packed_at_once() -> None:
    assert len(pack([0] * 100_000, 1, at_least=50_000)) == 50_000


@pytest.mark.parametrize(("sizes", "target", "at_least"), [([1], 0, 1), ([1], 1, 0), ([-1], 1, 1)])
def test_what_cannot_be_packed_is_refused(sizes: list[int], target: int, at_least: int) -> None:
    with pytest.raises(InvalidInput):
        pack(sizes, target, at_least)


def test_jobs_are_neighbours_that_keep_the_limits() -> None:
    def planned(start: int, size: int, batches: int = 1) -> RangeObject:
        held = (PlannedBatch(BatchDescriptor(start + n, f"ingest/{start + n}"), size) for n in range(batches))
        return RangeObject(start, start + batches - 1, 0, 0, tuple(held))

    small = [planned(n, 1) for n in range(70)]
    large = [planned(n, 3 << 30) for n in range(3)]
    wide = [planned(n, 1, 6_000) for n in range(0, 18_000, 6_000)]

    assert [len(job) for job in jobs(small)] == [16, 16, 16, 16, 6]
    assert [len(job) for job in jobs(large)] == [1, 1, 1]
    assert [len(job) for job in jobs(wide)] == [1, 1, 1]
    assert [one for job in jobs(small) for one in job] == small
    assert list(jobs([])) == []
