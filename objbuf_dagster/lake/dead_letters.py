"""Entries that could not be decoded, kept as they came, with the reason.

A range of `dead_letters` has a part for each decoder, so decoders that take different entries of the same range do not
touch each other's. What a range of a typed table has and its dead letters belong together, but are two tables, so two
commits. `RangeLetters` puts them in an order in which an entry is always in one of the two:

1. `keep`: the new letters, and those of before that are not among them, all in files of new names.
2. The commit of the typed table, with `check_kept` as what must still hold.
3. `settle`: the new letters alone. What was a letter before and has become rows goes only now.

A crash after any of them loses nothing, and doubles no letter; decoding the range again does the rest. Until then an
entry may have rows and a letter, and *its rows count*: `letters_with_rows` tells such letters. Where there was no
letter before and there is none now, nothing is committed.

*Of several at a time* only the last to keep goes on: names are used once, so both later steps see that somebody kept
after them, and fail (run it again). Rows are therefore committed in the order of the keeps: who would commit behind the
rows of one who kept later has loaded the table after those, asks after that, and is refused. And who settles removes
nothing that anybody else's rows in the table need, whichever of them is killed where.

*Decoders of the same name* share a part. Whose letters are in it the names of the files say (`lake/kept_for.py`), and
those of another table than the one that is about to be written are refused.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import InvalidInput, JobFailed, ObjbufError
from objbuf_dagster.lake.files import DataFile, LiveFile, RowsWriter
from objbuf_dagster.lake.kept_for import Owner, by_mark, kept_for, letters_name
from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.lake.schema import ENTRIES, Column, TableSchema
from objbuf_dagster.lake.table import LakeTable, Metadata
from objbuf_dagster.ranges import SequenceRange

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Keys = npt.NDArray[np.void]

DEAD_LETTERS = TableSchema(
    (
        *ENTRIES.data,
        Column("reason", "string", nullable=False),
        Column("decoder_version", "int", nullable=False),
    ),
    part="decoder",
)
"""The table `dead_letters`: what `entries` says of the entry, why it failed, and the version of the decoder that said
so, whose name is the second partition column."""

DEAD_LETTERS_NAME = "dead_letters"
"""The table's folder in a lake, unless somebody says otherwise."""

QUARANTINE = "quarantine"
"""The decoder of letters that stand for a whole batch, which was left out: they have entry index 0 and no bytes."""

_KEY = ["_odb_sequence", "_odb_entry_index"]
_VERSION = "decoder_version"
_KEY_TYPE = [(name, "i8") for name in _KEY]
_KEY_ROWS = 1 << 16
_LETTER_ROWS = 256


def read_letters(
    table: LakeTable,
    ranges: Collection[str] | None = None,
    decoder: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[LiveFile, pa.RecordBatch]]:
    """The letters of these ranges, or of all, in bounded blocks, each with the file it is in, as the table is now.

    The file tells the range and, as its `part`, the decoder. Files of a range and a decoder come by their sequences.
    columns: those that are read; all unless given. Raises what keeps a file from being read.
    """
    for file in sorted(table.files(ranges, decoder), key=_order):
        for block in _blocks(table, file, _LETTER_ROWS, columns):
            yield file, block


def count_letters(
    table: LakeTable, ranges: Collection[str] | None = None, decoder: str | None = None
) -> dict[str, dict[SequenceRange, int]]:
    """How many letters there are of each decoder, by rising range: from the table's log, no file is read."""
    found: dict[str, dict[SequenceRange, int]] = {}
    for file in sorted(table.files(ranges, decoder), key=_order):
        if file.rows != 0:
            of_decoder = found.setdefault(file.part or "", {})
            one = SequenceRange.from_key(file.range)
            of_decoder[one] = of_decoder.get(one, 0) + (file.rows or 0)
    return found


def letter_keys(table: LakeTable, range_key: str, decoder: str) -> set[tuple[int, int]]:
    """Sequence and entry index of each letter of a range by a decoder."""
    return {(int(sequence), int(index)) for sequence, index in _keys(table, table.files([range_key], decoder))}


