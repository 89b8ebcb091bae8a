"""A line on the terminal that says how far a command is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

from objbuf_dagster.cli.text import size

_REDRAW_SECONDS = 0.1
_BAR = 20


class _Line:
    """The last line of stderr, if that is a terminal; silent otherwise."""

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        is_terminal = self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = is_terminal and not quiet
        self._started = self._drawn = time.monotonic()

    def clear(self) -> None:
        """Take the line away, so that what follows stands alone."""
        if self._shown:
            self._write("\r\x1b[K")

    def _is_due(self, now: float) -> bool:
        return self._shown and now - self._drawn >= _REDRAW_SECONDS

    def _draw(self, text: str, now: float, done: float | None = None) -> None:
        """Show the text, behind a bar if it is known how much is done, from 0 to 1."""
        self._drawn = now
        if done is not None:
            bar = "#" * int(done * _BAR)
            text = f"[{bar:-<{_BAR}}] {done:4.0%}  {text}"
        width = max(10, shutil.get_terminal_size().columns - 1)
        self._write(f"\r{text[:width]}\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._shown = False  # the terminal is gone; the work is not


class Progress(_Line):
    """Entries, bytes and entries per second.

    total: bytes to come, if known; draws a bar then.
    """

    def __init__(self, total: int | None = None, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        super().__init__(stream=stream, quiet=quiet)
        self._total = total

    def update(self, entries: int, amount: int, consumed: int) -> None:
        """Show so many entries of so many bytes, for which `consumed` bytes of the input were used."""
        now = time.monotonic()
        if not self._is_due(now):
            return
        rate = entries / max(now - self._started, 1e-9)
        text = f"{entries:,} entries  {size(amount)}  {rate:,.0f} entries/s"
        self._draw(text, now, min(1.0, consumed / self._total) if self._total else None)


class LandingProgress(_Line):
    """Batches and bytes of all that there are to land."""

    def __init__(self, batches: int, amount: int, *, stream: TextIO | None = None) -> None:
        super().__init__(stream=stream)
        self._batches = batches
        self._bytes = amount
        self._before = (0, 0)

    @property
    def is_shown(self) -> bool:
        return self._shown

    def say(self, text: str) -> None:
        """Show this until there is more to tell; the time that passes until then counts for nothing."""
        self._started = time.monotonic()
        if self._shown:
            self._draw(text, self._started)

    def update(self, batches: int, amount: int) -> None:
        """Show so many batches and bytes, beside those of the jobs before."""
        now = time.monotonic()
        if not self._is_due(now):
            return
        batches += self._before[0]
        amount += self._before[1]
        rate = size(amount / max(now - self._started, 1e-9))
        text = f"{batches:,} of {self._batches:,} batches  {size(amount)} of {size(self._bytes)}  {rate}/s"
        done = amount / self._bytes if self._bytes else batches / max(1, self._batches)
        self._draw(text, now, min(1.0, done))

    def job_done(self, batches: int, amount: int) -> None:
        """The job that had these is over, whatever became of them."""
        self._before = (self._before[0] + batches, self._before[1] + amount)
