"""An export as it must be: every file there, with its checksum, and all of them about the same version."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import CorruptData, InvalidInput, StorageError, UnsupportedVersion, shown
from objbuf_dagster.lake.fold import BUCKET
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.lake.schema import RANGE_COLUMN
from objbuf_dagster.lake.state import CURSOR
from objbuf_dagster.lake.state_cursor import StateCursor, schema_hash
from objbuf_dagster.store import check_path

if TYPE_CHECKING:
    import deltalake

SUMS = "SHA256SUMS"
MANIFEST, CURSOR_FILE, SCHEMA, DATA = "manifest.json", "cursor.json", "schema.json", "data"
FORMAT = 1
AT_ONCE = 4 << 20
WHAT = "export"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_LARGEST_DOCUMENT = 1 << 28


@dataclass(frozen=True, slots=True)
class Part:
    """A data file of an export."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str]
    stats: Mapping[str, Any] = field(default_factory=dict)


def read_export(source: Path) -> tuple[dict[str, Any], list[Part], deltalake.Schema, dict[str, Any], dict[str, str]]:
    """Everything of an export, checked to be whole: manifest, data files, schema, cursor and checksums."""
    from deltalake import Schema

    with disk_errors(source):
        sums = _check_sums(source)
        manifest, cursor = document_in(source / MANIFEST), document_in(source / CURSOR_FILE)
        if type(manifest.get("format")) is not int or manifest["format"] != FORMAT:
            raise UnsupportedVersion(WHAT, manifest.get("format"), FORMAT)
        try:
            parts = [_part_of(item) for item in manifest["files"]]
            expected = {"state": [BUCKET], "ranges": [RANGE_COLUMN]}[manifest["kind"]]
            wrong = manifest["partitions"][:1] != expected or type(manifest["version"]) is not int
            schema = Schema.from_json((source / SCHEMA).read_text())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptData(WHAT, f"its manifest or schema is not as it should be: {shown(repr(error))}") from None
        except Exception as error:  # noqa: BLE001  deltalake's own
            raise CorruptData(WHAT, f"its schema cannot be read: {shown(str(error))}") from None
        listed = {f"{DATA}/{part.path}" for part in parts} | {MANIFEST, CURSOR_FILE, SCHEMA}
        if wrong or listed != set(sums) or len(parts) != len({part.path for part in parts}):
            raise CorruptData(WHAT, "its manifest names other files than its checksums do")
        _check_data(source, parts, [each.name for each in schema.fields], manifest)
        if manifest["kind"] == "state":
            _check_cursor(source, parts, StateCursor.from_json(cursor))
    return manifest, parts, schema, cursor, sums


def _check_sums(source: Path) -> dict[str, str]:
    if not (source / SUMS).is_file():
        raise InvalidInput(f"{source} is no export: it has no {SUMS}")
    sums: dict[str, str] = {}
    for line in _text(source / SUMS).splitlines():
        found = _LINE.fullmatch(line)
        if found is None or found[2] in sums:
            raise CorruptData(WHAT, f"a line of {SUMS} is no checksum: {shown(line)}")
        sums[check_path(found[2])] = found[1]
    there = {
        path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    if there != {*sums, SUMS}:
        odd = sorted(there ^ {*sums, SUMS})
        raise CorruptData(
            WHAT, f"{shown(odd[0])} is {'not in ' + SUMS if odd[0] in there else 'missing'}; copy it again"
        )
    for path, wanted in sums.items():
        digest = hashlib.sha256()
        if (source / path).is_symlink():
            raise CorruptData(WHAT, f"{shown(path)} is a link")
        with (source / path).open("rb") as file:
            while data := file.read(AT_ONCE):
                digest.update(data)
        if digest.hexdigest() != wanted:
            raise CorruptData(WHAT, f"{shown(path)} is damaged: its checksum is another; copy it again")
    return sums


def _part_of(item: Mapping[str, Any]) -> Part:
    path, size, rows, partition = check_path(item["path"]), item["size"], item["rows"], dict(item["partition"])
    folder = PurePosixPath(path).parent.as_posix()
    if folder != "/".join(f"{name}={value}" for name, value in partition.items()) or not path.endswith(".parquet"):
        raise ValueError("a data file is not in the folder of its partition")
    if type(size) is not int or type(rows) is not int or rows < 0:
        raise TypeError("sizes and rows are whole numbers")
    return Part(path, size, rows, partition, dict(item["stats"]))


def _check_data(source: Path, parts: Sequence[Part], columns: Sequence[str], manifest: Mapping[str, Any]) -> None:
    import pyarrow.parquet as pq

    inside = [name for name in columns if name not in manifest["partitions"]]
    for part in parts:
        path = source / DATA / part.path
        with parquet_errors(part.path), pq.ParquetFile(path) as file:
            if path.stat().st_size != part.size or file.metadata.num_rows != part.rows:
                raise CorruptData(WHAT, f"{part.path} has other rows or bytes than the manifest says")
            if file.schema_arrow.names != inside:
                raise CorruptData(WHAT, f"{part.path} has other columns than the schema says")


def _check_cursor(source: Path, parts: Sequence[Part], cursor: StateCursor) -> None:
    import pyarrow.parquet as pq

    files = [source / DATA / part.path for part in parts if part.partition[BUCKET] == CURSOR]
    if len(files) != 1 or StateCursor.from_file(files[0].read_bytes()) != cursor:
        raise CorruptData(WHAT, "its cursor is not the one that its data has")
    if schema_hash(pq.read_schema(files[0])) != cursor.schema:
        raise CorruptData(WHAT, "its columns are not those that its cursor says")
    if sum(part.rows for part in parts) != cursor.keys:
        raise CorruptData(WHAT, f"it has other rows than the {cursor.keys} keys that its cursor says")


def document_in(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise CorruptData(WHAT, f"{path.name} is no JSON: {shown(str(error))}") from None
    if not isinstance(found, dict):
        raise CorruptData(WHAT, f"{path.name} is no object")
    return found


def _text(path: Path) -> str:
    if path.stat().st_size > _LARGEST_DOCUMENT:
        raise CorruptData(WHAT, f"{path.name} is too large")
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise CorruptData(WHAT, f"{path.name} is no text") from None


@contextlib.contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot use {error.filename or where}, check the disk and this user's rights: {error.strerror or error}"
        ) from error
