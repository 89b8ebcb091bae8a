"""A record block walked through a window: decompressed, or copied, a few MiB at a time, and never held whole.

The window is Arrow memory with room for Parquet's words before and behind, so that what was just read into it is
walked where it lies (page.py). How many records a window holds is guessed from those seen so far; a wrong guess costs
time, never correctness. What is cut by the window's end moves to its start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.protocol.page import MAX_PAGE, UnreadablePage, bytes_of, parquet_around, read_file

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH = struct.Struct("<I")
_HEAD, _FOOT = 64, 256  # more than Parquet's words take
_FEW = 1_000  # records; fewer are walked one by one
_LEAST = 1 << 20
_MARGIN = 0.98  # of the records that are likely there: too many is a wasted attempt, too few is a short carry
_CARRIED = 8  # the last eighth of a window may wait for the next

ReadInto = Callable[[memoryview], int]
"""Fills a buffer, or its beginning, with the next bytes of the block; 0 at its end."""


Piece = tuple["pa.Array", memoryview]
"""Records, and their bytes as they stand in the block, which are there until the next piece is asked for."""


def iter_window(
    read_into: ReadInto, count: int, what: str, *, block_bytes: int, likely_bytes: int, most_bytes: int
) -> Iterator[Piece]:
    """The `count` records of a block in pieces of about `block_bytes`, or of one record if that is larger.

    likely_bytes: how long the block is, more or less. most_bytes: how long it may be. Raises CorruptData, at the record
    that shows it, unless the records fill the block exactly; and what `read_into` raises.
    """
    window = _Window(min(block_bytes, max(likely_bytes + 1, _LEAST)))  # one more than all, so that the end shows
    passed = seen = 0  # bytes and records before the window
    while True:
        ended = window.fill(read_into)
        at = 0
        while seen < count:
            likely = count - seen  # at the end it must be all
            if not ended:
                average = (passed + at) / seen if seen else likely_bytes / count
                likely = min(likely, int((window.used - at) / max(average, 4) * _MARGIN))
            piece, size = window.first(at, likely)
            if not size:
                piece, size = window.walk(at, count - seen)
            if not size:
                break
            seen += len(piece)
            yield piece, window.data[at : at + size]
            at += size
            if not ended and (window.used - at) * _CARRIED < block_bytes:
                break
        passed += at
        window.drop(at)
        if ended or (seen == count and window.used):
            break
        if not at and window.used:  # one record is longer than all of it
            size = window.record_size()
            if size > most_bytes - passed:  # before it is waited for, in ever more memory
                reason = f"a record of {size - _LENGTH.size} bytes does not fit in the {most_bytes} that all may have"
                raise CorruptData(what, reason, offset=passed)
            window.grow(size)
    if seen < count:
        raise CorruptData(what, _cut_short(window), offset=passed)
    if window.used:
        amount = f"{window.used}" if ended else f"{window.used} or more"
        raise CorruptData(what, f"{amount} bytes are left over after {count} records", offset=passed)


def _cut_short(window: _Window) -> str:
    if window.used < _LENGTH.size:
        return "a record's length is cut short"
    return f"a record of {_LENGTH.unpack_from(window.data)[0]} bytes does not fit"


class _Window:
    """`used` bytes of a block, from the start of a record on."""

    def __init__(self, size: int) -> None:
        self.used = 0
        self._make(size)

    def _make(self, size: int) -> None:
        import pyarrow as pa

        self._buffer = pa.allocate_buffer(_HEAD + size + _FOOT)
        self._view = memoryview(self._buffer).cast("B")
        self.data = self._view[_HEAD : _HEAD + size]

    def fill(self, read_into: ReadInto) -> bool:
        """Read until it is full; whether the block has ended."""
        while self.used < len(self.data):
            got = read_into(self.data[self.used :])
            if not got:
                return True
            self.used += got
        return False

    def first(self, at: int, count: int) -> tuple[pa.Array, int]:
        """The first `count` records from `at` on, or fewer if so many are not there, and their size; 0 for none."""
        while count >= _FEW and self.used - at <= MAX_PAGE:
            before, behind = parquet_around(self.used - at, count)
            start, end = _HEAD + at, _HEAD + self.used
            self._view[start - len(before) : start] = before
            self._view[end : end + len(behind)] = behind
            try:
                records = read_file(self._buffer[start - len(before) : end + len(behind)], count)
            except UnreadablePage:
                count //= 2
                continue
            return records, bytes_of(records)
        return None, 0

    def walk(self, at: int, most: int) -> tuple[pa.Array, int]:
        """The first records that are there, a few of them; damage, if it is that, is found by who asks for more."""
        import pyarrow as pa

        records: list[bytes] = []
        end = at
        while len(records) < min(most, _FEW) and end + _LENGTH.size <= self.used:
            after = end + _LENGTH.size + _LENGTH.unpack_from(self.data, end)[0]
            if after > self.used:
                break
            records.append(bytes(self.data[end + _LENGTH.size : after]))
            end = after
        return pa.array(records, pa.large_binary() if end - at > MAX_PAGE else pa.binary()), end - at

    def drop(self, size: int) -> None:
        """Forget the first bytes."""
        self.data[: self.used - size] = self.data[size : self.used]
        self.used -= size

    def record_size(self) -> int:
        """What the first record says it takes, or its length alone if that is not all there."""
        length = _LENGTH.unpack_from(self.data)[0] if self.used >= _LENGTH.size else 0
        return _LENGTH.size + int(length)

    def grow(self, wanted: int) -> None:
        """Towards `wanted` bytes: to twice the size at most, since what was not read yet may be a lie."""
        kept = self.data[: self.used]
        self._make(min(2 * len(self.data), max(wanted + 1, len(self.data) + 1)))
        self.data[: self.used] = kept
