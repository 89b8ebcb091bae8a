"""Valid documents, with values at the edges of what they may hold: hostile inputs begin with these."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from pathlib import Path

from objbuf_dagster.buffer.retention import Mark, Retention
from objbuf_dagster.lake.schema import ENTRIES
from objbuf_dagster.lake.state_cursor import StateCursor
from objbuf_dagster.orchestration.cursor import Cursor
from objbuf_dagster.orchestration.regulation import Flight, Memory
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.ranges.gate import GateState
from objbuf_dagster.ranges.quarantine import Quarantine, Quarantined
from objbuf_dagster.ranges.regulator import State
from tests.decode.json_cases import HOSTILE, ODD

BUFFER = "s3://bucket/events ingest/manifest ingest"
"""The identity that cursors are made for."""

BOOT = "the boot of this machine"
"""Stands in notes for its name, so that the same input is the same everywhere."""


@functools.cache
def retentions() -> list[bytes]:
    marks = tuple(Mark(1_700_000_000_000 + n, 10 * n) for n in range(5))
    edges = (Mark(-(2**63), 0), Mark(2**63 - 1, 2**64 - 1))
    values = (
        Retention(),
        Retention(3600.0, marks, marks[:2]),
        Retention(0.0, edges, edges),
        Retention(1e308, (), marks),
    )
    return [value.to_bytes() for value in values]


@functools.cache
def sightings() -> list[bytes]:
    """Notes of garbage collection, of this boot and of another one."""
    seen = {"ingest/a.batch": 0.0, "ingest/b.batch": 1234.5, "": -1e308, "ingest/\u202e": 1e308}
    notes = ({"boot": BOOT, "first": {}}, {"boot": BOOT, "first": seen}, {"boot": "another", "first": seen})
    return [json.dumps(note, separators=(",", ":")).encode() for note in notes]


def _memory() -> Memory:
    """All that a regulator and a gate remember."""
    flights = tuple(Flight(SequenceRange(10 * n, 10 * n + 9), 2**20 * n, 10, 0.5 * n) for n in range(3))
    return Memory(State(), GateState(True, "memory"), flights, ((1.0, 2.5), (2.0, 1e9)), 1_700_000_000_000, 2**62)


@functools.cache
def cursors() -> list[bytes]:
    known = SequenceRange(2**40, 2**40 + 9)
    values = (
        Cursor(BUFFER, 1),
        Cursor(BUFFER, 2**64 - 2, 2**64 - 1, known, SequenceRange(0, 0), {"epoch": 3, "lag_seconds": 0.5}),
        Cursor("s3://other ingest/manifest ingest", 1),
        Cursor(BUFFER, 7, 2**20, known, known, {"epoch": 7}, _memory()),
    )
    return [value.to_text().encode() for value in values]


@functools.cache
def quarantines() -> list[bytes]:
    some = tuple(
        Quarantined(10 * n, f"ingest/{n:026d}.batch", "damaged", 1_700_000_000_000 + n, None if n % 2 else 2**62)
        for n in range(4)
    )
    edges = (Quarantined(0, "ingest/x", "\u202e", -(2**63)), Quarantined(2**64 - 1, "x", "y" * 1_000, 2**63 - 1, 0))
    return [Quarantine(batches).to_bytes() for batches in ((), some, edges)]


@functools.cache
def state_cursors() -> list[bytes]:
    """As JSON: a file around it comes later."""
    values = (
        StateCursor("000000000000-000000000009", 10, 0, 1, 20, 3, "latest", 1, "0" * 64, 16),
        StateCursor(
            "000000000010-000000000019", 20, 5, 2, 40, 7, "latest", 2, "f" * 64, 1, (("a", "b"), ()), BUFFER,
            ("ingest/a.batch", "ingest/b.batch"), ((7, 8), (9, 9)),
        ),
    )  # fmt: skip
    return [json.dumps(value.to_json()).encode() for value in values]


def cursor_file(said: bytes) -> bytes:
    """A file of a state table without rows, which carries this for a cursor."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    schema = pa.schema([("key", pa.string())], metadata={b"objbuf.cursor": said})
    pq.write_table(schema.empty_table(), sink)
    return sink.getvalue()


@functools.cache
def exports() -> list[bytes]:
    file = {
        "path": "_odb_range=000000000000-000000000009/x.parquet",
        "size": 10,
        "rows": 2,
        "partition": {"_odb_range": "000000000000-000000000009"},
        "stats": {"minValues": {"_odb_sequence": 0}, "maxValues": {"_odb_sequence": 9}, "nullCount": {}},
    }
    ranges = {"format": 1, "kind": "ranges", "partitions": ["_odb_range"], "version": 3, "files": []}
    documents = (ranges, {**ranges, "files": [file, {**file, "stats": {}}]}, {**ranges, "kind": "state"})
    return [json.dumps(document).encode() for document in documents]


@functools.cache
def json_entries() -> list[bytes]:
    """Odd ones that pass the check, without those with numbers that Python's parser refuses."""
    return [entry for entry, *_ in ODD.values() if len(entry) < 2_000]


@functools.cache
def wrong_json_entries() -> list[bytes]:
    return [entry for entry, _ in HOSTILE.values()]


LOG_FILES = (f"{3:020d}.checkpoint.parquet", "_last_checkpoint", f"{4:020d}.json")
"""Of a table's log, what is read first: a checkpoint, what points to it, and the commit behind it."""


def _added(number: int) -> str:
    """A commit: one file, of one range."""
    start = 10 * number
    key = f"{start:012d}-{start + 9:012d}"
    stats = {"numRecords": 20, "minValues": {"_odb_sequence": start}, "maxValues": {"_odb_sequence": start + 9}}
    file = {
        "path": f"_odb_range={key}/part-{number:032x}.parquet",
        "partitionValues": {"_odb_range": key},
        "size": 1_000,
        "modificationTime": 1_700_000_000_000 + number,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return json.dumps({"add": file})


@functools.cache
def table_log() -> dict[str, bytes]:
    """The files of the log of a small table, from its checkpoint on. They are the same in every process."""
    from deltalake import DeltaTable

    metadata = {
        "id": "00000000-0000-0000-0000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": ENTRIES.to_delta().to_json(),
        "partitionColumns": list(ENTRIES.partitions),
        "configuration": {},
        "createdTime": 1_700_000_000_000,
    }
    first = ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata})
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        for version, commit in enumerate(["\n".join(map(json.dumps, first)), *map(_added, range(1, 4))]):
            (log / f"{version:020d}.json").write_text(commit)
        DeltaTable(folder).create_checkpoint()
        (log / f"{4:020d}.json").write_text(_added(4))
        return {path.name: path.read_bytes() for path in log.iterdir() if path.name >= f"{3:020d}"}
