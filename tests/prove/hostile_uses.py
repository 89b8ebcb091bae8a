"""What the pipeline does with each kind of input, one after another; and what must hold of what it accepts."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from objbuf_dagster.buffer.fetch import FetchHandle, check_location
from objbuf_dagster.buffer.retention import Retention
from objbuf_dagster.buffer.sightings import Sightings, boot
from objbuf_dagster.decode import Envelope, OtlpLogs, OtlpMetrics, OtlpTraces, Signal, Undecodable
from objbuf_dagster.decode.json_check import Checker
from objbuf_dagster.decode.json_types import parse_columns
from objbuf_dagster.errors import CorruptData, InvalidInput, ObjbufError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.state_cursor import StateCursor
from objbuf_dagster.lake.transfer_check import CURSOR_FILE, MANIFEST, SCHEMA, SUMS, read_export
from objbuf_dagster.orchestration.cursor import Cursor
from objbuf_dagster.protocol import (
    NO_EPOCH,
    BatchDescriptor,
    Block,
    Manifest,
    Metadata,
    PlannedBatch,
    RangeObject,
    check_batch,
    decode_batch,
    decode_batch_arrow,
    iter_batch_arrow,
)
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.ranges.ledger import compare_locations
from objbuf_dagster.ranges.quarantine import Quarantine
from objbuf_dagster.spark.pages import EntriesFile
from objbuf_dagster.store import MemoryStore
from tests.decode.json_cases import DDL
from tests.decode.messages import decoded, entries_batch
from tests.prove.hostile_documents import BOOT, BUFFER, LOG_FILES, table_log
from tests.prove.hostile_inputs import otlp_entries

MAX_BATCH_BYTES = 1 << 20
"""What a batch may have once decompressed: its decoders get this limit, so that the memory bound means something."""

OTLP = (OtlpLogs(), OtlpMetrics(), OtlpTraces())

_LONGEST_MESSAGE = 1_000
_NOTHING = FetchHandle(MemoryStore())
_KEY = re.compile(r"[0-9]{12,20}-[0-9]{12,20}", re.ASCII)


class _Attempts:
    """Several uses of one input: each may be refused, properly."""

    def __init__(self) -> None:
        self.refused = 0

    @contextlib.contextmanager
    def of(self, kind: type[ObjbufError] = ObjbufError) -> Iterator[None]:
        try:
            yield
        except kind as error:
            check_message(error)
            self.refused += 1


def check_message(error: ObjbufError) -> None:
    """An error is one line that any terminal and database can bear, whatever the input was."""
    _check_line(str(error), "a message")


def _check_line(text: str, what: str) -> None:
    assert text, f"{what} without a word"
    assert len(text) <= _LONGEST_MESSAGE, f"{what} of {len(text)} characters: {text[:200]!r}"
    assert text.isprintable(), f"{what} that does not print: {text!r}"


def use_manifest(data: bytes) -> bool:
    """Every operation on what parses."""
    attempts = _Attempts()
    with attempts.of():
        start = Manifest.from_bytes(data)
        first, count, following = start.frontier, start.entry_count, start.next_sequence
        for after in (None, -1, first - 1, first + count - 3, following - 1, following, 2**64):
            with attempts.of():
                found = [entry.sequence for entry in Manifest.from_bytes(data).entries(after=after)]
                begin = first if after is None else max(first, after + 1)
                assert found == list(range(begin, following)), (after, found[:3])
        for sequence in (first, following - 1, first - 1, following):
            with attempts.of():
                entry = Manifest.from_bytes(data).entry(sequence)
                assert (entry is None) is not (first <= sequence < following)
        for through in (-1, first - 1, first, first + count // 2, following - 2, following - 1, 2**64):
            with attempts.of():
                _dequeue(Manifest.from_bytes(data), through, attempts)
        with attempts.of(InvalidInput):
            grown = Manifest.from_bytes(data)
            before = grown.to_bytes()
            assert before == data, "what was not touched was changed"
            assert grown.append("ingest/new", [Metadata(0, 0, b"x")]) == following
            assert Manifest.from_bytes(grown.to_bytes()).entry_count == count + 1
        taken = Manifest.from_bytes(data)
        assert taken.take_epoch() not in (start.epoch, NO_EPOCH)
        assert Manifest.from_bytes(taken.to_bytes()).epoch == taken.epoch
    return not attempts.refused


def _dequeue(manifest: Manifest, through: int, attempts: _Attempts) -> None:
    first, following = manifest.frontier, manifest.next_sequence
    gone = manifest.dequeue(through)
    assert manifest.frontier == min(max(through + 1, first), following)
    assert len(gone) == manifest.frontier - first
    left = Manifest.from_bytes(manifest.to_bytes())
    assert (left.frontier, left.next_sequence, left.epoch) == (manifest.frontier, following, manifest.epoch)
    with attempts.of():
        assert [entry.sequence for entry in gone] == list(range(first, manifest.frontier))


def use_batch(data: bytes) -> bool:
    """The four ways to read a batch agree, and what the landing's check lets through becomes those rows."""
    found: list[list[bytes]] = []
    attempts = _Attempts()
    for decode in _DECODERS:
        with attempts.of():
            found.append(decode(data))
    checked: list[Block] = []
    with attempts.of():
        checked.append(check_batch(data, max_bytes=MAX_BATCH_BYTES))
    assert attempts.refused in (0, len(_DECODERS) + 1), "refused by some and not by others"
    if not checked:
        return False
    (block,) = checked
    assert all(records == found[0] for records in found), "not the same records"
    assert (block.count, block.size) == (len(found[0]), sum(map(len, found[0])) + 4 * len(found[0]))
    if zlib.crc32(data) % _LANDED == 0:
        assert _landed(data) == found[0], "not the same rows"
    return True


