"""Manifests: untouched bytes stay so, what is asked for is handed out, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import CorruptData, InvalidInput
from objbuf_dagster.protocol import NO_EPOCH, BatchDescriptor, Manifest, Metadata
from tests.protocol.hostile import REPEATABLE
from tests.protocol.manifests import entry_bytes, entry_starts, filled, footer, location_of, rebuilt, sequences_of


def test_no_manifest_is_an_empty_queue() -> None:
    manifest = Manifest.empty()

    assert (manifest.entry_count, manifest.next_sequence, manifest.epoch, manifest.first_sequence) == (0, 0, 0, None)
    assert list(manifest.entries()) == []
    assert manifest.to_bytes() == footer(0, 0)


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(bytearray(b"-" + data))[1:]])
@pytest.mark.parametrize("count", [3, 1_500])
def test_any_kind_of_buffer_is_read(wrap: Any, count: int) -> None:
    data = filled(count).to_bytes()

    manifest = Manifest.from_bytes(wrap(data))

    assert manifest.to_bytes() == data
    assert sequences_of(manifest.entries(after=count - 3)) == [count - 2, count - 1]


# Bytes that nobody touches


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("count", [0, 1, 9, 999, 1_000, 1_001, 2_500])
def test_append_keeps_every_older_byte(count: int, uniform: bool) -> None:
    before = filled(count, first=5, epoch=3, uniform=uniform).to_bytes()
    manifest = Manifest.from_bytes(before)

    assert manifest.append("ingest/new", [Metadata(0, 1, b"x")]) == 5 + count
    assert manifest.append("ingest/newer") == 6 + count

    after = manifest.to_bytes()
    assert after[: len(before) - 22] == before[:-22]
    assert after[-22:] == footer(count + 2, 7 + count, 3)
    assert sequences_of(Manifest.from_bytes(after).entries()) == list(range(5, 7 + count))


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize(("count", "removed"), [(9, 0), (9, 1), (9, 8), (9, 9), (2_500, 999), (2_500, 1_000)])
@pytest.mark.parametrize("more", [0, 2])
def test_dequeue_keeps_every_later_byte(count: int, removed: int, uniform: bool, more: int) -> None:
    before = filled(count, first=5, epoch=3, uniform=uniform).to_bytes()
    start = [*entry_starts(before, count), len(before) - 22][removed]
    manifest = Manifest.from_bytes(before)
    for i in range(more):
        manifest.append(f"ingest/more{i}")
    added = manifest.to_bytes()[len(before) - 22 : -22]

    taken = manifest.dequeue(4 + removed)

    assert sequences_of(taken) == list(range(5, 5 + removed))
    assert manifest.to_bytes() == before[start:-22] + added + footer(count - removed + more, 5 + count + more, 3)
    assert manifest.frontier == 5 + removed


def test_take_epoch_changes_the_epoch_alone_even_over_damage() -> None:
    body = b"\xff" * 500

    manifest = Manifest.from_bytes(body + footer(7, 900, 41))
    manifest.take_epoch()

    assert manifest.to_bytes() == body + footer(7, 900, 42)


def test_append_never_looks_at_an_old_entry() -> None:
    body = b"\xff" * 500

    manifest = Manifest.from_bytes(body + footer(7, 900, 41))
    manifest.append("a")

    assert manifest.to_bytes() == body + entry_bytes(900, b"a") + footer(8, 901, 41)


@pytest.mark.parametrize(("held", "taken"), [(0, 1), (41, 42), (2**64 - 3, 2**64 - 2), (2**64 - 2, 0), (2**64 - 1, 0)])
def test_an_epoch_that_is_never_used_is_never_taken(held: int, taken: int) -> None:
    manifest = Manifest.from_bytes(footer(0, 0, held))

    assert manifest.take_epoch() == taken
    assert Manifest.from_bytes(manifest.to_bytes()).epoch == taken != NO_EPOCH


# Which entries are handed out


@pytest.mark.parametrize("added", [0, 3, 10], ids=["all stored", "three added", "all added"])
@pytest.mark.parametrize(
    ("after", "limit", "expected"),
    [
        (None, None, range(50, 60)),
        (None, 0, []),
        (None, -1, []),
        (None, 1, [50]),
        (None, 8, range(50, 58)),
        (None, 1_000, range(50, 60)),
        (-1, None, range(50, 60)),
        (0, 2, [50, 51]),
        (48, 2, [50, 51]),
        (49, 2, [50, 51]),
        (50, 2, [51, 52]),
        (55, 3, [56, 57, 58]),
        (55, None, range(56, 60)),
        (56, None, range(57, 60)),
        (58, None, [59]),
        (58, 5, [59]),
        (59, None, []),
        (60, None, []),
        (2**64, None, []),
        (2**64, 5, []),
    ],
)
def test_entries_after_a_sequence_and_up_to_a_limit(
    after: int | None, limit: int | None, expected: Sequence[int], added: int
) -> None:
    manifest = filled(10 - added, first=50)
    for sequence in range(60 - added, 60):
        manifest.append(location_of(sequence, uniform=True))

    found = list(manifest.entries(after, limit))

    assert sequences_of(found) == list(expected)
    assert [entry.location for entry in found] == [location_of(s, uniform=True) for s in expected]


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("skip", [0, 1, 998, 999, 1_000, 1_001, 1_999, 2_498, 2_499, 2_500])
def test_hopping_over_many_entries_arrives_at_the_right_one(skip: int, uniform: bool) -> None:
    first = 7_000
    manifest = filled(2_500, first=first, uniform=uniform)

    found = list(manifest.entries(after=first + skip - 1, limit=4))

    assert found == list(manifest.entries())[skip : skip + 4]
    assert sequences_of(found) == list(range(first + skip, min(first + skip + 4, first + 2_500)))


@pytest.fixture(scope="module")
def long_one() -> bytes:
    """Long enough that entries are found by their sequence; two payloads hold the sequences of other entries."""
    manifest = Manifest.from_bytes(footer(0, 5))
    for sequence in range(5, 40_005):
        held = {5_000: 30_005, 35_000: 20_005}.get(sequence)
        copies = b"" if held is None else b"".join((held - step).to_bytes(8, "little") for step in range(0, 256, 32))
        manifest.append(location_of(sequence, uniform=False), [Metadata(0, 1_700_000_000_000 + sequence, copies)])
    return manifest.to_bytes()


@pytest.mark.parametrize(
    "index", [16_383, 16_384, 20_000, 22_222, 30_000, 0x8080 - 5, 0x3030 - 5, 39_000, 39_998, 39_999, 40_000]
)
@pytest.mark.parametrize("before", [0, 3])
def test_an_entry_found_by_its_sequence_is_the_one_that_hopping_finds(long_one: bytes, index: int, before: int) -> None:
    """Also where a payload has the eight bytes of a sequence: before the entry itself, or behind it."""
    start = [*entry_starts(long_one, 40_000), len(long_one) - 22][index]
    manifest = Manifest.from_bytes(long_one)
    manifest.dequeue(4 + before)

    assert sequences_of(manifest.entries(after=4 + index, limit=2)) == list(range(5 + index, min(7 + index, 40_005)))
    assert len(manifest.dequeue(4 + index)) == index - before
    assert manifest.to_bytes() == long_one[start:-22] + footer(40_000 - index, 40_005)


@pytest.mark.parametrize("copies", [0, 1, 7, 8, 20])
def test_all_are_removed_at_once_and_still_decoded(copies: int) -> None:
    """However often the last one's payload has its sequence, which is looked for from the end."""
    manifest = Manifest.empty()
    for sequence in range(20_000):
        payload = (19_999).to_bytes(8, "little") * copies if sequence == 19_999 else b""
        manifest.append(location_of(sequence, uniform=False), [Metadata(0, 0, payload)])
    data = manifest.to_bytes()

    stored = Manifest.from_bytes(data)
    removed = stored.dequeue(19_999)

    assert stored.to_bytes() == footer(0, 20_000)
    assert list(removed) == list(Manifest.from_bytes(data).entries())


