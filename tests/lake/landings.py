"""Real data files for tests, and processes that land them."""

from __future__ import annotations

import io
import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from objbuf_dagster.lake import DataFile, LakeTable, RangeCheck
from objbuf_dagster.ranges import SequenceRange

REPOSITORY = Path(__file__).parents[2]
SPAWN = multiprocessing.get_context("spawn")
"""Forked children of a process that used deltalake hang."""


def key(number: int) -> str:
    """The `number`th range of ten sequences."""
    return SequenceRange(number * 10, number * 10 + 9).key


def write(
    table: LakeTable, range_key: str, tag: bytes = b"", *, files: int = 2, rows: int = 5, prefix: str = "ingest"
) -> list[DataFile]:
    """Data files of this range, not committed yet; `tag` is in every entry."""
    start = SequenceRange.from_key(range_key).start
    return [_write_one(table, range_key, tag, start + number * rows, rows, prefix) for number in range(files)]


def _write_one(table: LakeTable, range_key: str, tag: bytes, first: int, rows: int, prefix: str) -> DataFile:
    sequences = list(range(first, first + rows))
    data = pa.table(
        {
            "_odb_sequence": sequences,
            "_odb_entry_index": [0] * rows,
            "_odb_ingestion_time_ms": [None] * rows,
            "_odb_manifest_path": ["ingest/manifest"] * rows,
            "_odb_data_path": [f"{prefix}/{number}.batch" for number in sequences],
            "_odb_metadata": [None] * rows,
            "entry": [tag] * rows,
        },
        schema=table.schema.to_arrow(),
    )
    sink = io.BytesIO()
    pq.write_table(data, sink)
    path = table.new_path(range_key)
    table.store.put(path, sink.getvalue())
    stats = {
        "minValues": {"_odb_sequence": first},
        "maxValues": {"_odb_sequence": first + rows - 1},
        "nullCount": {"_odb_sequence": 0},
    }
    return DataFile(path, len(sink.getvalue()), rows, stats)


def land(table: LakeTable, range_key: str, tag: bytes = b"", **shape: Any) -> None:
    table.commit(range_key, write(table, range_key, tag, **shape), epoch=1)


def read(table: LakeTable) -> Any:
    """All rows, through plain deltalake."""
    return table.delta().to_pyarrow_table()


def sequences(table: LakeTable) -> list[int]:
    return sorted(read(table)["_odb_sequence"].to_pylist())


def tags(table: LakeTable, range_key: str) -> Counter[bytes]:
    """How many rows of this range have which tag."""
    rows = read(table).to_pylist()
    return Counter(row["entry"] for row in rows if row["_odb_range"] == range_key)


def land_rounds(table: LakeTable, barrier: Any, keys: list[str], tag: bytes) -> None:
    """A process: land one range after the other, each at the same moment as the other processes do."""
    for range_key in keys:
        files = write(table, range_key, tag)
        barrier.wait(60)
        table.commit(range_key, files, epoch=1)


def land_in_each(tables: list[LakeTable], barrier: Any, range_key: str) -> None:
    """A process: land a range in one new table after the other, each at the same moment as the other processes do."""
    for table in tables:
        files = write(table, range_key)
        barrier.wait(60)
        table.commit(range_key, files, epoch=1)


def run_all(processes: list[Any]) -> None:
    """Start them, and wait until all succeeded."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def start_landing_for_ever(pickled: bytes) -> subprocess.Popen[bytes]:
    """A process that lands range 0 again and again, with another tag each time, and says so; made to be killed."""
    command = [sys.executable, "-m", "tests.lake.landings", pickled.hex()]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)


def _land_for_ever(pickled: bytes) -> None:
    import itertools
    import os
    import pickle

    table: LakeTable = pickle.loads(pickled)
    for turn in itertools.count():
        files = write(table, key(0), f"{os.getpid()}-{turn}".encode())
        print("landing", flush=True)
        table.commit(key(0), files, epoch=1)


if __name__ == "__main__":
    _land_for_ever(bytes.fromhex(sys.argv[1]))


def failed(checks: Sequence[RangeCheck]) -> list[str]:
    """The names of those that did not pass."""
    return [check.name for check in checks if not check.passed]
