"""Landing with and without quarantined batches, here and not on Spark: what a driver and its tasks do."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.ranges.quarantine import QuarantineLedger
from objbuf_dagster.spark.landing import Failed, Landed, commit, shares
from objbuf_dagster.spark.leaving_out import LeftOut, read_quarantine
from objbuf_dagster.spark.worker import Report, Task
from objbuf_dagster.store import LocalStore
from tests.spark.decoding import letters_in
from tests.spark.landing import Filled, fill
from tests.spark.rows import Batch, Row, batch


def two_ranges(directory: Path) -> Filled:
    """A buffer with two ranges of three batches, of one record and more."""
    return fill(LocalStore(directory / "buffer"), _made(), per_range=3)


def two_there(directory: Path) -> Filled:
    """What `two_ranges` has left there."""
    store = LocalStore(directory / "buffer")
    return Filled(BufferPlace(store), _made(), RangeLedger(store).list())


def _made() -> list[Batch]:
    return [batch(n, [b"%d-%d" % (n, i) for i in range(n + 1)], [Metadata(0, n, b"m")]) for n in range(6)]


def quarantine(filled: Filled, *sequences: int, reason: str = "zeros") -> None:
    for sequence in sequences:
        location = filled.batches[sequence].descriptor.location
        QuarantineLedger(filled.place.store).add(sequence, location, reason)


def bring_back(filled: Filled, *sequences: int) -> None:
    for sequence in sequences:
        QuarantineLedger(filled.place.store).undo(sequence)


def spoil(filled: Filled, sequence: int) -> None:
    filled.place.store.put(filled.batches[sequence].descriptor.location, b"not a batch\x00\x09\x00\x00\x00\x01\x00")


def left_out(filled: Filled, number: int = 0) -> LeftOut:
    (found,) = read_quarantine(filled.place, [filled.ranges[number]])
    assert isinstance(found, LeftOut), found
    return found


def reports(filled: Filled, table: LakeTable, known: LeftOut) -> list[Report]:
    """What the tasks of a range do, here."""
    task = Task(filled.place.fetcher(), filled.place.manifest_path, table.store, uuid.uuid4().hex)
    return [task.do(share) for share in shares(known.planned, 2, known.sequences)]


def land(
    filled: Filled,
    table: LakeTable,
    letters: LakeTable | None = None,
    known: LeftOut | None = None,
    *,
    number: int = 0,
    dry_run: bool = False,
) -> Landed | Failed:
    """As `land_all` does, without Spark: what is known of the quarantine, then the tasks, then the commits."""
    known = known or left_out(filled, number)
    done = reports(filled, table, known)
    return commit(
        known.planned,
        done,
        table,
        0.0,
        None,
        verify=True,
        dry_run=dry_run,
        left_out=known,
        dead_letters=letters,
    )


def landed(*args: Any, **settings: Any) -> Landed:
    outcome = land(*args, **settings)
    assert isinstance(outcome, Landed), outcome
    return outcome


def failed(*args: Any, **settings: Any) -> ObjbufError:
    outcome = land(*args, **settings)
    assert isinstance(outcome, Failed), outcome
    return outcome.error


def rows_in(table: LakeTable) -> list[Row]:
    if not table.exists():
        return []
    found = table.delta().to_pyarrow_table().drop_columns("_odb_range")
    ordered = found.sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")])
    return list(zip(*(column.to_pylist() for column in ordered.columns), strict=True))


def rows_without(filled: Filled, number: int, *sequences: int) -> list[Row]:
    return [row for row in filled.rows(number) if row[0] not in sequences]


def told(letters: LakeTable) -> list[tuple[int, str]]:
    """Sequence and reason of each letter of the quarantine."""
    return [(sequence, reason) for sequence, _, decoder, _, reason, _ in letters_in(letters) if decoder == "quarantine"]
