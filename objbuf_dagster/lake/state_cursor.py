"""How far a state has come, and what it was made from and by.

The cursor is a file of the state table, without rows, whose metadata says it. Every commit takes the old one out and
puts the new one in, with the rows: a cursor never claims what is not in the table. As a file of the table it outlives
checkpoints and the log's clean-up, and no reader sees it as a row.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from objbuf_dagster.errors import CorruptData, ObjbufError, UnsupportedVersion, shown
from objbuf_dagster.lake.files import Snapshot, same_batches
from objbuf_dagster.lake.fold import Fold, Scope, state_schema
from objbuf_dagster.ranges import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 1
_KEY = b"objbuf.cursor"
_WHAT = "state cursor"

Why = Literal["expired", "gap", "fold", "replaced"]


def how_to_rebuild(table: str, *, by_cursor: bool) -> str:
    """In words. by_cursor: the cursor names the fold, so that the command knows it if it is one of this package."""
    command = f"`objbuf state rebuild {table}" + (
        "`, with --fold and --decoder where these are one's own" if by_cursor else " --fold NAME --decoder NAME`"
    )
    return f"Rebuild it from `entries`: materialise its asset with rebuild: true, or {command}"


class RebuildNeeded(ObjbufError):
    """A state cannot go on from where it is without guessing. Nothing was changed. Rebuild it: give up.

    why: `expired` or `gap`: sequences `first` to `last` cannot be had any more. `fold`: it was made by another fold, or
        another version or scope of it. `replaced`: it was made from other data.
    """

    def __init__(self, table: str, why: Why, detail: str, *, first: int | None = None, last: int | None = None) -> None:
        how = how_to_rebuild(table, by_cursor=why != "fold")
        super().__init__(f"the state at {table} cannot go on: {detail}. Nothing was changed. {how}")
        self.why = why
        self.first = first
        self.last = last


@dataclass(frozen=True, slots=True)
class StateCursor:
    """What a version of a state table has.

    last_range: the last one applied; next_sequence: the first sequence that is not in it.
    first_sequence: where it began. gaps: sequences between that are in no range, and were passed over by a rebuild.
    ranges, rows: applied in all; rows as the typed table has them, also those that did not matter.
    keys: that the state has.
    buffer: where the batches came from, as whoever applied them calls it, if he did.
    batches: the first and the last batch of `last_range`, by name, which no other buffer has.
    files: what `files_hash` gives for the files that the typed table had of the ranges applied; None if it lacked some.
    fold, fold_version, scope, buckets, schema: what it was made with; schema is a hash of the columns.
    """

    last_range: str
    next_sequence: int
    first_sequence: int
    ranges: int
    rows: int
    keys: int
    fold: str
    fold_version: int
    schema: str
    buckets: int
    scope: tuple[tuple[str, ...], ...] = ()
    buffer: str | None = None
    batches: tuple[str, str] | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    files: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: Any) -> StateCursor:
        """Raises UnsupportedVersion or CorruptData, whatever it is."""
        if not isinstance(document, dict):
            raise CorruptData(_WHAT, "it is not an object")
        if type(document.get("version")) is not int or document["version"] != _VERSION:
            raise UnsupportedVersion(_WHAT, document.get("version"), _VERSION)
        try:
            found = cls(
                last_range=SequenceRange.from_key(_text(document["last_range"])).key,
                next_sequence=_whole(document["next_sequence"]),
                first_sequence=_whole(document["first_sequence"]),
                ranges=_whole(document["ranges"]),
                rows=_whole(document["rows"]),
                keys=_whole(document["keys"]),
                fold=_text(document["fold"]),
                fold_version=_whole(document["fold_version"]),
                schema=_text(document["schema"]),
                buckets=_whole(document["buckets"]),
                scope=tuple(tuple(_text(part) for part in prefix) for prefix in document["scope"]),
                buffer=None if document["buffer"] is None else _text(document["buffer"]),
                batches=None if document["batches"] is None else _pair(document["batches"]),
                gaps=tuple((_whole(first), _whole(last)) for first, last in document["gaps"]),
                files=None if document["files"] is None else f"{int(_text(document['files']), 16):064x}",
            )
        except (KeyError, TypeError, ValueError, ObjbufError) as error:
            raise CorruptData(_WHAT, f"a field is missing or of the wrong kind: {shown(repr(error))}") from None
        if SequenceRange.from_key(found.last_range).end + 1 != found.next_sequence:
            raise CorruptData(_WHAT, f"range {found.last_range} is not right before sequence {found.next_sequence}")
        return found

    def to_file(self, schema: pa.Schema) -> bytes:
        """A Parquet file without rows that carries it."""
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(schema.with_metadata({_KEY: json.dumps(self.to_json()).encode()}).empty_table(), sink)
        return sink.getvalue()

    @classmethod
    def from_file(cls, data: bytes) -> StateCursor:
        """Raises UnsupportedVersion or CorruptData."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            said = (pq.read_schema(pa.BufferReader(data)).metadata or {})[_KEY]
            document = json.loads(said)
        except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
            raise CorruptData(_WHAT, f"it cannot be read: {shown(repr(error))}") from None
        return cls.from_json(document)

    def check_fold(self, table: str, fold: Fold, scope: Scope, buckets: int) -> None:
        """Raises RebuildNeeded if the state was made with others."""
        different = self.other_fold(fold)
        different += [f"its scope is {self.scope}, not {scope.prefixes}"] if self.scope != scope.prefixes else []
        different += [f"it has {self.buckets} buckets, not {buckets}"] if self.buckets != buckets else []
        if different:
            raise RebuildNeeded(table, "fold", ", ".join(different))

    def other_fold(self, fold: Fold) -> list[str]:
        """How the fold that made it is another one than this."""
        different = []
        if self.fold != fold.name:
            different.append(f"its fold is {shown(self.fold)}, not {fold.name}")
        elif self.fold_version != fold.version:
            different.append(f"its fold {fold.name} has version {self.fold_version}, not {fold.version}")
        if self.schema != schema_hash(state_schema(fold)):
            different.append(f"its columns are not those of fold {fold.name}")
        return different

    def check_buffer(self, table: str, buffer: str | None) -> None:
        """Raises RebuildNeeded if it was made from another buffer than this."""
        if buffer is not None and self.buffer is not None and buffer != self.buffer:
            raise RebuildNeeded(table, "replaced", f"it was made from the buffer {self.buffer}, and this is {buffer}")

    def check_batches(self, table: str, batches: tuple[str, str] | None) -> None:
        """Raises RebuildNeeded if its last range has these batches, and had others when it was applied."""
        if batches is not None and self.batches is not None and not same_batches(batches, self.batches):
            raise RebuildNeeded(
                table,
                "replaced",
                f"its last range {self.last_range} was of the batches {self.batches[0]} to {self.batches[1]}, and the "
                f"lake has {batches[0]} to {batches[1]}: it landed anew with others, the buffer was "
                "made anew, or the state is of another one",
            )

    def stale(self, table: str, typed_name: str, typed: Snapshot) -> tuple[str | None, int]:
        """How the typed table is other than what was applied, in words with what to do, and by how many rows.

        (None, 0) also if it lacks ranges, so that nobody can tell.
        """
        landed = {SequenceRange.from_key(key): found.rows for key, found in typed.by_range().items()}
        applied = {
            one: rows
            for one, rows in landed.items()
            if self.first_sequence <= one.start < self.next_sequence
            and not any(first <= one.start <= last for first, last in self.gaps)
        }
        passed = sum(last - first + 1 for first, last in self.gaps)
        if sum(map(len, applied)) != self.next_sequence - self.first_sequence - passed:
            return None, 0
        known = [rows for rows in applied.values() if rows is not None]
        changed = sum(known) - self.rows if len(known) == len(applied) else 0
        same = self.files in (None, files_hash(typed.paths([one.key for one in applied])))
        how = how_to_rebuild(table, by_cursor=True)
        if same and not changed:
            return None, 0
        if same and self.files is not None:
            return (
                f"the state was rebuilt by a decoder that makes {-changed:+d} rows of `entries`, compared with "
                f"{typed_name}: redrive first (`objbuf dead-letters redrive`), or decode those ranges again by their "
                f"asset. Then once more: {how}"
            ), changed
        return (
            f"ranges that were applied have other files in {typed_name} now, with {changed:+d} rows: they were decoded "
            f"anew, dead letters were redriven, or another program rewrote them. The state knows nothing of it. {how}"
        ), changed


def schema_hash(schema: pa.Schema) -> str:
    """The same for the same columns, whatever their metadata."""
    fields = [[each.name, str(each.type), each.nullable] for each in schema]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def files_hash(paths: Iterable[str], before: str = "0") -> str:
    """The same for the same paths in any order, also if some came before. A path is used once, so it is its file."""
    found = int(before, 16)
    for path in paths:
        found ^= int.from_bytes(hashlib.sha256(path.encode()).digest(), "big")
    return f"{found:064x}"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("not a whole number")
    return value


def _pair(value: Any) -> tuple[str, str]:
    first, last = value
    return _text(first), _text(last)
