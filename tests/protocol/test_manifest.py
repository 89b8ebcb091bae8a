"""Manifests: the other implementations' bytes, untouched bytes stay so, and only what is asked for is decoded."""

from __future__ import annotations

import functools
import itertools
import json
import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import CorruptData, InvalidInput, ObjbufError, UnsupportedVersion
from objbuf_dagster.protocol import NO_EPOCH, BatchDescriptor, Manifest, Metadata
from tests.protocol.hostile import REPEATABLE, attack, damaged

_DIRECTORY = Path(__file__).parents[1] / "vectors"
_FOOTER = struct.Struct("<IQQH")
_KINDS: dict[str, type[ObjbufError]] = {"corrupt": CorruptData, "unsupported version": UnsupportedVersion}


def _footer(count: int, next_sequence: int, epoch: int = 0, version: int = 1) -> bytes:
    return _FOOTER.pack(count, next_sequence, epoch, version)


def _entry(sequence: int, location: bytes, metadata: bytes = b"\0\0\0\0", *, length: int | None = None) -> bytes:
    """An entry by hand, so that it can be wrong."""
    body = struct.pack("<QH", sequence, len(location)) + location + metadata
    return struct.pack("<I", len(body) if length is None else length) + body


def _vectors(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((_DIRECTORY / name).read_text("utf-8"))
    return vectors


def _longest_location() -> dict[str, Any]:
    """The one vector that is not in the file, since it is 65,535 times the same byte."""
    return {
        "name": "location of 65535 bytes",
        "hex": (_entry(0, b"x" * 65_535) + _footer(1, 1)).hex(),
        "next_sequence": 1,
        "epoch": 0,
        "entries": [{"sequence": 0, "location": "x" * 65_535, "metadata": []}],
    }


_ALL = [*_vectors("manifest.json"), _longest_location()]
_VALID = [pytest.param(v, id=v["name"]) for v in _ALL if "error" not in v]
_DAMAGED = [pytest.param(v, id=v["name"]) for v in _ALL if "error" in v]
_OPERATIONS = [pytest.param(v, id=v["name"]) for v in _vectors("manifest_ops.json")]


def _metadata(items: list[dict[str, Any]]) -> tuple[Metadata, ...]:
    return tuple(Metadata(i["start_index"], i["ingestion_time_ms"], bytes.fromhex(i["payload_hex"])) for i in items)


def _descriptors(vector: dict[str, Any]) -> list[BatchDescriptor]:
    return [BatchDescriptor(e["sequence"], e["location"], _metadata(e["metadata"])) for e in vector["entries"]]


def _location(sequence: int, *, uniform: bool) -> str:
    return f"ingest/{sequence:026d}.batch" if uniform else f"ingest/{'z' * (sequence % 13)}{sequence}.batch"


def _filled(count: int, *, first: int = 0, epoch: int = 0, uniform: bool = True) -> Manifest:
    """As it comes back from a store."""
    manifest = Manifest.from_bytes(_footer(0, first, epoch))
    for sequence in range(first, first + count):
        manifest.append(_location(sequence, uniform=uniform), [Metadata(0, 1_700_000_000_000 + sequence, b"p")])
    return Manifest.from_bytes(manifest.to_bytes())


def _sequences(entries: Iterable[BatchDescriptor]) -> list[int]:
    return [entry.sequence for entry in entries]


def _rebuilt(manifest: Manifest) -> bytes:
    """The manifest made anew from its values."""
    made = Manifest.from_bytes(_footer(0, manifest.frontier, manifest.epoch))
    for entry in manifest.entries():
        assert made.append(entry.location, entry.metadata) == entry.sequence
    return made.to_bytes()


def _starts(data: bytes | bytearray, count: int) -> list[int]:
    """Where each entry starts."""
    starts, at = [], 0
    for _ in range(count):
        starts.append(at)
        at += 4 + struct.unpack_from("<I", data, at)[0]
    return starts


# The other implementations' bytes


@pytest.mark.parametrize("vector", _VALID)
def test_a_valid_vector_decodes_to_its_values(vector: dict[str, Any]) -> None:
    manifest = Manifest.from_bytes(bytes.fromhex(vector["hex"]))

    assert (manifest.next_sequence, manifest.epoch) == (vector["next_sequence"], vector["epoch"])
    assert manifest.entry_count == len(vector["entries"])
    assert list(manifest.entries()) == _descriptors(vector)
    assert manifest.first_sequence == (vector["entries"][0]["sequence"] if vector["entries"] else None)


@pytest.mark.parametrize("vector", _VALID)
def test_a_valid_vector_is_encoded_to_the_same_bytes(vector: dict[str, Any]) -> None:
    manifest = Manifest.from_bytes(bytes.fromhex(vector["hex"]))

    assert manifest.to_bytes().hex() == vector["hex"]
    assert _rebuilt(manifest).hex() == vector["hex"]


@pytest.mark.parametrize("vector", _DAMAGED)
def test_a_damaged_vector_is_refused_for_its_reason(vector: dict[str, Any]) -> None:
    with pytest.raises(_KINDS[vector["error"]]) as caught:
        list(Manifest.from_bytes(bytes.fromhex(vector["hex"])).entries())

    assert type(caught.value) is _KINDS[vector["error"]]


@pytest.mark.parametrize("vector", _OPERATIONS)
def test_an_operation_gives_exactly_the_bytes_of_its_vector(vector: dict[str, Any]) -> None:
    manifest = Manifest.from_bytes(bytes.fromhex(vector["before_hex"]))
    before = list(manifest.entries())

    if vector["op"] == "append":
        assert manifest.append(vector["location"], _metadata(vector["metadata"])) == before[-1].sequence + 1
    elif vector["op"] == "dequeue":
        removed = manifest.dequeue(vector["through_sequence"])
        assert _sequences(removed) == vector["removed"]
        assert list(removed) == [entry for entry in before if entry.sequence in vector["removed"]]
    else:
        assert vector["op"] == "take_epoch"
        assert manifest.take_epoch() == vector["epoch"]
        assert manifest.epoch == vector["epoch"]

    assert manifest.to_bytes().hex() == vector["after_hex"]


def test_no_manifest_is_an_empty_queue() -> None:
    manifest = Manifest.empty()

    assert (manifest.entry_count, manifest.next_sequence, manifest.epoch, manifest.first_sequence) == (0, 0, 0, None)
    assert list(manifest.entries()) == []
    assert manifest.to_bytes() == _footer(0, 0)


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(bytearray(b"-" + data))[1:]])
@pytest.mark.parametrize("count", [3, 1_500])
def test_any_kind_of_buffer_is_read(wrap: Any, count: int) -> None:
    data = _filled(count).to_bytes()

    manifest = Manifest.from_bytes(wrap(data))

    assert manifest.to_bytes() == data
    assert _sequences(manifest.entries(after=count - 3)) == [count - 2, count - 1]


