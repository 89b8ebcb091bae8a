"""ULIDs: the time goes in and comes out, names sort by it, and anything else is not a ULID."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol.ulid import batch_time_ms, new_ulid, ulid_time_ms
from tests.protocol.hostile import REPEATABLE

_KNOWN = "01ARYZ6S41TSV4RRFFQ69G5FAV"  # the ULID specification's own example
_KNOWN_MS = 1469918176385


@settings(REPEATABLE)
@given(time_ms=st.integers(0, 2**48 - 1))
def test_the_time_comes_back_from_a_new_ulid(time_ms: int) -> None:
    name = new_ulid(time_ms)

    assert len(name) == 26
    assert ulid_time_ms(name) == time_ms
    assert ulid_time_ms(name.lower()) == time_ms


@settings(REPEATABLE)
@given(earlier=st.integers(0, 2**48 - 2), by=st.integers(1, 2**47))
def test_ulids_sort_by_their_time(earlier: int, by: int) -> None:
    later = min(earlier + by, 2**48 - 1)

    assert new_ulid(earlier) < new_ulid(later)


def test_ulids_of_one_millisecond_differ() -> None:
    assert len({new_ulid(_KNOWN_MS) for _ in range(1_000)}) == 1_000


def test_a_ulid_of_another_implementation_is_read() -> None:
    assert ulid_time_ms(_KNOWN) == _KNOWN_MS
    assert batch_time_ms(f"ingest/{_KNOWN}.batch") == _KNOWN_MS


@pytest.mark.parametrize("time_ms", [-1, 2**48, 2**64])
def test_a_time_that_no_ulid_can_hold_is_refused(time_ms: int) -> None:
    with pytest.raises(InvalidInput, match=str(time_ms)):
        new_ulid(time_ms)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param(_KNOWN[:-1], id="one character short"),
        pytest.param(_KNOWN + "0", id="one character long"),
        pytest.param("8" + _KNOWN[1:], id="more than 128 bits"),
        pytest.param(_KNOWN[:-1] + "I", id="letter I"),
        pytest.param(_KNOWN[:-1] + "l", id="letter l"),
        pytest.param(_KNOWN[:-1] + "O", id="letter O"),
        pytest.param(_KNOWN[:-1] + "U", id="letter U"),
        pytest.param(_KNOWN[:-1] + "-", id="punctuation"),
        pytest.param("\u0660" + _KNOWN[1:], id="a digit that is not ASCII"),
    ],
)
def test_what_is_not_a_ulid_has_no_time(name: str) -> None:
    assert ulid_time_ms(name) is None
    assert batch_time_ms(f"ingest/{name}.batch") is None


@pytest.mark.parametrize(
    ("location", "time_ms"),
    [
        (f"{_KNOWN}.batch", _KNOWN_MS),
        (f"a/b/c/{_KNOWN}.batch", _KNOWN_MS),
        (_KNOWN, None),
        (f"ingest/{_KNOWN}", None),
        (f"ingest/{_KNOWN}.batch.tmp", None),
        (f"ingest/{_KNOWN}.batch/", None),
        (f"ingest/x{_KNOWN}.batch", None),
        (f"ingest/{_KNOWN}.BATCH", None),
        ("ingest/manifest", None),
        (".batch", None),
        ("", None),
    ],
)
def test_only_batch_objects_named_by_a_ulid_have_a_time(location: str, time_ms: int | None) -> None:
    assert batch_time_ms(location) == time_ms
