"""Landing a range against every other way to get the same records into Parquet, on `local[2]`, all in one run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.formats import log_line, sample
from bench.harness import Bench, best_of
from objbuf_dagster.buffer import BufferPlace, FetchHandle
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Compression, Manifest, Metadata, RangeObject, encode_batch
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.spark.landing import Landed, land, shares
from objbuf_dagster.spark.session import session
from objbuf_dagster.spark.worker import Task
from objbuf_dagster.store import LocalStore

_BATCH = 16 << 20
_DIFFERENT = 8
"""Batches that differ; the others are copies of them: making a gigabyte of records takes longer than landing it."""
_COPIED = 256
"""Batches that are files of their own, 4 GB of records; those beyond are links to them, which is said."""

Record = Callable[[random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Data:
    """A buffer with one planned range."""

    folder: Path
    place: BufferPlace
    planned: RangeObject
    block_bytes: int
    records: int

    @property
    def objects(self) -> list[Path]:
        return [self.folder / batch.descriptor.location for batch in self.planned.batches]


def main(quick: bool) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="objbuf-bench-"))
    try:
        kept = [_two_cores(quick, folder)]
        kept.append(_scaling(quick, folder))
        return all(kept)
    finally:
        shutil.rmtree(folder)


def _two_cores(quick: bool, folder: Path) -> bool:
    with session(master="local[2]", config={"spark.driver.memory": "3g"}) as spark, _workers() as pool:
        kept = [_against_others(Bench(quick, rounds=1 if quick else 3), spark, pool, folder)]
        others: list[tuple[str, Record, Compression]] = [
            ("20-byte records", sample, "zstd"),
            ("2 KB records", _large, "zstd"),
            ("200-byte records, uncompressed", log_line, "none"),
        ]
        for name, record, compression in others:
            data = fill(folder / "other", 4 if quick else 64, record, compression)
            _print_one(name, data, spark, pool, folder, rounds=1 if quick else 3)
            shutil.rmtree(folder / "other")
        return all(kept)


def _against_others(bench: Bench, spark: Any, pool: ProcessPoolExecutor, folder: Path) -> bool:
    data = fill(folder / "main", 4 if bench.quick else 64, log_line, "zstd")
    landed: list[Landed] = []
    runs = _ways(spark, pool, data, folder, landed)
    bench.heading(
        f"landing {data.block_bytes / 1e9:.2f} GB of 200-byte records in {len(data.objects)} Zstandard batches "
        f"({data.planned.size / 1e9:.2f} GB stored, each object one of {_DIFFERENT} contents), every block checked, "
        "local[2]"
    )
    names = list(runs)
    kept = bench.promise_all(
        runs,
        [
            (names[0], names[1], 1 / 3),
            (names[0], names[2], 1 / 4),
            (names[0], names[3], 1 / 1.5),
            (names[0], names[4], 2.0),
        ],
        before=lambda: _fresh(folder / "target"),
    )
    best = min(landed, key=lambda one: one.seconds)
    print(
        f"  {data.block_bytes / best.seconds / 1e6:.0f} MB/s of records, {best.rows / best.seconds / 1e6:.2f} M rows/s"
    )
    _where_time_goes(best)
    return kept


def _ways(
    spark: Any, pool: ProcessPoolExecutor, data: Data, folder: Path, landed: list[Landed]
) -> dict[str, Callable[[], object]]:
    """Landing, and the ways that it is compared with: each writes to `target`, which is empty before."""
    text = _as_text(data, _fresh(folder / "text"))
    target = folder / "target"

    def text_to_parquet() -> None:
        spark.read.text(str(text)).write.option("compression", "zstd").parquet(str(target / "out"))

    def source_to_parquet() -> None:
        source = spark.read.format("objbuf").option("buffer", data.folder.as_uri()).option("since_frontier", "true")
        source.load().write.option("compression", "zstd").parquet(str(target / "out"))

    return {
        "landing": lambda: landed.append(_land(spark, data, target)),
        "Spark's text files to zstd Parquet": text_to_parquet,
        "the data source to Spark's Parquet writer": source_to_parquet,
        "two processes: pyarrow decodes and writes": lambda: _spread(pool, _decode_and_write, data, target),
        "two processes: the same work, no Spark": lambda: _spread(pool, _same_work, data, target),
        "two processes: a bare copy of the objects": lambda: _spread(pool, _copy, data, target),
    }


def _where_time_goes(best: Landed) -> None:
    spent = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in best.task_seconds.items())
    rest = best.seconds - sum(best.task_seconds.values()) / 2
    print(f"  where it goes: of {best.seconds:.2f} s, in tasks on both cores together: {spent}; ", end="")
    print(f"Spark's job, packing and commit: about {rest:.2f} s")


def _print_one(name: str, data: Data, spark: Any, pool: ProcessPoolExecutor, folder: Path, rounds: int) -> None:
    best = best_of(_ways(spark, pool, data, folder, []), rounds, lambda: _fresh(folder / "target"))
    landing = best.pop("landing")
    print(f"  {name}: landing {landing:.2f} s, {data.block_bytes / landing / 1e6:.0f} MB/s; times that of", flush=True)
    for other, seconds in best.items():
        print(f"    {other:<44} {landing / seconds:>6.3f}", flush=True)


def _scaling(quick: bool, folder: Path) -> bool:
    """Time per byte at 1, 4 and 16 GB, and one core against two."""
    batches = (4, 8, 16) if quick else (64, 256, 1024)
    rounds = 1 if quick else 3
    slack = 2 if quick else 1
    kept = True
    seconds: dict[int, float] = {}
    with session(master="local[2]") as spark:
        for number in batches:
            data = fill(folder / "scaled", number, log_line, "zstd")
            best = _best_landing(spark, data, folder / "target", rounds)
            seconds[number] = best / data.block_bytes
            ratio = seconds[number] / seconds[batches[0]]
            kept &= ratio <= 1.15 * slack
            linked = f"; {number - _COPIED} of its {number} objects are links to the others" * (number > _COPIED)
            print(
                f"  {data.block_bytes / 1e9:>5.1f} GB: {best:.2f} s, {seconds[number] * 1e9:.2f} ns a byte, "
                f"{ratio:.2f}x of at most {1.15 * slack:.2f}x that of the first{linked}",
                flush=True,
            )
            shutil.rmtree(folder / "scaled")
            shutil.rmtree(folder / "target")
    if not hasattr(os, "sched_setaffinity"):
        print("  one core against two: skipped, this system cannot hold a process to some of its cores")
        return kept
    data = fill(folder / "scaled", batches[0], log_line, "zstd")
    by_cores = {}
    for cores in (2, 1):
        with _cores(cores), session(master=f"local[{cores}]") as spark:
            by_cores[cores] = _best_landing(spark, data, folder / "target", rounds)
    ratio = by_cores[1] / by_cores[2]
    kept &= ratio >= 1.7 / slack
    both = f"one core {by_cores[1]:.2f} s, two {by_cores[2]:.2f} s"
    print(f"  {both}: {ratio:.2f} times as fast, of at least {1.7 / slack:.2f}")
    return kept


@contextlib.contextmanager
def _cores(number: int) -> Iterator[None]:
    """All that is started inside has so many cores, the JVM's own threads included."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:number]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _best_landing(spark: Any, data: Data, target: Path, rounds: int) -> float:
    return best_of({"landing": lambda: _land(spark, data, target)}, rounds, lambda: _fresh(target))["landing"]