def test_removing_all_does_not_look_at_what_lies_between() -> None:
    manifest = Manifest.empty()
    for sequence in range(20_000):
        manifest.append(location_of(sequence, uniform=False))
    data = bytearray(manifest.to_bytes())
    at = entry_starts(data, 10_000)[-1]
    data[at : at + 4] = b"\xff" * 4

    assert len(Manifest.from_bytes(bytes(data)).dequeue(19_999)) == 20_000
    with pytest.raises(CorruptData):
        Manifest.from_bytes(bytes(data)).dequeue(12_000)


@pytest.mark.parametrize("counted", [19_000, 19_999])
def test_entries_that_the_footer_does_not_count_are_not_removed(counted: int) -> None:
    manifest = Manifest.empty()
    for sequence in range(20_000):
        manifest.append(location_of(sequence, uniform=False))
    data = manifest.to_bytes()[:-22] + footer(counted, counted)

    with pytest.raises(CorruptData, match="left over"):
        Manifest.from_bytes(data).dequeue(counted - 1)


def test_a_sequence_that_stands_only_in_a_payload_is_not_taken_for_an_entry() -> None:
    """A manifest that lies: its footer counts an entry that is not there, and a payload has its bytes."""
    manifest = Manifest.empty()
    for sequence in range(20_000):
        manifest.append(location_of(sequence, uniform=False), [Metadata(0, 0, b"")])
    body = bytearray(manifest.to_bytes()[:-22])
    starts = entry_starts(body, 20_000)
    for sequence in range(19_000 - 256, 19_001):
        body[starts[sequence] + 4 : starts[sequence] + 12] = (99).to_bytes(8, "little")
    body += entry_bytes(20_000, b"x", b"".join(n.to_bytes(8, "little") for n in range(19_000 - 256, 19_001)))

    with pytest.raises(CorruptData, match=r"stands where|does not fit|cut short"):
        Manifest.from_bytes(bytes(body) + footer(20_001, 20_001)).dequeue(18_999)


