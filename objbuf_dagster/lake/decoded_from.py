"""Whether a typed table was decoded from as many entries as are there now.

A range of `entries` may land again with other rows: without a batch that was quarantined since, or with one that was
brought back. Typed rows of it stay as they were until it is decoded again, and nothing else would tell.

So the name of each file of typed rows says how many rows `entries` had of the range when it was decoded. A name is in
the table's snapshot, which every look has to load anyway; a commit's own words are in its log alone, one read for each
commit, until the log is cleaned up. Rows are counted, not files: a range that landed again as it was is no other one.
Nor is, for this check, one that landed without another batch of just as many entries. Files that do not say, of older
versions or rewritten by others (OPTIMIZE), are believed.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from objbuf_dagster.lake.checks import RangeCheck
from objbuf_dagster.lake.files import Snapshot
from objbuf_dagster.ranges import SequenceRange

UP_TO_DATE = "decoded_from_what_is_there"
"""The check of a typed table, besides those of any table."""

REMEDY = "decode them again (materialise the asset for those ranges) and rebuild states"

_NAMED = 3
_NAME = re.compile(r"[0-9a-f]{32}-of([0-9]{1,18})-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True, slots=True)
class Outdated:
    """A range whose typed rows are of more or fewer entries than there are.

    read: rows of `entries` that it was decoded from; there: that there are now.
    """

    range: SequenceRange
    read: int
    there: int

    def __str__(self) -> str:
        return f"{self.range} ({self.read} entries then, {self.there} now)"


def file_name(job: str, entries: int | None) -> str:
    """A new name for a file of typed rows that a job, 32 hex digits, made of so many rows of `entries`."""
    of = "" if entries is None else f"of{entries}-"
    return f"{job}-{of}{uuid.uuid4().hex}.parquet"


def says_what_it_read(typed: Snapshot | None) -> bool:
    """Whether any file does: then it is a typed table."""
    return typed is not None and any(_read(file.path) is not None for file in typed.live())


def outdated(typed: Snapshot | None, entries: Snapshot | None) -> list[Outdated]:
    """The ranges that were decoded from more or fewer rows than `entries` has, by rising range.

    A range that `entries` does not have, or whose rows nobody counted, is left out: it cannot be told.
    """
    if typed is None or entries is None:
        return []
    there = {key: one.rows for key, one in entries.by_range().items()}
    found: dict[SequenceRange, Outdated] = {}
    for file in typed.live():
        read, now = _read(file.path), there.get(file.range)
        if read is not None and now is not None and read != now:
            one = SequenceRange.from_key(file.range)
            found[one] = Outdated(one, read, now)
    return [found[one] for one in sorted(found)]


def check_decoded_from(typed: Snapshot | None, entries: Snapshot | None) -> RangeCheck:
    """Whether the typed table has what was decoded from as many entries as are there; from the logs alone.

    Load `typed` first: what was decoded after that is at most told too early.
    """
    found = outdated(typed, entries)
    numbers = {"ranges": len(typed.by_range()) if typed else 0, "ranges_outdated": len(found)}
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        text = (
            "ranges were decoded before they landed again with more or fewer entries: "
            f"{', '.join(map(str, found[:_NAMED]))}{more}; {REMEDY}"
        )
        return RangeCheck(UP_TO_DATE, False, text, {**numbers, "sequence": found[0].range.start})
    return RangeCheck(UP_TO_DATE, True, "every range was decoded from as many entries as are there", numbers)


def _read(path: str) -> int | None:
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else None