def _land(spark: Any, data: Data, target: Path) -> Landed:
    result = land(spark, data.place, data.planned, LakeTable(target / "entries"))
    assert result.rows == data.records
    return result


def fill(folder: Path, batches: int, record: Record, compression: Compression) -> Data:
    """A buffer of so many batches of 16 MiB each, in one range."""
    rng = random.Random(30)
    store = LocalStore(folder)
    encoded: list[tuple[Path, int, int]] = []
    manifest = Manifest.empty()
    block_bytes = rows = 0
    for number in range(batches):
        location = f"ingest/{number:026d}.batch"
        manifest.append(location, [Metadata(0, 1_712_345_678_000 + number, b"\1\2\1\0")])
        if number < _DIFFERENT:
            records, size = [], 0
            while size < _BATCH:
                records.append(record(rng))
                size += len(records[-1]) + 4
            store.put(location, encode_batch(records, compression))
            encoded.append((folder / location, size, len(records)))
        else:
            _repeat(encoded[number % _DIFFERENT][0], folder / location, number)
        block_bytes += encoded[number % _DIFFERENT][1]
        rows += encoded[number % _DIFFERENT][2]
    store.put("ingest/manifest", manifest.to_bytes())
    place = BufferPlace(store)
    (planned,) = plan(place.manifests(), RangeLedger(store), Limits(max_batches=batches, max_bytes=1 << 50, max_wait=0))
    return Data(folder, place, planned, block_bytes, rows)


