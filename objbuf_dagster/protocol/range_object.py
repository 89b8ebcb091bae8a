"""Range objects: JSON that names the batches of one contiguous run of sequences, written once and never changed."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from objbuf_dagster.errors import CorruptData, InvalidInput, UnsupportedVersion
from objbuf_dagster.protocol.model import MAX_U32, MAX_U64, BatchDescriptor, Metadata

_VERSION = 1
_WHAT = "range object"
_I63 = 2**63


RANGES_FOLDER = "ranges"
MAX_RANGE_OBJECT_BYTES = 1 << 30
"""More is neither written nor read."""


def range_path(data_prefix: str, start: int) -> str:
    """Where the object of the range that starts here is."""
    return f"{data_prefix}/{RANGES_FOLDER}/{start:020d}"


def range_start(data_prefix: str, path: str) -> int | None:
    """The start that a range object's path tells, or None if it is not the path of one: folders may lie beside them."""
    name = path.rpartition("/")[2]
    if len(name) != 20 or not name.isascii() or not name.isdigit():
        return None
    return int(name) if path == range_path(data_prefix, int(name)) else None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One batch of a range. `size` is the object's in bytes, or None if it was already missing when planned.

    is_guess: the size is that of a neighbour, good enough to share out work; never so in a range object.
    """

    descriptor: BatchDescriptor
    size: int | None
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class RangeObject:
    """The batches of sequences `start` to `end`, both included, and who planned them when."""

    start: int
    end: int
    epoch: int
    planned_at_ms: int
    batches: tuple[PlannedBatch, ...]

    def __post_init__(self) -> None:
        sequences = [batch.descriptor.sequence for batch in self.batches]
        as_many = len(sequences) == self.end - self.start + 1  # first: a list up to a wrong `end` could fill the memory
        if not sequences or not as_many or sequences != list(range(self.start, self.end + 1)):
            raise InvalidInput(f"a range from {self.start} to {self.end} needs exactly the batches between")

    @property
    def size(self) -> int:
        """What is known of the size of its objects, added up."""
        return sum(batch.size or 0 for batch in self.batches)

    def to_bytes(self) -> bytes:
        document = {
            "version": _VERSION,
            "start": self.start,
            "end": self.end,
            "epoch": self.epoch,
            "planned_at": self.planned_at_ms,
            "batches": [
                {
                    "sequence": batch.descriptor.sequence,
                    "location": batch.descriptor.location,
                    "size": batch.size,
                    "metadata": metadata_to_json(batch.descriptor.metadata),
                }
                for batch in self.batches
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeObject:
        """Raises UnsupportedVersion or CorruptData, and nothing else, whatever the bytes."""
        document = _object(parse_json(data, _WHAT), "the document")
        if type(document.get("version")) is not int or document["version"] != _VERSION:
            raise UnsupportedVersion(_WHAT, document.get("version"), _VERSION)
        start, end, epoch = (_int(document, key, 0, MAX_U64) for key in ("start", "end", "epoch"))
        batches = _list(document, "batches")
        if end - start + 1 != len(batches) or not batches:
            raise CorruptData(_WHAT, f"{len(batches)} batches do not make the range {start} to {end}")
        planned = tuple(_batch(item, sequence) for sequence, item in enumerate(batches, start))
        return cls(start, end, epoch, _int(document, "planned_at", -_I63, _I63 - 1), planned)


def metadata_to_json(items: tuple[Metadata, ...]) -> list[dict[str, Any]]:
    """Metadata the way the reference implementation's `manifest dump` writes it."""
    return [
        {
            "start_index": item.start_index,
            "ingestion_time_ms": item.ingestion_time_ms,
            "payload_base64": base64.b64encode(item.payload).decode(),
        }
        for item in items
    ]


def parse_json(data: bytes, what: str) -> Any:
    """JSON from outside; depth, encoding and syntax all end in CorruptData."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptData(what, f"not JSON: {error}") from None


def _batch(item: Any, sequence: int) -> PlannedBatch:
    fields = _object(item, "a batch")
    if _int(fields, "sequence", 0, MAX_U64) != sequence:
        raise CorruptData(_WHAT, f"sequence {fields['sequence']} stands where {sequence} must")
    location = fields.get("location")
    if not isinstance(location, str) or not _is_unicode(location):
        raise CorruptData(_WHAT, f"batch {sequence} has no location")
    size = None if fields.get("size") is None else _int(fields, "size", 0, _I63 - 1)
    metadata = tuple(_metadata(_object(item, "a metadata item")) for item in _list(fields, "metadata"))
    return PlannedBatch(BatchDescriptor(sequence, location, metadata), size)


def _metadata(fields: dict[str, Any]) -> Metadata:
    text = fields.get("payload_base64")
    try:
        payload = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        payload = None
    # How strict `validate` is depends on the Python, so what comes back must be what was there.
    if payload is None or base64.b64encode(payload).decode() != text:
        raise CorruptData(_WHAT, "a metadata payload is not base64")
    return Metadata(
        _int(fields, "start_index", 0, MAX_U32), _int(fields, "ingestion_time_ms", -_I63, _I63 - 1), payload
    )


def _is_unicode(text: str) -> bool:
    """JSON can spell half a surrogate pair, which no store and no manifest can take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptData(_WHAT, f"{what} is not an object")
    return value


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise CorruptData(_WHAT, f"{key!r} is not a list")
    return value


def _int(fields: dict[str, Any], key: str, least: int, most: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not least <= value <= most:
        raise CorruptData(_WHAT, f"{key!r} is not a whole number from {least} to {most}")
    return value
