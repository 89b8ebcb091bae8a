"""Length-prefixed blocks, `count` times `[length u32][bytes]`: the one shape that batches and manifests share.

Finding where the records of such a block start is a chain of dependent reads, which Python does slowly; read as a
Parquet page (page.py) it costs about 30 ns a record. Tiny blocks, and those a page header cannot describe (2 GiB and
more), are walked here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from objbuf_dagster.errors import CorruptData, InvalidInput
from objbuf_dagster.protocol.model import MAX_U32
from objbuf_dagster.protocol.page import MAX_PAGE, Buffer, UnreadablePage, bytes_of, read_page
from objbuf_dagster.protocol.window import Piece, iter_window

if TYPE_CHECKING:
    import pyarrow as pa

U32 = struct.Struct("<I")
_STRIDE_FEW = 64
_WALK_BELOW = 1_000  # records; wrapping a block costs as much as walking about this many


class _Prefixes(dict[int, bytes]):
    """Packed lengths, made once each: entries of one service have few different lengths."""

    def __missing__(self, length: int) -> bytes:
        packed = U32.pack(length)
        if len(self) < 65_536:
            self[length] = packed
        return packed


_prefixes = _Prefixes()


def encode_block(entries: Iterable[Buffer]) -> tuple[bytes, int]:
    """The block of `entries` and their number.

    Raises InvalidInput for an entry that is not bytes or is over 2^32 - 1 bytes long.
    """
    try:
        items = entries if isinstance(entries, list) else list(entries)
        parts: list[Buffer] = [b""] * (2 * len(items))
        lengths = list(map(len, items))
        parts[::2] = map(_prefixes.__getitem__, lengths)
        parts[1::2] = items
        block = b"".join(parts)
    except struct.error:
        raise InvalidInput(f"an entry is longer than {MAX_U32} bytes: split it") from None
    except TypeError as error:
        raise InvalidInput(f"entries must be bytes: {error}") from None
    if len(block) != sum(lengths) + 4 * len(items):
        raise InvalidInput("entries must be bytes: one is a buffer of wider items")
    return block, len(items)


def decode_block(block: Buffer, count: int, what: str) -> pa.Array:
    """The records of `block` as an Arrow binary array; raises CorruptData unless they fill it exactly."""
    import pyarrow as pa

    _check_count(block, count, what)
    if count < _WALK_BELOW or len(block) > MAX_PAGE:
        starts = walk(block, count, what)
        return pa.array([bytes(block[a + 4 : b]) for a, b in pairwise(starts)], _kind(block))
    return _decode_page(block, count, what)


def decode_list(block: Buffer, count: int, what: str) -> list[bytes]:
    """The same as a list; no per-record Python loop unless the block is tiny or enormous."""
    _check_count(block, count, what)
    if count < _WALK_BELOW or len(block) > MAX_PAGE:
        starts = walk(block, count, what)
        return [bytes(block[a + 4 : b]) for a, b in pairwise(starts)]
    records: list[bytes] = _decode_page(block, count, what).to_pylist()
    return records


def iter_block(block: Buffer, count: int, what: str, block_bytes: int) -> Iterator[Piece]:
    """The same in pieces of about `block_bytes`, made one at a time; damage shows when it is reached."""
    _check_count(block, count, what)
    left = memoryview(block).cast("B")

    def read_into(target: memoryview) -> int:
        nonlocal left
        size = min(len(target), len(left))
        target[:size] = left[:size]
        left = left[size:]
        return size

    return iter_window(read_into, count, what, block_bytes=block_bytes, likely_bytes=len(block), most_bytes=len(block))


def offset_of(
    data: bytes,
    start: int,
    end: int,
    index: int,
    count: int,
    what: str,
    *,
    find: Callable[[int], tuple[int, int] | None] | None = None,
) -> int:
    """Where in `data` record `index` starts, of the `count` that fill `data[start:end]`; the end is `index == count`.

    Few records are hopped over one by one, many at one stride or in one sweep; what is hopped over is checked. `find`
    may know a shorter way: a record not far before `index` and where that starts; what lies before that is not looked
    at, and damage in there not seen.
    """
    block = memoryview(data)[start:end]
    if index == count:
        last = offset_of(data, start, end, count - 1, count, what) - start if count else 0
        if (_hop(block, last, what) if count else 0) != len(block):
            raise CorruptData(what, f"bytes are left over after {count} records", offset=start + last)
        return end
    if index < _WALK_BELOW or len(block) > MAX_PAGE:
        at = 0
        for _ in range(index):
            at = _hop(block, at, what)
        return start + at
    stride = _hop(block, 0, what)
    if _is_stride(data, start, end, index, stride):
        return start + index * stride
    if find is not None and (known := find(index)) is not None:
        passed, at = known
        return offset_of(data, at, end, index - passed, count - passed, what)
    _check_count(block, count, what)
    likely = len(block) * index // count
    try:  # entries are much alike, so sweeping a little more than their share of the bytes is nearly always enough
        records = read_page(block[: likely + likely // 32 + 4096], index, exact=False)
    except UnreadablePage:
        records = _decode_page(block, count, what)
    return start + bytes_of(records, index)


def walk(block: Buffer, count: int, what: str) -> list[int]:
    """The starts of all records, and the end of the last, which must be the end of the block."""
    starts = [0] * (count + 1)
    at = 0
    for i in range(1, count + 1):
        at = _hop(block, at, what)
        starts[i] = at
    if at != len(block):
        raise CorruptData(what, f"{len(block) - at} bytes are left over after {count} records", offset=at)
    return starts


def _hop(block: Buffer, at: int, what: str) -> int:
    if at + 4 > len(block):
        raise CorruptData(what, "a record's length is cut short", offset=at)
    end: int = at + 4 + U32.unpack_from(block, at)[0]
    if end > len(block):
        raise CorruptData(what, f"a record of {end - at - 4} bytes does not fit", offset=at)
    return end


def _is_stride(data: bytes, start: int, end: int, count: int, stride: int) -> bool:
    """Whether the first `count` records are all as long as the first, as the entries of most manifests are.

    If the first length leads to an equal one, and so on, there is no other place where the next record could be.
    """
    stop = start + count * stride
    few = min(count, _STRIDE_FEW)  # where lengths differ, these tell, without a look at all
    return stop <= end and all(
        data[start + i : start + n * stride : stride] == bytes([byte]) * n
        for n in (few, count)
        for i, byte in enumerate(U32.pack(stride - 4))
    )


def _check_count(block: Buffer, count: int, what: str) -> None:
    if count * 4 > len(block):
        raise CorruptData(what, f"{count} records do not fit in {len(block)} bytes")


def _kind(block: Buffer) -> pa.DataType:
    import pyarrow as pa

    return pa.large_binary() if len(block) > MAX_PAGE else pa.binary()


def _decode_page(block: Buffer, count: int, what: str) -> pa.Array:
    try:
        return read_page(block, count)
    except UnreadablePage as error:
        walk(block, count, what)  # says exactly where
        raise CorruptData(what, f"its records cannot be read: {error}") from None


def is_page(size: int, count: int) -> bool:
    """Whether a block of so many bytes and records is one that `read_page` should read."""
    return count >= _WALK_BELOW and count * 4 <= size <= MAX_PAGE
