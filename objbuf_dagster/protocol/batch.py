"""Data batches: `[record block][compression u8][record_count u32][version u16]`, the block perhaps compressed whole.

`decode_batch_arrow` is the fast form; `decode_batch` makes its list from the same records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from objbuf_dagster.errors import CorruptData, InvalidInput, UnsupportedCompression, UnsupportedVersion
from objbuf_dagster.protocol.blocks import decode_block, decode_list, encode_block, is_page, iter_block
from objbuf_dagster.protocol.model import MAX_U32
from objbuf_dagster.protocol.page import Buffer, UnreadablePage, read_page
from objbuf_dagster.protocol.window import Piece, iter_window

if TYPE_CHECKING:
    import pyarrow as pa

Compression = Literal["none", "zstd"]

DEFAULT_MAX_BYTES = 1 << 30
"""The most bytes a batch's record block may have once decompressed, unless the caller says otherwise."""

BLOCK_BYTES = 4 << 20
"""Decoded data travels in blocks of about this many bytes."""

FOOTER = struct.Struct("<BIH")
_VERSION = 1
_CODES: dict[str, int] = {"none": 0, "zstd": 1}
_ZSTD_LEVEL = 3
_ZSTD_MOST_PER_BYTE = 1 << 15  # a block of 4 bytes (run-length) can stand for 128 KiB, never for more
_ZSTD_FRAME_ROOM = 1 << 10  # for a frame's own words, beyond what its blocks may grow by
_RUN_LENGTH = 1  # a block's type: one byte stands for all
_SMALL_BLOCK, _FEW_BLOCKS = 256, 1_000
_CHUNK = 4 << 20
_CHECKED_AT_ONCE = 32 << 20  # what batches usually have: a block that is walked whole is walked fastest
_BYTES_OBJECT = 48  # what Python needs for a small one; a few bytes of input can stand for millions of them
_SMALL_LIST = 64 << 20


def encode_batch(entries: Iterable[Buffer], compression: Compression = "none") -> bytes:
    """The bytes of a batch. Raises InvalidInput for what the format cannot hold."""
    block, count = encode_block(entries)
    return b"".join(frame_batch([block], count, compression))


def frame_batch(blocks: Sequence[bytes], count: int, compression: Compression) -> list[bytes]:
    """A batch as parts, from pieces of its record block: what is large already is not copied again."""
    if compression not in _CODES:
        raise InvalidInput(f"compression is 'none' or 'zstd', not {compression!r}")
    if count > MAX_U32:
        raise InvalidInput(f"a batch holds at most {MAX_U32} entries, not {count}")
    footer = FOOTER.pack(_CODES[compression], count, _VERSION)
    if compression == "none":
        return [*blocks, footer]
    import zstandard

    if len(blocks) == 1:
        return [zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(blocks[0]), footer]
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=sum(map(len, blocks)))
    return [*map(compressor.compress, blocks), compressor.flush(), footer]


