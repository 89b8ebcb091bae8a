from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.ranges import SequenceRange

sequences = st.integers(0, 2**64 - 1)


@given(sequences, sequences)
def test_a_key_leads_back_to_its_range(one: int, other: int) -> None:
    found = SequenceRange(min(one, other), max(one, other))
    assert SequenceRange.from_key(found.key) == found


def test_a_key_has_twelve_digits_and_more_when_needed() -> None:
    assert SequenceRange(0, 99).key == "000000000000-000000000099"
    assert SequenceRange(10**12 - 1, 10**12).key == "999999999999-1000000000000"
    assert str(SequenceRange(7, 7)) == "000000000007-000000000007"


@pytest.mark.parametrize(
    "key",
    ["", "0-1", "000000000005-000000000001", "0000000000000-000000000001", "000000000000...000000000099",
     "000000000000-000000000099 ", "-00000000000-000000000001", "00000000000\u0663-000000000099",
     "000000000000-99999999999999999999",
     "000000000000-000000000099\n", "000000000000-000000000099/../x", "x" * 1000],
)  # fmt: skip
def test_anything_else_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="000000000000-000000000099"):
        SequenceRange.from_key(key)


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (5, 4), (0, 2**64)])
def test_what_is_no_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidInput):
        SequenceRange(start, end)


def test_a_range_is_its_sequences() -> None:
    found = SequenceRange(3, 5)
    assert (len(found), list(found), 3 in found, 6 in found) == (3, [3, 4, 5], True, False)
    assert sorted([SequenceRange(5, 6), SequenceRange(0, 9)]) == [SequenceRange(0, 9), SequenceRange(5, 6)]