# Bytes that nobody touches


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("count", [0, 1, 9, 999, 1_000, 1_001, 2_500])
def test_append_keeps_every_older_byte(count: int, uniform: bool) -> None:
    before = _filled(count, first=5, epoch=3, uniform=uniform).to_bytes()
    manifest = Manifest.from_bytes(before)

    assert manifest.append("ingest/new", [Metadata(0, 1, b"x")]) == 5 + count
    assert manifest.append("ingest/newer") == 6 + count

    after = manifest.to_bytes()
    assert after[: len(before) - 22] == before[:-22]
    assert after[-22:] == _footer(count + 2, 7 + count, 3)
    assert _sequences(Manifest.from_bytes(after).entries()) == list(range(5, 7 + count))


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize(("count", "removed"), [(9, 0), (9, 1), (9, 8), (9, 9), (2_500, 999), (2_500, 1_000)])
@pytest.mark.parametrize("more", [0, 2])
def test_dequeue_keeps_every_later_byte(count: int, removed: int, uniform: bool, more: int) -> None:
    before = _filled(count, first=5, epoch=3, uniform=uniform).to_bytes()
    start = [*_starts(before, count), len(before) - 22][removed]
    manifest = Manifest.from_bytes(before)
    for i in range(more):
        manifest.append(f"ingest/more{i}")
    added = manifest.to_bytes()[len(before) - 22 : -22]

    taken = manifest.dequeue(4 + removed)

    assert _sequences(taken) == list(range(5, 5 + removed))
    assert manifest.to_bytes() == before[start:-22] + added + _footer(count - removed + more, 5 + count + more, 3)
    assert manifest.frontier == 5 + removed


