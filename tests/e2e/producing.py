"""A producer as a process of its own, which writes down what it sends and what it was told is durable.

`python -m tests.e2e.producing URL LEDGER CALLS PER_SECOND PADDING FLUSH_BYTES [GATE]` makes so many calls, with so many
bytes of noise in each entry, once the file GATE is there, and ends when it gets a SIGTERM. A batch is done after a
second, or so many bytes. The ledger holds a line of JSON for each call before it is made, its texts, and one for each
entry once it is durable: sequence, index, text. A producer that is killed leaves one that is true.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from objbuf_dagster.buffer import Producer, WriteHandle
from objbuf_dagster.store import open_store
from tests.dev.launches import CODE, environment
from tests.e2e.logs import ENVELOPE, entry_of
from tests.support.s3 import S3Location

CALL_ENTRIES = 20
CALLS_PER_SECOND = 10
FLUSH_SECONDS = 1.0
FLUSH_BYTES = 64 << 20
OTHERS = 5
"""One call in so many sends plain texts, which are none of the exporter's: they become dead letters."""
MOST_CALLS = 80
"""So about eight batches. More would take a slow machine ever longer to land, while a test waits for something else."""

_GATE_SECONDS = 0.02
_BEHIND = 1.0
"""Seconds of calls that a producer which was held up makes up for."""

Entry = tuple[int, int, str]
"""Sequence, index in its batch, text."""


def produce(
    url: str,
    ledger: Path,
    calls: int,
    per_second: float,
    padding: int,
    flush_bytes: int = FLUSH_BYTES,
    gate: Path | None = None,
) -> None:
    told: list[int] = []
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    while gate is not None and not gate.exists() and not told and os.getppid() == parent:
        time.sleep(_GATE_SECONDS)
    open_calls: deque[tuple[WriteHandle, list[str]]] = deque()
    with ledger.open("w") as out:

        def write_down(*, wait: bool) -> None:
            while open_calls and (wait or open_calls[0][0].result() is not None):
                handle, texts = open_calls.popleft()
                durable = handle.await_durable()
                for index, text in enumerate(texts, durable.start_index):
                    out.write(json.dumps([durable.sequence, index, text]) + "\n")
                out.flush()

        with Producer(
            open_store(url), compression="zstd", flush_interval=FLUSH_SECONDS, flush_size_bytes=flush_bytes
        ) as producer:
            number, due = 0, time.monotonic()
            while not told and os.getppid() == parent:  # tests that are killed leave nothing
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due + 1 / per_second, time.monotonic() - _BEHIND)
                write_down(wait=False)
                if number >= calls * CALL_ENTRIES:
                    continue
                texts = [f"{ledger.name} {number + one}" for one in range(CALL_ENTRIES)]
                number += CALL_ENTRIES
                out.write(json.dumps({"sent": texts}) + "\n")
                out.flush()
                if number % (OTHERS * CALL_ENTRIES):
                    handle = producer.produce([entry_of(text, ledger.name, padding) for text in texts], ENVELOPE)
                else:
                    handle = producer.produce([text.encode() for text in texts], ledger.name.encode())
                open_calls.append((handle, texts))
        write_down(wait=True)


def start(
    url: str,
    ledger: Path,
    calls: int = MOST_CALLS,
    per_second: float = CALLS_PER_SECOND,
    padding: int = 0,
    gate: Path | None = None,
    flush_bytes: int = FLUSH_BYTES,
    /,
    **variables: str,
) -> subprocess.Popen[bytes]:
    """A producer that is nobody's to end but the caller's; it ends by itself if the caller is killed.

    gate: the file that it waits for when it is ready. Before that it has no ledger.
    """
    command = [sys.executable, "-m", "tests.e2e.producing", url, str(ledger)]
    command += [*map(str, (calls, per_second, padding, flush_bytes)), *([] if gate is None else [str(gate)])]
    return subprocess.Popen(command, cwd=CODE, env=environment(**variables))


@contextmanager
def producing(buffer: Path | S3Location, *ledgers: Path) -> Iterator[None]:
    """A producer for each ledger, all at the same time. The ledgers are complete afterwards."""
    place = buffer if isinstance(buffer, S3Location) else S3Location(buffer.as_uri(), {})
    started = [start(place.url, ledger, **place.environment("AWS_")) for ledger in ledgers]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        codes = [process.wait(120) for process in started]
    assert codes == [0] * len(started)


def durable(ledger: Path) -> list[Entry]:
    """What the producer was told is durable."""
    return [tuple(line) for line in _lines(ledger) if isinstance(line, list)]


def sent(ledger: Path) -> list[str]:
    """Everything that the producer sent, whatever became of it."""
    return [text for line in _lines(ledger) if isinstance(line, dict) for text in line["sent"]]


def _lines(ledger: Path) -> Iterator[Any]:
    """All but one that a killed producer did not write to its end."""
    for line in ledger.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


if __name__ == "__main__":
    produce(
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]),
        int(sys.argv[5]),
        int(sys.argv[6]),
        *map(Path, sys.argv[7:]),
    )
