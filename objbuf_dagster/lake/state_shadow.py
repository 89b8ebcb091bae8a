"""A state as it will be, while it is being folded: files, some of them in no commit yet, and changes in memory.

What is in memory: a block of rows of the range; what `keyed` made of some blocks, up to CHUNK_BYTES; the state of the
keys that were touched, up to WORKING_BYTES, then it is written out; and while it is, a block of the old state and a
row group of the new one. Neither the size of a range nor that of the state counts.

A key is in the bucket that its hash says. Writing out reads and writes the buckets that have touched keys, as a whole;
the others keep their files.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake.delta import DeltaPlace
from objbuf_dagster.lake.files import DataFile, RowsWriter
from objbuf_dagster.lake.fold import (
    BUCKET,
    ORDER,
    Fold,
    Scope,
    buckets_of,
    check_keys,
    checked,
    codes_of,
    fold_errors,
    state_schema,
)
from objbuf_dagster.lake.state_rows import blocks

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 8 << 20
"""Rows that matter, folded at a time: for each chunk the state of its keys is looked up once."""

WORKING_BYTES = 32 << 20
"""Touched state in memory."""

_GROUP_BYTES = 8 << 20
_CODE = "_odb_code"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What to go back to."""

    files: Mapping[str, tuple[DataFile, ...]]
    changed: frozenset[str]
    working: Any
    known: Any
    rows: int


@dataclass(slots=True)
class Shadow:
    """The state of some version, and what is folded into it. Nobody else sees it before a commit names its files.

    files: by bucket. changed: the buckets whose files are others than those of that version.
    rows: of the input, so far.
    """

    place: DeltaPlace
    fold: Fold
    scope: Scope
    buckets: int
    files: dict[str, tuple[DataFile, ...]]
    changed: set[str] = field(default_factory=set)
    rows: int = 0
    chunk_bytes: int = CHUNK_BYTES
    working_bytes: int = WORKING_BYTES
    _working: Any = None
    _known: Any = None
    _written: dict[str, DataFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._forget()

    @property
    def keys(self) -> int:
        """How many the state has, once all is written out."""
        return sum(file.rows for files in self.files.values() for file in files)

    def save(self) -> Savepoint:
        """Between ranges. What was written for states in between is deleted."""
        needless = self._written.keys() - {file.path for files in self.files.values() for file in files}
        if needless:
            with contextlib.suppress(ObjbufError):  # what stays is garbage for `maintain`
                self.place.store.delete(sorted(needless))
            self._written = {path: file for path, file in self._written.items() if path not in needless}
        return Savepoint(dict(self.files), frozenset(self.changed), self._working, self._known, self.rows)

    def restore(self, to: Savepoint) -> None:
        """As if nothing had been folded since."""
        self.files, self.changed = dict(to.files), set(to.changed)
        self._working, self._known, self.rows = to.working, to.known, to.rows

    def add(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Fold these rows, which are in order. Raises InvalidInput if the fold breaks its contract, and storage's."""
        import pyarrow as pa

        chunk: list[pa.RecordBatch] = []
        size = 0
        for block in rows:
            self.rows += len(block)
            keyed = self.scope.within(self._keyed(block), self.fold.key)
            if len(keyed):
                chunk.append(keyed)
                size += keyed.nbytes
            if size >= self.chunk_bytes:
                self._apply(pa.Table.from_batches(chunk))
                chunk, size = [], 0
        if chunk:
            self._apply(pa.Table.from_batches(chunk))

    def _keyed(self, block: pa.RecordBatch) -> pa.RecordBatch:
        with fold_errors(self.fold, "keyed", lambda: _ends(block)):
            keyed = self.fold.keyed(block)
            check_keys(self.fold, keyed)
            return keyed

    def _forget(self) -> None:
        import pyarrow as pa

        schema = state_schema(self.fold)
        self._working = schema.append(pa.field(_CODE, pa.binary())).empty_table()
        self._known = pa.array([], pa.binary())

    def _apply(self, rows: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        touched = codes_of(rows, self.fold.key).unique()
        self._look_up(touched.filter(pc.invert(pc.is_in(touched, self._known))))
        before = self._working.filter(pc.is_in(self._working[_CODE], touched))
        with fold_errors(self.fold, "apply", lambda: _ends(rows)):
            changes = self.fold.apply(rows, before.drop_columns([_CODE]))
        new, codes, gone = checked(self.fold, changes, touched)
        replaced = pa.concat_arrays([codes, gone])
        kept = self._working.filter(pc.invert(pc.is_in(self._working[_CODE], replaced)))
        coded = new.append_column(pa.field(_CODE, pa.binary()), codes)
        self._working = pa.concat_tables([kept, coded.cast(kept.schema)]).combine_chunks()
        if self._working.nbytes + self._known.nbytes > self.working_bytes:
            self.write_out()

    def _look_up(self, codes: pa.Array) -> None:
        """Take the state of these keys into memory, as far as they have one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(codes):
            return
        found = [self._working]
        for bucket in buckets_of(codes, self.buckets).unique().to_pylist():
            for file in self.files.get(bucket, ()):
                for block in blocks(self.place, file):
                    mine = codes_of(block, self.fold.key)
                    wanted = pc.is_in(mine, codes)
                    part = block.append_column(pa.field(_CODE, pa.binary()), mine).filter(wanted)
                    if len(part):
                        found.append(pa.Table.from_batches([part]).cast(self._working.schema))
        self._working = pa.concat_tables(found)
        self._known = pa.concat_arrays([self._known, codes])

    def write_out(self) -> None:
        """Put what is in memory into files."""
        import pyarrow.compute as pc

        if not len(self._known):
            return
        schema = state_schema(self.fold)
        home = buckets_of(self._working[_CODE].combine_chunks(), self.buckets)
        for bucket in buckets_of(self._known, self.buckets).unique().to_pylist():
            writer = RowsWriter(
                self.place.store, schema, functools.partial(new_path, bucket), group_bytes=_GROUP_BYTES, sequences=False
            )
            for file in self.files.get(bucket, ()):
                for block in blocks(self.place, file):
                    kept = block.filter(pc.invert(pc.is_in(codes_of(block, self.fold.key), self._known)))
                    writer.add(kept.cast(schema))
            for block in self._working.filter(pc.equal(home, bucket)).drop_columns([_CODE]).to_batches():
                writer.add(block.cast(schema))
            self.files[bucket] = writer.finish()
            self._written |= {file.path: file for file in self.files[bucket]}
            self.changed.add(bucket)
        self._forget()


def _ends(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Where the first and the last of these rows are, as far as they say."""
    places = rows.select([name for name in ORDER if name in rows.schema.names])
    return [*places.slice(0, 1).to_pylist(), *places.slice(max(0, len(rows) - 1)).to_pylist()]


def folder_of_bucket(bucket: str) -> str:
    return f"{BUCKET}={bucket}"


def new_path(bucket: str) -> str:
    """A path for a file of this bucket, never given before."""
    return f"{folder_of_bucket(bucket)}/part-{uuid.uuid4().hex}.parquet"


def files_by_bucket(files: Sequence[tuple[str, DataFile]]) -> dict[str, tuple[DataFile, ...]]:
    found: dict[str, tuple[DataFile, ...]] = {}
    for bucket, file in files:
        found[bucket] = (*found.get(bucket, ()), file)
    return found
