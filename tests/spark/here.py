"""A session whose tasks run in this process: for tests of what the driver does with reports, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.lake import ENTRIES, LakeTable
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.session import _PREPARED
from objbuf_dagster.spark.shipping import archive_digest
from objbuf_dagster.store import MemoryStore
from tests.spark.decoding import Lake, Words, expected_letters, expected_words, lake_at, letters_in, words_in
from tests.spark.landing import Filled
from tests.spark.rows import Row

RANGE = SequenceRange(0, 0)
TEXTS = ("one two", "bad apple", "three", "")
OLDER, NEWER, MENDED = Words(version=1), Words(version=2, bad=("three",)), Words(version=3, bad=())
"""What is a letter of the first is rows of the second, and the other way round; the last takes all."""


class _Frame:
    def __init__(self, count: int) -> None:
        self._count = count
        self._tasks: Any = None

    def mapInArrow(self, tasks: Any, _: str) -> _Frame:  # noqa: N802  Spark's name
        self._tasks = tasks
        return self

    def collect(self) -> list[dict[str, Any]]:
        batches = [pa.record_batch([pa.array([number], pa.int64())], names=["id"]) for number in range(self._count)]
        return [row for batch in self._tasks(iter(batches)) for row in batch.to_pylist()]


class _Here:
    def __init__(self) -> None:
        self.conf = {_PREPARED: archive_digest(), "spark.master": "local[1]"}

    def range(self, _: int, end: int, *__: int) -> _Frame:
        return _Frame(end)


def here() -> SparkSession:
    return cast("SparkSession", _Here())


class Texts(Filled):
    """Entries of one batch that were never in a buffer."""

    __slots__ = ("texts",)

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(BufferPlace(MemoryStore()), [], [RANGE])  # type: ignore[list-item]
        object.__setattr__(self, "texts", tuple(texts))

    def rows(self, *_: int) -> list[Row]:
        return list(rows_of(self.texts))  # type: ignore[attr-defined]


def rows_of(texts: Sequence[str]) -> Iterator[Row]:
    for at, text in enumerate(texts):
        yield 0, at, 1000, "ingest/manifest", "ingest/0.batch", b"words", text.encode()


def lake_of(directory: Path, texts: Sequence[str]) -> Lake:
    """A lake whose `entries` has these texts for `Words`, as one range."""
    lake = lake_at(directory, Texts(texts), Words())
    land_texts(lake.entries, texts)
    return lake


def land_texts(entries: LakeTable, texts: Sequence[str]) -> None:
    """The range is these texts, in place of what it was."""
    schema = ENTRIES.to_arrow()
    writer = RowsWriter(entries.store, schema, lambda: entries.new_path(RANGE.key))
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows_of(texts), strict=True), schema, strict=True)
    ]
    writer.add(pa.RecordBatch.from_arrays(columns, schema=schema))
    entries.commit(RANGE.key, writer.finish(), epoch=1)


def decoded_by(decoder: Words, directory: Path) -> None:
    """A lake with TEXTS, decoded."""
    lake_of(directory, TEXTS).succeed(here(), decoder)


def lake_there(directory: Path) -> Lake:
    """What `decoded_by` has left there."""
    return lake_at(directory, Texts(TEXTS), Words())


def has_exactly(decoder: Words, lake: Lake) -> bool:
    """Whether the lake has what this decoder makes of its entries, each once, and nothing else."""
    rows = lake.filled.rows()
    return words_in(lake.table) == expected_words(decoder, rows) and letters_in(lake.dead_letters) == expected_letters(
        decoder, rows
    )
