"""Load: many producers on one manifest, a manifest of 100,000 entries, a range of 10,000 batches, a batch of a GiB, and
one of more than two once decompressed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace, Consumer, Metrics, Producer
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Compression, Manifest, Metadata, encode_batch
from objbuf_dagster.protocol.batch import frame_batch
from objbuf_dagster.protocol.ulid import new_ulid
from objbuf_dagster.ranges import Limits, RangeLedger, plan, range_of
from objbuf_dagster.spark.landing import Landed, land_all
from objbuf_dagster.spark.session import session
from objbuf_dagster.store import LocalStore, open_store
from tests.dev.launches import CODE, environment
from tests.prove.proof import Entry, Proof, Size, timed
from tests.spark.processes import descendants
from tests.support.buffers import append

CONFLICTS = "conflicts"
"""Writes of the manifest by a producer that found that another had come first."""
MEANWHILE = "landings meanwhile"
"""Those during which producers appended."""

_CALL_ENTRIES = 50
_MOST_CALLS = 5_000
"""Of a producer that waits for what is wanted: minutes, if each takes no longer than its batch is kept open."""
_ENOUGH = "enough"
"""A file beside the ledgers that tells producers so."""
_CONFLICTS_SO_FAR = ".conflicts"
_LARGE_ENTRY = 1 << 20
_MOST_SECONDS = 1800.0
"""For what takes minutes, on a busy machine."""
_MOST_COPIES = 4
_MOST_BESIDE = 512 << 20
"""The memory of a process that holds a large batch: so many times its size, and so many bytes beside it."""
_COLUMNS = ["_odb_sequence", "_odb_entry_index", "entry"]


def prove(size: Size) -> Iterator[Proof]:
    with session() as spark:
        for proof in (_producers, _long_manifest, _large_block, _large_batches):
            with tempfile.TemporaryDirectory(prefix="objbuf-load-") as folder:
                yield proof(size, spark, Path(folder))


def _producers(size: Size, spark: SparkSession, folder: Path) -> Proof:
    """Sixteen processes append to one manifest while a consumer plans, lands and acks; then one, for comparison.

    Each waits until a call is durable before the next one, so that each call is a write of the manifest: calls that
    are open together share one, and few writes meet no other.
    """
    many, calls = size.pick((4, 10), (16, 200))
    proof = Proof(f"{many} producers on one manifest, landing meanwhile", "entries")
    proof.wanted = 2 * many * calls * _CALL_ENTRIES
    proof.wanted_parts = {CONFLICTS: size.pick(1, 100), MEANWHILE: size.pick(2, 5)}
    alone = Proof("a producer alone", "entries")
    rates: dict[int, tuple[float, float]] = {}
    with timed(proof):
        for number, counted in ((1, alone), (many, proof)):
            place = folder / str(number)
            place.mkdir()
            rates[number] = produce_and_land(counted, spark, place, number, calls * many // number)
    proof.tried += alone.tried
    proof.lost, proof.doubled = proof.lost + alone.lost, proof.doubled + alone.doubled
    proof.invented += alone.invented
    (one, met_alone), (all_of_them, met_together) = rates[1], rates[many]
    proof.notes.append(
        f"1 producer {one:,.0f} entries/s, {met_alone:.1f} % conflicts; {many} together {all_of_them:,.0f} entries/s, "
        f"{met_together:.1f} % conflicts: {all_of_them / one:.2f} times"
    )
    proof.notes.append(", ".join(f"{proof.parts[part]:,} {part}" for part in proof.wanted_parts))
    return proof


def produce_and_land(
    proof: Proof, spark: SparkSession, folder: Path, producers: int, calls: int, most_calls: int = _MOST_CALLS
) -> tuple[float, float]:
    """Entries a second while producing, and how many of a hundred manifest writes met a conflict.

    Each producer makes so many calls, and goes on, up to `most_calls`, until the proof has the parts that it wants: how
    fast this machine starts processes and lands does not decide whether there are any.
    """
    place = BufferPlace(LocalStore(folder / "buffer"))
    table = LakeTable(folder / "lake")
    consumer = Consumer.open(place.store, gc_interval=None)
    ledgers = [folder / f"producer-{number}" for number in range(producers)]
    url = (folder / "buffer").as_uri()
    command = [sys.executable, "-m", "tests.prove.load", url]
    numbers = [str(calls), str(most_calls)]
    started = [
        subprocess.Popen([*command, str(ledger), *numbers], cwd=CODE, env=environment(), stdout=subprocess.PIPE)
        for ledger in ledgers
    ]
    until = time.monotonic() + _MOST_SECONDS
    try:
        while any(process.poll() is None for process in started):
            assert time.monotonic() < until, f"{producers} producers are not done in {_MOST_SECONDS} s"
            proof.parts[MEANWHILE] += _land_what_is_there(spark, place, table, consumer)
            proof.parts[CONFLICTS] = sum(map(_conflicts_of, ledgers))
            if not proof.short:
                (folder / _ENOUGH).touch()
            time.sleep(0.1)
        told = [json.loads(process.communicate(timeout=_MOST_SECONDS)[0]) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    _land_what_is_there(spark, place, table, consumer)
    entries = [tuple(json.loads(line)) for ledger in ledgers for line in ledger.read_text().splitlines()]
    assert all(one["calls"] >= calls for one in told)
    assert len(entries) == sum(one["calls"] for one in told) * _CALL_ENTRIES
    proof.compare(entries, {text for _, _, text in entries}, _rows(table))
    proof.tried += len(entries)
    assert consumer.read().entry_count == 0
    seconds = max(one["ended"] for one in told) - min(one["started"] for one in told)
    writes, conflicts = (sum(one[name] for one in told) for name in ("writes", "conflicts"))
    proof.parts[CONFLICTS] = conflicts
    return len(entries) / seconds, 100 * conflicts / writes


def _conflicts_of(ledger: Path) -> int:
    """How many its producer has met so far; it may just be writing that down."""
    with contextlib.suppress(FileNotFoundError):
        return int(ledger.with_suffix(_CONFLICTS_SO_FAR).read_text() or 0)
    return 0


def _land_what_is_there(spark: SparkSession, place: BufferPlace, table: LakeTable, consumer: Consumer) -> bool:
    """Plan, land, ack: what a tick and its runs do. Whether others appended between the plan and the ack."""
    manifest = consumer.read()
    if manifest.first_sequence is None:
        return False
    ledger = RangeLedger(place.store)
    plan(place.manifests(), ledger, Limits(max_batches=10_000, max_wait=0), manifest=manifest)
    ranges = ledger.list(since=manifest.first_sequence)
    for outcome in land_all(spark, place, ranges, table, verify=True):
        assert isinstance(outcome, Landed), outcome
    consumer.ack_through(ranges[-1].end)
    return consumer.read().next_sequence > manifest.next_sequence


def _rows(table: LakeTable) -> list[Entry]:
    found = table.delta().to_pyarrow_table(columns=_COLUMNS)
    return [
        (sequence, index, entry.decode())
        for sequence, index, entry in zip(*(found[name].to_pylist() for name in _COLUMNS), strict=True)
    ]


def _long_manifest(size: Size, spark: SparkSession, folder: Path) -> Proof:
    """A backlog that nobody landed for long: 100,000 batches of a few entries, cut into ranges of 10,000."""
    total, most = size.pick((2_000, 500), (100_000, 10_000))
    proof = Proof(f"a manifest of {total:,} entries, in ranges of {most:,} batches", "entries", wanted=3 * total)
    place = BufferPlace(LocalStore(folder / "buffer"))
    table = LakeTable(folder / "lake")
    told: list[Entry] = []
    data = folder / "buffer" / "ingest"
    data.mkdir(parents=True)
    locations: list[str] = []
    for number in range(total):
        texts = [f"{number} {index}" for index in range(3)]
        locations.append(f"ingest/{new_ulid(1_700_000_000_000 + number)}.batch")
        (data / locations[-1].removeprefix("ingest/")).write_bytes(encode_batch([text.encode() for text in texts]))
        told += [(number, index, text) for index, text in enumerate(texts)]

    def fill(manifest: Manifest, _: bool) -> bool:
        for number, location in enumerate(locations):
            manifest.append(location, [Metadata(0, 1_700_000_000_000 + number, b"")])
        return True

    place.manifests().update(fill)
    with timed(proof):
        consumer = Consumer.open(place.store, gc_interval=None)
        ledger = RangeLedger(place.store)
        planned = plan(place.manifests(), ledger, Limits(max_batches=most, max_wait=0))
        assert [len(one.batches) for one in planned] == [most] * (total // most)
        planning = time.monotonic()
        for outcome in land_all(spark, place, planned, table, verify=True):
            assert isinstance(outcome, Landed), outcome
            consumer.ack_through(outcome.range.end)
        landing = time.monotonic() - planning
    proof.compare(told, {text for _, _, text in told}, _rows(table))
    proof.tried = len(told)
    assert consumer.read().entry_count == 0
    assert [range_of(one).key for one in planned] == sorted(table.ranges())
    proof.notes.append(f"landing {total / landing:,.0f} batches/s")
    return proof


def _large_batches(size: Size, spark: SparkSession, folder: Path) -> Proof:
    """Batches that have all that the limit allows, of bytes that no compression makes fewer; one is not compressed."""
    whole = size.pick(64, 1024) << 20
    kinds: tuple[Compression, ...] = ("zstd", "none")
    entries = len(kinds) * (whole // (_LARGE_ENTRY + 4))
    proof = Proof(f"batches of {whole >> 20:,} MiB, as stored", "entries", wanted=entries)
    for compression in kinds:
        _large_batch(proof, spark, folder / compression, whole, compression)
    return proof


def _large_batch(proof: Proof, spark: SparkSession, folder: Path, whole: int, compression: Compression) -> None:
    folder.mkdir()
    place = BufferPlace(LocalStore(folder / "buffer"))
    table = LakeTable(folder / "lake")
    told: dict[tuple[int, int], bytes] = {}
    with timed(proof):
        command = [sys.executable, "-m", "tests.prove.load", (folder / "buffer").as_uri(), compression, str(whole)]
        produced = subprocess.run(
            command, cwd=CODE, env=environment(), stdout=subprocess.PIPE, timeout=_MOST_SECONDS, check=True
        )
        answer = json.loads(produced.stdout)
        told = {(0, number): bytes.fromhex(digest) for number, digest in enumerate(answer["digests"])}
        (planned,) = plan(place.manifests(), RangeLedger(place.store), Limits(max_wait=0, max_bytes=4 << 30))
        (landed,) = land_all(spark, place, [planned], table, verify=True)
        assert isinstance(landed, Landed), landed
    assert planned.size > whole * 0.95, f"only {planned.size} bytes are stored"
    found: dict[tuple[int, int], bytes] = {}
    for piece in table.delta().to_pyarrow_dataset().to_batches(columns=_COLUMNS, batch_size=16):
        for sequence, index, value in zip(*(piece.column(name) for name in _COLUMNS), strict=True):
            key = sequence.as_py(), index.as_py()
            proof.doubled += key in found
            found[key] = hashlib.sha256(value.as_buffer()).digest()
    proof.tried += len(told)
    proof.lost += len(told.items() - found.items())
    proof.invented += len(found.items() - told.items())
    most = _MOST_COPIES * whole + _MOST_BESIDE
    peaks = {"the producer": answer["peak"], "a landing worker": max(_worker_peaks(), default=0)}
    for who, peak in peaks.items():
        if not 0 < peak <= most:
            proof.invented += 1
            proof.notes.append(f"{who} took {peak >> 20:,} MiB, and {most >> 20:,} is the most")
    proof.notes.append(
        f"{compression}: {planned.size >> 20:,} MiB stored, landing {landed.bytes_written / landed.seconds / 1e6:,.0f} "
        f"MB/s written; at their peak "
        + ", ".join(f"{who} had {peak >> 20:,} MiB" for who, peak in peaks.items())
        + f", of {most >> 20:,}"
    )


def _large_block(size: Size, spark: SparkSession, folder: Path) -> Proof:
    """A batch whose records are more than 31 bits can count, nearly all zeros: what is stored of it is little.

    At both sizes they are too many to go into the table as they are.
    """
    whole = size.pick(192, 2304) << 20
    count = whole // _LARGE_ENTRY
    proof = Proof(f"a batch of {whole >> 20:,} MiB, once decompressed", "entries", wanted=count)
    place = BufferPlace(LocalStore(folder / "buffer"), max_bytes=2 * whole)
    table = LakeTable(folder / "lake")
    named = {0: b"first", count - 1: b"last"}
    entries = [named.get(number, b"").ljust(_LARGE_ENTRY, b"\0") for number in (0, 1, count - 1)]
    first, middle, last = (_LARGE_ENTRY.to_bytes(4, "little") + entry for entry in entries)
    location = f"ingest/{new_ulid(1_700_000_000_000)}.batch"
    place.store.put(location, frame_batch([first, *[middle] * (count - 2), last], count, "zstd"))
    append(place.store, location)
    before = _forget_peaks()
    with timed(proof):
        (planned,) = plan(place.manifests(), RangeLedger(place.store), Limits(max_wait=0))
        (landed,) = land_all(spark, place, [planned], table, verify=True)
        assert isinstance(landed, Landed), landed
    grown = [_memory(pid, "VmHWM") - before.get(pid, 0) for pid in _workers()]
    seen: set[int] = set()
    for piece in table.delta().to_pyarrow_dataset().to_batches(columns=_COLUMNS, batch_size=16):
        for index, value in zip(piece.column("_odb_entry_index").to_pylist(), piece.column("entry"), strict=True):
            proof.doubled += index in seen
            proof.invented += value.as_py() != entries[0 if index == 0 else 2 if index == count - 1 else 1]
            seen.add(index)
    proof.tried = count
    proof.lost = len(set(range(count)) - seen)
    proof.invented += len(seen - set(range(count)))
    if not grown or max(grown) > _MOST_BESIDE:
        proof.invented += 1
        proof.notes.append(f"landing workers took {grown} bytes, and {_MOST_BESIDE} is the most")
    proof.notes.append(
        f"{planned.size >> 10:,} KiB stored, landing {whole / landed.seconds / 1e6:,.0f} MB/s of records; at its peak "
        f"a landing worker took {max(grown, default=0) >> 20:,} MiB for it, of {_MOST_BESIDE >> 20:,}"
    )
    return proof


def _worker_peaks() -> list[int]:
    """The most memory that each of Spark's Python workers, which are kept for some time, ever had."""
    return [_memory(pid, "VmHWM") for pid in _workers()]


