"""The manifest: entries, then `[entry_count u32][next_sequence u64][epoch u64][version u16]`.

A manifest can be long, and most operations touch its ends only. So it stays bytes: `from_bytes` reads the footer,
`append` and `take_epoch` never look at an old entry, `dequeue` and `entries` hop to where they begin, and entries are
checked when they are decoded. What nobody touches is copied as it is.

Hopping over very many entries of mixed lengths costs several copies of them. Their sequences are quicker to find: the
eight bytes of one that stand nowhere else in the manifest can only be that entry's own. If they stand twice, because a
payload happens to contain them or was made to, or if looking for them would take long, every entry is hopped over. What
is passed so is not looked at, so damage in there goes unseen; it is not believed either, only kept or removed whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from objbuf_dagster.errors import CorruptData, InvalidInput, UnsupportedVersion, naming
from objbuf_dagster.protocol.blocks import U32, offset_of
from objbuf_dagster.protocol.model import MAX_U16, MAX_U32, MAX_U64, BatchDescriptor, Metadata
from objbuf_dagster.protocol.page import Buffer

NO_EPOCH = MAX_U64
"""Never the epoch of a manifest, so a consumer that holds it is always fenced."""

_VERSION = 1
_FOOTER = struct.Struct("<IQQH")
_HEAD = struct.Struct("<QH")  # sequence, location length
_ITEM = struct.Struct("<IqI")  # start index, ingestion time, payload length
_LEAST_ENTRY = U32.size + _HEAD.size + U32.size

_FIND_FROM, _FIND_SHARE = 16_384, 0.25  # entries to hop over, in all and of all: fewer are swept sooner
_SAMPLE = 16 << 10  # bytes that tell which byte is rare ...
_STEP, _STEPS = 32, 8  # ... among the lowest of every 32nd sequence: text is in one or two of these eight
_RARE = 2 << 10  # bytes for each time that it stands there, at the least: looking at more of them costs a sweep
_LAST_FROM_END = 8  # places where the last entry's sequence may stand, tried from the end


class Manifest:
    """A queue of batch locations. Values in, values out; it knows of no store."""

    __slots__ = ("_added", "_count", "_data", "_end", "_path", "_start", "epoch", "next_sequence")

    def __init__(
        self, data: bytes, end: int, count: int, next_sequence: int, epoch: int, path: str | None = None
    ) -> None:
        self._data = data
        self._start = 0  # the entries that are left of those read stand in data[start:end] ...
        self._end = end
        self._count = count  # ... and are so many
        self._added: list[bytes] = []  # encoded entries behind them
        self._path = path
        self.next_sequence = next_sequence
        self.epoch = epoch

    @classmethod
    def empty(cls) -> Manifest:
        """What a manifest object that does not exist stands for."""
        return cls(b"", 0, 0, 0, 0)

    @classmethod
    def from_bytes(cls, data: Buffer, *, path: str | None = None) -> Manifest:
        """Read the footer; entries are checked when they are decoded. Damage is told with `path`, if that is known.

        Raises UnsupportedVersion, or CorruptData where the footer alone shows the damage.
        """
        with naming(path):
            return cls._from_bytes(data, path)

    @classmethod
    def _from_bytes(cls, data: Buffer, path: str | None) -> Manifest:
        if len(data) < _FOOTER.size:
            raise CorruptData("manifest", f"{len(data)} bytes are fewer than the footer's {_FOOTER.size}")
        end = len(data) - _FOOTER.size
        count, next_sequence, epoch, version = _FOOTER.unpack_from(data, end)
        if version != _VERSION:
            raise UnsupportedVersion("manifest", version, _VERSION)
        if count * _LEAST_ENTRY > end or (count == 0 and end):
            raise CorruptData("manifest", f"{count} entries do not make {end} bytes", offset=end)
        if count > next_sequence:
            raise CorruptData("manifest", f"{count} entries cannot end before sequence {next_sequence}", offset=end)
        return cls(bytes(data), end, count, next_sequence, epoch, path)

    def to_bytes(self) -> bytes:
        """One copy of the entries, and a footer."""
        footer = _FOOTER.pack(self.entry_count, self.next_sequence, self.epoch, _VERSION)
        return b"".join((self._until_end[self._start :], *self._added, footer))

    @property
    def entry_count(self) -> int:
        return self._count + len(self._added)

    @property
    def first_sequence(self) -> int | None:
        """The sequence of the oldest entry, or None when there is no entry."""
        return self.next_sequence - self.entry_count if self.entry_count else None

    @property
    def frontier(self) -> int:
        """The first sequence that is not acked: that of the oldest entry, or of the next one to come."""
        return self.next_sequence - self.entry_count

    def append(self, location: str, metadata: Iterable[Metadata] = ()) -> int:
        """Add an entry and return its sequence. Raises InvalidInput for what does not fit, with nothing changed."""
        if self.next_sequence >= MAX_U64 or self.entry_count >= MAX_U32:
            raise InvalidInput("the manifest is full: no sequence or no entry count is left")
        sequence = self.next_sequence
        self._added.append(_encode_entry(sequence, location, metadata))
        self.next_sequence += 1
        return sequence

    def dequeue(self, through: int) -> Sequence[BatchDescriptor]:
        """Remove the entries with sequence <= `through`; they are decoded when they are looked at.

        That the first of them and the first that stays (or the last, if none does) are what the footer says is checked.
        Damage between the two need not be seen: nothing in there is believed, and it goes.
        """
        removed = min(max(through + 1 - self.frontier, 0), self.entry_count)
        from_body = min(removed, self._count)
        start = self._start
        if from_body:
            with naming(self._path):
                self._check_sequence_at(self._start, self.frontier)
                if from_body < self._count or from_body < _FIND_FROM or not self._ends_with_the_last():
                    start = self._offset_of(from_body)
                else:
                    start = self._end
                if from_body < self._count:
                    self._check_sequence_at(start, self.frontier + from_body)
        taken = _Entries(self._until_end, self._start, self._count, tuple(self._added), self.frontier, removed)
        self._start, self._count = start, self._count - from_body
        del self._added[: removed - from_body]
        return taken

    def take_epoch(self) -> int:
        """Move to the next epoch, fencing whoever holds this one, and return it."""
        self.epoch = (self.epoch + 1) % NO_EPOCH if self.epoch != NO_EPOCH else 0
        return self.epoch

    def entries(self, after: int | None = None, limit: int | None = None) -> Iterator[BatchDescriptor]:
        """The entries with sequence > `after`, at most `limit`; only those are decoded.

        Raises CorruptData at the entry that shows it, naming sequence and place; and at the end, if the entries do not
        end where the footer starts. Damage before the first of them need not be seen: nothing in there is believed.
        """
        with naming(self._path):
            yield from self._entries(after, limit)

    def _entries(self, after: int | None, limit: int | None) -> Iterator[BatchDescriptor]:
        first = self.frontier if after is None else max(after + 1, self.frontier)
        wanted = self.next_sequence - first
        if limit is not None:
            wanted = min(wanted, limit)
        if wanted <= 0:
            return
        skip = first - self.frontier
        if skip < self._count:
            self._check_sequence_at(self._start, self.frontier)
            left = self._count - skip
            yield from _decode_entries(self._until_end, self._offset_of(skip), first, min(wanted, left), left)
        for encoded in self._added[max(skip - self._count, 0) : max(skip + wanted - self._count, 0)]:
            yield _decode_entry(encoded, 0, None)[0]

    def entry(self, sequence: int) -> BatchDescriptor | None:
        """The entry with this sequence, or None if it is not there (any more, or yet)."""
        if not self.frontier <= sequence < self.next_sequence:
            return None
        return next(self.entries(after=sequence - 1, limit=1))

    @property
    def _until_end(self) -> memoryview:
        return memoryview(self._data)[: self._end]

    def _offset_of(self, index: int) -> int:
        """Where the entry starts that has `index` entries before it; the end of all, if these are all."""
        worth_it = max(_FIND_FROM, _FIND_SHARE * self._count) <= index < self._count
        find = self._find if worth_it else None
        return offset_of(self._data, self._start, self._end, index, self._count, "manifest", find=find)

    def _find(self, index: int) -> tuple[int, int] | None:
        """The index of an entry, at most a few hundred before `index`, and where it starts, if its sequence tells."""
        data, start, end = self._data, self._start, self._end
        sample = data[start : min(start + _SAMPLE, end)]
        times, passed = min(
            (sample.count((self.frontier + one & 0xFF).to_bytes(1, "little")), one)
            for one in range(index, index - _STEP * _STEPS, -_STEP)
        )
        if times > len(sample) // _RARE:  # as every byte is where payloads are compressed or random
            return None
        needle = (self.frontier + passed).to_bytes(8, "little")
        first, second, found, at = needle[:1], needle[1], None, start - 1
        for _ in range((end - start) // _RARE):  # `find` of one byte is memchr; of eight it is several times slower
            at = data.find(first, at + 1, end)
            if at < 0:
                return None if found is None or found - U32.size < start else (passed, found - U32.size)
            if data[at + 1] == second and data.startswith(needle, at, end):
                if found is not None:
                    return None
                found = at
        return None

    def _ends_with_the_last(self) -> bool:
        """Whether the last sequence that the footer counts stands in an entry that ends where the entries do."""
        needle, before = (self.frontier + self._count - 1).to_bytes(8, "little"), self._end
        for _ in range(_LAST_FROM_END):
            before = self._data.rfind(needle, self._start + U32.size, before)
            if before < 0:
                return False
            (length,) = U32.unpack_from(self._data, before - U32.size)
            if before + length == self._end:
                return True
            before += len(needle) - 1
        return False

    def _check_sequence_at(self, at: int, expected: int) -> None:
        """That sequences and footer agree, where it costs nothing: at the ends of what is hopped over."""
        if self._end - at < _LEAST_ENTRY:
            raise CorruptData("manifest", "an entry is cut short", offset=at)
        _check_sequence(_HEAD.unpack_from(self._data, at + U32.size)[0], expected, at)


class _Entries(Sequence[BatchDescriptor]):
    """Entries taken out of a manifest: their number is known at once, they are decoded when looked at."""

    __slots__ = ("_added", "_body", "_count", "_first", "_start", "_taken")

    def __init__(
        self, body: memoryview, start: int, count: int, added: tuple[bytes, ...], first: int, taken: int
    ) -> None:
        self._body, self._start, self._count, self._added, self._first, self._taken = (
            body,
            start,
            count,
            added,
            first,
            taken,
        )

    def __len__(self) -> int:
        return self._taken

    def __iter__(self) -> Iterator[BatchDescriptor]:
        from_body = min(self._taken, self._count)
        yield from _decode_entries(self._body, self._start, self._first, from_body, self._count)
        for encoded in self._added[: self._taken - from_body]:
            yield _decode_entry(encoded, 0, None)[0]

    @overload
    def __getitem__(self, index: int) -> BatchDescriptor: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchDescriptor]: ...
    def __getitem__(self, index: int | slice) -> BatchDescriptor | list[BatchDescriptor]:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares by its entries, as a list does

    def __repr__(self) -> str:
        return f"<{self._taken} entries from sequence {self._first}>"


def _encode_entry(sequence: int, location: str, metadata: Iterable[Metadata]) -> bytes:
    if not isinstance(location, str):
        raise InvalidInput(f"a location must be text, not {type(location).__name__}")
    try:
        where = location.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"a location must be valid Unicode: {location!r}") from None
    if len(where) > MAX_U16:
        raise InvalidInput(f"a location has at most {MAX_U16} bytes, not {len(where)}")
    items = list(metadata)
    parts = [_HEAD.pack(sequence, len(where)), where, U32.pack(len(items))]
    for item in items:
        if not isinstance(item.payload, bytes | bytearray | memoryview):
            raise InvalidInput(f"a metadata payload must be bytes, not {type(item.payload).__name__}")
        payload = bytes(item.payload)
        try:
            parts += (_ITEM.pack(item.start_index, item.ingestion_time_ms, len(payload)), payload)
        except struct.error:
            raise InvalidInput(
                f"metadata does not fit: start_index {item.start_index}, ingestion_time_ms {item.ingestion_time_ms}, "
                f"payload of {len(payload)} bytes"
            ) from None
    length = sum(map(len, parts))
    if length > MAX_U32:
        raise InvalidInput(f"an entry has at most {MAX_U32} bytes, metadata included, not {length}")
    return b"".join((U32.pack(length), *parts))


def _decode_entries(body: Buffer, at: int, first: int, wanted: int, left: int) -> Iterator[BatchDescriptor]:
    """`wanted` of the `left` entries from `at` to the end of `body`, which only the last of all may reach."""
    for sequence in range(first, first + wanted):
        entry, at = _decode_entry(body, at, sequence)
        yield entry
    if wanted == left and at != len(body):
        raise CorruptData("manifest", f"{len(body) - at} bytes are left over before the footer", offset=at)


def _decode_entry(body: Buffer, start: int, expected: int | None) -> tuple[BatchDescriptor, int]:
    """The entry at `start` and where it ends. Lengths are checked before anything is read or made."""
    at = start + U32.size + _HEAD.size
    if at + U32.size > len(body):
        raise CorruptData("manifest", "an entry is cut short", offset=start)
    end: int = start + U32.size + U32.unpack_from(body, start)[0]
    if not at + U32.size <= end <= len(body):
        raise CorruptData("manifest", f"an entry's length of {end - start - U32.size} bytes does not fit", offset=start)
    sequence, location_length = _HEAD.unpack_from(body, start + U32.size)
    if expected is not None:
        _check_sequence(sequence, expected, start)
    what = f"manifest entry {sequence}"
    if at + location_length + U32.size > end:
        raise CorruptData(what, f"a location of {location_length} bytes does not fit", offset=at)
    try:
        location = str(body[at : at + location_length], "utf-8")
    except UnicodeDecodeError:
        raise CorruptData(what, "its location is not UTF-8", offset=at) from None
    at += location_length
    (count,) = U32.unpack_from(body, at)
    at += U32.size
    if count * _ITEM.size > end - at:
        raise CorruptData(what, f"{count} metadata items do not fit", offset=at)
    items = []
    for _ in range(count):
        if at + _ITEM.size > end:
            raise CorruptData(what, "a metadata item is cut short", offset=at)
        index, time_ms, length = _ITEM.unpack_from(body, at)
        at += _ITEM.size
        if at + length > end:
            raise CorruptData(what, f"a metadata payload of {length} bytes does not fit", offset=at)
        items.append(Metadata(index, time_ms, bytes(body[at : at + length])))
        at += length
    if at != end:
        raise CorruptData(what, f"{end - at} bytes are left over", offset=at)
    return BatchDescriptor(sequence, location, tuple(items)), end


def _check_sequence(found: int, expected: int, at: int) -> None:
    if found != expected:
        raise CorruptData("manifest", f"sequence {found} stands where {expected} must", offset=at)