def test_take_epoch_changes_the_epoch_alone_even_over_damage() -> None:
    body = b"\xff" * 500

    manifest = Manifest.from_bytes(body + _footer(7, 900, 41))
    manifest.take_epoch()

    assert manifest.to_bytes() == body + _footer(7, 900, 42)


def test_append_never_looks_at_an_old_entry() -> None:
    body = b"\xff" * 500

    manifest = Manifest.from_bytes(body + _footer(7, 900, 41))
    manifest.append("a")

    assert manifest.to_bytes() == body + _entry(900, b"a") + _footer(8, 901, 41)


@pytest.mark.parametrize(("held", "taken"), [(0, 1), (41, 42), (2**64 - 3, 2**64 - 2), (2**64 - 2, 0), (2**64 - 1, 0)])
def test_an_epoch_that_is_never_used_is_never_taken(held: int, taken: int) -> None:
    manifest = Manifest.from_bytes(_footer(0, 0, held))

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
    manifest = _filled(10 - added, first=50)
    for sequence in range(60 - added, 60):
        manifest.append(_location(sequence, uniform=True))

    found = list(manifest.entries(after, limit))

    assert _sequences(found) == list(expected)
    assert [entry.location for entry in found] == [_location(s, uniform=True) for s in expected]


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("skip", [0, 1, 998, 999, 1_000, 1_001, 1_999, 2_498, 2_499, 2_500])
def test_hopping_over_many_entries_arrives_at_the_right_one(skip: int, uniform: bool) -> None:
    first = 7_000
    manifest = _filled(2_500, first=first, uniform=uniform)

    found = list(manifest.entries(after=first + skip - 1, limit=4))

    assert found == list(manifest.entries())[skip : skip + 4]
    assert _sequences(found) == list(range(first + skip, min(first + skip + 4, first + 2_500)))


@pytest.mark.parametrize("odd_one", [0, 1, 500, 1_199, 1_200, 1_201, 1_499])
def test_one_entry_of_another_length_does_not_lead_the_hop_astray(odd_one: int) -> None:
    manifest = Manifest.empty()
    for sequence in range(1_500):
        manifest.append("ingest/odd" if sequence == odd_one else _location(sequence, uniform=True))
    stored = Manifest.from_bytes(manifest.to_bytes())

    assert list(stored.entries(after=1_199)) == list(stored.entries())[1_200:]
    assert _sequences(stored.dequeue(1_199)) == list(range(1_200))
    assert _sequences(stored.entries()) == list(range(1_200, 1_500))


@pytest.mark.parametrize("count", [10, 1_500])
def test_one_entry_is_found_by_its_sequence(count: int) -> None:
    manifest = _filled(count, first=5)
    new = manifest.append("ingest/new")

    for sequence in (5, 6, count - 1, count + 4, new):
        entry = manifest.entry(sequence)
        assert entry is not None
        assert entry.sequence == sequence
    for sequence in (-1, 0, 4, new + 1, 2**64):
        assert manifest.entry(sequence) is None