_LANDED = 8  # of so many accepted batches one is written to Parquet and read again, which takes longer than all else
_DECODERS: tuple[Callable[[bytes], list[bytes]], ...] = (
    lambda data: decode_batch(data, max_bytes=MAX_BATCH_BYTES),
    lambda data: _listed(decode_batch_arrow(data, max_bytes=MAX_BATCH_BYTES)),
    lambda data: [
        record
        for part in iter_batch_arrow(data, max_bytes=MAX_BATCH_BYTES, block_bytes=4096)
        for record in _listed(part)
    ],
)


def _listed(array: object) -> list[bytes]:
    records: list[bytes] = array.to_pylist()  # type: ignore[attr-defined]
    return records


def _landed(data: bytes) -> list[bytes]:
    import pyarrow.parquet as pq

    file = EntriesFile("ingest/manifest")
    file.add(BatchDescriptor(5, "ingest/x.batch"), check_batch(data, max_bytes=MAX_BATCH_BYTES))
    stored = io.BytesIO(b"".join(file.finish()))
    return _listed(pq.read_table(stored, columns=["entry"])["entry"])


def use_range(data: bytes) -> bool:
    """Read, named, and fetched from an empty buffer by whatever locations it has."""
    accepted = False
    attempts = _Attempts()
    with attempts.of():
        found = RangeObject.from_bytes(data)
        assert RangeObject.from_bytes(found.to_bytes()) == found
        assert SequenceRange.from_key(range_of(found).key) == range_of(found)
        assert found.size >= 0
        accepted = True
        for batch in found.batches:
            with attempts.of():
                location = check_location(batch.descriptor.location, "ingest")
                parts = location.split("/")
                assert parts[0] == "ingest"
                assert not {"", ".", ".."} & set(parts), location
                assert not re.search(r"[\x00-\x1f\x7f\\]", location), location
            with attempts.of():
                _NOTHING.fetch(batch.descriptor)
            with attempts.of():
                compare_locations(found, {batch.descriptor.sequence: "ingest/another.batch"})
    return accepted


