"""Batches against the bare decompression of their block, manifests against a copy of their bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Literal

import pyarrow as pa
import zstandard

from bench.harness import Bench
from objbuf_dagster.protocol import Manifest, Metadata, decode_batch, decode_batch_arrow, encode_batch

_BATCH_FOOTER = 7
_VOCABULARY = (
    "accepted backend batch cache client closed commit connection deadline error flush handler index latency lease "
    "manifest method node opened partition payload queue range read refused region replica request retry route schema "
    "segment server session shard snapshot stream timeout token topic upstream user version write"
)
_WORDS = _VOCABULARY.split()

Kind = Literal["uniform", "mixed", "random"]
_LENGTHS: dict[Kind, str] = {"uniform": "", "mixed": " of mixed lengths", "random": " with random payloads"}


def main(quick: bool) -> bool:
    batches = Bench(quick, rounds=5)
    manifests = Bench(quick, rounds=40)
    kept = [
        _batch(batches, 200, log_line, most=2.5),
        _batch(batches, 20, sample, most=6),
        _manifest(manifests),
    ]
    return all(kept)


def _batch(bench: Bench, size: int, record: Callable[[random.Random], bytes], *, most: float) -> bool:
    target = (8 if bench.quick else 64) << 20
    rng = random.Random(20)
    records = [record(rng) for _ in range(target // (size + 4))]
    assert {len(r) for r in records} == {size}
    data = encode_batch(records, "zstd")
    frame = data[:-_BATCH_FOOTER]
    block = zstandard.frame_content_size(frame)
    assert decode_batch(data) == records == decode_batch_arrow(data).to_pylist()
    bench.heading(
        f"decoding {len(records):,} records of {size} bytes, {block / 2**20:.0f} MiB, "
        f"zstd to {len(frame) / 2**20:.1f} MiB, against decompressing them"
    )
    del records
    bare = {
        "zstandard": lambda: zstandard.ZstdDecompressor().decompress(frame),
        "pyarrow": lambda: pa.decompress(frame, decompressed_size=block, codec="zstd"),
    }
    return all(
        [
            bench.promise("as a list", lambda: decode_batch(data), bare, most),
            bench.promise("as an Arrow array", lambda: decode_batch_arrow(data), bare, most),
        ]
    )


def log_line(rng: random.Random) -> bytes:
    """200 bytes of JSON as services log it: half of it the same in every line, half of it not."""
    message = " ".join(rng.choices(_WORDS, k=8))
    line = (
        f'{{"ts":"2025-06-{rng.randint(1, 30):02d}T12:{rng.randint(0, 59):02d}:{rng.uniform(0, 60):09.6f}Z",'
        f'"level":"{rng.choice(("info", "info", "info", "warn", "error"))}","service":"{rng.choice(_WORDS)}",'
        f'"trace":"{rng.getrandbits(64):016x}","ms":{rng.expovariate(0.05):.3f},"message":"{message}'
    )
    return line[:198].ljust(198, ".").encode() + b'"}'


def sample(rng: random.Random) -> bytes:
    return b'{"i":%07d,"v":%02d}' % (rng.randrange(10**7), min(int(rng.expovariate(0.1)), 99))


def _manifest(bench: Bench) -> bool:
    count = 20_000 if bench.quick else 100_000
    kinds = {kind: _entries(count, kind) for kind in _LENGTHS}
    data = kinds["uniform"]
    bench.heading(f"a manifest of {count:,} entries, {len(data) / 2**20:.1f} MiB")
    copy = {"a copy": lambda: _copied(data)}
    slow = Bench(bench.quick, rounds=5)  # the other side decodes everything, each round

    def last_ten(kind: Kind) -> bool:
        entries = partial(Manifest.entries, after=count - 11)
        assert len(list(entries(Manifest.from_bytes(kinds[kind])))) == 10
        everything = {"decoding all": lambda: list(Manifest.from_bytes(kinds[kind]).entries())}
        name = f"the last 10 entries{_LENGTHS[kind]}"
        return slow.promise(name, lambda: list(entries(Manifest.from_bytes(kinds[kind]))), everything, 1 / 20)

    def append() -> bytes:
        manifest = Manifest.from_bytes(data)
        manifest.append("ingest/01J5T4R3KXBMZ7QV9N2WG8YDHP.batch", [Metadata(0, 1_712_345_678_000, b"\1\2\1\0")])
        return manifest.to_bytes()

    def take_epoch() -> bytes:
        manifest = Manifest.from_bytes(data)
        manifest.take_epoch()
        return manifest.to_bytes()

    def dequeue(data: bytes, number: int) -> Callable[[], bytes]:
        def run() -> bytes:
            manifest = Manifest.from_bytes(data)
            manifest.dequeue(number - 1)
            return manifest.to_bytes()

        return run

    kept = [last_ten(kind) for kind in kinds]
    kept += [bench.promise("append", append, copy, 3), bench.promise("take_epoch", take_epoch, copy, 3)]
    for kind, bytes_of_kind in kinds.items():
        against = {"a copy": partial(_copied, bytes_of_kind)}
        for number in (100, 2 * count // 5 - 1, count // 2, count - 100, count):
            name = f"dequeue {'all' if number == count else format(number, ',')}{_LENGTHS[kind]}"
            if (kind, number) == ("random", count - 100):  # every byte is frequent there, so all entries are swept
                bench.look(name, dequeue(bytes_of_kind, number), against, 3)
            else:
                kept.append(bench.promise(name, dequeue(bytes_of_kind, number), against, 3))
    return all(kept)


def _entries(count: int, kind: Kind) -> bytes:
    """Payloads of 20 to 60 bytes, if they are random, as of a compressed envelope; otherwise that of OpenTelemetry."""
    rng = random.Random(21)
    manifest = Manifest.empty()
    for sequence in range(count):
        name = f"{rng.getrandbits(130):026x}"[:26].upper()
        times = rng.randint(1, 3) if kind == "mixed" else 1
        payload = rng.randbytes(rng.randint(20, 60)) if kind == "random" else b"\1\2\1\0"
        manifest.append(
            f"ingest/{name}.batch", [Metadata(10 * i, 1_712_345_678_000 + sequence, payload) for i in range(times)]
        )
    data = manifest.to_bytes()
    assert (len({length for (length,) in _lengths(data, count)}) == 1) is (kind == "uniform")
    return data


def _lengths(data: bytes, count: int) -> list[tuple[int]]:
    lengths, at = [], 0
    for _ in range(count):
        lengths.append(struct.unpack_from("<I", data, at))
        at += 4 + lengths[-1][0]
    return lengths


def _copied(data: bytes) -> bytes:
    return bytes(memoryview(data))  # a view, since `bytes` of bytes copies nothing
