"""What a range lands without: quarantined batches, each with a dead letter that says so.

Rows and letters are two tables, so two commits, in the order that `lake/dead_letters.py` explains: a batch is always in
one of the two. Landings that know different things of the quarantine may run at once, and an old one may be slow: so
each asks right before each of its commits whether what it knows still holds, and fails if not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.buffer.manifest_store import entry_time_ms
from objbuf_dagster.errors import BufferReplaced, JobFailed, ObjbufError
from objbuf_dagster.lake import DataFile, LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, QUARANTINE, RangeLetters, letters_beside
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.lake.location import check_apart
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import range_of
from objbuf_dagster.ranges.quarantine import Quarantine, Quarantined, QuarantineLedger

_LETTER_VERSION = 1


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a landing knows of the quarantine of one range.

    known: all that is recorded of the range, also what was brought back.
    """

    buffer: BufferPlace
    planned: RangeObject
    known: tuple[Quarantined, ...] = ()

    @property
    def batches(self) -> tuple[Quarantined, ...]:
        """Those that the range lands without."""
        return tuple(one for one in self.known if one.active)

    @property
    def sequences(self) -> frozenset[int]:
        return frozenset(one.sequence for one in self.batches)

    def still(self) -> None:
        """Raises JobFailed if somebody has changed it since: one GET."""
        if _quarantine(self.buffer).of(self.planned) != self.known:
            raise JobFailed(
                f"range {range_of(self.planned)}: a batch of it was quarantined or brought back while it landed: land "
                "it again"
            )

    def commit(
        self,
        table: LakeTable,
        files: Sequence[DataFile],
        dead_letters: LakeTable | None,
        run_id: str | None,
        *,
        dry_run: bool,
    ) -> int | None:
        """The range is these files and these letters; returns the version of the table that has it.

        dead_letters: the table beside this one unless given; not looked at if the range never had a quarantined batch.
        dry_run: raise what it would be refused for, as far as that can be known, and commit nothing.
        """
        key = range_of(self.planned).key
        letters = self._letters(key, dead_letters or letters_beside(table), run_id) if self.known else None
        if dry_run:
            if letters is not None:
                letters.check()
                letters.table.store.delete([file.path for file in letters.new])
            table.check(key, files, batches=self._names)
            return None
        if letters is not None:
            letters.keep()
        without = ", ".join(str(one.sequence) for one in self.batches)
        version = table.commit(
            key,
            files,
            epoch=self.planned.epoch,
            run_id=run_id,
            metadata={"quarantined": without} if without else None,
            batches=self._names,
            still=self.still,
        ).version
        if letters is not None:
            letters.settle()
        return version

    @property
    def _names(self) -> tuple[str, ...]:
        """Of all batches of the range, also those that it lands without."""
        return tuple(batch.descriptor.location for batch in self.planned.batches)

    def _letters(self, key: str, place: LakeTable, run_id: str | None) -> RangeLetters:
        check_apart(place.store, place.name, self.buffer)
        return RangeLetters(
            place,
            key,
            QUARANTINE,
            self._written(place, key),
            epoch=self.planned.epoch,
            run_id=run_id,
            metadata={"decoder": QUARANTINE, "decoder_version": _LETTER_VERSION},
            still=self.still,
        )

    def _written(self, place: LakeTable, key: str) -> tuple[DataFile, ...]:
        import pyarrow as pa

        schema, batches = DEAD_LETTERS.to_arrow(), self.planned.batches
        rows = [
            {
                "_odb_sequence": one.sequence,
                "_odb_entry_index": 0,
                "_odb_ingestion_time_ms": entry_time_ms(batches[one.sequence - self.planned.start].descriptor),
                "_odb_manifest_path": self.buffer.manifest_path,
                "_odb_data_path": one.location,
                "entry": b"",
                "reason": one.reason,
                "decoder_version": _LETTER_VERSION,
            }
            for one in self.batches
        ]
        writer = RowsWriter(place.store, schema, lambda: place.new_path(key, QUARANTINE))
        writer.add(pa.RecordBatch.from_pylist(rows, schema))
        return writer.finish()


def read_quarantine(buffer: BufferPlace, planned: Sequence[RangeObject]) -> list[LeftOut | ObjbufError]:
    """What each of these ranges lands without, or why that cannot be known: one GET."""
    try:
        quarantine = _quarantine(buffer)
    except ObjbufError as error:
        return [error] * len(planned)
    found: list[LeftOut | ObjbufError] = []
    for one in planned:
        try:
            found.append(LeftOut(buffer, one, quarantine.of(one)))
        except BufferReplaced as error:
            found.append(error)
    return found


def _quarantine(buffer: BufferPlace) -> Quarantine:
    return QuarantineLedger(buffer.store, buffer.data_prefix).read()