def use_retention(data: bytes) -> bool:
    attempts = _Attempts()
    with attempts.of():
        found = Retention.from_bytes(data)
        assert Retention.from_bytes(found.to_bytes()) == found
        for now_ms in (0, 1_700_000_000_500, 2**62):
            for seconds in (0.0, 3600.0, found.retention_seconds):
                later = found.observe(found.furthest, now_ms, seconds)
                assert later.expired_before >= found.expired_before, "what has expired came back"
                assert later.furthest >= found.furthest
                assert later.gone_before(now_ms, seconds) <= later.expired_before
                assert Retention.from_bytes(later.to_bytes()) == later
        if found.expired_before:
            found.expiry_of(found.expired_before - 1)
    return not attempts.refused


def use_sightings(data: bytes) -> bool:
    attempts = _Attempts()
    with attempts.of(CorruptData):
        found = Sightings.from_bytes(data.replace(BOOT.encode(), boot().encode()))
        assert Sightings.from_bytes(found.to_bytes()) == found
        later = found.with_these([*found.first, "ingest/new.batch"], 1_000.0)
        assert all(later.first[path] <= seconds for path, seconds in found.first.items()), "seen later than it was"
        assert later.first["ingest/new.batch"] <= 1_000.0
    return not attempts.refused


def use_cursor(data: bytes) -> bool:
    attempts = _Attempts()
    with attempts.of(InvalidInput):
        found = Cursor.from_text(data.decode("utf-8", "surrogateescape"), BUFFER, "buffer_sensor")
        assert found.buffer == BUFFER
        assert all(type(number) is int and number >= 0 for number in (found.epoch, found.next_sequence))
        assert Cursor.from_text(found.to_text(), BUFFER, "buffer_sensor") == found
    return not attempts.refused


def use_quarantine(data: bytes) -> bool:
    attempts = _Attempts()
    with attempts.of():
        found = Quarantine.from_bytes(data)
        assert Quarantine.from_bytes(found.to_bytes()) == found
        for one in found.batches:
            assert found.get(one.sequence) == one
            batch = PlannedBatch(BatchDescriptor(one.sequence, "ingest/another.batch"), 1)
            with attempts.of():
                found.of(RangeObject(one.sequence, one.sequence, 1, 0, (batch,)))
    return not attempts.refused


def use_state_cursor(data: bytes) -> bool:
    attempts = _Attempts()
    with attempts.of():
        found = StateCursor.from_file(data)
        assert StateCursor.from_json(json.loads(json.dumps(found.to_json()))) == found
        assert SequenceRange.from_key(found.last_range).end + 1 == found.next_sequence
    return not attempts.refused