def test_entries_of_an_emptied_manifest_start_again_at_next_sequence() -> None:
    manifest = _filled(3, first=5)
    manifest.dequeue(7)

    emptied = Manifest.from_bytes(manifest.to_bytes())

    assert (emptied.first_sequence, emptied.frontier, emptied.next_sequence) == (None, 8, 8)
    assert emptied.append("ingest/next") == 8
    assert _sequences(emptied.entries()) == [8]


# What dequeue gives back


def test_what_was_dequeued_is_a_sequence_of_its_entries() -> None:
    manifest = _filled(5, first=5)
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
    manifest = _filled(3)
    manifest.append("ingest/added")
    expected = list(manifest.entries())

    taken = manifest.dequeue(3)
    manifest.append("ingest/later")
    manifest.take_epoch()
    manifest.dequeue(4)

    assert taken == expected


def test_nothing_dequeued_is_an_empty_sequence() -> None:
    manifest = _filled(3, first=5)
    before = manifest.to_bytes()

    for through in (-1, 0, 4):
        taken = manifest.dequeue(through)
        assert (len(taken), list(taken)) == (0, [])

    assert manifest.to_bytes() == before


def test_dequeued_entries_are_decoded_when_they_are_looked_at() -> None:
    damaged_inside = _entry(5, b"\xff\xfe") + _entry(6, b"b") + _entry(7, b"c") + _footer(3, 8)
    manifest = Manifest.from_bytes(damaged_inside)

    taken = manifest.dequeue(6)

    assert len(taken) == 2
    assert _sequences(manifest.entries()) == [7]
    with pytest.raises(CorruptData, match=r"manifest entry 5.*UTF-8"):
        list(taken)


def test_dequeuing_twice_goes_on_where_the_first_ended() -> None:
    manifest = _filled(3_000, uniform=False)

    assert _sequences(manifest.dequeue(9)) == list(range(10))
    assert _sequences(manifest.dequeue(1_500)) == list(range(10, 1_501))
    assert _sequences(manifest.entries()) == list(range(1_501, 3_000))


# Damage


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("after", [3, 700, 1_700])
def test_damage_inside_an_entry_shows_only_to_who_reads_it(after: int, uniform: bool) -> None:
    data = bytearray(_filled(2_000, uniform=uniform).to_bytes())
    start = _starts(data, 4)[3]
    data[start + 14] = 0xFF  # the first byte of the location

    manifest = Manifest.from_bytes(data)

    assert _sequences(manifest.entries(after=after)) == list(range(after + 1, 2_000))
    with pytest.raises(CorruptData) as caught:
        list(manifest.entries())
    assert caught.value.what == "manifest entry 3"
    assert caught.value.offset == start + 14
    assert "UTF-8" in str(caught.value)


