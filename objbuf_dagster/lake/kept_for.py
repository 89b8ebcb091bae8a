"""For which typed table dead letters were kept.

A range of `dead_letters` has a part for each decoder, by name. Two assets that use decoders of the same name for tables
of their own would take each other's letters for letters of before, which have become rows or are wanted no more: the
entries would be in no table of the asset that kept them.

So the name of each file of letters says for which table it was kept: a hash of its folder's name, so that a lake that
is moved, or reached by another URL, has the same ones. It is in the table's snapshot, which is loaded anyway. Files
that do not say, of older versions or rewritten by others (OPTIMIZE), are believed.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake.delta import DeltaPlace
from objbuf_dagster.lake.files import DataFile, LiveFile

TakesOver = Literal["nothing", "older", "anything"]
"""Which letters that were kept for another table a decoding may take for its own: none, which a redrive must not move;
those of an older version of the decoder, whose table the newer one's replaces; all of them."""

_NAME = re.compile(r"(?:part|[0-9a-f]{32})-for([0-9a-f]{8})-[0-9a-f]{32}\.parquet")

File = TypeVar("File", DataFile, LiveFile)


def mark_of(table: DeltaPlace) -> str:
    """What names of files say of this table."""
    return hashlib.sha256(table.url.rpartition("/")[2].encode()).hexdigest()[:8]


def letters_name(mark: str | None, job: str = "part") -> str:
    """A new name for a file of letters that were kept for the table with this mark, by a job if one wrote it first."""
    of = "" if mark is None else f"for{mark}-"
    return f"{job}-{of}{uuid.uuid4().hex}.parquet"


def kept_for(file: DataFile | LiveFile) -> str | None:
    """The mark of the table that these letters were kept for, if they say."""
    found = _NAME.fullmatch(file.path.rpartition("/")[2])
    return found[1] if found else None


def by_mark(files: Iterable[File]) -> dict[str | None, list[File]]:
    """The files of each table."""
    found: dict[str | None, list[File]] = {}
    for file in files:
        found.setdefault(kept_for(file), []).append(file)
    return found


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom the letters of a decoding are kept for.

    table: of the rows. version: of the decoder.
    """

    table: DeltaPlace
    version: int
    takes_over: TakesOver = "older"

    def check(
        self, range_key: str, decoder: str, live: Sequence[LiveFile], versions: Callable[[LiveFile], Iterable[int]]
    ) -> None:
        """Raise InvalidInput for letters of another table that must stay.

        versions: of the decoder that the letters of a file are of; asked for files of other tables alone.
        """
        if self.takes_over == "anything":
            return
        mine = mark_of(self.table)
        for file in live:
            if kept_for(file) in (None, mine):
                continue
            if self.takes_over == "nothing" or any(version >= self.version for version in versions(file)):
                raise InvalidInput(
                    f"range {range_key}: its dead letters of {decoder} were kept for another table than "
                    f"{self.table.name}, and would be gone. Nothing was committed: {self._remedy()}"
                )

    def _remedy(self) -> str:
        if self.takes_over == "nothing":
            return (
                "name the one that they were kept for, with --table (table=); or, if it was renamed to this one, say "
                "so with --renamed (renamed=True)"
            )
        return (
            "give one of the two assets a table of dead letters of its own (dead_letters=...); or, if the table was "
            "renamed or this one takes its place, count the decoder's version up"
        )
