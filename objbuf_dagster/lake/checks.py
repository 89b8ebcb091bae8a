"""Whether rows are what the batches say: of one range before its commit, and of a whole table.

A range is checked by reading back what its tasks wrote, two columns of it, a block at a time and a few files at once:
what that takes of memory depends on neither rows nor files. A table is checked by its log alone, no file is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.lake.files import DataFile, LiveFile, Snapshot
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.lake.table import LakeTable
from objbuf_dagster.protocol import BLOCK_BYTES, RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow.fs

    Numbers = npt.NDArray[np.int64]

CHECKS = ("contiguous_sequences", "rows_match_footers", "no_duplicates")
"""The checks of a range."""

TABLE_CHECKS = ("no_holes", "no_overlaps")
"""The checks of a table."""

_SEQUENCE, _INDEX = "_odb_sequence", "_odb_entry_index"
_BLOCK_ROWS = BLOCK_BYTES // 16
_FILES_AT_ONCE = 4
_NAMED = 3


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """What a check found.

    description: in one sentence; of a check that failed, with the first place where it did.
    metadata: numbers by name, and that place: `sequence`, `index` and `file`, as far as there are such.
    """

    name: str
    passed: bool
    description: str
    metadata: Mapping[str, str | int | float]


def check_range(
    table: LakeTable,
    planned: RangeObject,
    files: Sequence[DataFile],
    records: Mapping[int, int],
    quarantined: Collection[int] = (),
) -> tuple[RangeCheck, ...]:
    """Whether these files, which no commit need name, hold exactly the rows of the range; in the order of CHECKS.

    records: how many each batch has, by sequence, as its footer says.
    quarantined: sequences of the batches that the range lands without: they must have no rows, and need no footer.

    contiguous_sequences: each batch that has records has rows, and no row is of a sequence outside the range. (That no
        sequence between its first and its last is left out, a RangeObject holds by itself.)
    rows_match_footers: each batch has as many rows as records, and each file as many as its writer said.
    no_duplicates: each batch's rows count from 0, in order and without a hole, and batches come in order.

    Batches without records have no rows, which is right, also if they are all of the range. Reads only. Raises
    StorageUnavailable (retry), StorageError, NotFound, and CorruptData for a file that cannot be read.
    """
    tally = _Tally(planned, {**records, **dict.fromkeys(quarantined, 0)})
    ordered = sorted(files, key=_order)
    source = table.filesystem({file.path: file.size for file in ordered})
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        seen = list(pool.map(lambda number: _scan(source, ordered[number], number, tally), range(len(ordered))))
    return (
        _contiguous(planned, tally, seen, sorted(quarantined)),
        _matching(planned, tally, seen, ordered, len(quarantined)),
        _without_duplicates(planned, seen),
    )


def check_table(snapshot: Snapshot | None, planned: Sequence[SequenceRange], frontier: int) -> tuple[RangeCheck, ...]:
    """Whether the table has every range once, as its log says; in the order of TABLE_CHECKS.

    snapshot: of the table; None if nothing has landed.
    planned: the ranges whose objects are retained, oldest first.
    frontier: what comes before it was acked, so it must be in the table.

    no_holes: every planned range before the frontier is in the table, and between two neighbours of the table that are
        both before it no sequence is missing, unless two neighbours of `planned` leave out just the same ones: a gap
        that somebody chose to skip. What is older than all of `planned` is told and does not fail: whether it was
        skipped nobody knows any more.
    no_overlaps: no two ranges share a sequence, and the sequences that a file's statistics tell are in its range.

    Raises InvalidInput if the table has partitions that are no ranges.
    """
    landed = sorted(SequenceRange.from_key(key) for key in snapshot.by_range()) if snapshot else []
    return _without_holes(landed, planned, frontier), _without_overlaps(landed, snapshot.live() if snapshot else [])


@dataclass(frozen=True, slots=True)
class _Row:
    sequence: int
    index: int

    def follows(self, before: _Row | None) -> bool:
        if before is not None and self.sequence == before.sequence:
            return self.index == before.index + 1
        return self.index == 0 and (before is None or self.sequence > before.sequence)

    def __str__(self) -> str:
        return f"sequence {self.sequence}, index {self.index}"


class _Tally:
    """The rows of each batch of a range, counted from many threads."""

    def __init__(self, planned: RangeObject, records: Mapping[int, int]) -> None:
        import numpy as np

        self.start, self.end = planned.start, planned.end
        sequences = range(self.start, self.end + 1)
        self.expected = np.array([records.get(sequence, -1) for sequence in sequences], np.int64)
        self.rows = np.zeros(len(sequences), np.int64)
        self.file = np.full(len(sequences), -1, np.int32)
        self._lock = threading.Lock()

    def add(self, sequences: Numbers, rows: Numbers, file: int) -> None:
        """So many rows more of these sequences, all of the range, in this file."""
        import numpy as np

        if len(sequences):
            with self._lock:
                np.add.at(self.rows, sequences - self.start, rows)
                self.file[sequences - self.start] = file


class _Seen:
    """What a file has: its ends, and the first row that is not in order, or not of the range."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = self.misplaced = self.outside = 0
        self.first: _Row | None = None
        self.last: _Row | None = None
        self.first_misplaced: tuple[_Row, _Row] | None = None
        self.first_outside: _Row | None = None

    def _misplace(self, row: _Row, before: _Row, times: int = 1) -> None:
        self.misplaced += times
        self.first_misplaced = self.first_misplaced or (row, before)

    def add(self, sequences: Numbers, indices: Numbers, tally: _Tally, file: int) -> None:
        """One more block of rows, which is not empty."""
        import numpy as np

        def row(at: Any) -> _Row:
            return _Row(int(sequences[at]), int(indices[at]))

        if self.last is None:
            self.first = row(0)  # right or not: that is told by the file before
        elif not row(0).follows(self.last):
            self._misplace(row(0), self.last)
        turns = np.flatnonzero(sequences[1:] != sequences[:-1]) + 1
        wrong = indices[1:] != indices[:-1] + 1
        wrong[turns - 1] = (indices[turns] != 0) | (sequences[turns] < sequences[turns - 1])
        if times := int(np.count_nonzero(wrong)):
            at = int(wrong.argmax())
            self._misplace(row(at + 1), row(at), times)
        runs = np.concatenate([np.zeros(1, np.int64), turns])
        lengths = np.diff(runs, append=len(sequences))
        found = sequences[runs]
        inside = (found >= tally.start) & (found <= tally.end)
        if not inside.all():
            self.outside += int(lengths[~inside].sum())
            self.first_outside = self.first_outside or row(runs[inside.argmin()])
        tally.add(found[inside], lengths[inside], file)
        self.rows += len(sequences)
        self.last = row(-1)


