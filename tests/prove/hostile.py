"""Hostile input: whatever the bytes, only our own errors come out, soon, and in little memory.

A seeded fuzzer of our own over all that is read from outside, in processes whose memory is limited: an input that takes
more ends its process, and so the proof. Any finding names its input by target and number, and
`python -m tests.prove.hostile TARGET NUMBER [SEED]` tries that one again. Decompression bombs, made by hand, come
after it (hostile_bombs.py).

Of our own, and not Hypothesis or atheris: a million inputs take minutes, an input needs no other one to be made again,
and its process may die of it. Hypothesis draws each input for milliseconds and remembers all of them to shrink one; it
tries the same decoders in tests/protocol, by some ten thousands. Atheris needs a build of Python and libraries with its
probes to be more than a random source, and what is fuzzed here is mostly Arrow and Zstandard, which have none.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from objbuf_dagster.errors import ObjbufError
from tests.prove.hostile_bombs import bombs
from tests.prove.hostile_inputs import OTLP_ENTRIES, TARGETS, input_of
from tests.prove.hostile_uses import USES
from tests.prove.proof import SEED, Proof, Size, timed

SHARES = {
    "manifest": 210,
    "batch": 180,
    "range object": 140,
    "sensor cursor": 90,
    "retention object": 60,
    "quarantine object": 50,
    "note of garbage": 20,
    "state cursor": 50,
    "export document": 20,
    "partition key": 40,
    "OTLP entries": 100,
    "JSON entry": 40,
}
"""Of a thousand inputs. Of OpenTelemetry an entry counts, and some are tried together."""

MOST_SECONDS = 1.0
"""Of CPU time, for any one input: others may have the machine meanwhile."""
MOST_MEMORY = 256 << 20
"""Bytes by which a process may grow over all its inputs."""

_ROOM = 2 << 30  # of addresses beyond those in use: more than any input may take, and less than it would take to hurt
_PROCESSES = 2
_AT_ONCE = 1_000
_FINDINGS = 5


@dataclass(slots=True)
class Tried:
    """What became of some inputs."""

    inputs: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    grown: int = 0

    def add(self, other: Tried) -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.findings += other.findings
        self.slowest = max(self.slowest, other.slowest)
        self.grown = max(self.grown, other.grown)


def prove(size: Size) -> Iterator[Proof]:
    thousands = size.pick(30, 1_000)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=context, initializer=_limit_memory) as pool:
        for target in TARGETS:
            proof = Proof(f"hostile input: {target}", "inputs")
            total = Tried()
            with timed(proof):
                together = OTLP_ENTRIES if target == "OTLP entries" else 1
                starts = range(0, thousands * SHARES[target] // together, _AT_ONCE)
                rest = [min(_AT_ONCE, starts.stop - start) for start in starts]
                for tried in pool.map(try_some, [size.seed] * len(rest), [target] * len(rest), starts, rest):
                    total.add(tried)
            proof.tried = total.inputs * together
            proof.invented = len(total.findings)
            proof.notes += total.findings[:_FINDINGS]
            proof.notes.append(
                f"{total.accepted:,} were good enough for all uses; the slowest took {total.slowest * 1000:.0f} ms of "
                f"CPU time, of {MOST_SECONDS * 1000:.0f}; a process grew by {total.grown >> 20} MiB, of "
                f"{MOST_MEMORY >> 20}"
            )
            if target == "OTLP entries":
                proof.notes.append(f"{OTLP_ENTRIES} entries at a time, each decoded as every signal")
            yield proof
    yield bombs(size)


def try_some(seed: int, target: str, first: int, count: int) -> Tried:
    """Use these inputs, and return what was found."""
    tried = Tried()
    before = _Start.bytes or _peak_bytes()
    for number in range(first, first + count):
        data = input_of(seed, target, number)
        started = time.process_time()
        problem = ""
        try:
            tried.accepted += USES[target](data)
        except Exception as error:  # noqa: BLE001, that there is none is what is to be shown
            problem = f"{type(error).__name__}: {error}"[:500]
        seconds = time.process_time() - started
        tried.inputs += 1
        tried.slowest = max(tried.slowest, seconds)
        if not problem and seconds > MOST_SECONDS:
            problem = f"{seconds:.1f} s of CPU time"
        if problem:
            again = f"python -m tests.prove.hostile {target!r} {number} {seed}"
            tried.findings.append(f"{target} {number}: {problem} (again: {again}); input {data[:300]!r}")
    tried.grown = _peak_bytes() - before
    if tried.grown > MOST_MEMORY:
        tried.findings.append(f"{target} {first} to {first + count - 1}: the process grew by {tried.grown} bytes")
    return tried


def some(target: str) -> int:
    """How many inputs of this target touch all there is to touch. Decoding many entries takes its time."""
    return 20 if target == "OTLP entries" else 100


class _Start:
    """Peak memory of this process before the first hostile input."""

    bytes = 0


def _limit_memory() -> None:
    """In each process, first: load what is loaded on first use, then take what is there as the measure."""
    for target in TARGETS:
        try_some(SEED, target, 0, some(target))
    _Start.bytes = _peak_bytes()
    most = _status("VmSize") + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _peak_bytes() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not tell {name}")


def _again() -> int:
    target, number = sys.argv[1], int(sys.argv[2])
    data = input_of(int(sys.argv[3]) if len(sys.argv) > 3 else SEED, target, number)
    print(f"{len(data)} bytes: {data[:2_000]!r}")
    try:
        print("accepted" if USES[target](data) else "refused")
    except ObjbufError:
        raise
    except Exception:  # noqa: BLE001, shown
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_again())
