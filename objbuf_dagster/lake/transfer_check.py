"""An export as it must be: every file there, with its checksum, and all of them about the same version."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import CorruptData, InvalidInput, StorageError, UnsupportedVersion, shown
from objbuf_dagster.lake.dead_letters import QUARANTINE
from objbuf_dagster.lake.files import DataFile, Snapshot, batches_of, within_batches
from objbuf_dagster.lake.fold import BUCKET
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.lake.schema import ENTRIES, RANGE_COLUMN
from objbuf_dagster.lake.state import CURSOR
from objbuf_dagster.lake.state_cursor import StateCursor, schema_hash
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import check_path

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

SUMS = "SHA256SUMS"
MANIFEST, CURSOR_FILE, SCHEMA, DATA = "manifest.json", "cursor.json", "schema.json", "data"
FORMAT = 1
AT_ONCE = 4 << 20
WHAT = "export"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_LARGEST_DOCUMENT = 1 << 28
_MOST_PARTITIONS = 2
_BOUNDS = ("minValues", "maxValues", "nullCount")
_NOT_TYPES = ("nullable", "metadata", "containsNull", "valueContainsNull")
_DATA_PATH = "_odb_data_path"


@dataclass(frozen=True, slots=True)
class Part:
    """A data file of an export."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str]
    stats: Mapping[str, Any] = field(default_factory=dict)


def broken(reason: str) -> CorruptData:
    return CorruptData(WHAT, f"{reason}. Nothing was written: copy it again from where it was exported, or export anew")


def read_export(source: Path) -> tuple[dict[str, Any], list[Part], deltalake.Schema, dict[str, Any], dict[str, str]]:
    """Everything of an export, checked to be whole: manifest, data files, schema, cursor and checksums."""
    from deltalake import Schema

    with disk_errors(source):
        sums = _check_sums(source)
        manifest, cursor = document_in(source / MANIFEST), document_in(source / CURSOR_FILE)
        if type(manifest.get("format")) is not int or manifest["format"] != FORMAT:
            raise UnsupportedVersion(WHAT, manifest.get("format"), FORMAT)
        parts = _check_manifest(manifest)
        text = _text(source / SCHEMA)
        try:
            schema = Schema.from_json(text)
        except Exception as error:  # noqa: BLE001  deltalake's own
            raise broken(f"its schema cannot be read: {shown(str(error))}") from None
        _check_metadata(_fields(schema))
        listed = {f"{DATA}/{part.path}" for part in parts} | {MANIFEST, CURSOR_FILE, SCHEMA}
        if listed != set(sums) or len(parts) != len({part.path for part in parts}):
            raise broken("its manifest names other files than its checksums do")
        _check_data(source, parts, schema, manifest["partitions"])
        if manifest["kind"] == "state":
            _check_cursor(source, parts, schema, cursor)
        else:
            _check_runs(parts, cursor)
    return manifest, parts, schema, cursor, sums


