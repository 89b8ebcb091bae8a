"""Lines of a byte stream in groups, as they come: a slow writer's lines do not wait for a full group."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

import click

CHUNK_BYTES = 256 << 10
MAX_LINE_BYTES = 512 << 20
"""A longer line would make a batch larger than what readers take by default (1 GiB)."""

Read = Callable[[float], bytes | None]
"""The next bytes; empty at the end, None if there were none for this many seconds."""


@contextlib.contextmanager
def open_input(path: str | None) -> Iterator[BinaryIO]:
    """The file, or stdin for None and `-`. Raises OSError."""
    if path is not None and path != "-":
        with open(path, "rb", buffering=0) as file:
            yield file
    elif sys.stdin is None:
        raise click.ClickException("standard input is closed: give a FILE, or pipe lines into this command")
    else:
        yield sys.stdin.buffer


def reader_of(stream: BinaryIO) -> Read:
    """Reads what is there; waits only where the stream has a file descriptor to wait for."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return lambda _: stream.read(CHUNK_BYTES)

    def read(timeout: float) -> bytes | None:
        if not select.select([descriptor], [], [], timeout)[0]:
            return None
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None

    return read


class LineGroups:
    """Groups of lines without their newlines; the last line counts without one too.

    max_lines, max_bytes: a group is full when it reaches either.
    patience: seconds after which lines are handed out although the group is not full.
    heartbeat: seconds after which an empty group is handed out, so that the caller can look after other things.
    """

    def __init__(
        self,
        read: Read,
        *,
        max_lines: int,
        max_bytes: int,
        patience: float = 1.0,
        heartbeat: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._patience = patience
        self._heartbeat = heartbeat
        self._clock = clock
        self._lines: list[bytes] = []
        self._at = 0  # how many of them are handed out already
        self._bytes = 0  # of the others, newlines included
        self._since = 0.0  # when the first of them came
        self._cut: list[bytes] = []  # pieces of a line whose end is not here yet
        self._cut_bytes = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        while (chunk := self._next()) != b"":
            if chunk is not None:
                self._take(chunk)
            while self._waiting >= self._max_lines:
                yield self._hand_out()
            if self._bytes >= self._max_bytes or self._is_late():
                yield self._hand_out()
            elif chunk is None:
                yield []
        if self._cut:
            self._add([b"".join(self._cut)])
            self._cut = []
        yield from self.rest()

    def rest(self) -> Iterator[list[bytes]]:
        """The whole lines that were read and not handed out; for who stops before the end."""
        while self._waiting:
            yield self._hand_out()

    @property
    def _waiting(self) -> int:
        return len(self._lines) - self._at

    def _next(self) -> bytes | None:
        wait = self._heartbeat
        if self._waiting:
            wait = min(wait, max(0.0, self._since + self._patience - self._clock()))
        return self._read(wait)

    def _take(self, chunk: bytes) -> None:
        first, newline, others = chunk.partition(b"\n")
        self._cut.append(first)
        self._cut_bytes += len(first)
        if self._cut_bytes > MAX_LINE_BYTES:
            raise click.ClickException(
                f"a line is longer than {MAX_LINE_BYTES} bytes, which readers would refuse: is this text with lines?"
            )
        if newline:
            lines = [b"".join(self._cut), *others.split(b"\n")]
            last = lines.pop()
            self._cut, self._cut_bytes = ([last], len(last)) if last else ([], 0)
            self._add(lines)

    def _add(self, lines: list[bytes]) -> None:
        if not self._waiting:
            self._since = self._clock()
        del self._lines[: self._at]
        self._at = 0
        self._lines += lines
        self._bytes += sum(map(len, lines)) + len(lines)

    def _hand_out(self) -> list[bytes]:
        group = self._lines[self._at : self._at + self._max_lines]
        self._at += len(group)
        self._bytes -= sum(map(len, group)) + len(group)
        self._since = self._clock()  # what is left came just now: older lines would have been handed out with these
        return group

    def _is_late(self) -> bool:
        return bool(self._waiting) and self._clock() - self._since >= self._patience
