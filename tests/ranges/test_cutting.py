"""Where ranges are cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol import BatchDescriptor, Metadata, PlannedBatch
from objbuf_dagster.ranges import Limits, cut
from tests.support.buffers import batch_name

NOW_MS = 1_700_000_100_000


def batch(sequence: int, size: int | None = 10, time_ms: int = 0) -> PlannedBatch:
    return PlannedBatch(BatchDescriptor(sequence, f"ingest/{sequence}", (Metadata(0, time_ms, b""),)), size)


def lengths(batches: list[PlannedBatch], limits: Limits) -> list[int]:
    return [len(one) for one in cut(batches, limits, NOW_MS)]


def test_a_range_is_cut_at_max_batches() -> None:
    assert lengths([batch(n) for n in range(7)], Limits(max_batches=3, max_wait=0)) == [3, 3, 1]


def test_a_range_is_cut_before_it_exceeds_max_bytes() -> None:
    assert lengths([batch(n) for n in range(7)], Limits(max_bytes=35, max_wait=0)) == [3, 3, 1]
    assert lengths([batch(n) for n in range(6)], Limits(max_bytes=30, max_wait=0)) == [3, 3]


def test_a_batch_that_is_too_large_has_a_range_of_its_own() -> None:
    sizes = [10, 500, 10, 10]
    assert lengths([batch(n, size) for n, size in enumerate(sizes)], Limits(max_bytes=100, max_wait=0)) == [1, 1, 2]


def test_what_is_not_full_waits_until_its_oldest_batch_is_old_enough() -> None:
    limits = Limits(max_batches=3, max_wait=10)
    young = [batch(n, time_ms=NOW_MS - 9_999) for n in range(2)]
    assert lengths(young, limits) == []
    assert lengths([batch(0, time_ms=NOW_MS - 10_000), batch(1, time_ms=NOW_MS)], limits) == [2]
    assert lengths([batch(n, time_ms=NOW_MS) for n in range(4)], limits) == [3], "what is full does not wait"


@pytest.mark.parametrize("time_ms", [-1, -(2**63), NOW_MS + 3_600_000, 2**63 - 1])
def test_a_time_that_cannot_be_true_makes_nothing_wait(time_ms: int) -> None:
    assert lengths([batch(0, time_ms=time_ms)], Limits(max_wait=10)) == [1]


def test_a_clock_that_is_a_little_ahead_still_waits() -> None:
    assert lengths([batch(0, time_ms=NOW_MS + 500)], Limits(max_wait=10)) == []


def test_without_metadata_the_name_tells_the_time_and_without_a_time_nothing_waits() -> None:
    young = PlannedBatch(BatchDescriptor(0, batch_name(NOW_MS)), 1)
    old = PlannedBatch(BatchDescriptor(0, batch_name(NOW_MS - 20_000)), 1)
    unnamed = PlannedBatch(BatchDescriptor(0, "ingest/x"), 1)
    assert [lengths([one], Limits(max_wait=10)) for one in (young, old, unnamed)] == [[], [1], [1]]


@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=60), st.integers(1, 10), st.integers(1, 200))
def test_cuts_leave_no_hole_keep_the_limits_and_are_as_long_as_they_can_be(
    sizes: list[int | None], max_batches: int, max_bytes: int
) -> None:
    batches = [batch(n, size) for n, size in enumerate(sizes)]
    cuts = list(cut(batches, Limits(max_batches, max_bytes, max_wait=0), NOW_MS))

    assert [one for part in cuts for one in part] == batches
    for part, following in itertools.zip_longest(cuts, cuts[1:]):
        size = sum(one.size or 0 for one in part)
        assert len(part) <= max_batches
        assert size <= max_bytes or len(part) == 1
        if following is not None:
            full = len(part) == max_batches or size >= max_bytes
            assert full or size + (following[0].size or 0) > max_bytes


NAN = float("nan")


@pytest.mark.parametrize(
    "limits",
    [(0, 1, 0), (1, 0, 0), (1, 1, -1), (2.5, 1, 0), (1, 1e9, 0), (NAN, 1, 0), (1, 1, NAN), (True, 1, 0), (1, 1, "5")],
)
def test_limits_that_are_out_of_range_or_no_numbers_are_refused(limits: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidInput):
        Limits(*limits)