@pytest.mark.parametrize("odd_one", [0, 1, 500, 1_199, 1_200, 1_201, 1_499])
def test_one_entry_of_another_length_does_not_lead_the_hop_astray(odd_one: int) -> None:
    manifest = Manifest.empty()
    for sequence in range(1_500):
        manifest.append("ingest/odd" if sequence == odd_one else location_of(sequence, uniform=True))
    stored = Manifest.from_bytes(manifest.to_bytes())

    assert list(stored.entries(after=1_199)) == list(stored.entries())[1_200:]
    assert sequences_of(stored.dequeue(1_199)) == list(range(1_200))
    assert sequences_of(stored.entries()) == list(range(1_200, 1_500))


@pytest.mark.parametrize("count", [10, 1_500])
def test_one_entry_is_found_by_its_sequence(count: int) -> None:
    manifest = filled(count, first=5)
    new = manifest.append("ingest/new")

    for sequence in (5, 6, count - 1, count + 4, new):
        entry = manifest.entry(sequence)
        assert entry is not None
        assert entry.sequence == sequence
    for sequence in (-1, 0, 4, new + 1, 2**64):
        assert manifest.entry(sequence) is None


def test_entries_of_an_emptied_manifest_start_again_at_next_sequence() -> None:
    manifest = filled(3, first=5)
    manifest.dequeue(7)

    emptied = Manifest.from_bytes(manifest.to_bytes())

    assert (emptied.first_sequence, emptied.frontier, emptied.next_sequence) == (None, 8, 8)
    assert emptied.append("ingest/next") == 8
    assert sequences_of(emptied.entries()) == [8]


