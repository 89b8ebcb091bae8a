"""The data files of a table: those that a landing brings, and those that a version of the table has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import BufferReplaced, CorruptData, InvalidInput, NotFound
from objbuf_dagster.lake.schema import RANGE_COLUMN
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    import deltalake
    from deltalake.transaction import AddAction

GONE = "it was deleted before its commit (vacuumed with too short a retention?); land the range again"
"""Why a file that a landing wrote may not be there any more."""

_HEADS_AT_ONCE = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")
_DATA_PATH = "_odb_data_path"
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
    """A data file that the table has; `rows` is None for a file of another writer that does not say."""

    range: str
    path: str
    size: int
    rows: int | None
    stats: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LandedRange:
    """A range that the table has. One without rows has a file too, so that it is known to have landed."""

    rows: int | None
    bytes: int
    files: int


def folder_of(range_key: str) -> str:
    return f"{RANGE_COLUMN}={range_key}"


def check_files(range_key: str, files: Collection[DataFile]) -> None:
    """Refuse what a commit of this range must not name."""
    SequenceRange.from_key(range_key)
    for file in files:
        folder, _, name = file.path.rpartition("/")
        if folder != folder_of(range_key) or not _NAME.fullmatch(name):
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
        raise NotFound(file.path, GONE) from None
    if size != file.size:
        raise CorruptData(f"object {file.path!r}", f"it has {size} bytes, its writer said {file.size}")


def batches_of(files: Sequence[DataFile | LiveFile]) -> tuple[str, str] | None:
    """The first and the last of the batches that these files came from, by name, if they all say."""
    bounds = [[file.stats.get(bound, {}).get(_DATA_PATH) for bound in ("minValues", "maxValues")] for file in files]
    if not bounds or any(bound is None for pair in bounds for bound in pair):
        return None
    return min(str(least) for least, _ in bounds), max(str(most) for _, most in bounds)


def is_there(live: Sequence[LiveFile], files: Sequence[DataFile], landing: Sequence[DataFile]) -> bool:
    """Whether a range that has these live files has landed as `files`, or as `landing`, what was written for them."""
    if not files and live and all(file.rows == 0 for file in live):
        return True  # one range without rows is like another
    return bool(live) and {file.path for file in live} == {file.path for file in landing}


def add_action(range_key: str, file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    try:
        stats = json.dumps({"numRecords": file.rows, **file.stats}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the stats of {file.path} cannot be JSON: {error}") from None
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={RANGE_COLUMN: range_key},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=stats,
    )


class Snapshot:
    """What one version of the table has. It never changes: load another to see what happened since."""

    def __init__(self, table: deltalake.DeltaTable) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.delta = table
        self.version = table.version()
        self._files = pa.table(table.get_add_actions(flatten=False))
        self._keys = pc.struct_field(self._files["partition"], RANGE_COLUMN)

    def live(self, ranges: Collection[str] | None = None) -> list[LiveFile]:
        """The files of these ranges, or of all, by range and path."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = self._files.append_column("key", self._keys)
        if ranges is not None:
            found = found.filter(pc.is_in(self._keys, pa.array(list(ranges), pa.string())))
        return sorted((_live(row) for row in found.to_pylist()), key=lambda file: (file.range, file.path))

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
) -> None:
    """Refuse what would put rows into the table `name` twice, or lose those of others.

    live: the files that the range has now.
    every_batch: the table has every batch of a range, so files of the same range must name the same batches.
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
    there, ours = batches_of(live), batches_of(landing)
    if every_batch and there and ours and there != ours:
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


def _live(row: Mapping[str, Any]) -> LiveFile:
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
    )
