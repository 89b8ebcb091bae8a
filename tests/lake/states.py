"""A small lake with a state, made by plain Python: entries of lines, a decoder, a fold with deletes, and the oracle."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from objbuf_dagster.decode import EntryDecoder, Undecodable, decode_block, rows_schema
from objbuf_dagster.lake import LakeTable, TableSchema
from objbuf_dagster.lake.files import DataFile, RowsWriter
from objbuf_dagster.lake.fold import RowFold, Scope
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.lake.state_run import Sources, StateReport, catch_up, rebuild
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange
from objbuf_dagster.store import RetryPolicy, Store

REPOSITORY = Path(__file__).parents[2]
QUICK = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.01)

Entries = Sequence[Sequence[str]]
"""Of a range: batches of entries, each of lines `who what amount`, joined by `|`."""

State = dict[str, tuple[int, int, str, int]]


class Lines(EntryDecoder):
    """A row per line; an entry with a line that is none fails."""

    name = "lines"
    version = 1
    schema = pa.schema(
        [
            pa.field("who", pa.string(), nullable=False),
            pa.field("what", pa.string(), nullable=False),
            pa.field("amount", pa.int64(), nullable=False),
        ]
    )

    def takes(self, payload: bytes | None) -> bool:
        return payload is None

    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        for line in filter(None, entry.decode().split("|")):
            parts = line.split(" ")
            if len(parts) != 3:
                raise Undecodable(f"no line: {line}")
            yield {"who": parts[0], "what": parts[1], "amount": int(parts[2])}


class Accounts(RowFold):
    """Sum, count and last of each who; `close` ends one, `noise` matters to nobody."""

    name = "accounts"
    version = 1
    reads = ("who", "what", "amount")
    key = pa.schema([pa.field("who", pa.string(), nullable=False)])
    value = pa.schema(
        [
            pa.field("total", pa.int64(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("last", pa.string(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
        ]
    )

    def key_of(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if row["what"] == "noise" else {"who": row["who"]}

    def step(self, value: Mapping[str, Any] | None, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if row["what"] == "close":
            return None
        return {
            "total": (value["total"] if value else 0) + row["amount"],
            "count": (value["count"] if value else 0) + 1,
            "last": f"{row['what']}{row['amount']}",
            "sequence": row["_odb_sequence"],
        }


@dataclass
class World:
    """Tables below one URL, and what was landed in them, by range."""

    url: str
    scope: Scope = field(default_factory=Scope)
    buckets: int = 4
    settings: dict[str, Any] = field(default_factory=dict)
    landed: dict[SequenceRange, Entries] = field(default_factory=dict)
    ledger: RangeLedger | None = None
    buffer: str | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    tag: str = "b"

    @property
    def entries(self) -> LakeTable:
        return LakeTable(f"{self.url}/entries", **self.settings)

    @property
    def typed(self) -> LakeTable:
        return LakeTable(f"{self.url}/lines", TableSchema.from_arrow(rows_schema(Lines())), **self.settings)

    @functools.cached_property
    def state(self) -> StateTable:
        return StateTable(f"{self.url}/accounts", Accounts(), self.scope, buckets=self.buckets, **self.settings)

    @property
    def sources(self) -> Sources:
        return Sources(self.typed, self.entries, self.ledger, self.buffer)

    def land(self, start: int, batches: Entries, *, entries: bool = True, typed: bool = True) -> SequenceRange:
        """A range that begins here, in these of the tables."""
        one = SequenceRange(start, start + len(batches) - 1)
        rows = rows_of(start, batches, self.tag)
        if entries:
            self.entries.commit(one.key, self._written(self.entries, one, rows, len(rows)), epoch=1)
        if typed:
            decoded = [block for block, _ in decode_block(Lines(), rows)]
            table = pa.Table.from_batches(decoded, rows_schema(Lines())).combine_chunks()
            files: list[DataFile] = []
            for block in table.to_batches():
                files += self._written(self.typed, one, block, max(1, len(block) // 3))
            self.typed.commit(one.key, files, epoch=1)
        self.landed[one] = batches
        return one

    def _written(self, table: LakeTable, one: SequenceRange, rows: pa.RecordBatch, each: int) -> list[DataFile]:
        """In files and blocks of so many rows, in any order: a task may have got any pieces of `entries`."""
        pieces = [rows.slice(at, each) for at in range(0, len(rows), each)]
        self.rng.shuffle(pieces)
        files: list[DataFile] = []
        while pieces:
            count = self.rng.randint(1, len(pieces))
            writer = RowsWriter(table.store, table.schema.to_arrow(), lambda: table.new_path(one.key))
            for piece in pieces[:count]:
                writer.add(piece)
            files += [_with_batches(file, rows) if table.url.endswith("/entries") else file for file in writer.finish()]
            pieces = pieces[count:]
        return files

    def apply(self, **settings: Any) -> StateReport:
        return catch_up(self.state, self.sources, **settings)

    def rebuild(self, **settings: Any) -> StateReport:
        return rebuild(self.state, self.sources, decode, **settings)

    def expected(self, through: int | None = None) -> State:
        """By plain Python: the state after all ranges, or those up to this sequence."""
        return oracle(
            ((one, batches) for one, batches in sorted(self.landed.items()) if through is None or one.end <= through),
            self.scope,
        )

    def found(self) -> State:
        """What is in the table, as plain deltalake reads it."""
        return as_state(self.state.rows().to_pylist())


def as_state(rows: Iterable[Mapping[str, Any]]) -> State:
    found = [(row["who"], (row["total"], row["count"], row["last"], row["sequence"])) for row in rows]
    assert len(dict(found)) == len(found), "a key is there twice"
    return dict(found)


def decode(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (rows for rows, _ in decode_block(Lines(), block))


def rows_of(start: int, batches: Entries, tag: str = "b") -> pa.RecordBatch:
    """Rows of `entries`."""
    found = [
        {
            "_odb_sequence": start + at,
            "_odb_entry_index": index,
            "_odb_ingestion_time_ms": None,
            "_odb_manifest_path": "ingest/manifest",
            "_odb_data_path": f"ingest/{tag}{start + at:06d}.batch",
            "_odb_metadata": None,
            "entry": entry.encode(),
        }
        for at, batch in enumerate(batches)
        for index, entry in enumerate(batch)
    ]
    return pa.RecordBatch.from_pylist(found, LakeTable("/nowhere").schema.to_arrow())


def _with_batches(file: DataFile, rows: pa.RecordBatch) -> DataFile:
    paths = rows.column("_odb_data_path").to_pylist()
    stats = {name: dict(found) for name, found in file.stats.items()}
    stats["minValues"]["_odb_data_path"], stats["maxValues"]["_odb_data_path"] = min(paths), max(paths)
    return DataFile(file.path, file.size, file.rows, stats)


def oracle(ranges: Iterable[tuple[SequenceRange, Entries]], scope: Scope | None = None) -> State:
    state: State = {}
    prefixes = [prefix[0] for prefix in (scope or Scope()).prefixes]
    for one, batches in ranges:
        for at, batch in enumerate(batches):
            for entry in batch:
                lines = [line.split(" ") for line in entry.split("|") if line]
                if any(len(line) != 3 for line in lines):
                    continue
                for who, what, amount in lines:
                    if what == "noise" or (prefixes and not any(who.startswith(prefix) for prefix in prefixes)):
                        continue
                    if what == "close":
                        state.pop(who, None)
                        continue
                    total, count, *_ = state.get(who, (0, 0))
                    state[who] = (total + int(amount), count + 1, f"{what}{amount}", one.start + at)
    return state


def some_entries(rng: random.Random, batches: int, keys: int = 12) -> Entries:
    """Hostile ones, empty ones, irrelevant ones and good ones."""

    def line() -> str:
        what = rng.choice(["put", "put", "put", "add", "close", "noise"])
        return f"{rng.choice('abc')}{rng.randrange(keys)} {what} {rng.randrange(100)}"

    def entry() -> str:
        return rng.choice(["", "damaged", "|".join(line() for _ in range(rng.randrange(1, 5)))])

    return [[entry() for _ in range(rng.randrange(1, 6))] for _ in range(batches)]


def ledger_with(store: Store, *ranges: SequenceRange) -> RangeLedger:
    """The range objects of a buffer that was planned so."""
    found = RangeLedger(store)
    for one in ranges:
        batches = tuple(PlannedBatch(BatchDescriptor(at, f"ingest/b{at:06d}.batch", ()), 1) for at in one)
        found.create(RangeObject(one.start, one.end, 1, 0, batches))
    return found


def start_applying(url: str, argument: str) -> subprocess.Popen[bytes]:
    """A process that moves the state on, `catch_up` or `rebuild`, again and again; made to be killed."""
    command = [sys.executable, "-m", "tests.lake.states", url, argument]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)


def apply_once(url: str, barrier: Any) -> None:
    """A process: one of several that catch up at the same moment."""
    world = World(url)
    barrier.wait(60)
    world.apply(ranges_at_once=1)


if __name__ == "__main__":
    made = World(sys.argv[1])
    while True:
        print("go", flush=True)
        if sys.argv[2] == "rebuild":
            made.rebuild()
        else:
            made.apply(ranges_at_once=1)