def test_entries_before_the_damage_are_handed_out() -> None:
    data = bytearray(_filled(10).to_bytes())
    data[_starts(data, 10)[6] + 14] = 0xFF

    entries = Manifest.from_bytes(data).entries()

    assert _sequences(itertools.islice(entries, 6)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(CorruptData, match="manifest entry 6"):
        next(entries)


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("after", [None, 3, 700, 1_700])
@pytest.mark.parametrize("length", [0, 1, 13, 2**31 - 1, 2**31, 2**32 - 1, "one more", "one less"])
def test_a_damaged_entry_length_is_corrupt_to_who_passes_it(
    length: int | str, after: int | None, uniform: bool
) -> None:
    data = bytearray(_filled(2_000, uniform=uniform).to_bytes())
    start = _starts(data, 4)[3]
    real = struct.unpack_from("<I", data, start)[0]
    wrong = {"one more": real + 1, "one less": real - 1}.get(str(length), length)
    struct.pack_into("<I", data, start, wrong)

    with pytest.raises(CorruptData):
        list(Manifest.from_bytes(data).entries(after=after))
    if after is not None:
        with pytest.raises(CorruptData):
            Manifest.from_bytes(data).dequeue(after)


@pytest.mark.parametrize("at", [0, 1, 5, 9])
@pytest.mark.parametrize("wrong", [0, 7, 2**64 - 1])
def test_a_sequence_out_of_line_is_corrupt(at: int, wrong: int) -> None:
    data = bytearray(_filled(10, first=100).to_bytes())
    start = _starts(data, 10)[at]
    struct.pack_into("<Q", data, start + 4, wrong)

    with pytest.raises(CorruptData, match=f"sequence {wrong} stands where {100 + at} must") as caught:
        list(Manifest.from_bytes(data).entries())

    assert caught.value.offset == start


@pytest.mark.parametrize("next_sequence", [109, 111, 10, 2**64 - 1])
def test_sequences_that_disagree_with_the_footer_are_corrupt(next_sequence: int) -> None:
    data = _filled(10, first=100).to_bytes()[:-22] + _footer(10, next_sequence)
    first = next_sequence - 10

    with pytest.raises(CorruptData, match="sequence 100 stands where"):
        list(Manifest.from_bytes(data).entries())
    with pytest.raises(CorruptData, match="sequence 100 stands where"):
        list(Manifest.from_bytes(data).entries(after=first + 3))
    with pytest.raises(CorruptData, match="sequence 100 stands where"):
        Manifest.from_bytes(data).dequeue(first + 3)


def test_dequeue_refuses_to_leave_an_entry_out_of_line_at_the_front() -> None:
    data = bytearray(_filled(10).to_bytes())
    struct.pack_into("<Q", data, _starts(data, 10)[4] + 4, 77)

    with pytest.raises(CorruptData, match="sequence 77 stands where 4 must"):
        Manifest.from_bytes(data).dequeue(3)


def test_more_entries_than_sequences_are_corrupt() -> None:
    with pytest.raises(CorruptData, match="2 entries cannot end before sequence 1"):
        Manifest.from_bytes(_entry(0, b"a") + _entry(1, b"b") + _footer(2, 1))


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 100, 2**32 - 1])
def test_a_count_that_is_not_that_of_the_entries_is_corrupt(count: int) -> None:
    body = _filled(3, first=2**40).to_bytes()[:-22]

    with pytest.raises(CorruptData):
        list(Manifest.from_bytes(body + _footer(count, 2**40 + count)).entries())


@pytest.mark.parametrize("count", [3, 1_500])
@pytest.mark.parametrize("after", [None, 0])
def test_bytes_left_over_before_the_footer_are_corrupt(after: int | None, count: int) -> None:
    data = _filled(count).to_bytes()

    with pytest.raises(CorruptData, match="5 bytes are left over"):
        list(Manifest.from_bytes(data[:-22] + b"extra" + data[-22:]).entries(after=after))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (struct.pack("<I", 1), "1 metadata items do not fit"),
        (struct.pack("<I", 2**32 - 1), "4294967295 metadata items do not fit"),
        (struct.pack("<IIqI", 1, 0, 0, 1), "payload of 1 bytes does not fit"),
        (struct.pack("<IIqI", 1, 0, 0, 2**32 - 1), "payload of 4294967295 bytes does not fit"),
        (struct.pack("<IIqI", 2, 0, 0, 16) + bytes(16), "cut short"),
        (struct.pack("<I", 0) + b"more", "4 bytes are left over"),
        (struct.pack("<IIqI", 1, 0, 0, 0) + b"more", "4 bytes are left over"),
    ],
)
def test_metadata_that_does_not_fill_its_entry_is_corrupt(metadata: bytes, reason: str) -> None:
    data = _entry(8, b"a") + _entry(9, b"b", metadata) + _entry(10, b"c") + _footer(3, 11)

    with pytest.raises(CorruptData, match=f"manifest entry 9.*{reason}"):
        list(Manifest.from_bytes(data).entries())


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
    ],
)
def test_what_does_not_fit_is_invalid_input_and_changes_nothing(location: str, metadata: list[Metadata]) -> None:
    manifest = _filled(3, first=5, epoch=2)
    manifest.append("ingest/added")
    before = manifest.to_bytes()

    with pytest.raises(InvalidInput):
        manifest.append(location, metadata)

    assert manifest.to_bytes() == before
    assert manifest.next_sequence == 9
    assert manifest.append("ingest/fits") == 9


