"""Damaged manifests: refused with the place named, by whoever meets the damage and by nobody else."""

from __future__ import annotations

import functools
import itertools
import random
import struct

import pytest

from objbuf_dagster.errors import CorruptData, ObjbufError
from objbuf_dagster.protocol import Manifest, Metadata
from tests.protocol.hostile import attack, damaged
from tests.protocol.manifests import entry_bytes, entry_starts, filled, footer, rebuilt, sequences_of, vectors


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("after", [3, 700, 1_700])
def test_damage_inside_an_entry_shows_only_to_who_reads_it(after: int, uniform: bool) -> None:
    data = bytearray(filled(2_000, uniform=uniform).to_bytes())
    start = entry_starts(data, 4)[3]
    data[start + 14] = 0xFF  # the first byte of the location

    manifest = Manifest.from_bytes(data)

    assert sequences_of(manifest.entries(after=after)) == list(range(after + 1, 2_000))
    with pytest.raises(CorruptData) as caught:
        list(manifest.entries())
    assert caught.value.what == "manifest entry 3"
    assert caught.value.offset == start + 14
    assert "UTF-8" in str(caught.value)


def test_entries_before_the_damage_are_handed_out() -> None:
    data = bytearray(filled(10).to_bytes())
    data[entry_starts(data, 10)[6] + 14] = 0xFF

    entries = Manifest.from_bytes(data).entries()

    assert sequences_of(itertools.islice(entries, 6)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(CorruptData, match="manifest entry 6"):
        next(entries)


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "mixed"])
@pytest.mark.parametrize("after", [None, 3, 700, 1_700])
@pytest.mark.parametrize("length", [0, 1, 13, 2**31 - 1, 2**31, 2**32 - 1, "one more", "one less"])
def test_a_damaged_entry_length_is_corrupt_to_who_passes_it(
    length: int | str, after: int | None, uniform: bool
) -> None:
    data = bytearray(filled(2_000, uniform=uniform).to_bytes())
    start = entry_starts(data, 4)[3]
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
    data = bytearray(filled(10, first=100).to_bytes())
    start = entry_starts(data, 10)[at]
    struct.pack_into("<Q", data, start + 4, wrong)

    with pytest.raises(CorruptData, match=f"sequence {wrong} stands where {100 + at} must") as caught:
        list(Manifest.from_bytes(data).entries())

    assert caught.value.offset == start


@pytest.mark.parametrize("next_sequence", [109, 111, 10, 2**64 - 1])
def test_sequences_that_disagree_with_the_footer_are_corrupt(next_sequence: int) -> None:
    data = filled(10, first=100).to_bytes()[:-22] + footer(10, next_sequence)
    first = next_sequence - 10

    with pytest.raises(CorruptData, match="sequence 100 stands where"):
        list(Manifest.from_bytes(data).entries())
    with pytest.raises(CorruptData, match="sequence 100 stands where"):
        list(Manifest.from_bytes(data).entries(after=first + 3))
    with pytest.raises(CorruptData, match="sequence 100 stands where"):
        Manifest.from_bytes(data).dequeue(first + 3)


def test_dequeue_refuses_to_leave_an_entry_out_of_line_at_the_front() -> None:
    data = bytearray(filled(10).to_bytes())
    struct.pack_into("<Q", data, entry_starts(data, 10)[4] + 4, 77)

    with pytest.raises(CorruptData, match="sequence 77 stands where 4 must"):
        Manifest.from_bytes(data).dequeue(3)


def test_more_entries_than_sequences_are_corrupt() -> None:
    with pytest.raises(CorruptData, match="2 entries cannot end before sequence 1"):
        Manifest.from_bytes(entry_bytes(0, b"a") + entry_bytes(1, b"b") + footer(2, 1))


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 100, 2**32 - 1])
def test_a_count_that_is_not_that_of_the_entries_is_corrupt(count: int) -> None:
    body = filled(3, first=2**40).to_bytes()[:-22]

    with pytest.raises(CorruptData):
        list(Manifest.from_bytes(body + footer(count, 2**40 + count)).entries())


@pytest.mark.parametrize("count", [3, 1_500])
@pytest.mark.parametrize("after", [None, 0])
def test_bytes_left_over_before_the_footer_are_corrupt(after: int | None, count: int) -> None:
    data = filled(count).to_bytes()

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
    data = entry_bytes(8, b"a") + entry_bytes(9, b"b", metadata) + entry_bytes(10, b"c") + footer(3, 11)

    with pytest.raises(CorruptData, match=f"manifest entry 9.*{reason}"):
        list(Manifest.from_bytes(data).entries())


@functools.cache
def _targets() -> tuple[list[bytes], list[bytes]]:
    """Valid manifests to damage: small ones, and ones that are hopped over at a stride or through pyarrow."""
    small = [bytes.fromhex(v["hex"]) for v in vectors("manifest.json") if "error" not in v]
    small += [filled(n, first=first, uniform=uniform).to_bytes() for n, first, uniform in ((4, 0, True), (9, 3, False))]
    return small, [filled(1_200, first=7, uniform=uniform).to_bytes() for uniform in (True, False)]


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
            assert rebuilt(manifest) == data

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


def test_damage_that_is_passed_over_is_not_believed_and_what_stays_is_whole() -> None:
    """In a long manifest of mixed entries a far one is found by its sequence: what lies before it is not looked at."""
    manifest = Manifest.empty()
    for number in range(20_000):
        manifest.append(f"ingest/{'x' * (number % 7)}{number}", [Metadata(0, 1_700_000_000_000 + number, b"")])
    whole = manifest.to_bytes()
    damaged = bytearray(whole)
    start = entry_starts(whole, 20_000)[3]
    damaged[start] += 1

    far = Manifest.from_bytes(damaged)
    assert list(far.entries(after=18_999)) == list(manifest.entries(after=18_999))
    removed = far.dequeue(18_999)
    assert far.frontier == 19_000
    assert list(far.entries()) == list(manifest.entries(after=18_999))
    for looked_at in (Manifest.from_bytes(damaged).entries(), iter(removed)):
        with pytest.raises(CorruptData):
            list(looked_at)
    with pytest.raises(CorruptData):
        Manifest.from_bytes(damaged).dequeue(100)