def letters_with_rows(table: LakeTable, rows: LakeTable, range_key: str, decoder: str) -> set[tuple[int, int]]:
    """Sequence and entry index of each letter whose entry has rows in the decoder's table, and is no letter any more.

    They are there between two commits of a decoding, and where one was killed until the range is decoded again. The
    keys of the range's rows are read, in bounded blocks.
    """
    import numpy as np

    letters = _keys(table, table.files([range_key], decoder))
    found: list[Keys] = []
    if len(letters):
        for file in rows.files([range_key]):
            for block in _blocks(rows, file, _KEY_ROWS, _KEY):
                here = np.isin(letters, _keys_of(block))
                found.append(letters[here])
                letters = letters[~here]
    return {(int(sequence), int(index)) for some in found for sequence, index in some}


def letters_beside(table: LakeTable) -> LakeTable:
    """The table `dead_letters` of the same lake. Raises InvalidInput for a table that is a whole bucket."""
    parent, slash, _ = table.url.rpartition("/")
    if parent.endswith("/") and not table.url.startswith("file:///"):
        raise InvalidInput(f"{table.name} has no place beside it for dead letters: say where they are")
    return LakeTable(f"{parent}{slash}{DEAD_LETTERS_NAME}", DEAD_LETTERS, **table.settings)


class NewLetters(ObjbufError):
    """Entries of a range would become dead letters that are none, so perhaps rows: decode them with what can: give up.

    count: of the entries. sequence, entry_index: of the first.
    """

    def __init__(self, key: str, decoder: str, count: int, first: tuple[int, int, str]) -> None:
        sequence, entry_index, reason = first
        super().__init__(
            f"range {key}: {decoder} would make dead letters of {count} entries that are none and may have rows, the "
            f"first sequence {sequence}, entry {entry_index}: {reason}. Nothing was committed: decode it with the "
            "decoder that the asset has, with its settings"
        )
        self.key = key
        self.count = count
        self.sequence = sequence
        self.entry_index = entry_index


