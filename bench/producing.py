"""What the producer costs on top of writing its bytes to the same disk."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

from bench.harness import Bench
from objbuf_dagster.buffer import Producer
from objbuf_dagster.protocol import encode_batch
from objbuf_dagster.store import LocalStore

_ENTRY = 200
_PER_CALL = 1_000
_BATCH = 64 << 20


def main(quick: bool) -> bool:
    """At least half the speed of open().write() and fsync per batch, for the same bytes in the same batches."""
    bench = Bench(quick, rounds=3 if quick else 7)
    bench.heading(f"Producing {_ENTRY}-byte entries to a local directory, one thread, {_PER_CALL} a call")
    batches = 2 if quick else 8
    calls_per_batch = -(-_BATCH // (_ENTRY * _PER_CALL))
    generator = random.Random(1)
    calls = [[generator.randbytes(_ENTRY) for _ in range(_PER_CALL)] for _ in range(calls_per_batch)]
    whole = encode_batch([entry for call in calls for entry in call])
    folder = Path(tempfile.mkdtemp(prefix="objbuf-bench-"))
    target = folder / "target"

    def plain() -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for number in range(batches):
            with open(target / f"{number}", "wb") as file:
                file.write(whole)
                file.flush()
                os.fsync(file.fileno())

    def produce() -> None:
        shutil.rmtree(target, ignore_errors=True)
        with Producer(LocalStore(target), flush_interval=60.0) as producer:
            for _ in range(batches):
                for call in calls:
                    producer.produce(call)

    try:
        return bench.promise("producing, time of plain writing", produce, {"open().write() and fsync": plain}, most=2.0)
    finally:
        shutil.rmtree(folder)
