from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.ranges import SequenceRange, frontier

A, B, C = SequenceRange(0, 4), SequenceRange(5, 9), SequenceRange(10, 19)


def test_it_moves_behind_the_longest_unbroken_run() -> None:
    assert frontier(0, [A, B, C], {A, B}) == 10
    assert frontier(0, [C, A, B], {A, B, C}) == 20


def test_a_range_that_is_not_materialised_stops_it_whatever_lies_behind() -> None:
    assert frontier(0, [A, B, C], {B, C}) == 0
    assert frontier(0, [A, B, C], {A, C}) == 5


def test_a_hole_between_ranges_stops_it() -> None:
    assert frontier(0, [A, C], {A, C}) == 5


def test_it_never_goes_back() -> None:
    assert frontier(12, [A, B], {A, B}) == 12
    assert frontier(7, [], set()) == 7


def test_a_range_that_is_acked_in_part_counts_as_a_whole() -> None:
    assert frontier(7, [A, B, C], {B}) == 10
    assert frontier(7, [A, B, C], {C}) == 7


@given(st.lists(st.integers(1, 5), max_size=20), st.data())
def test_it_equals_counting_sequence_by_sequence(lengths: list[int], data: st.DataObject) -> None:
    ranges, start = [], 0
    for length in lengths:
        ranges.append(SequenceRange(start, start + length - 1))
        start += length
    done = {one for one in ranges if data.draw(st.booleans())}
    current = data.draw(st.integers(0, start))

    expected = current
    while any(expected in one for one in done):
        expected += 1

    assert frontier(current, data.draw(st.permutations(ranges)), done) == expected