def use_export(data: bytes) -> bool:
    """As the manifest of an export that is whole but for that, and as its cursor."""
    attempts = _Attempts()
    for name in (MANIFEST, CURSOR_FILE):
        with _folder() as folder:
            files = {MANIFEST: _EXPORT, CURSOR_FILE: b'{"runs": []}', SCHEMA: _SCHEMA, name: data}
            sums = "".join(f"{hashlib.sha256(held).hexdigest()}  {at}\n" for at, held in files.items())
            for at, held in {**files, SUMS: sums.encode()}.items():
                (folder / at).write_bytes(held)
            with attempts.of():
                read_export(folder)
    return attempts.refused < 2


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """For one input, in memory if that can be."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


_MEMORY = "/dev/shm"  # noqa: S108, a folder of its own is made there
_EXPORT = b'{"format": 1, "kind": "ranges", "partitions": ["_odb_range"], "version": 3, "files": []}'
_SCHEMA = b'{"type": "struct", "fields": [{"name": "_odb_range", "type": "string", "nullable": true, "metadata": {}}]}'


def use_table_log(data: bytes) -> bool:
    """In its place in the log of a table that is whole but for that. What deltalake believes is not for us to judge."""
    attempts = _Attempts()
    with _folder() as folder:
        log = folder / "_delta_log"
        log.mkdir()
        for name, held in {**table_log(), LOG_FILES[data[0]]: data[1:]}.items():
            (log / name).write_bytes(held)
        table = LakeTable(folder)
        for look in (table.version, table.ranges, table.files):
            with attempts.of():
                look()
    return not attempts.refused


def use_key(data: bytes) -> bool:
    attempts = _Attempts()
    text = data.decode("utf-8", "surrogateescape")
    with attempts.of(InvalidInput):
        found = SequenceRange.from_key(text)
        assert _KEY.fullmatch(text), "a key of other characters"
        assert found.key == text
        assert 0 <= found.start <= found.end < 2**64
    return not attempts.refused


def use_otlp(data: bytes) -> bool:
    """Decoded as each signal, with its right envelope and with the one that came: rows or one failure, and no error."""
    attempts = _Attempts()
    right = [Envelope(decoder.signal).to_bytes() for decoder in OTLP]
    entries: list[bytes] = []
    payloads: list[bytes | None] = []
    signals: list[Signal | None] = []  # of each, None where the envelope must be refused
    for payload, entry in otlp_entries(data):
        signal = None
        with attempts.of(Undecodable):
            signal = Envelope.parse(payload).signal
        entries += [entry] * (len(right) + 1)
        payloads += [*right, payload]
        signals += [*(decoder.signal for decoder in OTLP), signal]
    batch = entries_batch(entries, payloads)
    given = batch.to_pylist()
    taken = 0
    for decoder in OTLP:
        rows, failures = decoded(decoder, batch)
        for one in (*rows, *failures):
            whence = given[one["_odb_sequence"] - given[0]["_odb_sequence"]]
            assert all(one[name] == whence[name] for name in whence if name in one), "not where it came from"
        for failure in failures:
            _check_line(failure["reason"], "a reason")
        failed, gave = (
            Counter(one["_odb_sequence"] - given[0]["_odb_sequence"] for one in x) for x in (failures, rows)
        )
        assert failed.total() == len(failed), "an entry failed twice"
        assert not failed.keys() & gave.keys(), "an entry failed and gave rows"
        assert not [at for at in (*failed, *gave) if signals[at] not in (None, decoder.signal)], "another's was taken"
        refused = {at for at, signal in enumerate(signals) if signal is None}
        assert refused <= failed.keys(), "an envelope was guessed"
        for at in {*range(len(entries))} - refused:
            twin = at - at % (len(right) + 1) + OTLP.index(decoder)  # the same entry, with the right envelope
            if signals[at] is decoder.signal:
                assert (failed[at], gave[at]) == (failed[twin], gave[twin]), "not the same twice"
        taken += sum(at % (len(right) + 1) == len(right) for at in gave)
    return taken > 0


def use_json_entry(data: bytes) -> bool:
    """Checked before Spark's parser gets it: what passes is one object to Python's parser as well, with these names."""
    attempts = _Attempts()
    with attempts.of(Undecodable):
        checked = _CHECKER.check(data)
        assert checked.text.encode() == data
        fields = json.loads(checked.text, parse_int=str, parse_float=str, object_pairs_hook=list)
        names = [name for name, _ in fields]
        assert len(set(names)) == len(names), "a name is there twice"
        rest = dict(checked.rest)
        assert rest.keys() >= set(names) - _COLUMNS, "what is not declared is gone"
        for name, value in fields:
            if name in rest:
                assert json.loads(rest[name], parse_int=str, parse_float=str, object_pairs_hook=list) == value
        assert 0 <= checked.known <= len(data)
    return not attempts.refused


_STRUCT = parse_columns(DDL)
_COLUMNS = {column.name for column in _STRUCT.fields}
_CHECKER = Checker(_STRUCT, MAX_BATCH_BYTES)

USES: dict[str, Callable[[bytes], bool]] = {
    "manifest": use_manifest,
    "batch": use_batch,
    "range object": use_range,
    "sensor cursor": use_cursor,
    "retention object": use_retention,
    "quarantine object": use_quarantine,
    "note of garbage": use_sightings,
    "state cursor": use_state_cursor,
    "export document": use_export,
    "table log": use_table_log,
    "partition key": use_key,
    "OTLP entries": use_otlp,
    "JSON entry": use_json_entry,
}
"""Whether all of it was accepted, or of entries any. AssertionError, or any error but ours, is a finding."""