class RangeLetters:
    """The dead letters of one range by one decoder, from those of before to exactly these.

    new: files of the letters that there are now, written and in no commit yet.
    may_grow: whether an entry that is no letter may become one. If not, `keep` raises NewLetters, and commits nothing.
    still: as `LakeTable.commit` takes it.
    owner: whom they are kept for: letters of another's are refused, with InvalidInput. None for letters that belong to
        no typed table, and to take them out, whosever they are.

    Each step may raise what `LakeTable.commit` raises, and JobFailed if somebody else does the same at the same time;
    decode the range again then.
    """

    def __init__(
        self,
        table: LakeTable,
        range_key: str,
        decoder: str,
        new: Sequence[DataFile],
        *,
        epoch: int,
        run_id: str | None = None,
        metadata: Metadata | None = None,
        may_grow: bool = True,
        still: Callable[[], None] | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.table = table
        self.range_key = range_key
        self.decoder = decoder
        self.new = list(new)
        self._words: dict[str, Any] = {"epoch": epoch, "run_id": run_id, "metadata": metadata}
        self._may_grow = may_grow
        self._still = still
        self._owner = owner
        self._kept: set[str] | None = None
        self._outdated = False

    def keep(self) -> None:
        """Before the rows are committed: after it, all letters are there, new and old, each once."""
        before = self._live()
        if not before and not self.new:
            self._kept = set()
            return
        self._check_owner(before)
        old, new = _keys(self.table, before), _keys(self.table, self.new)
        if not self._may_grow and len(more := _without(new, old)):
            raise NewLetters(self.range_key, self.decoder, len(more), self._first_of(more))
        self._outdated = bool(len(_without(old, new)))

        def none_more() -> None:
            live = self._live()
            if {file.path for file in live} == {file.path for file in before}:
                return
            self._check_owner(live)
            if len(_without(_without(_keys(self.table, live), old), new)):
                raise self._somebody_else()

        files = [*self.new, *(self._written_again(before, new) if self._outdated else ())]
        self._kept = {file.path for file in files}
        self._commit(files, none_more)

    def check_kept(self) -> None:
        """Raise JobFailed if the letters are not those that `keep` left: somebody else has kept or settled since."""
        if {file.path for file in self._live()} != self._kept:
            raise self._somebody_else()

    def settle(self) -> None:
        """After the rows are committed: only the new letters are left."""
        if not self._outdated:
            return
        self._commit(self._copies(), self.check_kept)
        self._outdated = False

    def _somebody_else(self) -> JobFailed:
        return JobFailed(
            f"range {self.range_key}: somebody else changed its dead letters of {self.decoder} at the same time, "
            "perhaps with another version: run it again"
        )

    def check(self) -> None:
        """Raise what `keep` would be refused for, as far as it can be known without a commit."""
        self._check_owner(self._live())
        self.table.check(self.range_key, self.new, self.decoder)

    def _check_owner(self, live: Sequence[LiveFile]) -> None:
        if self._owner is not None:
            self._owner.check(self.range_key, self.decoder, live, self._versions)

    def _versions(self, file: LiveFile) -> set[int]:
        """Of the decoder that kept these letters."""
        blocks = _blocks(self.table, file, _KEY_ROWS, [_VERSION])
        return {version for block in blocks for version in block.column(_VERSION).unique().to_pylist()}

    def _live(self) -> list[LiveFile]:
        return [file for file in self.table.files([self.range_key], self.decoder) if file.rows != 0]

    def _commit(self, files: Sequence[DataFile], still: Callable[[], None] | None) -> None:
        def both() -> None:
            for ask in (self._still, still):
                if ask is not None:
                    ask()

        self.table.commit(self.range_key, files, part=self.decoder, still=both, **self._words)

    def _first_of(self, keys: Keys) -> tuple[int, int, str]:
        """The first of these letters among the new ones: its sequence, entry index and reason."""
        first = min((int(sequence), int(index)) for sequence, index in keys)
        for file in self.new:
            for block in _blocks(self.table, file, _LETTER_ROWS, [*_KEY, "reason"]):
                for letter in block.to_pylist():
                    if (letter[_KEY[0]], letter[_KEY[1]]) == first:
                        return *first, letter["reason"]
        return *first, ""

    def _written_again(self, files: Sequence[LiveFile], known: Keys) -> tuple[DataFile, ...]:
        """The letters of these files that are not known, in files of their own, each of the letters of one table."""
        import numpy as np
        import pyarrow as pa

        written: list[DataFile] = []
        for mark, some in by_mark(files).items():
            new_path = functools.partial(self._new_path, mark)
            writer = RowsWriter(self.table.store, self.table.schema.to_arrow(), new_path)
            for file in some:
                for block in _blocks(self.table, file, _LETTER_ROWS):
                    writer.add(block.filter(pa.array(~np.isin(_keys_of(block), known))))
            written += writer.finish()
        return tuple(written)

    def _new_path(self, mark: str | None) -> str:
        return f"{self.table.folder(self.range_key, self.decoder)}/{letters_name(mark)}"

    def _copies(self) -> list[DataFile]:
        """The new letters under new names: a file that the table has, and that stays, cannot be committed again."""
        copies = []
        for file in self.new:
            path = self._new_path(kept_for(file))
            self.table.store.put(path, self.table.store.read(file.path))
            copies.append(dataclasses.replace(file, path=path))
        return copies


def _order(file: LiveFile) -> tuple[SequenceRange, str, int, str]:
    first = file.stats.get("minValues", {}).get(_KEY[0], -1)
    return SequenceRange.from_key(file.range), file.part or "", first, file.path


def _keys(table: LakeTable, files: Sequence[DataFile | LiveFile]) -> Keys:
    """Sequence and entry index of each letter, 16 bytes for each."""
    import numpy as np

    found: list[Keys] = [np.zeros(0, _KEY_TYPE)]
    for file in files:
        found += [_keys_of(block) for block in _blocks(table, file, _KEY_ROWS, _KEY)]
    return np.concatenate(found)


def _without(some: Keys, others: Keys) -> Keys:
    import numpy as np

    return some[~np.isin(some, others)]


def _keys_of(block: pa.RecordBatch) -> Keys:
    import numpy as np

    found = np.zeros(len(block), _KEY_TYPE)
    for name in _KEY:
        found[name] = block.column(name).to_numpy()
    return found


def _blocks(
    table: LakeTable, file: DataFile | LiveFile, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    source = table.filesystem({file.path: file.size})
    with (
        parquet_errors(file.path),
        source.open_input_file(file.path) as opened,
        pq.ParquetFile(opened, pre_buffer=True) as parquet,
    ):
        for group in range(parquet.metadata.num_row_groups):  # one by one, since pyarrow fetches all that it is asked
            for block in parquet.iter_batches(
                rows, row_groups=[group], columns=list(columns) if columns else None, use_threads=False
            ):
                if len(block):
                    yield block
