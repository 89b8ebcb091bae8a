"""Entries that have landed, decoders that fail where they are told to, and what the two tables must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from objbuf_dagster.decode import Decoder, EntryDecoder, Undecodable
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.spark.decoding import DecodedRange, land_decoded, typed_schema
from objbuf_dagster.spark.decoding_worker import OnError
from objbuf_dagster.spark.landing import Failed, Landed, land_all
from objbuf_dagster.store import LocalStore
from tests.spark.landing import Filled, fill
from tests.spark.rows import Batch, Row, batch

Letter = tuple[int, int, str, int, str, bytes]
TypedRow = tuple[int, int, int, str, int]


class Words(EntryDecoder):
    """A row for each word of an entry whose metadata payload is its own name; entries with a word in `bad` fail."""

    schema = pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("length", pa.int32())])

    def __init__(self, name: str = "words", version: int = 1, bad: Sequence[str] = ("bad",)) -> None:
        self.name = name
        self.version = version
        self.bad = tuple(bad)

    def takes(self, payload: bytes | None) -> bool:
        return payload == self.name.encode()

    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        words = entry.decode().split()
        if found := [word for word in words if word in self.bad]:
            raise Undecodable(f"it says {found[0]}")
        return [{"word": word, "length": len(word)} for word in words]


@dataclass(frozen=True, slots=True)
class Lake:
    """The three tables, and the buffer that `entries` came from."""

    filled: Filled
    entries: LakeTable
    table: LakeTable
    dead_letters: LakeTable

    def decode(
        self,
        spark: SparkSession,
        decoder: Decoder,
        *numbers: int,
        on_error: OnError = "dead_letter",
        dry_run: bool = False,
    ) -> list[DecodedRange | Failed]:
        """These ranges, or all."""
        planned = [self.filled.ranges[number] for number in numbers] if numbers else self.filled.ranges
        return list(
            land_decoded(
                spark,
                self.entries,
                planned,
                decoder,
                self.table,
                self.dead_letters,
                on_error=on_error,
                dry_run=dry_run,
            )
        )

    def succeed(
        self, spark: SparkSession, decoder: Decoder, *numbers: int, on_error: OnError = "dead_letter"
    ) -> list[DecodedRange]:
        outcomes = self.decode(spark, decoder, *numbers, on_error=on_error)
        assert all(isinstance(one, DecodedRange) for one in outcomes), outcomes
        return [one for one in outcomes if isinstance(one, DecodedRange)]


def landed(
    spark: SparkSession,
    directory: Path,
    entries: Sequence[tuple[str, str]],
    *,
    per_batch: int = 3,
    url: str | None = None,
    verify: bool = False,
) -> Lake:
    """A lake whose `entries` has these (payload, text), so many to a batch, two batches to a range.

    url: of the lake, if that is to be elsewhere than the buffer.
    """
    made: list[Batch] = []
    for first in range(0, len(entries), per_batch):
        some = entries[first : first + per_batch]
        metadata = [Metadata(at, 1000 + at, payload.encode()) for at, (payload, _) in enumerate(some)]
        made.append(batch(len(made), [text.encode() for _, text in some], metadata))
    filled = fill(LocalStore(directory / "buffer"), made, per_range=2)
    lake = lake_at(directory, filled, Words(), url)
    outcomes = list(land_all(spark, filled.place, filled.ranges, lake.entries, verify=verify))
    assert all(isinstance(one, Landed) for one in outcomes), outcomes
    return lake


def lake_at(directory: Path, filled: Filled, decoder: Decoder, url: str | None = None) -> Lake:
    """Tables below this directory or URL, none of which need be there."""
    lake = url or str(directory / "lake")
    return Lake(
        filled,
        LakeTable(f"{lake}/entries"),
        LakeTable(f"{lake}/{decoder.name}", typed_schema(decoder)),
        LakeTable(f"{lake}/dead_letters", DEAD_LETTERS),
    )


def rows_in(table: LakeTable) -> list[dict[str, Any]]:
    """All rows of a typed table, as plain deltalake reads them, in order."""
    if not table.exists():
        return []
    found = table.delta().to_pyarrow_table().drop_columns("_odb_range")
    by = ("_odb_sequence", "_odb_entry_index", "_odb_record_index")
    rows: list[dict[str, Any]] = found.sort_by([(name, "ascending") for name in by]).to_pylist()
    return rows


def words_in(table: LakeTable) -> list[TypedRow]:
    names = ("_odb_sequence", "_odb_entry_index", "_odb_record_index", "word", "length")
    return [tuple(row[name] for name in names) for row in rows_in(table)]


def letters_in(table: LakeTable) -> list[Letter]:
    """All dead letters: sequence, index, decoder, its version, reason, bytes."""
    if not table.exists():
        return []
    names = ("_odb_sequence", "_odb_entry_index", "decoder", "decoder_version", "reason", "entry")
    return sorted(tuple(row[name] for name in names) for row in table.delta().to_pyarrow_table().to_pylist())


def mine(decoder: Words, rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row[5] == decoder.name.encode()]


def expected_words(decoder: Words, rows: Iterable[Row]) -> list[TypedRow]:
    """What the typed table must hold of these entries, by plain Python."""
    found: list[TypedRow] = []
    for sequence, index, *_, entry in mine(decoder, rows):
        words = entry.decode().split()
        if not set(words) & set(decoder.bad):
            found += [(sequence, index, record, word, len(word)) for record, word in enumerate(words)]
    return found


def expected_letters(decoder: Words, rows: Iterable[Row]) -> list[Letter]:
    """What the dead letters must hold of these entries, by plain Python."""
    found: list[Letter] = []
    for sequence, index, *_, entry in mine(decoder, rows):
        bad = [word for word in entry.decode().split() if word in decoder.bad]
        if bad:
            found.append((sequence, index, decoder.name, decoder.version, f"it says {bad[0]}", entry))
    return found


def nothing_is_lost(decoder: Words, lake: Lake) -> None:
    """Each entry that has words is rows, whole, or a letter, and no letter is there twice."""
    rows = Counter((sequence, index) for sequence, index, *_ in words_in(lake.table))
    letters = Counter((sequence, index) for sequence, index, *_ in letters_in(lake.dead_letters))
    assert set(letters.values()) <= {1}
    for sequence, index, *_, entry in mine(decoder, lake.filled.rows()):
        words = len(entry.split())
        assert rows[sequence, index] in (0, words)
        assert not words or rows[sequence, index] or letters[sequence, index], (sequence, index)
