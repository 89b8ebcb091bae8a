"""Filters on sequences leave batches out; all others are Spark's own business."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from objbuf_dagster.spark.pushdown import push

SEQUENCE = ("_odb_sequence",)
numbers = st.integers(-3, 13)
comparisons = st.one_of(
    *(st.builds(kind, st.just(SEQUENCE), numbers) for kind in (EqualTo, EqualNullSafe, GreaterThan, LessThan)),
    *(st.builds(kind, st.just(SEQUENCE), numbers) for kind in (GreaterThanOrEqual, LessThanOrEqual)),
    st.builds(In, st.just(SEQUENCE), st.lists(st.none() | numbers, max_size=4).map(tuple)),
)


def holds(one: Filter, sequence: int) -> bool:
    match one:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return bool(sequence == value)
        case GreaterThan(_, value):
            return bool(sequence > value)
        case GreaterThanOrEqual(_, value):
            return bool(sequence >= value)
        case LessThan(_, value):
            return bool(sequence < value)
        case LessThanOrEqual(_, value):
            return bool(sequence <= value)
        case In(_, values):
            return sequence in values
    raise AssertionError(one)


@given(st.lists(comparisons, max_size=5))
def test_comparisons_leave_exactly_the_sequences_for_which_all_hold(filters: list[Filter]) -> None:
    wanted, rest = push(filters)

    assert rest == []
    assert [n for n in range(12) if n in wanted] == [n for n in range(12) if all(holds(one, n) for one in filters)]


@given(st.lists(comparisons, max_size=4), st.integers(0, 11), st.integers(0, 11))
def test_whether_sequences_meet_a_stretch_is_told_without_looking_at_each(
    filters: list[Filter], first: int, last: int
) -> None:
    wanted, _ = push(filters)

    assert wanted.meets(first, last) == any(n in wanted for n in range(first, last + 1))


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("entry",), 1),
        EqualTo(("_odb_entry_index",), 1),
        EqualTo(("_odb_sequence", "part"), 1),
        EqualTo(SEQUENCE, None),
        EqualNullSafe(SEQUENCE, None),
        EqualTo(SEQUENCE, True),
        GreaterThan(SEQUENCE, 1.5),
        LessThan(SEQUENCE, Decimal("1.5")),
        In(SEQUENCE, (1, 2.5)),
        In(("entry",), (b"x",)),
        IsNull(SEQUENCE),
        IsNotNull(SEQUENCE),
        Not(EqualTo(SEQUENCE, 1)),
        Not(In(SEQUENCE, (1, None))),
        StringStartsWith(("_odb_data_path",), "x"),
    ],
    ids=str,
)
def test_any_other_filter_goes_back_and_leaves_nothing_out(one: Filter) -> None:
    wanted, rest = push([one, GreaterThan(SEQUENCE, 1)])

    assert len(rest) == 1
    assert rest[0] is one
    assert [n for n in range(4) if n in wanted] == [2, 3]
