"""The data files of a table: those that a landing brings, and those that a version of the table has."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import BufferReplaced, CorruptData, InvalidInput, NotFound
from objbuf_dagster.lake.schema import RANGE_COLUMN, TableSchema
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import LocalStore, Store

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa
    from deltalake.transaction import AddAction

GONE = "it was deleted before its commit (vacuumed with too short a retention?); land the range again"
"""Why a file that a landing wrote may not be there any more."""

GROUP_BYTES = 32 << 20
"""What a row group that `RowsWriter` writes has, as Arrow counts it."""

FILE_BYTES = 64 << 20
"""When a file of its is full, as it is stored."""

_HEADS_AT_ONCE = 16
_SEQUENCE = "_odb_sequence"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DATA_PATH = "_odb_data_path"
_ADDED = "\ufffd\U0010ffff"
"""What Spark's Delta adds to an upper bound that it has cut off."""
_STATS = ("minValues", "maxValues", "nullCount")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that was written below the table and that no commit names yet.

    path: relative to the table, `_odb_range=<key>/<name>.parquet`: what `LakeTable.new_path` gives.
    size: in bytes.
    rows: how many it has.
    stats: Delta's `minValues`, `maxValues` and `nullCount`, each by column, as far as they are known.
    """

    path: str
    size: int
    rows: int
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file that the table has.

    rows: None for a file of another writer that does not say.
    part: of a table with a second partition column, its value there.
    """

    range: str
    path: str
    size: int
    rows: int | None
    stats: Mapping[str, Mapping[str, Any]]
    part: str | None = None


@dataclass(frozen=True, slots=True)
class LandedRange:
    """A range that the table has. One without rows has a file too, so that it is known to have landed."""

    rows: int | None
    bytes: int
    files: int


def partition_of(schema: TableSchema, range_key: str, part: str | None) -> dict[str, str]:
    """The values of a table's partition columns. Raises InvalidInput for those that it cannot have."""
    values = {RANGE_COLUMN: SequenceRange.from_key(range_key).key}
    if (part is None) != (schema.part is None):
        raise InvalidInput(f"a table partitioned by {', '.join(schema.partitions)} cannot have a part {part!r}")
    if schema.part is not None and part is not None:
        if not _PART.fullmatch(part):
            raise InvalidInput(f"{schema.part} must be of letters, digits and ._- and not {part[:80]!r}")
        values[schema.part] = part
    return values


def folder_of(partition: str | Mapping[str, str]) -> str:
    """Where the files of a range are, or of what `partition_of` gives."""
    values = {RANGE_COLUMN: partition} if isinstance(partition, str) else partition
    return "/".join(f"{column}={value}" for column, value in values.items())


def check_files(partition: Mapping[str, str], files: Collection[DataFile]) -> None:
    """Refuse what a commit of this range, or this part of it, must not name."""
    range_key = partition[RANGE_COLUMN]
    for file in files:
        folder, _, name = file.path.rpartition("/")
        if folder != folder_of(partition) or not _NAME.fullmatch(name):
            raise InvalidInput(f"not a file of range {range_key}: {file.path[:200]!r}; take its name from new_path()")
        if file.size <= 0 or file.rows < 0:
            raise InvalidInput(f"{file.path} cannot have {file.size} bytes and {file.rows} rows")
        if not set(file.stats) <= set(_STATS):
            raise InvalidInput(f"stats are {', '.join(_STATS)}, not {sorted(file.stats)}")
    if len({file.path for file in files}) != len(files):
        raise InvalidInput(f"the same file is given twice for range {range_key}")


def check_there(store: Store, files: Collection[DataFile]) -> None:
    """Refuse files that are not there as their writer said: a commit that names them cannot be undone."""
    if files:
        with ThreadPoolExecutor(min(_HEADS_AT_ONCE, len(files))) as pool:
            list(pool.map(lambda file: _check_there(store, file), files))


def _check_there(store: Store, file: DataFile) -> None:
    try:
        size = store.head(file.path).size
    except NotFound:
        unseen = f"the directory is not shared with the executors, or {GONE}"
        raise NotFound(file.path, unseen if isinstance(store, LocalStore) else GONE) from None
    if size != file.size:
        raise CorruptData(f"object {file.path!r}", f"it has {size} bytes, its writer said {file.size}")