def _forget_peaks() -> dict[int, int]:
    """Let them tell of no other peak than that of what comes now; what each of them has before it."""
    for pid in _workers():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")
    return {pid: _memory(pid, "VmRSS") for pid in _workers()}


def _workers() -> list[int]:
    return [pid for pid, line in descendants(os.getpid()).items() if "pyspark.daemon" in line]


def _memory(pid: int | str, what: str) -> int:
    """Of a process, in bytes, as Linux tells it; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024
    return 0


def _produce_large(url: str, compression: Compression, whole: int) -> None:
    """One batch of about so many bytes, by a process of its own: digests of its entries and peak memory to stdout."""
    digests = []
    with Producer(
        open_store(url), compression=compression, flush_size_bytes=2 * whole, flush_interval=3600
    ) as producer:
        for _ in range(whole // (_LARGE_ENTRY + 4)):
            entry = os.urandom(_LARGE_ENTRY)
            digests.append(hashlib.sha256(entry).hexdigest())
            producer.produce([entry])
    print(json.dumps({"digests": digests, "peak": _memory("self", "VmHWM")}))


def _produce(url: str, ledger: Path, calls: int, most_calls: int) -> None:
    """One producer's process: into the ledger goes what is durable; to stdout, when, and how many conflicts it met.

    It ends early, and fails, if whoever started it is gone: tests that are killed leave nothing.
    """
    parent = os.getppid()
    enough, conflicts_so_far = ledger.parent / _ENOUGH, ledger.with_suffix(_CONFLICTS_SO_FAR)
    metrics = Metrics()

    def counted(name: str) -> int:
        return int(metrics.counter(f"buffer.manifest_{name}{{role=producer}}"))

    started = time.time()
    number = 0
    with ledger.open("w") as out, Producer(open_store(url), flush_interval=0.05, metrics=metrics) as producer:
        while number < calls or (number < most_calls and not enough.exists()):
            if os.getppid() != parent:
                sys.exit(f"producer {ledger.name}: nobody is there any more to read what it tells")
            texts = [f"{ledger.name} {number * _CALL_ENTRIES + one}" for one in range(_CALL_ENTRIES)]
            durable = producer.produce([text.encode() for text in texts], b"load").await_durable(_MOST_SECONDS)
            for index, text in enumerate(texts, durable.start_index):
                out.write(json.dumps([durable.sequence, index, text]) + "\n")
            conflicts_so_far.write_text(str(counted("conflicts")))
            number += 1
    told = {"started": started, "ended": time.time(), "calls": number}
    print(json.dumps({**told, **{name: counted(name) for name in ("writes", "conflicts")}}))


if __name__ == "__main__":
    if sys.argv[2] in ("none", "zstd"):
        _produce_large(sys.argv[1], "zstd" if sys.argv[2] == "zstd" else "none", int(sys.argv[3]))
    else:
        _produce(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
