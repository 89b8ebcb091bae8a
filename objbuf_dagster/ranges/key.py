"""A contiguous run of sequences, and its name as a partition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol.model import MAX_U64

_DIGITS = 12
_KEY = re.compile(r"([0-9]{12,20})-([0-9]{12,20})")


@dataclass(frozen=True, slots=True, order=True)
class SequenceRange:
    """Sequences from `start` to `end`, both included.

    >>> SequenceRange(0, 99).key
    '000000000000-000000000099'
    >>> SequenceRange.from_key('000000000000-000000000099')
    SequenceRange(start=0, end=99)
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= MAX_U64:
            raise InvalidInput(f"a range needs 0 <= start <= end, not {self.start} and {self.end}")

    @property
    def key(self) -> str:
        """The partition key: 12 digits each, more when needed, so that keys of one length sort as ranges do."""
        return f"{self.start:0{_DIGITS}d}-{self.end:0{_DIGITS}d}"

    @classmethod
    def from_key(cls, key: str) -> SequenceRange:
        """Raises InvalidInput for anything but a key in its one spelling."""
        match = _KEY.fullmatch(key)
        if match:
            start, end = map(int, match.groups())
            if start <= end <= MAX_U64:
                found = cls(start, end)
                if found.key == key:
                    return found
        raise InvalidInput(f"not a range: {key[:80]!r}; a range is written as {cls(0, 99).key}")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and self.start <= sequence <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __str__(self) -> str:
        return self.key
