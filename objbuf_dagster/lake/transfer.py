"""A table as a directory of plain files, and back: one version, with its cursor, its columns and checksums.

    manifest.json   what it is: kind, version of the table, data files with rows and partitions
    cursor.json     how far it is: of a state its cursor, of a table of ranges their unbroken runs
    schema.json     its columns, as Delta writes them down
    data/...        Parquet files, as the table has them
    SHA256SUMS      of all others; `sha256sum -c SHA256SUMS` checks them as well

An export is written beside its place and renamed when it is whole, so a directory that is there is complete. It is of
one version: what lands meanwhile is not in it. An import checks everything before it writes anything, and makes the
table in one commit; after a crash it can be repeated.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound, StorageError, shown
from objbuf_dagster.lake.delta import SOFTWARE, DeltaPlace
from objbuf_dagster.lake.durable import LOG, sync_before_commit
from objbuf_dagster.lake.failures import LostRace, NoTable, translated
from objbuf_dagster.lake.files import DataFile, LiveFile, Snapshot, add_action, same_batches
from objbuf_dagster.lake.fold import BUCKET, Fold
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.lake.schema import RANGE_COLUMN
from objbuf_dagster.lake.state import CURSOR, read_cursor
from objbuf_dagster.lake.state_cursor import StateCursor
from objbuf_dagster.lake.transfer_check import (
    AT_ONCE,
    CURSOR_FILE,
    DATA,
    FORMAT,
    MANIFEST,
    SCHEMA,
    SUMS,
    WHAT,
    Part,
    check_same_ranges,
    cursor_of,
    disk_errors,
    document_in,
    is_entries,
    read_export,
    runs_of,
)
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import check_path

if TYPE_CHECKING:
    import deltalake
    from deltalake.transaction import AddAction

Kind = Literal["state", "ranges"]

_STAGED = re.compile(rf"{LOG}/.*(#\d+|\.tmp)$")


@dataclass(frozen=True, slots=True)
class Transferred:
    """What was written, or read.

    version: of the table. cursor: a state's as in `StateCursor.to_json`, or `{"runs": [[first, last], ...]}`.
    """

    kind: Kind
    version: int
    cursor: Mapping[str, Any]
    files: int
    rows: int
    bytes: int


def export_table(place: DeltaPlace, directory: str | os.PathLike[str]) -> Transferred:
    """Write the newest version of the table to this directory, which must be empty or not there.

    Raises InvalidInput for a directory with something in it, and for a table that is not one of ours; NotFound if there
    is no table, or a file of this version was deleted meanwhile (export again); StorageError for a disk that refuses.
    Nothing is there at that place after an error.
    """
    target = Path(os.path.abspath(directory))
    with disk_errors(target):
        _check_empty(target)
    try:
        delta = place.open_delta()
    except NoTable:
        raise NotFound(LOG, f"there is no table at {place.name}: check its URL") from None
    kind, parts, cursor = _content(place, delta)
    making = target.parent / f".{target.name}.{uuid.uuid4().hex}.part"
    try:
        with disk_errors(making):
            sums = _write(place, making, delta, kind, parts, cursor)
            _put(making / SUMS, "".join(f"{found}  {path}\n" for path, found in sorted(sums.items())).encode())
            _sync_all(making)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(making, target)  # over a directory that is empty still, or not at all
            _sync(target.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return _told(kind, delta.version(), cursor, parts)


def import_table(
    directory: str | os.PathLike[str],
    place: DeltaPlace,
    *,
    fold: Fold | None = None,
    batches: tuple[str, str] | None = None,
    landed: Snapshot | None = None,
    trust: bool = False,
) -> Transferred:
    """Make the table of an export, in a place where nothing is. Checks all of it before it writes anything.

    fold: that the state is to go on with; one of another fold, version or columns is refused.
    batches: of the range that the state's cursor ends with, as the lake that it comes to has them; one with others is
        of another buffer, and refused. Without them it is refused too, unless it is to be trusted.
    landed: the `entries` of the lake that a table of ranges comes to. One whose ranges are cut otherwise there, or are
        of other batches, is of another buffer, and refused; one with ranges that are not there too, unless it is to be
        trusted. Without it any but `entries` itself, to which all others are compared, must be trusted as well.

    Raises CorruptData for a directory that is not whole, InvalidInput for a place with something in it, or a foreign
    cursor. After a StorageError it can be repeated.
    """
    source = Path(directory)
    manifest, parts, schema, cursor, seen = read_export(source)
    kind: Kind = manifest["kind"]
    if kind == "state":
        _check_foreign(StateCursor.from_json(cursor), fold, batches, trust)
    elif landed is not None:
        check_same_ranges(source, parts, landed, trust)
    elif not trust and not is_entries(schema):
        raise InvalidInput(
            "nothing here tells whether the export is of the same buffer: there is no `entries` to compare its ranges "
            "with. Nothing was written: land it first or name it with --entries, or pass --trust-cursor (trust=True)"
        )
    ours = {part.path for part in parts}
    if _is_done(place, ours):
        return _told(kind, 0, cursor, parts)
    _check_vacant(place, ours)
    actions = [add_action(part.partition, DataFile(part.path, part.size, part.rows, part.stats)) for part in parts]
    for part in parts:
        _copy_in(source / DATA / part.path, place, part, seen)
    if place.root is not None:
        sync_before_commit(place.root)
    words = {"import": {"kind": kind, "version": manifest["version"]}, "cursor": dict(cursor)}
    _commit(place, schema, manifest["partitions"], actions, words, ours)
    return _told(kind, 0, cursor, parts)


def cursor_in(directory: str | os.PathLike[str]) -> StateCursor | None:
    """The cursor of an export of a state, as it stands there and unchecked; None for a table of ranges."""
    source = Path(directory)
    if not (source / SUMS).is_file():
        raise InvalidInput(f"{source} is no export: it has no {SUMS}")
    with disk_errors(source):
        document = document_in(source / CURSOR_FILE)
    return cursor_of(document) if "runs" not in document else None


def _told(kind: Kind, version: int, cursor: Mapping[str, Any], parts: Sequence[Part]) -> Transferred:
    data = [part for part in parts if part.partition.get(BUCKET) != CURSOR]
    rows, size = sum(part.rows for part in data), sum(part.size for part in data)
    return Transferred(kind, version, cursor, len(data), rows, size)


def _check_empty(target: Path) -> None:
    if target.exists() and (os.path.samefile(target, os.curdir) or os.path.ismount(target)):
        raise InvalidInput(
            f"{target} cannot be replaced, it is the current directory or a mounted disk: name a directory inside of it"
        )
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise InvalidInput(f"{target} is not empty: give an export a directory of its own, or delete that one first")


def _content(place: DeltaPlace, delta: deltalake.DeltaTable) -> tuple[Kind, list[Part], dict[str, Any]]:
    import pyarrow as pa

    with translated(place.name):
        partitions = list(delta.metadata().partition_columns)
        if partitions == [BUCKET]:
            rows = pa.table(delta.get_add_actions(flatten=False)).to_pylist()
            parts = [Part(row["path"], row["size_bytes"], row["num_records"] or 0, row["partition"]) for row in rows]
            cursors = [part.path for part in parts if part.partition[BUCKET] == CURSOR]
            if not parts:
                raise InvalidInput(f"nothing was applied to the state at {place.name} yet: there is nothing to export")
            return "state", parts, read_cursor(place, cursors).to_json()
        if partitions[:1] != [RANGE_COLUMN]:
            raise InvalidInput(f"the table at {place.name} is partitioned by {partitions}: it is not one of ours")
        snapshot = Snapshot(delta, partitions[1] if partitions[1:] else None)
        keys = [SequenceRange.from_key(key) for key in snapshot.by_range()]
        return "ranges", [_part(file, partitions) for file in snapshot.live()], {"runs": runs_of(keys)}


def _part(file: LiveFile, partitions: Sequence[str]) -> Part:
    if file.rows is None:
        raise InvalidInput(f"{file.path} does not say how many rows it has: another program wrote it")
    partition = dict(zip(partitions, [file.range, *([file.part] if file.part else [])], strict=True))
    stats = {
        bound: {name: value for name, value in found.items() if isinstance(value, int | str)}
        for bound, found in file.stats.items()
    }
    return Part(file.path, file.size, file.rows, partition, stats)


def _write(
    place: DeltaPlace,
    making: Path,
    delta: deltalake.DeltaTable,
    kind: Kind,
    parts: Sequence[Part],
    cursor: Mapping[str, Any],
) -> dict[str, str]:
    """All files but the checksums, which it returns, by path."""
    making.mkdir(parents=True)
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "table": place.name.rpartition("/")[2],
        "version": delta.version(),
        "partitions": list(delta.metadata().partition_columns),
        "software": SOFTWARE,
        "exported_at_ms": int(time.time() * 1000),
        "files": [
            {
                "path": part.path,
                "size": part.size,
                "rows": part.rows,
                "partition": dict(part.partition),
                "stats": dict(part.stats),
            }
            for part in parts
        ],
    }
    sums = {}
    for name, document in (
        (MANIFEST, manifest),
        (CURSOR_FILE, dict(cursor)),
        (SCHEMA, json.loads(delta.schema().to_json())),
    ):
        data = (json.dumps(document, indent=1) + "\n").encode()
        _put(making / name, data)
        sums[name] = hashlib.sha256(data).hexdigest()
    source = place.filesystem({part.path: part.size for part in parts})
    for part in parts:
        check_path(part.path)
        target = making / DATA / part.path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with parquet_errors(part.path), source.open_input_file(part.path) as opened, target.open("wb") as file:
            while data := opened.read(AT_ONCE):
                digest.update(data)
                size += len(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if size != part.size:
            raise CorruptData(f"file {part.path!r}", f"it has {size} bytes, its writer said {part.size}")
        sums[f"{DATA}/{part.path}"] = digest.hexdigest()
    return sums


def _check_foreign(cursor: StateCursor, fold: Fold | None, batches: tuple[str, str] | None, trust: bool) -> None:
    if fold is not None and (different := cursor.other_fold(fold)):
        raise InvalidInput(
            f"the export's cursor is foreign: {', '.join(different)}. Nothing was written: import it with the release "
            "that made it, or rebuild the state instead"
        )
    if batches is not None and cursor.batches is not None and not same_batches(batches, cursor.batches):
        raise InvalidInput(
            f"the export's cursor is of another buffer: its last range {cursor.last_range} is of {cursor.batches[0]} "
            f"to {cursor.batches[1]}, and here of {batches[0]} to {batches[1]}. Nothing was written: import it into "
            "the lake of its own buffer, or rebuild the state here"
        )
    if (batches is None or cursor.batches is None) and not trust:
        raise InvalidInput(
            f"nothing here tells whether the export is of the same buffer: range {cursor.last_range}, which its cursor "
            "ends with, is not in `entries`, or does not say its batches. Nothing was written: land that range first, "
            "or pass --trust-cursor (trust=True) if it is"
        )


def _check_vacant(place: DeltaPlace, ours: set[str]) -> None:
    """What an import that was killed has left of the same export is no obstacle."""
    others = (one.path for one in place.store.list() if one.path not in ours and not _STAGED.search(one.path))
    if (found := next(others, None)) is not None:
        raise InvalidInput(
            f"{place.name} is not empty, it has {shown(found)}: import into a place where nothing is, or move that "
            "away first. Nothing was written"
        )


def _copy_in(path: Path, place: DeltaPlace, part: Part, sums: Mapping[str, str]) -> None:
    with disk_errors(path), path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            if hashlib.sha256(view).hexdigest() != sums[f"{DATA}/{part.path}"]:
                raise CorruptData(WHAT, f"{part.path} was changed meanwhile; no table was made, import it again")
            place.store.put(part.path, [view])
        finally:
            view.release()


def _commit(
    place: DeltaPlace,
    schema: deltalake.Schema,
    partitions: Sequence[str],
    actions: Sequence[AddAction],
    words: Mapping[str, Any],
    ours: set[str],
) -> None:
    try:
        place.make(schema, partitions, actions, words)
    except (StorageError, LostRace) as error:
        done = _is_done(place, ours)
        if done is None:
            raise error from None
        if not done:
            raise InvalidInput(
                f"somebody else made a table at {place.name} in this moment: look at it, then decide"
            ) from None
    place.sync(0)


def _is_done(place: DeltaPlace, ours: set[str]) -> bool | None:
    """Whether the table there is just this import: one may have ended without anybody hearing of it. None for no table.

    Syncs it then, since its writer may have died before that.
    """
    import pyarrow as pa

    try:
        delta = place.open_delta()
    except NoTable:
        return None
    with translated(place.name):
        there = {row["path"] for row in pa.table(delta.get_add_actions(flatten=False)).to_pylist()}
    if delta.version() != 0 or there != ours:
        return False
    place.sync(0)
    return True


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_all(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        _sync(Path(folder))
