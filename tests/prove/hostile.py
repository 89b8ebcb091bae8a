"""Hostile input: whatever the bytes, only our own errors come out, soon, and in little memory.

A seeded fuzzer of our own over all that is read from outside, in processes whose memory is limited, and the time of an
input as well: one that takes more ends its process, whose note tells what it was at. Any finding names its input by
target and number, and `python -m tests.prove.hostile TARGET NUMBER [SEED]` tries that one again. Decompression bombs,
made by hand, come after it (hostile_bombs.py).

Of our own, and not Hypothesis or atheris: a million inputs take minutes, an input needs no other one to be made again,
and its process may die of it. Hypothesis draws each input for milliseconds and remembers all of them to shrink one; it
tries the same decoders in tests/protocol, by some ten thousands. Atheris needs a build of Python and libraries with its
probes to be more than a random source, and what is fuzzed here is mostly Arrow and Zstandard, which have none.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from objbuf_dagster.errors import ObjbufError
from tests.prove.hostile_bombs import bombs
from tests.prove.hostile_inputs import OTLP_ENTRIES, TARGETS, input_of
from tests.prove.hostile_uses import USES
from tests.prove.proof import SEED, Proof, Size, timed

SHARES = {
    "manifest": 200,
    "batch": 180,
    "range object": 140,
    "sensor cursor": 90,
    "retention object": 60,
    "quarantine object": 50,
    "note of garbage": 20,
    "state cursor": 50,
    "export document": 20,
    "table log": 10,
    "partition key": 40,
    "OTLP entries": 100,
    "JSON entry": 40,
}
"""Of a thousand inputs. Of OpenTelemetry an entry counts, and some are tried together."""

MOST_SECONDS = 1.0
"""Of CPU time, for any one input: others may have the machine meanwhile."""
MOST_MEMORY = 256 << 20
"""Bytes by which a process may grow over all its inputs."""
ENDLESS_SECONDS = 120.0
"""After which an input is taken for one that never ends, whatever else the machine does."""

_ROOM = 4 << 30  # of addresses beyond those in use: more than any input takes, with what threads reserve, and no harm
_TO_LOAD = 10.0  # seconds of CPU time for an input with which something is loaded first
_PROCESSES = 2
_AT_ONCE = 1_000
_FINDINGS = 5
_NOTE = 80


@dataclass(slots=True)
class Tried:
    """What became of some inputs."""

    inputs: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    grown: int = 0
    is_broken: bool = False
    """Its processes died of it."""

    def add(self, other: Tried) -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.findings += other.findings
        self.slowest = max(self.slowest, other.slowest)
        self.grown = max(self.grown, other.grown)


def prove(size: Size) -> Iterator[Proof]:
    thousands = size.pick(30, 1_000)
    with tempfile.TemporaryDirectory() as notes, contextlib.ExitStack() as pools:
        pool = pools.enter_context(processes(notes))
        for target in TARGETS:
            proof = Proof(f"hostile input: {target}", "inputs", wanted=thousands * SHARES[target])
            together = OTLP_ENTRIES if target == "OTLP entries" else 1
            with timed(proof):
                total = try_all(pool, notes, size.seed, target, proof.wanted // together)
            if total.is_broken:
                pool = pools.enter_context(processes(notes))
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


def processes(notes: str, begin: Callable[[str], None] | None = None) -> ProcessPoolExecutor:
    """Each leaves a note in that folder of what it is at: it may not live to tell."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(_PROCESSES, context, initializer=begin or begin_process, initargs=(notes,))


def try_all(pool: ProcessPoolExecutor, notes: str, seed: int, target: str, count: int) -> Tried:
    """Use so many inputs, unless one of them ends its process, and with it all of the pool."""
    total = Tried()
    starts = range(0, count, _AT_ONCE)
    rest = [min(_AT_ONCE, count - start) for start in starts]
    try:
        for tried in pool.map(try_some, [seed] * len(rest), [target] * len(rest), starts, rest):
            total.add(tried)
    except BrokenProcessPool:
        total.is_broken = True
        now = time.time()
        for note in Path(notes).iterdir():
            name, number, since = note.read_text().rsplit(maxsplit=2)
            began = f"begun {now - float(since):.0f} s before (again: {_again_with(name, number, seed)})"
            total.findings.append(f"a process died; one was at {name} {number}, {began}")
            note.unlink()
    return total


def try_some(seed: int, target: str, first: int, count: int, most_seconds: float = MOST_SECONDS) -> Tried:
    """Use these inputs, and return what was found."""
    tried = Tried(findings=_Process.findings)
    _Process.findings = []
    before = _Process.bytes or _forget_peak()
    for number in range(first, first + count):
        _Process.note(target, number)
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
        if not problem and seconds > most_seconds:
            problem = f"{seconds:.1f} s of CPU time"
        if problem:
            again = _again_with(target, number, seed)
            tried.findings.append(f"{target} {number}: {problem} (again: {again}); input {data[:300]!r}")
    _Process.note("nothing", 0)
    tried.grown = _status("VmHWM") - before
    if tried.grown > MOST_MEMORY:
        tried.findings.append(f"{target} {first} to {first + count - 1}: the process grew by {tried.grown} bytes")
    return tried


def some(target: str) -> int:
    """How many inputs of this target touch all there is to touch. Many entries take their time, and so does a table."""
    return 20 if target in ("OTLP entries", "table log") else 100


class _Process:
    """What this process is at, if it is one of the pool."""

    bytes = 0
    """It had when it was warm."""
    findings: ClassVar[list[str]] = []
    """Of warming up, until they are told."""
    _file: int | None = None

    @classmethod
    def open(cls, notes: str) -> None:
        cls._file = os.open(Path(notes) / str(os.getpid()), os.O_CREAT | os.O_WRONLY, 0o600)

    @classmethod
    def note(cls, target: str, number: int) -> None:
        """From now on it is at this input, and dies if it still is in `ENDLESS_SECONDS`."""
        if cls._file is not None:
            os.pwrite(cls._file, f"{target} {number} {time.time()}".ljust(_NOTE).encode(), 0)
            signal.setitimer(signal.ITIMER_REAL, ENDLESS_SECONDS if target in USES else 0)


def begin_process(notes: str, targets: Sequence[str] = TARGETS) -> None:
    """In each process, first: load what is loaded on first use, then take what is there as the measure."""
    most = _status("VmSize") + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    _Process.open(notes)
    for target in targets:
        _Process.findings = try_some(SEED, target, 0, some(target), _TO_LOAD).findings
    _Process.bytes = _forget_peak()


def _forget_peak() -> int:
    """What this process has; its peak is counted from there."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _again_with(target: str, number: int | str, seed: int) -> str:
    return f"python -m tests.prove.hostile {target!r} {number} {seed}"


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
