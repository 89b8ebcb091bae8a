"""Checking JSON takes as much memory as a block of it needs, however many blocks there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_CHECK = """
import os, pickle, sys
import pyarrow as pa
from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import pieces, typed_schema
from objbuf_dagster.spark.decoding_worker import DecodeTask, Report, Share
from objbuf_dagster.spark.json_decoding import _Checking

folder, mebibytes = sys.argv[1], int(sys.argv[2])
key = SequenceRange(0, 9)
entries = LakeTable(folder + "/entries")
writer = RowsWriter(entries.store, entries.schema.to_arrow(), lambda: entries.new_path(key.key), file_bytes=1 << 40)
for number in range(mebibytes):
    origin = {"_odb_sequence": 0, "_odb_manifest_path": "m", "_odb_data_path": "d"}
    rows = [{**origin, "_odb_entry_index": number * 256 + at, "entry":
             b'{"id":%d,"t":"%s","zz":"%s"}' % (at, os.urandom(1000).hex().encode(), os.urandom(1000).hex().encode())}
            for at in range(256)]
    writer.add(pa.RecordBatch.from_pylist(rows, entries.schema.to_arrow()))
entries.commit(key.key, writer.finish(), epoch=1)
share = Share(0, key, tuple(piece for part in pieces(entries.files(), 1) for piece in part))
decoder = JsonDecoder("id BIGINT, t STRING")
task = DecodeTask(entries, decoder, LakeTable(folder + "/rows", typed_schema(decoder)),
                  LakeTable(folder + "/letters", DEAD_LETTERS), "dead_letter", "0" * 32)
shares = iter([pa.record_batch([pa.array([pickle.dumps(share)], pa.binary())], names=["share"])])
found = most = 0
for batch in _Checking(task, decoder)(shares):
    found += batch.column("control").null_count
    most = max(most, batch.nbytes)
    last = batch
report = pickle.loads(last.column("control")[0].as_py())
assert isinstance(report, Report) and report.error is None and report.entries == found, report
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]
print(found, most >> 20, int(peak) // 1024)
"""


def check_in_a_process(folder: Path, mebibytes: int) -> int:
    """The peak in MiB of a process that checks so many MiB of entries."""
    command = [sys.executable, "-c", _CHECK, str(folder), str(mebibytes)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=250)
    entries, most, peak = map(int, ran.stdout.split())
    assert entries == mebibytes * 256
    assert most < 8, "blocks are small"
    return peak


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell a process's peak")
def test_checking_needs_no_more_memory_the_longer_it_is(tmp_path: Path) -> None:
    short = check_in_a_process(tmp_path / "short", 16)
    long = check_in_a_process(tmp_path / "long", 96)

    assert long < short + 160, f"{short} MiB for 16 MiB of entries, {long} MiB for 96 MiB"
