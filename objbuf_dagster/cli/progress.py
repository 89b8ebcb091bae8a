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


class Progress:
    """Entries, bytes and entries per second on stderr, if that is a terminal; silent otherwise.

    total: bytes to come, if known; draws a bar then.
    """

    def __init__(self, total: int | None = None, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        is_terminal = self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = is_terminal and not quiet
        self._total = total
        self._started = self._drawn = time.monotonic()

    def update(self, entries: int, amount: int, consumed: int) -> None:
        """Show so many entries of so many bytes, for which `consumed` bytes of the input were used."""
        now = time.monotonic()
        if not self._shown or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        rate = entries / max(now - self._started, 1e-9)
        text = f"{entries:,} entries  {size(amount)}  {rate:,.0f} entries/s"
        if self._total:
            done = min(1.0, consumed / self._total)
            bar = "#" * int(done * _BAR)
            text = f"[{bar:-<{_BAR}}] {done:4.0%}  {text}"
        width = max(10, shutil.get_terminal_size().columns - 1)
        self._write(f"\r{text[:width]}\x1b[K")

    def clear(self) -> None:
        """Take the line away, so that what follows stands alone."""
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._shown = False  # the terminal is gone; the work is not