def test_the_largest_values_fit() -> None:
    metadata = (Metadata(2**32 - 1, 2**63 - 1, b"p" * 100_000), Metadata(0, -(2**63), b""))
    manifest = Manifest.empty()

    manifest.append("x" * 65_535, metadata)

    assert list(Manifest.from_bytes(manifest.to_bytes()).entries()) == [BatchDescriptor(0, "x" * 65_535, metadata)]


def test_the_last_sequence_is_given_out_and_none_after_it() -> None:
    manifest = Manifest.from_bytes(_footer(0, 2**64 - 2))

    assert manifest.append("ingest/last") == 2**64 - 2
    before = manifest.to_bytes()
    with pytest.raises(InvalidInput, match="full"):
        manifest.append("ingest/one too many")

    assert manifest.to_bytes() == before
    assert _sequences(Manifest.from_bytes(before).entries()) == [2**64 - 2]
    assert _sequences(manifest.dequeue(2**64 - 2)) == [2**64 - 2]
    assert manifest.to_bytes() == _footer(0, 2**64 - 1)


# Any values, any bytes

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
    manifest = Manifest.from_bytes(_footer(0, first, epoch))
    expected = [BatchDescriptor(manifest.append(where, items), where, items) for where, items in added]

    stored = Manifest.from_bytes(manifest.to_bytes())

    assert list(manifest.entries()) == list(stored.entries()) == expected
    assert (stored.next_sequence, stored.epoch) == (first + len(added), epoch)
    assert stored.to_bytes() == manifest.to_bytes() == _rebuilt(stored)


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


@functools.cache
def _targets() -> tuple[list[bytes], list[bytes]]:
    """Valid manifests to damage: small ones, and ones that are hopped over at a stride or through pyarrow."""
    small = [bytes.fromhex(v["hex"]) for v in _vectors("manifest.json") if "error" not in v]
    small += [
        _filled(n, first=first, uniform=uniform).to_bytes() for n, first, uniform in ((4, 0, True), (9, 3, False))
    ]
    return small, [_filled(1_200, first=7, uniform=uniform).to_bytes() for uniform in (True, False)]


def _hostile_manifest(rng: random.Random) -> bytes:
    small, large = _targets()
    return damaged(rng, large if rng.random() < 0.15 else small)


def test_hostile_manifests_raise_only_objbuf_errors_and_what_is_accepted_is_canonical() -> None:
    def attempt(data: bytes, action: str) -> None:
        manifest = Manifest.from_bytes(data)
        count = manifest.entry_count
        if action == "dequeue":
            list(manifest.dequeue(manifest.frontier + max(count - 3, 0)))
            list(manifest.entries())
        elif action == "after":
            list(manifest.entries(after=manifest.frontier + max(count - 5, 0)))
            manifest.entry(manifest.next_sequence - 1)
        elif action == "write":
            manifest.append("ingest/new", [Metadata(0, 0)])
            manifest.take_epoch()
            Manifest.from_bytes(manifest.to_bytes())
        else:
            assert _rebuilt(manifest) == data

    def decode(data: bytes) -> None:
        refused: ObjbufError | None = None
        for action in ("dequeue", "after", "write", "read all"):
            try:
                attempt(data, action)
            except ObjbufError as error:
                refused = error
        if refused is not None:
            raise refused

    attack(decode, _hostile_manifest)
