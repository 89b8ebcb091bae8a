"""What a task holds in memory: the file it is writing and the batches at hand, however long its share is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

_LAND = """
import os, sys
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, encode_batch
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.worker import Share, Task
from objbuf_dagster.store import LocalStore

folder, number, compression = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = LocalStore(folder)
batches = []
for sequence in range(number):
    location = f"ingest/{sequence}.batch"
    data = encode_batch([os.urandom(8192) for _ in range(1024)], compression)
    store.put(location, data)
    batches.append(PlannedBatch(BatchDescriptor(sequence, location), len(data)))
task = Task((), BufferPlace(store).fetcher(), "ingest/manifest", LocalStore(folder + "/lake"), "0" * 32)
report = task.do(Share(SequenceRange(0, number - 1), tuple(batches)))
assert report.error is None and report.batches == number
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]
print(sum(file.rows for file in report.files), len(report.files), int(peak) // 1024)
"""


def land(folder: Path, batches: int, compression: str) -> tuple[int, int, int]:
    """Rows, files, and the peak in MiB of a process that lands so many batches of 8 MiB that cannot be compressed."""
    command = [sys.executable, "-c", _LAND, str(folder), str(batches), compression]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=120)
    rows, files, peak = map(int, ran.stdout.split())
    return rows, files, peak


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell a process's peak")
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_long_share_needs_no_more_memory_than_one_file(compression: str, tmp_path: Path) -> None:
    rows, files, short = land(tmp_path / "short", 17, compression)
    assert (rows, files) == (17 * 1024, 2)

    rows, files, long = land(tmp_path / "long", 51, compression)
    assert (rows, files) == (51 * 1024, 4)
    assert long < short + 48, f"{short} MiB for 136 MiB of batches, {long} MiB for 408 MiB"
