"""A producer as a process of its own, which writes down what it was told is durable.

`python -m tests.e2e.producing URL NAME LEDGER` produces until it gets a SIGTERM. The ledger then holds a line of JSON
for each entry: sequence, index, text.
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

from objbuf_dagster.buffer import Producer, WriteHandle
from objbuf_dagster.store import open_store
from tests.dev.launches import CODE, environment

CALL_ENTRIES = 20
CALLS_PER_SECOND = 10
FLUSH_SECONDS = 1.0
MOST_CALLS = 80
"""So about eight batches. More would take a slow machine ever longer to land, while a test waits for something else."""

Entry = tuple[int, int, str]
"""Sequence, index in its batch, text."""


def produce(url: str, name: str, ledger: Path) -> None:
    told: list[int] = []
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    open_calls: deque[tuple[WriteHandle, list[str]]] = deque()
    with ledger.open("w") as out:

        def write_down(*, wait: bool) -> None:
            while open_calls and (wait or open_calls[0][0].result() is not None):
                handle, texts = open_calls.popleft()
                durable = handle.await_durable()
                for index, text in enumerate(texts, durable.start_index):
                    out.write(json.dumps([durable.sequence, index, text]) + "\n")

        with Producer(open_store(url), compression="zstd", flush_interval=FLUSH_SECONDS) as producer:
            number = 0
            while not told and os.getppid() == parent:  # tests that are killed leave nothing
                time.sleep(1 / CALLS_PER_SECOND)
                if number >= MOST_CALLS * CALL_ENTRIES:
                    continue
                texts = [f"{name} {number + one}" for one in range(CALL_ENTRIES)]
                number += CALL_ENTRIES
                open_calls.append((producer.produce([text.encode() for text in texts], name.encode()), texts))
                write_down(wait=False)
        write_down(wait=True)


@contextmanager
def producing(buffer: Path, *ledgers: Path) -> Iterator[None]:
    """A producer for each ledger, all at the same time. The ledgers are complete afterwards."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.producing", buffer.as_uri(), ledger.name, str(ledger)],
            cwd=CODE,
            env=environment(),
        )
        for ledger in ledgers
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        codes = [process.wait(120) for process in started]
    assert codes == [0] * len(started)


def durable(ledger: Path) -> list[Entry]:
    """What the producer was told is durable."""
    return [tuple(json.loads(line)) for line in ledger.read_text().splitlines()]


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
