"""A buffer with batches of every kind, planned, and what is in a table: for tests that land."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.spark.reading import read
from objbuf_dagster.store import LocalStore, Store
from tests.spark.rows import Batch, Row, batch
from tests.support.buffers import append


@dataclass(frozen=True, slots=True)
class Filled:
    """A buffer, its batches, and the ranges over them."""

    place: BufferPlace
    batches: list[Batch]
    ranges: list[RangeObject]

    def rows(self, *numbers: int) -> list[Row]:
        """What the table must hold of these ranges, or of all."""
        wanted = self.ranges if not numbers else [self.ranges[number] for number in numbers]
        sequences = {one.descriptor.sequence for planned in wanted for one in planned.batches}
        return [row for one in self.batches if one.descriptor.sequence in sequences for row in one.rows()]


def fill(store: Store, batches: Sequence[Batch], *, per_range: int) -> Filled:
    """Store these batches under the sequences that they get, and plan ranges of so many."""
    stored: list[Batch] = []
    for number, one in enumerate(batches):
        location = f"ingest/{number:026d}.batch"
        store.put(location, one.data)
        sequence = append(store, location, one.descriptor.metadata)
        stored.append(batch(sequence, one.entries, one.descriptor.metadata, data=one.data))
        assert (sequence, location) == (number, stored[-1].descriptor.location)
    place = BufferPlace(store)
    planned = plan(place.manifests(), RangeLedger(store), Limits(max_batches=per_range, max_wait=0))
    return Filled(place, stored, planned)


def rows_in(spark: SparkSession, table: LakeTable, *, native: bool | None = None) -> list[Row]:
    """All rows of a table as Spark reads them, without the partition column."""
    found = read(spark, table, native=native).drop("_odb_range").toArrow()
    ordered = found.sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")])
    return list(zip(*(column.to_pylist() for column in ordered.columns), strict=True))


class Deadly(LocalStore):
    """A store that kills who reads one of its objects."""

    def __init__(self, root: Path, ending: str) -> None:
        super().__init__(root)
        self.ending = ending

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        if path.endswith(self.ending):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(path, max_bytes=max_bytes)