# What dequeue gives back


def test_what_was_dequeued_is_a_sequence_of_its_entries() -> None:
    manifest = filled(5, first=5)
    expected = list(manifest.entries())
    manifest.append("ingest/added")

    taken = manifest.dequeue(8)

    assert len(taken) == 4
    assert taken[0] == expected[0]
    assert taken[-1] == expected[3]
    assert taken[1:3] == expected[1:3]
    assert taken == expected[:4]
    assert taken != expected
    assert expected[2] in taken
    assert expected[4] not in taken
    assert list(reversed(taken)) == expected[3::-1]
    with pytest.raises(IndexError):
        taken[4]


def test_what_was_dequeued_stays_as_it_was_whatever_follows() -> None:
    manifest = filled(3)
    manifest.append("ingest/added")
    expected = list(manifest.entries())

    taken = manifest.dequeue(3)
    manifest.append("ingest/later")
    manifest.take_epoch()
    manifest.dequeue(4)

    assert taken == expected


def test_nothing_dequeued_is_an_empty_sequence() -> None:
    manifest = filled(3, first=5)
    before = manifest.to_bytes()

    for through in (-1, 0, 4):
        taken = manifest.dequeue(through)
        assert (len(taken), list(taken)) == (0, [])

    assert manifest.to_bytes() == before


def test_dequeued_entries_are_decoded_when_they_are_looked_at() -> None:
    damaged_inside = entry_bytes(5, b"\xff\xfe") + entry_bytes(6, b"b") + entry_bytes(7, b"c") + footer(3, 8)
    manifest = Manifest.from_bytes(damaged_inside)

    taken = manifest.dequeue(6)

    assert len(taken) == 2
    assert sequences_of(manifest.entries()) == [7]
    with pytest.raises(CorruptData, match=r"manifest entry 5.*UTF-8"):
        list(taken)


def test_dequeuing_twice_goes_on_where_the_first_ended() -> None:
    manifest = filled(3_000, uniform=False)

    assert sequences_of(manifest.dequeue(9)) == list(range(10))
    assert sequences_of(manifest.dequeue(1_500)) == list(range(10, 1_501))
    assert sequences_of(manifest.entries()) == list(range(1_501, 3_000))


# What does not fit


@pytest.mark.parametrize(
    ("location", "metadata"),
    [
        pytest.param("x" * 65_536, [], id="location of 65,536 bytes"),
        pytest.param("\u017c" * 32_768, [], id="location of 65,536 bytes in fewer characters"),
        pytest.param("ingest/\ud800", [], id="location that is not Unicode"),
        pytest.param("a", [Metadata(2**32, 0)], id="start_index over u32"),
        pytest.param("a", [Metadata(-1, 0)], id="start_index below zero"),
        pytest.param("a", [Metadata(0, 2**63)], id="ingestion time over i64"),
        pytest.param("a", [Metadata(0, -(2**63) - 1)], id="ingestion time below i64"),
        pytest.param("a", [Metadata(0, 0), Metadata(2**32, 0)], id="the second item"),
        pytest.param("a", [Metadata(0, 0, "text")], id="payload that is text"),  # type: ignore[arg-type]
        pytest.param(b"a", [], id="location that is bytes"),
    ],
)
def test_what_does_not_fit_is_invalid_input_and_changes_nothing(location: str, metadata: list[Metadata]) -> None:
    manifest = filled(3, first=5, epoch=2)
    manifest.append("ingest/added")
    before = manifest.to_bytes()

    with pytest.raises(InvalidInput):
        manifest.append(location, metadata)

    assert manifest.to_bytes() == before
    assert manifest.next_sequence == 9
    assert manifest.append("ingest/fits") == 9