def _check_manifest(manifest: Mapping[str, Any]) -> list[Part]:
    try:
        parts = [_part_of(item) for item in manifest["files"]]
        kind, partitions, version = manifest["kind"], manifest["partitions"], manifest["version"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise broken(f"its manifest is not as it should be: {shown(repr(error))}") from None
    if (
        not isinstance(partitions, list)
        or len(partitions) > _MOST_PARTITIONS
        or type(version) is not int
        or version < 0
    ):
        known = False
    else:
        known = (kind, partitions) == ("state", [BUCKET]) or (kind, partitions[:1]) == ("ranges", [RANGE_COLUMN])
    if not known:
        raise broken("its manifest is of no table that we know, by kind, partitions and version")
    if any(list(part.partition) != partitions for part in parts):
        raise broken(f"a data file has other partitions than {shown(str(partitions))}")
    return parts


def _check_sums(source: Path) -> dict[str, str]:
    if not (source / SUMS).is_file():
        raise InvalidInput(f"{source} is no export: it has no {SUMS}")
    sums: dict[str, str] = {}
    for line in _text(source / SUMS).splitlines():
        found = _LINE.fullmatch(line)
        if found is None or found[2] in sums:
            raise broken(f"a line of {SUMS} is no checksum: {shown(line)}")
        sums[_inside(found[2])] = found[1]
    there = {
        path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    if there != {*sums, SUMS}:
        odd = sorted(there ^ {*sums, SUMS})
        raise broken(f"{shown(odd[0])} is {'not in ' + SUMS if odd[0] in there else 'missing'}")
    for path, wanted in sums.items():
        digest = hashlib.sha256()
        if (source / path).is_symlink():
            raise broken(f"{shown(path)} is a link")
        _check_regular(source / path)
        with (source / path).open("rb") as file:
            while data := file.read(AT_ONCE):
                digest.update(data)
        if digest.hexdigest() != wanted:
            raise broken(f"{shown(path)} is damaged: its checksum is another")
    return sums


def _check_regular(path: Path) -> None:
    """A pipe that nobody writes to would be waited for without end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise broken(f"{shown(path.name)} is no regular file")


def _part_of(item: Mapping[str, Any]) -> Part:
    path, size, rows, partition = _inside(item["path"]), item["size"], item["rows"], dict(item["partition"])
    stats = dict(item["stats"])
    folder = PurePosixPath(path).parent.as_posix()
    if folder != "/".join(f"{name}={value}" for name, value in partition.items()) or not path.endswith(".parquet"):
        raise ValueError("a data file is not in the folder of its partition")
    if not all(isinstance(value, str) for value in partition.values()):
        raise TypeError("values of partitions are text")
    if type(size) is not int or type(rows) is not int or rows < 0:
        raise TypeError("sizes and rows are whole numbers")
    if any(bound not in _BOUNDS or not isinstance(found, dict) for bound, found in stats.items()):
        raise ValueError(f"statistics are {', '.join(_BOUNDS)}, each by column")
    return Part(path, size, rows, partition, stats)


def _inside(path: str) -> str:
    try:
        return check_path(path)
    except InvalidInput as error:
        raise broken(f"it names a file that it cannot have: {shown(str(error))}") from None


def _check_data(source: Path, parts: Sequence[Part], schema: deltalake.Schema, partitions: Sequence[str]) -> None:
    import pyarrow.parquet as pq

    columns = _types(schema)
    if not set(partitions) <= set(columns):
        raise broken(f"its schema lacks a column of {shown(str(partitions))}")
    inside = {name: kind for name, kind in columns.items() if name not in partitions}
    for part in parts:
        path = source / DATA / part.path
        with parquet_errors(part.path), pq.ParquetFile(path) as file:
            if path.stat().st_size != part.size or file.metadata.num_rows != part.rows:
                raise broken(f"{part.path} has other rows or bytes than the manifest says")
            found = _arrow_types(file.schema_arrow)
            if list(found) != list(inside):
                raise broken(f"{part.path} has other columns than the schema says")
            if wrong := [name for name, kind in inside.items() if found[name] != kind]:
                raise broken(f"{part.path} has another type of {shown(wrong[0])} than the schema says")


def _fields(schema: deltalake.Schema) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema.to_json())["fields"]
    return fields


def _columns(schema: deltalake.Schema) -> list[tuple[Any, ...]]:
    return [(each["name"], each["type"], each["nullable"]) for each in _fields(schema)]


def _check_metadata(kind: Any) -> None:
    """Refuse what columns of ours do not have: what Delta reads from it changes what the table takes and gives."""
    if isinstance(kind, dict):
        if odd := sorted({*(kind.get("metadata") or {})} - {"comment"}):
            raise broken(f"a column of its schema has {shown(odd[0])}, which none of ours has")
        for value in kind.values():
            _check_metadata(value)
    elif isinstance(kind, list):
        for each in kind:
            _check_metadata(each)


def _types(schema: deltalake.Schema) -> dict[str, Any]:
    """The types by column, in Delta's words."""
    return {each["name"]: _bare(each["type"]) for each in _fields(schema)}


def _arrow_types(schema: pa.Schema) -> dict[str, Any]:
    from deltalake import Schema

    try:
        return _types(Schema.from_arrow(schema))
    except Exception as error:  # noqa: BLE001  deltalake's own
        raise broken(f"a data file has columns that no table has: {shown(str(error))}") from None


def _bare(kind: Any) -> Any:
    """Without what may be null, which a file need not say as the table does."""
    if isinstance(kind, dict):
        return {name: _bare(value) for name, value in kind.items() if name not in _NOT_TYPES}
    return [_bare(each) for each in kind] if isinstance(kind, list) else kind


def runs_of(keys: Iterable[SequenceRange]) -> list[list[int]]:
    """First and last sequence of each unbroken run."""
    runs: list[list[int]] = []
    for one in sorted(keys):
        if runs and runs[-1][1] + 1 == one.start:
            runs[-1][1] = one.end
        else:
            runs.append([one.start, one.end])
    return runs


def _check_runs(parts: Sequence[Part], cursor: Mapping[str, Any]) -> None:
    try:
        keys = sorted(_by_range(parts))
    except (InvalidInput, TypeError, AttributeError) as error:
        raise broken(f"a data file is of no range: {shown(str(error))}") from None
    if (twice := next((later for one, later in pairwise(keys) if later.start <= one.end), None)) is not None:
        raise broken(f"range {twice} shares sequences with the one before it")
    if cursor != {"runs": runs_of(keys)}:
        raise broken("its cursor is not the one that its data has")


def _by_range(parts: Sequence[Part]) -> dict[SequenceRange, list[Part]]:
    found: dict[SequenceRange, list[Part]] = {}
    for part in parts:
        found.setdefault(SequenceRange.from_key(part.partition[RANGE_COLUMN]), []).append(part)
    return found


def is_entries(schema: deltalake.Schema) -> bool:
    """Whether a table with these columns is `entries`, whatever its name."""
    return _types(schema) == _types(ENTRIES.to_delta())


def check_same_ranges(source: Path, parts: Sequence[Part], landed: Snapshot, trust: bool) -> None:
    """Raises InvalidInput for a table whose ranges are not those of this lake's `entries`."""
    here = {SequenceRange.from_key(key): found.rows for key, found in landed.by_range().items()}
    mine = _by_range(parts)
    what = "the export's cursor is of another buffer"
    remedy = "Nothing was written: import it into the lake of its own buffer, or decode the ranges here again"
    for one in sorted(mine.keys() - here.keys()):
        other = next((each for each in here if each.start <= one.end and one.start <= each.end), None)
        if other is not None:
            raise InvalidInput(f"{what}: range {one} is cut otherwise here, as {other}. {remedy}")
    for one in sorted(mine.keys() & here.keys()):
        # `entries` was made without the batches that letters of the quarantine are about
        made = [part for part in mine[one] if part.rows and QUARANTINE not in part.partition.values()]
        if made and here[one] == 0:
            raise InvalidInput(f"{what}: its range {one} has rows, and none here. {remedy}")
        theirs, ours = _batches(source, made), batches_of(landed.live([one.key]))
        if theirs is not None and ours is not None and not within_batches(theirs, ours):
            was, now = f"{theirs[0]} to {theirs[1]}", f"{ours[0]} to {ours[1]}"
            raise InvalidInput(f"{what}: its range {one} is of {was}, and here of {now}. {remedy}")
    if not trust and (missing := min(mine.keys() - here.keys(), default=None)) is not None:
        raise InvalidInput(
            f"nothing here tells whether the export is of the same buffer: its range {missing} is not in `entries`. "
            "Nothing was written: land that range first, or pass --trust-cursor (trust=True) if it is"
        )


def _batches(source: Path, parts: Sequence[Part]) -> tuple[str, str] | None:
    """The first and the last batch of these files, as far as their statistics say."""
    found: list[str] = []
    for part in parts:
        said = batches_of([DataFile(part.path, part.size, part.rows, part.stats)])
        found += said or _file_batches(source / DATA / part.path)
    return (min(found), max(found)) if found else None


def _file_batches(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    found: list[str] = []
    with disk_errors(path), parquet_errors(path.name), pq.ParquetFile(path) as file:
        for group in range(file.metadata.num_row_groups):
            columns = file.metadata.row_group(group)
            for column in (columns.column(at) for at in range(columns.num_columns)):
                stats = column.statistics if column.path_in_schema == _DATA_PATH else None
                if stats is not None and stats.has_min_max:
                    found += [stats.min, stats.max]
    return found


def _check_cursor(source: Path, parts: Sequence[Part], schema: deltalake.Schema, document: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import Schema

    cursor = cursor_of(document)
    if json.loads(json.dumps(cursor.to_json())) != document:
        raise broken("its cursor has fields that none has")
    files = [source / DATA / part.path for part in parts if part.partition[BUCKET] == CURSOR]
    if len(files) != 1 or StateCursor.from_file(files[0].read_bytes()) != cursor:
        raise broken("its cursor is not the one that its data has")
    columns = pq.read_schema(files[0]).remove_metadata()
    made = Schema.from_arrow(columns.append(pa.field(BUCKET, pa.string(), nullable=False)))
    if schema_hash(columns) != cursor.schema or _columns(schema) != _columns(made):
        raise broken("its columns are not those that its cursor says")
    if sum(part.rows for part in parts) != cursor.keys:
        raise broken(f"it has other rows than the {cursor.keys} keys that its cursor says")


def cursor_of(document: Any) -> StateCursor:
    try:
        return StateCursor.from_json(document)
    except CorruptData as error:
        raise broken(f"its cursor is not as it should be, {error.reason}") from None


def document_in(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise broken(f"{path.name} is no JSON: {shown(str(error))}") from None
    if not isinstance(found, dict):
        raise broken(f"{path.name} is no object")
    return found


def _text(path: Path) -> str:
    _check_regular(path)
    if path.stat().st_size > _LARGEST_DOCUMENT:
        raise broken(f"{path.name} is too large")
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise broken(f"{path.name} is no text") from None


@contextlib.contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot use {error.filename or where}, check the disk and this user's rights: {error.strerror or error}"
        ) from error