def _order(file: DataFile) -> tuple[int, int, str]:
    """By the sequences that the file tells. One that tells them wrong is found: its rows are not in order."""
    least, most = (file.stats.get(bound, {}).get(_SEQUENCE, -1) for bound in ("minValues", "maxValues"))
    return least, most, file.path


def _scan(source: pyarrow.fs.FileSystem, file: DataFile, number: int, tally: _Tally) -> _Seen:
    seen = _Seen(file.path)
    for sequences, indices in _blocks(source, file.path):
        seen.add(sequences, indices, tally, number)
    return seen


def _blocks(source: pyarrow.fs.FileSystem, path: str) -> Iterator[tuple[Numbers, Numbers]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [_SEQUENCE, _INDEX]
    with (
        parquet_errors(path),
        source.open_input_file(path) as opened,
        pq.ParquetFile(opened, pre_buffer=True) as parquet,
    ):
        found = {field.name: field.type for field in parquet.schema_arrow}
        for name in names:
            if found.get(name) != pa.int64():
                raise CorruptData(f"file {path!r}", f"it has no column {name} of 64-bit numbers")
        for group in range(parquet.metadata.num_row_groups):  # one by one, since pyarrow fetches all that it is asked
            for block in parquet.iter_batches(_BLOCK_ROWS, row_groups=[group], columns=names, use_threads=False):
                if len(block):
                    yield _numbers(block.column(_SEQUENCE)), _numbers(block.column(_INDEX))


def _numbers(column: Any) -> Numbers:
    numbers: Numbers = (column.fill_null(-1) if column.null_count else column).to_numpy()  # -1 is nowhere right
    return numbers


def _contiguous(planned: RangeObject, tally: _Tally, seen: Sequence[_Seen], quarantined: Sequence[int]) -> RangeCheck:
    import numpy as np

    missing = np.flatnonzero((tally.expected > 0) & (tally.rows == 0))
    numbers = {
        "batches": len(planned.batches),
        "batches_without_records": int(np.count_nonzero(tally.expected == 0)) - len(quarantined),
        "batches_quarantined": len(quarantined),
        "batches_missing": len(missing),
        "rows_outside": sum(file.outside for file in seen),
    }
    for file in seen:
        if file.first_outside is not None:
            return _failed(
                CHECKS[0],
                f"{file.first_outside} in {file.path} is outside the range",
                numbers,
                file.first_outside,
                file,
            )
    if len(missing):
        sequence, records = tally.start + int(missing[0]), int(tally.expected[missing[0]])
        text = f"sequence {sequence} has {records} records and not one row in any of {len(seen)} files"
        return _failed(CHECKS[0], text, numbers, _Row(sequence, 0))
    but = f" but those that are quarantined: {_few(quarantined)}" if quarantined else ""
    return RangeCheck(
        CHECKS[0], True, f"the rows are of the sequences {range_of(planned)}, and no batch is missing{but}", numbers
    )


def _matching(
    planned: RangeObject, tally: _Tally, seen: Sequence[_Seen], files: Sequence[DataFile], quarantined: int
) -> RangeCheck:
    import numpy as np

    different = np.flatnonzero(tally.rows != tally.expected)
    numbers = {
        "rows": sum(file.rows for file in seen),
        "records": int(tally.expected[tally.expected > 0].sum()),
        "batches_that_differ": len(different),
    }
    if len(different):
        at = int(different[0])
        sequence, rows, records = tally.start + at, int(tally.rows[at]), int(tally.expected[at])
        where = seen[tally.file[at]] if rows else None
        text = f"sequence {sequence} has {rows} rows{f' in {where.path}' if where else ''}, and " + (
            f"its footer says {records}" if records >= 0 else "nobody told what its footer says"
        )
        return _failed(CHECKS[1], text, numbers, _Row(sequence, min(rows, max(records, 0))), where)
    for file, said in zip(seen, files, strict=True):
        if file.rows != said.rows:
            return _failed(
                CHECKS[1], f"{file.path} has {file.rows} rows, and its writer said {said.rows}", numbers, None, file
            )
    text = f"the {numbers['rows']} rows are as many as the footers of {len(planned.batches) - quarantined} batches say"
    return RangeCheck(CHECKS[1], True, text, numbers)


def _without_duplicates(planned: RangeObject, seen: Sequence[_Seen]) -> RangeCheck:
    before: _Row | None = None
    misplaced = sum(file.misplaced for file in seen)
    faults: list[tuple[_Row, _Row | None, _Seen]] = []
    for file in seen:
        if file.first is not None and not file.first.follows(before):
            misplaced += 1
            faults.append((file.first, before, file))
        if file.first_misplaced is not None:
            faults.append((*file.first_misplaced, file))
        before = file.last or before
    numbers = {"rows": sum(file.rows for file in seen), "rows_misplaced": misplaced}
    for row, last, file in faults[:1]:
        text = f"{row} in {file.path} " + (f"comes right after {last}" if last else "is the first row of all")
        return _failed(CHECKS[2], f"{text}, and indices must count from 0, each once", numbers, row, file)
    return RangeCheck(CHECKS[2], True, f"each row of {range_of(planned)} is there once, and in order", numbers)


def _failed(
    name: str, text: str, numbers: Mapping[str, int], row: _Row | None = None, file: _Seen | None = None
) -> RangeCheck:
    place: dict[str, str | int | float] = {}
    if row is not None:
        place |= {"sequence": row.sequence, "index": row.index}
    if file is not None:
        place["file"] = file.path
    return RangeCheck(name, False, text, {**numbers, **place})


def _without_holes(landed: Sequence[SequenceRange], planned: Sequence[SequenceRange], frontier: int) -> RangeCheck:
    there = set(landed)
    missing = [one for one in planned if one.end < frontier and one not in there]
    skipped = set(_gaps(planned))
    gaps = [gap for gap in _gaps([one for one in landed if one.end < frontier]) if gap not in skipped]
    older = [gap for gap in gaps if planned and gap.end < planned[0].start]
    holes = [gap for gap in gaps if gap not in older]
    numbers = {
        "ranges": len(landed),
        "frontier": frontier,
        "ranges_missing": len(missing),
        "holes": len(holes),
        "older_holes": len(older),
        "sequences_skipped": sum(map(len, skipped)),
    }
    faults = []
    if missing:
        faults.append(f"planned ranges before the frontier {frontier} are not in the table: {_few(missing)}")
    if holes:
        faults.append(f"sequences are missing between the ranges of the table: {_few(holes)}")
    if faults:
        first = min([*missing, *holes]).start
        return RangeCheck(TABLE_CHECKS[0], False, "; ".join(faults), {**numbers, "sequence": first})
    said = f"no sequence before the frontier {frontier} is missing"
    if older:
        said += f"; older than all retained ranges, and maybe skipped on purpose: {_few(older)}"
    return RangeCheck(TABLE_CHECKS[0], True, said, numbers)


def _gaps(ranges: Sequence[SequenceRange]) -> list[SequenceRange]:
    """What rising ranges, which may overlap, leave out between them."""
    reached = accumulate((one.end for one in ranges), max)
    return [
        SequenceRange(end + 1, after.start - 1)
        for end, after in zip(reached, ranges[1:], strict=False)
        if after.start > end + 1
    ]


def _without_overlaps(landed: Sequence[SequenceRange], files: Sequence[LiveFile]) -> RangeCheck:
    shared: list[str] = []
    widest: SequenceRange | None = None
    for one in landed:
        if widest is not None and one.start <= widest.end:
            shared.append(f"{one} and {widest}")
        widest = one if widest is None or one.end > widest.end else widest
    strays = [file for file in files if not _is_inside(file)]
    numbers = {
        "ranges": len(landed),
        "files": len(files),
        "ranges_that_overlap": len(shared),
        "files_outside_their_range": len(strays),
    }
    faults = []
    if shared:
        faults.append(f"ranges share sequences: {_few(shared)}")
    if strays:
        faults.append(f"files have sequences outside their range: {_few([file.path for file in strays])}")
    if faults:
        place: dict[str, str | int | float] = {"file": strays[0].path} if strays else {}
        return RangeCheck(TABLE_CHECKS[1], False, "; ".join(faults), {**numbers, **place})
    return RangeCheck(TABLE_CHECKS[1], True, f"no two of {len(landed)} ranges share a sequence", numbers)


def _is_inside(file: LiveFile) -> bool:
    """A file without rows tells nothing of its sequences, nor does one of another writer."""
    told = [file.stats.get(bound, {}).get(_SEQUENCE) for bound in ("minValues", "maxValues")]
    whole = SequenceRange.from_key(file.range)
    return all(sequence is None or sequence in whole for sequence in told)


def _few(things: Sequence[object]) -> str:
    more = f" and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
    return ", ".join(map(str, things[:_NAMED])) + more