def test_a_payload_of_wider_items_is_written_by_its_bytes() -> None:
    manifest = Manifest.empty()

    manifest.append("a", [Metadata(0, 0, memoryview(b"abcd").cast("H"))])  # type: ignore[arg-type]

    (entry,) = Manifest.from_bytes(manifest.to_bytes()).entries()
    assert entry.metadata == (Metadata(0, 0, b"abcd"),)


def test_the_largest_values_fit() -> None:
    metadata = (Metadata(2**32 - 1, 2**63 - 1, b"p" * 100_000), Metadata(0, -(2**63), b""))
    manifest = Manifest.empty()

    manifest.append("x" * 65_535, metadata)

    assert list(Manifest.from_bytes(manifest.to_bytes()).entries()) == [BatchDescriptor(0, "x" * 65_535, metadata)]


def test_the_last_sequence_is_given_out_and_none_after_it() -> None:
    manifest = Manifest.from_bytes(footer(0, 2**64 - 2))

    assert manifest.append("ingest/last") == 2**64 - 2
    before = manifest.to_bytes()
    with pytest.raises(InvalidInput, match="full"):
        manifest.append("ingest/one too many")

    assert manifest.to_bytes() == before
    assert sequences_of(Manifest.from_bytes(before).entries()) == [2**64 - 2]
    assert sequences_of(manifest.dequeue(2**64 - 2)) == [2**64 - 2]
    assert manifest.to_bytes() == footer(0, 2**64 - 1)


# Any values


_metadata_items = st.builds(
    Metadata, st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20)
)
_unicode = st.characters(exclude_categories=["Cs"])
_added_entries = st.lists(
    st.tuples(st.text(_unicode, max_size=30), st.lists(_metadata_items, max_size=3).map(tuple)), max_size=12
)


@settings(REPEATABLE, max_examples=200)
@given(first=st.integers(0, 2**64 - 20), epoch=st.integers(0, 2**64 - 2), added=_added_entries)
def test_any_entries_come_back(first: int, epoch: int, added: list[tuple[str, tuple[Metadata, ...]]]) -> None:
    manifest = Manifest.from_bytes(footer(0, first, epoch))
    expected = [BatchDescriptor(manifest.append(where, items), where, items) for where, items in added]

    stored = Manifest.from_bytes(manifest.to_bytes())

    assert list(manifest.entries()) == list(stored.entries()) == expected
    assert (stored.next_sequence, stored.epoch) == (first + len(added), epoch)
    assert stored.to_bytes() == manifest.to_bytes() == rebuilt(stored)


@settings(REPEATABLE, max_examples=200)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 5)),
            st.tuples(st.just("dequeue"), st.integers(-2, 5)),
            st.tuples(st.just("take_epoch"), st.just(0)),
            st.tuples(st.just("store"), st.just(0)),
        ),
        max_size=30,
    )
)
def test_any_operations_leave_what_a_list_would_hold(steps: list[tuple[str, int]]) -> None:
    manifest, held, following, epoch = Manifest.empty(), [], 0, 0

    for step, value in steps:
        if step == "append":
            held.append(BatchDescriptor(following, "z" * value, (Metadata(0, value),) * (value % 3)))
            assert manifest.append(held[-1].location, held[-1].metadata) == following
            following += 1
        elif step == "dequeue":
            through = following - len(held) + value
            assert manifest.dequeue(through) == [entry for entry in held if entry.sequence <= through]
            held = [entry for entry in held if entry.sequence > through]
        elif step == "take_epoch":
            epoch += 1
            assert manifest.take_epoch() == epoch
        else:
            manifest = Manifest.from_bytes(manifest.to_bytes())

        assert list(manifest.entries()) == held
        assert (
            list(manifest.entries(after=following - 3, limit=2)) == [e for e in held if e.sequence > following - 3][:2]
        )
        assert (manifest.entry_count, manifest.next_sequence, manifest.epoch) == (len(held), following, epoch)
