"""The rows of a range in the order of sequence, entry index and record index, in bounded blocks.

Tasks write a range to several files, and a file need not be in order. So first the order columns alone are read, which
tells the sorted runs that the files consist of; then these are merged. In memory is a block of each run that is open,
and a run is opened when its first row is due: where files and row groups follow each other, as they mostly do, one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import CorruptData
from objbuf_dagster.lake.delta import DeltaPlace
from objbuf_dagster.lake.files import DataFile, LiveFile
from objbuf_dagster.lake.fold import ORDER
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.protocol import BLOCK_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.parquet as pq

    Places = npt.NDArray[np.int64]

_ORDER_ROWS = 1 << 16
_MOST_ROWS = 1024
"""Rows read at a time: a value that many of them share is in the file once, so it does not tell how large they are."""
_MOST_RUNS = 64
"""Runs of a row group; one that is in no order at all is read as a whole and sorted."""

Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows `start` to `stop` of a row group, which rise; or, if not `rising`, are to be sorted."""

    first: Place
    file: DataFile | LiveFile
    group: int
    start: int
    stop: int
    rising: bool = True


def ordered(
    place: DeltaPlace, files: Sequence[DataFile | LiveFile], columns: Sequence[str], *, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """All rows of these files, in order, with these columns and those of ORDER that the files have.

    Raises CorruptData for a row that is there twice, and what keeps a file from being read.
    """
    runs = sorted((run for file in files if file.rows != 0 for run in _runs(place, file)), key=lambda run: run.first)
    with contextlib.ExitStack() as stack:
        yield from _merged(stack, place, runs, columns, block_bytes)


def blocks(
    place: DeltaPlace, file: DataFile | LiveFile, columns: Sequence[str] | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of one file as they stand, in blocks of about so many bytes."""
    with _opened(place, file) as parquet:
        for group in range(parquet.metadata.num_row_groups):
            yield from _group(parquet, group, columns, block_bytes)


@contextlib.contextmanager
def _opened(place: DeltaPlace, file: DataFile | LiveFile) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    with (
        parquet_errors(file.path),
        place.filesystem({file.path: file.size}).open_input_file(file.path) as opened,
        pq.ParquetFile(opened, pre_buffer=True) as parquet,
    ):
        yield parquet


def _group(
    parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    found = parquet.metadata.row_group(group)
    each = found.total_byte_size // max(1, found.num_rows) + 1
    rows = max(1, min(_MOST_ROWS, block_bytes // each))
    for block in parquet.iter_batches(
        rows, row_groups=[group], columns=None if columns is None else list(columns), use_threads=False
    ):
        if len(block):
            yield block


def _order_of(parquet: pq.ParquetFile) -> list[str]:
    return [name for name in ORDER if name in parquet.schema_arrow.names]


def _places(block: pa.RecordBatch) -> Places:
    """Per row its place, a row of numbers."""
    import numpy as np

    names = [name for name in ORDER if name in block.schema.names]
    return np.stack([block.column(name).to_numpy() for name in names], axis=1)


def _runs(place: DeltaPlace, file: DataFile | LiveFile) -> Iterator[_Run]:
    import numpy as np

    with _opened(place, file) as parquet:
        order = _order_of(parquet)
        for group in range(parquet.metadata.num_row_groups):
            starts: list[int] = []
            firsts: list[Place] = []
            least: Place | None = None
            before: Places = np.zeros((0, len(order)), np.int64)
            row = 0
            for block in parquet.iter_batches(_ORDER_ROWS, row_groups=[group], columns=order, use_threads=False):
                if not len(block):
                    continue
                both = np.concatenate([before, _places(block)])
                falls = np.flatnonzero(~_rising(both)) + 1
                begins = falls if len(before) else np.concatenate([[0], falls])
                starts += [row - len(before) + int(at) for at in begins]
                firsts += [_place(both, int(at)) for at in begins]
                low = _least(both)
                least = low if least is None or low < least else least
                before, row = both[-1:], row + len(block)
            stops = [*starts[1:], row]
            if len(starts) > _MOST_RUNS and least is not None:
                yield _Run(least, file, group, 0, row, rising=False)
            else:
                for first, start, stop in zip(firsts, starts, stops, strict=True):
                    yield _Run(first, file, group, start, stop)


def _place(places: Places, at: int) -> Place:
    return tuple(int(number) for number in places[at])


def _least(places: Places) -> Place:
    import numpy as np

    return _place(places, int(np.lexsort(places.T[::-1])[0]))


def _rising(places: Places) -> npt.NDArray[np.bool_]:
    """Whether each row but the first lies behind the one before it."""
    import numpy as np

    rising = np.zeros(max(0, len(places) - 1), bool)
    equal = np.ones(len(rising), bool)
    for column in places.T:
        rising |= equal & (column[1:] > column[:-1])
        equal &= column[1:] == column[:-1]
    return rising


def _until(places: Places, bound: Place) -> int:
    """How many of these rows, which rise, do not lie behind the bound."""
    import numpy as np

    within = np.zeros(len(places), bool)
    equal = np.ones(len(places), bool)
    for column, limit in zip(places.T, bound, strict=True):
        within |= equal & (column < limit)
        equal &= column == limit
    return int(np.count_nonzero(within | equal))


class _Open:
    """A run that is being read: what is left of its current block."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self.block: Any = None
        self.next()

    def next(self) -> bool:
        """The next block. False at the end."""
        self.block = next(self._rows, None)
        if self.block is not None:
            self.places = _places(self.block)
        return self.block is not None

    @property
    def last(self) -> Place:
        return _place(self.places, len(self.places) - 1)

    def take(self, bound: Place) -> pa.RecordBatch:
        """Its rows up to this place; they are gone from it then."""
        count = _until(self.places, bound)
        taken = self.block.slice(0, count)
        self.block, self.places = self.block.slice(count), self.places[count:]
        return taken


def _read(
    place: DeltaPlace, run: _Run, columns: Sequence[str], block_bytes: int
) -> Generator[pa.RecordBatch, None, None]:
    import pyarrow as pa

    with _opened(place, run.file) as parquet:
        wanted = [*dict.fromkeys([*_order_of(parquet), *columns])]
        at, whole = 0, []
        for block in _group(parquet, run.group, wanted, block_bytes):
            part = block.slice(max(0, run.start - at), max(0, run.stop - max(at, run.start)))
            at += len(block)
            if run.rising and len(part):
                yield part.select(wanted)
            elif len(part):
                whole.append(part.select(wanted))
            if at >= run.stop:
                break
        if whole:
            yield _sorted(pa.Table.from_batches(whole))


def _sorted(table: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa

    by = [(name, "ascending") for name in ORDER if name in table.schema.names]
    found = table.sort_by(by).combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], table.schema)


def _merged(
    stack: contextlib.ExitStack, place: DeltaPlace, runs: list[_Run], columns: Sequence[str], block_bytes: int
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    waiting = runs[::-1]
    opened: list[_Open] = []
    previous: Place | None = None
    while waiting or opened:
        bound = min((one.last for one in opened), default=None)
        while waiting and (bound is None or waiting[-1].first <= bound):
            rows = _read(place, waiting.pop(), columns, block_bytes)
            stack.callback(rows.close)
            one = _Open(rows)
            opened.append(one)
            bound = one.last if bound is None else min(bound, one.last)
        if bound is None:
            return
        parts = [part for part in (one.take(bound) for one in opened) if len(part)]
        opened = [one for one in opened if len(one.block) or one.next()]
        block = parts[0] if len(parts) == 1 else _sorted(pa.Table.from_batches(parts))
        places = _places(block)
        if not _rising(places).all() or (previous is not None and _place(places, 0) <= previous):
            raise CorruptData(
                f"table {place.name}",
                f"a row of sequence {_place(places, 0)[0]} or after it is there twice: another program writes to it; "
                "find out which, then materialise that range again, which replaces all of its rows",
            )
        previous = _place(places, len(places) - 1)
        yield block
