"""Range objects: what is planned comes back, and JSON from outside ends in a value or an ObjbufError."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.errors import CorruptData, InvalidInput, UnsupportedVersion
from objbuf_dagster.protocol import BatchDescriptor, Metadata, PlannedBatch, RangeObject
from objbuf_dagster.protocol.range_object import metadata_to_json, parse_json
from tests.protocol.hostile import REPEATABLE, attack, damaged_json


def _planned(start: int = 5, end: int = 8, *, epoch: int = 3) -> RangeObject:
    return RangeObject(
        start,
        end,
        epoch,
        1_700_000_000_000,
        tuple(
            PlannedBatch(
                BatchDescriptor(
                    sequence,
                    f"ingest/{sequence:026d}.batch",
                    tuple(Metadata(10 * i, 1_700_000_000_000 + i, b"p" * i) for i in range(sequence % 3)),
                ),
                None if sequence % 4 == 3 else 1_000 + sequence,
            )
            for sequence in range(start, end + 1)
        ),
    )


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_planned().to_bytes())
    return document


def test_a_range_comes_back_as_it_was_planned() -> None:
    planned = _planned()

    assert RangeObject.from_bytes(planned.to_bytes()) == planned


def test_the_bytes_are_the_documented_json() -> None:
    planned = RangeObject(7, 7, 2, 99, (PlannedBatch(BatchDescriptor(7, "ingest/a", (Metadata(0, -1, b"\xff"),)), 12),))

    assert planned.to_bytes() == (
        b'{"version":1,"start":7,"end":7,"epoch":2,"planned_at":99,"batches":[{"sequence":7,"location":"ingest/a",'
        b'"size":12,"metadata":[{"start_index":0,"ingestion_time_ms":-1,"payload_base64":"/w=="}]}]}'
    )


def test_a_batch_that_was_missing_when_planned_has_no_size_and_adds_nothing() -> None:
    planned = RangeObject.from_bytes(_planned(2, 4).to_bytes())

    assert [batch.size for batch in planned.batches] == [1_002, None, 1_004]
    assert planned.size == 2_006


def test_fields_that_a_later_release_adds_are_passed_over() -> None:
    document = _document() | {"note": "new"}
    document["batches"][0]["checksum"] = "new"

    assert RangeObject.from_bytes(json.dumps(document).encode()) == _planned()


@pytest.mark.parametrize(
    ("start", "end", "sequences"),
    [
        pytest.param(5, 4, [], id="empty"),
        pytest.param(5, 6, [5], id="one missing at the end"),
        pytest.param(5, 6, [6], id="one missing at the start"),
        pytest.param(5, 7, [5, 7], id="one missing between"),
        pytest.param(5, 6, [5, 6, 7], id="one too many"),
        pytest.param(5, 6, [6, 5], id="out of order"),
        pytest.param(5, 6, [5, 5], id="twice the same"),
        pytest.param(0, 2**60, [0], id="an end far away"),
    ],
)
def test_a_range_without_exactly_its_batches_is_invalid_input(start: int, end: int, sequences: list[int]) -> None:
    batches = tuple(PlannedBatch(BatchDescriptor(sequence, "a"), 1) for sequence in sequences)

    with pytest.raises(InvalidInput, match=f"from {start} to {end}"):
        RangeObject(start, end, 0, 0, batches)


@pytest.mark.parametrize("version", [0, 2, 99, -1, "1", None, [1], {"v": 1}, 1.5, False, "x" * 100_000])
def test_another_version_is_unsupported(version: object) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        RangeObject.from_bytes(json.dumps(_document() | {"version": version}).encode())

    told = version if isinstance(version, int) else None  # whatever else it may be, it is not carried around
    assert (caught.value.what, caught.value.version) == ("range object", told)
    assert len(str(caught.value)) < 1000


def test_no_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersion):
        RangeObject.from_bytes(b"{}")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="no bytes"),
        pytest.param(b"{", id="cut short"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'"text"', id="text"),
        pytest.param(b"1", id="a number"),
        pytest.param(b"{} {}", id="two documents"),
        pytest.param(b"\xff\xfe\xfd", id="not UTF-8"),
        pytest.param(b'{"version": "\xc3\x28"}', id="not UTF-8 inside"),
        pytest.param(b"\x00\x00\x00", id="zeros"),
        pytest.param(b"[" * 100_000, id="deep lists"),
        pytest.param(b'{"a":' * 100_000, id="deep objects"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep lists that end"),
        pytest.param(b"9" * 10_000, id="an endless number"),
    ],
)
def test_what_is_not_a_json_object_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData) as caught:
        RangeObject.from_bytes(data)

    assert caught.value.what == "range object"


def _with(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        holder: Any = document
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return change


def _without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        holder: Any = document
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return change


def _wrong(*path: Any, values: Sequence[Any]) -> list[Any]:
    """The field at `path` with each of `values`, and with none."""
    name = path[-1] if isinstance(path[-1], str) else "batch"
    changes = [pytest.param(_with(*path, value=value), id=f"{name} {value!r}") for value in values]
    return [*changes, pytest.param(_without(*path), id=f"no {name}")]


_NOT_U64: tuple[Any, ...] = (None, "5", 5.0, -1, 2**64, True, [], {})
_NOT_BASE64: tuple[Any, ...] = (None, 1, [], {}, "=", "a", "a===", "YQ==\n", "Y Q==", "\u017c", "\ud800", "-_-_")
_BATCH = ("batches", 1)
_ITEM = ("batches", 0, "metadata", 0)


@pytest.mark.parametrize(
    "change",
    [
        *_wrong("start", values=(*_NOT_U64, 4)),
        *_wrong("end", values=(*_NOT_U64, 9, 2**64 - 1)),
        *_wrong("epoch", values=_NOT_U64),
        *_wrong("planned_at", values=(None, "x", 2**63, -(2**63) - 1)),
        *_wrong("batches", values=(None, "x", {}, [], [{}], [1, 2, 3, 4])),
        *_wrong(*_BATCH, values=(None, [], "x", 6)),
        *_wrong(*_BATCH, "sequence", values=(*_NOT_U64, 5, 7)),
        *_wrong(*_BATCH, "location", values=(None, 1, [], "ingest/\ud800")),
        *_wrong(*_BATCH, "size", values=("1", -1, 2**63, 1.5, True))[:-1],  # no size is a batch that was missing
        *_wrong(*_BATCH, "metadata", values=(None, {}, "x", [1], [[]])),
        *_wrong(*_ITEM, "start_index", values=(None, -1, 2**32, 0.0, True)),
        *_wrong(*_ITEM, "ingestion_time_ms", values=(None, 2**63, -(2**63) - 1, "0")),
        *_wrong(*_ITEM, "payload_base64", values=_NOT_BASE64)[:-1],  # no payload is an empty one
    ],
)
def test_a_wrong_field_is_corrupt(change: Callable[[dict[str, Any]], None]) -> None:
    document = _document()
    change(document)

    with pytest.raises(CorruptData) as caught:
        RangeObject.from_bytes(json.dumps(document).encode())

    assert caught.value.what == "range object"


def test_metadata_is_written_as_the_reference_implementation_dumps_it() -> None:
    assert metadata_to_json((Metadata(3, 1_700_000_000_000, b"\x01\x02\x01\x00"),)) == [
        {"start_index": 3, "ingestion_time_ms": 1_700_000_000_000, "payload_base64": "AQIBAA=="}
    ]


def test_json_that_is_corrupt_is_named_by_its_reader() -> None:
    with pytest.raises(CorruptData) as caught:
        parse_json(b"{", "frontier")

    assert caught.value.what == "frontier"


_metadata_items = st.builds(
    Metadata, st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20)
)
_batches = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.none() | st.integers(0, 2**63 - 1),
    st.lists(_metadata_items, max_size=3).map(tuple),
)


@settings(REPEATABLE, max_examples=200)
@given(
    start=st.integers(0, 2**64 - 20),
    epoch=st.integers(0, 2**64 - 1),
    planned_at_ms=st.integers(-(2**63), 2**63 - 1),
    batches=st.lists(_batches, min_size=1, max_size=8),
)
def test_any_range_comes_back(
    start: int, epoch: int, planned_at_ms: int, batches: list[tuple[str, int | None, tuple[Metadata, ...]]]
) -> None:
    planned = tuple(
        PlannedBatch(BatchDescriptor(sequence, location, metadata), size)
        for sequence, (location, size, metadata) in enumerate(batches, start)
    )
    value = RangeObject(start, start + len(batches) - 1, epoch, planned_at_ms, planned)

    data = value.to_bytes()

    assert RangeObject.from_bytes(data) == value
    assert RangeObject.from_bytes(data).to_bytes() == data


@functools.cache
def _targets() -> list[bytes]:
    return [_planned(0, 0).to_bytes(), _planned().to_bytes(), _planned(2**64 - 3, 2**64 - 1).to_bytes()]


def test_hostile_range_objects_raise_only_objbuf_errors_and_what_is_accepted_comes_back() -> None:
    def decode(data: bytes) -> None:
        value = RangeObject.from_bytes(data)
        assert RangeObject.from_bytes(value.to_bytes()) == value
        for batch in value.batches:
            batch.descriptor.location.encode()

    def inputs(rng: random.Random) -> bytes:
        return damaged_json(rng, _targets())

    attack(decode, inputs)