def _large(rng: random.Random) -> bytes:
    return b"".join(log_line(rng) for _ in range(10))


def _as_text(data: Data, folder: Path) -> Path:
    """The same records as lines, a file for each batch."""
    fetcher = data.place.fetcher()
    for number, batch in enumerate(data.planned.batches[:_DIFFERENT]):
        lines = fetcher.fetch(batch.descriptor).entries
        (folder / f"{number}.txt").write_bytes(b"\n".join(lines) + b"\n")
    for number in range(_DIFFERENT, len(data.planned.batches)):
        _repeat(folder / f"{number % _DIFFERENT}.txt", folder / f"{number}.txt", number)
    return folder


def _repeat(source: Path, target: Path, number: int) -> None:
    if number < _COPIED:
        shutil.copyfile(source, target)
    else:
        os.link(source, target)


def _fresh(target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    return target


@contextlib.contextmanager
def _workers() -> Iterator[ProcessPoolExecutor]:
    """Two plain Python processes, warm as Spark's workers are."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_warm, range(2)))
        yield pool


def _warm(_: int) -> None:
    import pyarrow.parquet  # noqa: F401

    time.sleep(0.5)  # so that both get one


Work = Callable[[bytes, FetchHandle, str, str], None]


def _spread(pool: ProcessPoolExecutor, work: Work, data: Data, target: Path) -> None:
    parts = [pickle.dumps(share) for share in shares(data.planned, 2)]
    for future in [
        pool.submit(work, part, data.place.fetcher(), data.place.manifest_path, str(target)) for part in parts
    ]:
        future.result()


def _same_work(part: bytes, fetcher: FetchHandle, manifest_path: str, target: str) -> None:
    report = Task(fetcher, manifest_path, LocalStore(target), "0" * 32).do(pickle.loads(part))  # noqa: S301
    assert report.error is None


def _decode_and_write(part: bytes, fetcher: FetchHandle, manifest_path: str, target: str) -> None:
    """As one would write it with pyarrow, one row group per batch."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from objbuf_dagster.lake import ENTRIES
    from objbuf_dagster.protocol import decode_batch_arrow

    schema = ENTRIES.to_arrow()
    share = pickle.loads(part)  # noqa: S301
    path = f"{target}/{share.batches[0].descriptor.sequence}.parquet"
    small = [name for name in schema.names if name != "entry"]
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=small) as writer:
        for batch in share.batches:
            entries = decode_batch_arrow(fetcher.fetch_bytes(batch.descriptor))
            rows = len(entries)
            item = batch.descriptor.metadata[0]
            columns = [
                pa.repeat(pa.scalar(batch.descriptor.sequence, pa.int64()), rows),
                pa.array(np.arange(rows)),
                pa.repeat(pa.scalar(item.ingestion_time_ms, pa.int64()), rows),
                pa.repeat(manifest_path, rows),
                pa.repeat(batch.descriptor.location, rows),
                pa.repeat(pa.scalar(item.payload, pa.binary()), rows),
                entries,
            ]
            writer.write_table(pa.table(columns, schema=schema))


def _copy(part: bytes, fetcher: FetchHandle, _: str, target: str) -> None:
    store = LocalStore(target)
    for batch in pickle.loads(part).batches:  # noqa: S301
        store.put(batch.descriptor.location, fetcher.fetch_bytes(batch.descriptor))
