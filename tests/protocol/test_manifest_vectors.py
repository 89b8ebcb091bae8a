"""Manifests in the other implementations' bytes: what they mean, what an operation makes of them, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from objbuf_dagster.errors import CorruptData, ObjbufError, UnsupportedVersion
from objbuf_dagster.protocol import BatchDescriptor, Manifest, Metadata
from tests.protocol.manifests import entry_bytes, footer, rebuilt, sequences_of, vectors

_KINDS: dict[str, type[ObjbufError]] = {"corrupt": CorruptData, "unsupported version": UnsupportedVersion}


def _longest_location() -> dict[str, Any]:
    """The one vector that is not in the file, since it is 65,535 times the same byte."""
    return {
        "name": "location of 65535 bytes",
        "hex": (entry_bytes(0, b"x" * 65_535) + footer(1, 1)).hex(),
        "next_sequence": 1,
        "epoch": 0,
        "entries": [{"sequence": 0, "location": "x" * 65_535, "metadata": []}],
    }


_ALL = [*vectors("manifest.json"), _longest_location()]
_VALID = [pytest.param(v, id=v["name"]) for v in _ALL if "error" not in v]
_DAMAGED = [pytest.param(v, id=v["name"]) for v in _ALL if "error" in v]
_OPERATIONS = [pytest.param(v, id=v["name"]) for v in vectors("manifest_ops.json")]


def _metadata(items: list[dict[str, Any]]) -> tuple[Metadata, ...]:
    return tuple(Metadata(i["start_index"], i["ingestion_time_ms"], bytes.fromhex(i["payload_hex"])) for i in items)


def _descriptors(vector: dict[str, Any]) -> list[BatchDescriptor]:
    return [BatchDescriptor(e["sequence"], e["location"], _metadata(e["metadata"])) for e in vector["entries"]]


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
    assert rebuilt(manifest).hex() == vector["hex"]


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
        assert sequences_of(removed) == vector["removed"]
        assert list(removed) == [entry for entry in before if entry.sequence in vector["removed"]]
    else:
        assert vector["op"] == "take_epoch"
        assert manifest.take_epoch() == vector["epoch"]
        assert manifest.epoch == vector["epoch"]

    assert manifest.to_bytes().hex() == vector["after_hex"]
