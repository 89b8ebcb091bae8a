"""What Spark's own Python workers hold while they read the data source."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from objbuf_dagster.protocol.batch import frame_batch
from objbuf_dagster.store import LocalStore
from tests.spark.processes import python
from tests.support.buffers import append, batch_name

_ROOT = Path(__file__).parents[2]
_MIB = 1 << 20
_BESIDE = 48 * _MIB
"""What a block on its way, and a worker's moods, may add."""

_READ = """
import json, os
from pathlib import Path
from objbuf_dagster.spark.session import session
from tests.spark.processes import descendants

with session(master="local[1]") as spark:
    rows = spark.read.format("objbuf").option("buffer", os.environ["BUFFER"]).option("from", 0).option("to", 0).load()
    count, size = rows.selectExpr("count(*)", "sum(length(entry))").first()
    workers = [pid for pid, line in descendants(os.getpid()).items() if "pyspark" in line and "java" not in line]
    told = [Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0] for pid in workers]
    print(json.dumps([count, size, max(int(peak) * 1024 for peak in told)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell a process's peak")
@pytest.mark.timeout(300)
def test_a_worker_needs_no_more_memory_for_a_large_batch_than_its_object(tmp_path: Path) -> None:
    """Much less than what a batch decompresses to, which would do."""
    peaks, stored = [], []
    entry = (b"an entry of a kilobyte" * 50)[:1020]
    piece = b"\xfc\3\0\0" + entry
    for mib in (16, 512):
        store = LocalStore(tmp_path / str(mib) / "buffer")
        location = batch_name(1_700_000_000_000)
        store.put(location, frame_batch([piece * 1024] * mib, 1024 * mib, "zstd"))
        append(store, location)
        reader = python(_READ, tmp_path / str(mib), BUFFER=store.root.as_uri(), PYTHONPATH=str(_ROOT))
        output, errors = reader.communicate(timeout=200)
        assert reader.returncode == 0, errors[-5000:]
        count, size, peak = json.loads(output)
        assert (count, size) == (1024 * mib, 1024 * mib * len(entry))
        peaks.append(peak)
        stored.append(store.head(location).size)

    print(f"peaks of {[peak // _MIB for peak in peaks]} MiB, objects of {stored} bytes")
    assert peaks[1] - peaks[0] < stored[1] - stored[0] + _BESIDE