def decode_batch(data: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[bytes]:
    """The entries of a batch.

    Raises UnsupportedVersion, UnsupportedCompression or CorruptData, and nothing else, whatever the bytes; never
    decompresses more than `max_bytes`.
    """
    frames, zstd, count = _split(data)
    if count * _BYTES_OBJECT > 4 * max_bytes + _SMALL_LIST:
        raise CorruptData("batch", f"a list of {count} entries would take far more than max_bytes, {max_bytes}")
    if (page := _read_compressed(frames, zstd, count, max_bytes)) is not None:
        entries: list[bytes] = page.to_pylist()
        return entries
    return decode_list(_open(frames, zstd, max_bytes), count, "batch")


def decode_batch_arrow(data: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> pa.Array:
    """The same as an Arrow binary array."""
    frames, zstd, count = _split(data)
    page = _read_compressed(frames, zstd, count, max_bytes)
    return page if page is not None else decode_block(_open(frames, zstd, max_bytes), count, "batch")


def iter_batch_arrow(
    data: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.Array]:
    """The same as Arrow arrays of about `block_bytes` each, made one at a time: never all of them at once.

    Damage may show only at the end: what came before it is then not to be believed.
    """
    frames, zstd, count = _split(data)
    given = 0
    if zstd:
        try:
            for part, _ in _stream(frames, count, max_bytes, block_bytes):
                given += len(part)
                yield part
        except _NoStream:
            pass  # too wide a window, or damage: the long way tells which
        else:
            return
    for part, _ in iter_block(_open(frames, zstd, max_bytes), count, "batch", block_bytes):
        if given < len(part):
            yield part.slice(given)
        given = max(0, given - len(part))


@dataclass(frozen=True, slots=True)
class Block:
    """A batch's record block that was checked: `count` records fill its `size` bytes exactly.

    stored: the block as it is or, if `zstd`, the one Zstandard frame of it that the batch has.
    """

    stored: Buffer
    zstd: bool
    size: int
    count: int

    def pieces(self, block_bytes: int) -> Iterator[Piece]:
        """Its records, about `block_bytes` at a time and never all at once: a checked frame is one that can be."""
        if self.zstd:
            return _stream(memoryview(self.stored), self.count, self.size, block_bytes)
        return iter_block(self.stored, self.count, "batch", block_bytes)


def check_batch(data: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Block:
    """The record block of a batch, checked to the last byte without keeping what it is decoded to.

    Stays compressed if it is one frame that states its size, as producers write it, and can be decompressed as a
    stream, as readers do it. Raises like `decode_batch`.
    """
    frames, zstd, count = _split(data)
    size = _stated_size(frames, max_bytes) if zstd else None
    if size is not None and _is_one_frame(frames, size):
        try:
            if sum(len(view) for _, view in _stream(frames, count, max_bytes, _CHECKED_AT_ONCE)) == size:
                return Block(frames, True, size, count)
        except _NoStream:
            pass
    block = _open(frames, zstd, max_bytes)
    for _ in iter_block(block, count, "batch", BLOCK_BYTES):
        pass
    return Block(block, False, len(block), count)


def _is_one_frame(frames: memoryview, size: int) -> bool:
    """Whether the first frame, which states this size, is all there is, and no longer than compressing makes it.

    What comes behind it may add no record and be as large as it likes: whoever keeps the bytes would keep that too.
    """
    import zstandard

    if len(frames) > size + (size >> 8) + _ZSTD_FRAME_ROOM:
        return False
    parameters = zstandard.get_frame_parameters(frames)
    at, end = zstandard.frame_header_size(frames), len(frames)
    for _ in range(_FEW_BLOCKS + size // _SMALL_BLOCK):  # tiny blocks by the million are not worth a walk
        if at + 3 > end:
            return False
        header = frames[at] | frames[at + 1] << 8 | frames[at + 2] << 16
        at += 3 + (1 if header >> 1 & 3 == _RUN_LENGTH else header >> 3)
        if header & 1:
            return at + (4 if parameters.has_checksum else 0) == end
    return False


class _NoStream(Exception):
    """Zstandard cannot decompress these frames as a stream."""


def _stream(frames: memoryview, count: int, max_bytes: int, block_bytes: int) -> Iterator[Piece]:
    """Decompressed and walked a piece at a time, whatever the frames."""
    import pyarrow as pa

    size = _stated_size(frames, max_bytes) or len(frames)
    if count * 4 > max_bytes:
        raise CorruptData("batch", f"{count} records do not fit in max_bytes, {max_bytes}")
    left = max_bytes
    with pa.CompressedInputStream(pa.BufferReader(frames), "zstd") as stream:

        def read_into(target: memoryview) -> int:
            nonlocal left
            try:
                got: int = stream.readinto(target)
            except (pa.ArrowException, OSError) as error:
                raise _NoStream(str(error)) from None
            left -= got
            if left < 0:
                raise _too_large(max_bytes)
            return got

        yield from iter_window(
            read_into, count, "batch", block_bytes=block_bytes, likely_bytes=size, most_bytes=max_bytes
        )


def _split(data: Buffer) -> tuple[memoryview, bool, int]:
    """The record block as stored, whether it is compressed, and the number of records that the footer gives it."""
    if len(data) < FOOTER.size:
        raise CorruptData("batch", f"{len(data)} bytes are fewer than the footer's {FOOTER.size}")
    end = len(data) - FOOTER.size
    code, count, version = FOOTER.unpack_from(data, end)
    if version != _VERSION:
        raise UnsupportedVersion("batch", version, _VERSION)
    if code not in _CODES.values():
        raise UnsupportedCompression(code)
    return memoryview(data)[:end], code == _CODES["zstd"], count


def _read_compressed(frames: memoryview, zstd: bool, count: int, max_bytes: int) -> pa.Array | None:
    """The fast way: decompress and walk in one go. None where it does not apply, or something is wrong."""
    size = _stated_size(frames, max_bytes) if zstd else None
    if size is None or not is_page(size, count):
        return None
    try:
        return read_page(frames, count, zstd_of=size)
    except UnreadablePage:
        return None  # several frames, or damage: the long way tells which, and where


def _open(frames: memoryview, zstd: bool, max_bytes: int) -> Buffer:
    """The record block, not looked into yet."""
    import pyarrow as pa

    if not zstd:
        if len(frames) > max_bytes:
            raise _too_large(max_bytes)
        return frames
    size = _stated_size(frames, max_bytes)
    if size is not None:
        try:
            whole = pa.decompress(frames, decompressed_size=size, codec="zstd")
            if len(whole) == size:
                return memoryview(whole)
        except (pa.ArrowException, OSError):
            pass  # more frames than the first, or damage: the stream tells which
    return _decompress_stream(frames, max_bytes)


def _stated_size(frames: memoryview, max_bytes: int) -> int | None:
    """What the first frame says it holds, if it says something that so few bytes can."""
    import zstandard

    try:
        size = zstandard.frame_content_size(frames)
    except zstandard.ZstdError as error:
        raise CorruptData("batch", f"the record block is not Zstandard: {error}", offset=0) from None
    if size > max_bytes:
        raise _too_large(max_bytes)
    return size if 0 < size <= len(frames) * _ZSTD_MOST_PER_BYTE else None


def _decompress_stream(frames: memoryview, max_bytes: int) -> bytes:
    """Several frames, or frames that do not state their size: in chunks, so that the cap holds for any input."""
    import pyarrow as pa

    chunks: list[pa.Buffer] = []
    left = max_bytes
    try:
        with pa.CompressedInputStream(pa.BufferReader(frames), "zstd") as stream:
            # Not `read`: when it raises, pyarrow never frees the bytes it was to return.
            while chunk := stream.read_buffer(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
    except (pa.ArrowException, OSError) as error:
        at = max_bytes - left
        raise CorruptData("batch", f"Zstandard fails after {at} decompressed bytes: {error}") from None
    return b"".join(chunks)


def _too_large(max_bytes: int) -> CorruptData:
    return CorruptData(
        "batch", f"its record block is larger than max_bytes, {max_bytes}; raise that limit if you trust who wrote it"
    )