def batches_of(files: Sequence[DataFile | LiveFile]) -> tuple[str, str] | None:
    """The first and the last of the batches that these files came from, by name, if they all say."""
    bounds = [[file.stats.get(bound, {}).get(_DATA_PATH) for bound in ("minValues", "maxValues")] for file in files]
    if not bounds or any(bound is None for pair in bounds for bound in pair):
        return None
    return min(str(least) for least, _ in bounds), max(str(most) for _, most in bounds)


def same_batches(some: tuple[str, str], others: tuple[str, str]) -> bool:
    """Whether two of what `batches_of` gives may be of the same batches.

    A name that was cut off is compared as far as it goes: who rewrites files (OPTIMIZE) keeps the beginning of a bound,
    and of an upper one raises the last character or adds another.
    """
    return all(_same_batch(one, other) for one, other in zip(some, others, strict=True))


def within_batches(some: tuple[str, str], others: tuple[str, str]) -> bool:
    """Whether some may be of batches between the first and the last of others, by name."""
    (first, last), (least, most) = some, others
    return (least <= first or _same_batch(least, first)) and (last <= most or _same_batch(last, most))


def _same_batch(one: str, other: str) -> bool:
    short, long = sorted((one.rstrip(_ADDED), other.rstrip(_ADDED)), key=len)
    return short == long or (len(short) < len(long) and long.startswith(short[:-1]))


def is_there(live: Sequence[LiveFile], files: Sequence[DataFile], landing: Sequence[DataFile]) -> bool:
    """Whether a range that has these live files has landed as `files`, or as `landing`, what was written for them."""
    if not files and live and all(file.rows == 0 for file in live):
        return True  # one range without rows is like another
    return bool(live) and {file.path for file in live} == {file.path for file in landing}


