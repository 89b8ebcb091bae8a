"""Decompression bombs: small batches that claim, or give, gigabytes. Each in a process of its own, with little memory.

They meet the limit that users get, 1 GiB: what is decoded whole, or must be held whole to be checked, may take that and
a little more before it is refused; what is read in blocks takes a few of those.
"""

from __future__ import annotations

import functools
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import zstandard

from tests.protocol.batches import footer, skippable, zstd, zstd_claiming, zstd_unstated
from tests.prove.proof import Proof, Size, timed

MOST_SECONDS = 60.0
"""Of CPU time. A GiB of zeros costs a few seconds; many GiB would not be over by then."""

_MIB = 1 << 20
_GIB = 1 << 30
_WHOLE = _GIB + 128 * _MIB
MOST_MEMORY = {"list": _WHOLE, "arrow": _WHOLE, "landing": _WHOLE, "blocks": 128 * _MIB}
"""Bytes beyond what the process had, by the way to read."""
_REPOSITORY = Path(__file__).parents[2]

_READ = """
import resource, sys, time
from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol import check_batch, decode_batch, decode_batch_arrow, encode_batch, iter_batch_arrow

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))

ways = {
    "list": decode_batch,
    "arrow": decode_batch_arrow,
    "blocks": lambda data: [None for _ in iter_batch_arrow(data)],
    "landing": check_batch,
}
use, most = ways[sys.argv[1]], int(sys.argv[2])
data = sys.stdin.buffer.read()
use(encode_batch([b"x"] * 2_000, "zstd"))
before, started = status("VmHWM"), time.process_time()
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 2 * most,) * 2)
try:
    use(data)
    print("accepted")
except CorruptData as error:
    assert len(str(error)) < 1_000 and str(error).isprintable(), error
    print("refused")
print(status("VmHWM") - before, time.process_time() - started)
"""


def bombs(size: Size) -> Proof:
    """Every bomb, read in every way."""
    proof = Proof("hostile input: decompression bombs", "readings")
    most_grown = dict.fromkeys(MOST_MEMORY, 0)
    slowest = 0.0
    with timed(proof):
        made = {name: make() for name, make in _BOMBS.items() if size.name == "full" or name in _QUICK}
        proof.wanted = len(made) * len(MOST_MEMORY)
        for name, data in made.items():
            for way, most in MOST_MEMORY.items():
                outcome, grown, seconds = read(data, way)
                proof.tried += 1
                most_grown[way], slowest = max(most_grown[way], grown), max(slowest, seconds)
                if outcome != "refused" or grown > most or seconds > MOST_SECONDS:
                    proof.invented += 1
                    proof.notes.append(f"{name}, read as {way}: {outcome}, {grown >> 20} MiB, {seconds:.1f} s")
    largest = max(map(len, made.values()))
    memory = ", ".join(f"{way} {most_grown[way] >> 20} of {most >> 20} MiB" for way, most in MOST_MEMORY.items())
    proof.notes.append(
        f"{len(made)} bombs of {largest / 1e6:.1f} MB or less; {slowest:.1f} s of CPU time at most; memory: {memory}"
    )
    return proof


def read(data: bytes, way: str) -> tuple[str, int, float]:
    """What a process says of the batch, by how many bytes it grew, and its CPU time."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, way, str(_GIB)],
        input=data,
        capture_output=True,
        check=False,
        cwd=_REPOSITORY,
        timeout=10 * MOST_SECONDS,
    )
    if done.returncode:
        return f"ended with {done.returncode}: {done.stderr.decode()[-300:]!r}", 0, 0.0
    outcome, numbers = done.stdout.decode().splitlines()
    grown, seconds = numbers.split()
    return outcome, int(grown), float(seconds)


@functools.cache
def _zeros(size: int) -> bytes:
    """A frame of so many zeros, which does not state that."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    piece = bytes(_MIB)
    return b"".join(compressor.compress(piece) for _ in range(size // _MIB)) + compressor.flush()


def _run_length(blocks: int) -> bytes:
    """A frame of run-length blocks, 4 bytes for 128 KiB each: nothing is smaller for what it gives."""
    block = (128 << 10 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x58) + block * blocks + last


def _claiming_little(frame: bytes) -> bytes:
    """The frame, which states no size, with one that is not its own."""
    return frame[:4] + bytes([frame[4] | 0xC0]) + frame[5:6] + struct.pack("<Q", 104) + frame[6:]


def _wide_window() -> bytes:
    """A frame that says its window is as large as a window can be."""
    frame = bytearray(zstd_unstated(b"y" * 104))
    frame[5] = 0xFF
    return bytes(frame)


_BOMBS: dict[str, Callable[[], bytes]] = {
    "claims 4 GiB": lambda: zstd_claiming(4 * _GIB, b"y" * 104) + footer(1, compression=1),
    "claims all there is": lambda: zstd_claiming(2**64 - 3, b"y" * 104) + footer(1, compression=1),
    "claims 1 GiB, gives little": lambda: zstd_claiming(_GIB, b"y" * 104) + footer(1, compression=1),
    "claims little, gives 2 GiB": lambda: _claiming_little(_zeros(2 * _GIB)) + footer(26, compression=1),
    "gives 2 GiB": lambda: _zeros(2 * _GIB) + footer(1, compression=1),
    "gives 16 GiB by run lengths": lambda: _run_length(16 * 8 * 1024) + footer(1, compression=1),
    "gives 16 GiB by run lengths, as empty records": lambda: (
        _run_length(16 * 8 * 1024) + footer(2**32 - 1, compression=1)
    ),
    "one record of 4 GiB": lambda: zstd(b"\xff\xff\xff\xff") + _run_length(16 * 1024) + footer(1, compression=1),
    "40 frames of 64 MiB": lambda: _zeros(64 * _MIB) * 40 + footer(1, compression=1),
    "a small frame, then 2 GiB": lambda: zstd(b"\x00" * 99) + _zeros(2 * _GIB) + footer(1, compression=1),
    "200,000 frames of nothing": lambda: zstd(b"") * 200_000 + footer(1, compression=1),
    "200,000 frames that are skipped": lambda: skippable(b"") * 200_000 + footer(1, compression=1),
    "a frame to be skipped of 4 GiB that is not there": lambda: (
        struct.pack("<II", 0x184D2A50, 2**32 - 1) + footer(1, compression=1)
    ),
    "the widest window": lambda: _wide_window() + footer(1, compression=1),
    "a frame in the name of a dictionary": lambda: (
        b"\x28\xb5\x2f\xfd\x03\x58\xff\xff\xff\xff" + bytes(50) + footer(1, compression=1)
    ),
    "4 G records in no bytes": lambda: zstd(b"") + footer(2**32 - 1, compression=1),
}
_QUICK = ("gives 16 GiB by run lengths", "one record of 4 GiB")
"""What the test suite has time for."""