def add_action(partition: str | Mapping[str, str], file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    try:
        stats = json.dumps({"numRecords": file.rows, **file.stats}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the stats of {file.path} cannot be JSON: {error}") from None
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={RANGE_COLUMN: partition} if isinstance(partition, str) else dict(partition),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=stats,
    )


class RowsWriter:
    """Writes blocks of rows to as many files as they need; no commit names these yet.

    new_path: gives the path of a file, a new one each time.
    sequences: write down the lowest and the highest sequence of each file.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        new_path: Callable[[], str],
        *,
        group_bytes: int = GROUP_BYTES,
        file_bytes: int = FILE_BYTES,
        sequences: bool = True,
    ) -> None:
        self._store = store
        self._schema = schema
        self._new_path = new_path
        self._limits = (group_bytes, file_bytes)
        self._sequences = sequences
        self._files: list[DataFile] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._sink = io.BytesIO()
        self._writer: Any = None
        self._rows = 0
        self._bounds: list[int] = []

    def add(self, block: pa.RecordBatch) -> None:
        """Some rows more, with the columns of the schema; they are in a file once `finish` has returned."""
        if not len(block):
            return
        self._pending.append(block)
        self._pending_bytes += block.nbytes
        if self._pending_bytes >= self._limits[0]:
            self._write_group()
            if self._sink.tell() >= self._limits[1]:
                self._close()

    def finish(self) -> tuple[DataFile, ...]:
        """All files. None without rows."""
        if self._pending:
            self._write_group()
        if self._writer is not None:
            self._close()
        return tuple(self._files)

    def _write_group(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")
        table = pa.Table.from_batches(self._pending, self._schema)
        self._pending, self._pending_bytes = [], 0
        self._writer.write_table(table, row_group_size=len(table))
        self._rows += len(table)
        if self._sequences:
            found = pc.min_max(table[_SEQUENCE]).as_py()
            self._bounds += [found["min"], found["max"]]

    def _close(self) -> None:
        self._writer.close()
        path, size = self._new_path(), self._sink.tell()
        self._store.put(path, [self._sink.getbuffer()])
        stats: dict[str, dict[str, int]] = {}
        if self._sequences:
            bounds = {"minValues": min(self._bounds), "maxValues": max(self._bounds), "nullCount": 0}
            stats = {name: {_SEQUENCE: value} for name, value in bounds.items()}
        self._files.append(DataFile(path, size, self._rows, stats))
        self._sink, self._writer, self._rows, self._bounds = io.BytesIO(), None, 0, []


class Snapshot:
    """What one version of the table has. It never changes: load another to see what happened since."""

    def __init__(self, table: deltalake.DeltaTable, part: str | None = None) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.delta = table
        self.version = table.version()
        self._files = pa.table(table.get_add_actions(flatten=False))
        self._keys = pc.struct_field(self._files["partition"], RANGE_COLUMN)
        self._part = part

    def live(self, ranges: Collection[str] | None = None, part: str | None = None) -> list[LiveFile]:
        """The files of these ranges, or of all, by range and path; of one part or of all."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = self._files.append_column("key", self._keys)
        if ranges is not None:
            found = found.filter(pc.is_in(self._keys, pa.array(list(ranges), pa.string())))
        files = (_live(row, self._part) for row in found.to_pylist())
        return sorted(
            (file for file in files if part is None or file.part == part), key=lambda file: (file.range, file.path)
        )

    def paths(self, ranges: Collection[str]) -> list[str]:
        """Of the files of these ranges."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pc.is_in(self._keys, pa.array(list(ranges), pa.string()))
        found: list[str] = self._files["path"].filter(wanted).to_pylist()
        return found

    def by_range(self) -> dict[str, LandedRange]:
        """What each range has, by rising key."""
        import pyarrow as pa

        files = pa.table(
            {"key": self._keys, "bytes": self._files["size_bytes"], "rows": self._files["num_records"]}
        ).group_by("key")
        summed = files.aggregate([("bytes", "sum"), ("bytes", "count"), ("rows", "sum"), ("rows", "count")])
        return {
            row["key"]: LandedRange(
                rows=row["rows_sum"] if row["rows_count"] == row["bytes_count"] else None,
                bytes=row["bytes_sum"],
                files=row["bytes_count"],
            )
            for row in sorted(summed.to_pylist(), key=lambda row: _order(row["key"]))
        }

    def overlap(self, range_key: str) -> str | None:
        """Another range here that has sequences of this one."""
        wanted = SequenceRange.from_key(range_key)
        for key in self._keys.unique().to_pylist():
            start, end = _order(key)
            if key != range_key and start <= wanted.end and wanted.start <= end:
                return str(key)
        return None


def check_replacing(
    snapshot: Snapshot,
    range_key: str,
    live: Sequence[LiveFile],
    landing: Sequence[DataFile],
    name: str,
    *,
    every_batch: bool,
    batches: Collection[str] = (),
) -> None:
    """Refuse what would put rows into the table `name` twice, or lose those of others.

    live: the files that the range has now.
    every_batch: the table has every batch of a range, so what is there must be of the same batches:
    batches: of these; if they are not known, of those that the new files name.
    """
    used = {file.path for file in live} & {file.path for file in landing}
    if used:
        raise InvalidInput(f"{min(used)} landed before with other files: write each landing to new names")
    other = snapshot.overlap(range_key)
    if other is not None:
        raise InvalidInput(
            f"range {range_key} shares sequences with {other}, which has landed in {name}: rows would be "
            "there twice. Were range objects deleted or the buffer made anew? Land into another table"
        )
    there = batches_of(live) if every_batch else None
    ours = (min(batches), max(batches)) if batches else batches_of(landing)
    if there is None or ours is None:
        return
    if batches:  # not each of them need have rows, and some may have been left out, then or now
        same = all(any(_same_batch(bound, batch) for batch in batches) for bound in there)
    else:
        same = same_batches(there, ours)
    if not same:
        raise BufferReplaced(
            f"range {range_key} of {name} came from {there[0]} to {there[1]}, and would be replaced by "
            f"{ours[0]} to {ours[1]}; or the table is another buffer's, and this one needs a table of its own"
        )


def _order(key: str) -> tuple[int, int]:
    start, _, end = key.partition("-")
    try:
        return int(start), int(end)
    except ValueError:
        raise InvalidInput(
            f"the table has a partition {key[:80]!r} that is no range: another program writes to it; find out which, "
            "or give the landing a table of its own"
        ) from None


def _live(row: Mapping[str, Any], part: str | None) -> LiveFile:
    columns = {"minValues": "min", "maxValues": "max", "nullCount": "null_count"}
    stats = {
        name: {column: value for column, value in (row.get(theirs) or {}).items() if value is not None}
        for name, theirs in columns.items()
    }
    return LiveFile(
        range=row["key"],
        path=row["path"],
        size=row["size_bytes"],
        rows=row.get("num_records"),
        stats={name: values for name, values in stats.items() if values},
        part=None if part is None else row["partition"][part],
    )
