"""Ranges of `entries` become rows of a typed table, and what cannot be decoded becomes dead letters.

Tasks read the entries that have landed, not the buffer: a range can be decoded again when its batches are long gone.
They write files that nobody refers to; then the driver commits each range, first its dead letters, then its rows, in an
order that `lake/dead_letters.py` explains: an entry is never in neither. So anything may die at any point, and the
range be decoded again: after it the typed table and the dead letters have exactly what this decoder made of the range.

Of several decodings of the same range at a time, perhaps of several versions, the last to keep its dead letters wins,
and the others fail. So does one that read entries which have landed anew since: what it knows no longer holds.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING

from objbuf_dagster.decode import Decoder, JsonDecoder, rows_schema
from objbuf_dagster.errors import InvalidInput, JobFailed, ObjbufError
from objbuf_dagster.lake import ENTRIES, DataFile, LakeTable, LiveFile, TableSchema
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, QUARANTINE, RangeLetters
from objbuf_dagster.lake.decoded_from import file_name
from objbuf_dagster.lake.kept_for import Owner, TakesOver
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of
from objbuf_dagster.spark import tasks
from objbuf_dagster.spark.decoding_worker import NAMED, REMEDY, DecodeTask, Failing, OnError, Piece, Report, Share
from objbuf_dagster.spark.json_decoding import json_reports
from objbuf_dagster.spark.landing import Failed
from objbuf_dagster.spark.packing import pack_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 16 << 20
"""What a task gets, more or less, in bytes of the files of `entries`."""

_PIECE_BYTES = 4 << 20
_WORTH_A_TASK = 1 << 20


class DecodingFailed(ObjbufError):
    """Entries of a range cannot be decoded, and `on_error` is `fail`: mend the decoder, or keep them: give up.

    count: of the entries. first: the first of them.
    """

    def __init__(self, key: str, decoder: str, count: int, first: Sequence[Failing]) -> None:
        named = "; ".join(map(str, first)) + (f"; and {count - len(first)} more" if count > len(first) else "")
        super().__init__(
            f"range {key}: {decoder} cannot decode {count} entries: {named}. Nothing was committed: mend the decoder, "
            "or set on_error to dead_letter, which keeps them aside"
        )
        self.key = key
        self.count = count
        self.first = tuple(first)


@dataclass(frozen=True, slots=True)
class DecodedRange:
    """A range whose rows and dead letters are in their tables; or, of a dry run, could be.

    rows: of the typed table.
    entries: taken by the decoder, also those that failed. others: that are not the decoder's.
    dead_letters: entries that failed and are kept. skipped: that failed and were dropped. Either is 0.
    bytes_read: of the files of `entries`. bytes_written, files: of rows and dead letters together.
    seconds: from the start of the job that it was part of to its last commit.
    version: of the typed table, that has it; None for a dry run.
    """

    range: SequenceRange
    rows: int
    entries: int
    others: int
    dead_letters: int
    skipped: int
    bytes_read: int
    bytes_written: int
    files: int
    seconds: float
    version: int | None


def typed_schema(decoder: Decoder) -> TableSchema:
    """The columns of the table that this decoder's rows land in: where they came from, and its own."""
    return TableSchema.from_arrow(rows_schema(decoder))


def land_decoded(
    spark: SparkSession,
    entries: LakeTable,
    planned: Sequence[RangeObject | SequenceRange],
    decoder: Decoder,
    table: LakeTable,
    dead_letters: LakeTable,
    *,
    on_error: OnError = "dead_letter",
    run_id: str | None = None,
    dry_run: bool = False,
    new_letters: bool = True,
    takes_over: TakesOver = "older",
) -> Iterator[DecodedRange | Failed]:
    """Put exactly what the decoder makes of these ranges into `table` and `dead_letters`, in place of what is there.

    entries: the table that they have landed in; a range that is not there fails.
    planned: the ranges, whose objects may be gone: their epoch is told as 0 then.
    table: has the columns of `typed_schema(decoder)`; dead_letters: those of DEAD_LETTERS. Other decoders' letters of
        the same ranges are left alone. Two assets that use decoders of the same name for tables of their own need a
        table of dead letters each: a range with letters that were kept for another table fails with InvalidInput.
    on_error: `dead_letter` keeps an entry that fails. `fail` fails its range with DecodingFailed, nothing is committed.
        `skip` drops and counts it. With either of these a range that succeeds has no dead letters afterwards.
    dry_run: do everything but the commits, and delete the files again.
    new_letters: False fails a range with NewLetters, and commits nothing, if an entry that is no dead letter would
        become one.
    takes_over: which letters that were kept for another table become this one's all the same: those of an `older`
        version of the decoder, `nothing`, or `anything`, for a table that was renamed.

    All ranges are one Spark job; outcomes come in the order given, and one that fails does not stop the others. If
    Spark ends the job, each range gets one of its own. Safe to repeat, whatever happened.

    Raises InvalidInput at once, for tables that do not fit or a range given twice; later on ExecutorNotReady, and what
    keeps the log of `entries` from being read, which no range would escape.
    """
    if on_error not in ("dead_letter", "fail", "skip"):
        raise InvalidInput(f"on_error is dead_letter, fail or skip, and not {on_error!r}")
    for what, found, wanted in (
        ("entries", entries, ENTRIES),
        (f"rows of decoder {decoder.name}", table, typed_schema(decoder)),
        ("dead letters", dead_letters, DEAD_LETTERS),
    ):
        if found.schema != wanted:
            raise InvalidInput(f"{found.name} was opened with other columns than {what} have: give it their schema")
    ranges = {as_range(one): one.epoch if isinstance(one, RangeObject) else 0 for one in planned}
    if twice := [one.key for one, times in Counter(map(as_range, planned)).items() if times > 1]:
        raise InvalidInput(f"a range can be decoded once in a call, and these are there more often: {', '.join(twice)}")
    dead_letters.folder(SequenceRange(0, 0).key, decoder.name)  # refuses a name that can be no part
    if decoder.name == QUARANTINE:
        raise InvalidInput(f"{QUARANTINE!r} is the name of letters for whole batches: give the decoder another")
    job = uuid.uuid4().hex
    task = DecodeTask(entries, decoder, table, dead_letters, on_error, job)
    return _Decoding(spark, task, ranges, run_id, dry_run, new_letters, takes_over).outcomes()


def as_range(one: RangeObject | SequenceRange) -> SequenceRange:
    """The range itself, of what may also be its object."""
    return range_of(one) if isinstance(one, RangeObject) else one


@dataclass(frozen=True, slots=True)
class _Decoding:
    spark: SparkSession
    task: DecodeTask
    ranges: dict[SequenceRange, int]
    run_id: str | None
    dry_run: bool
    new_letters: bool
    takes_over: TakesOver

    def outcomes(self) -> Iterator[DecodedRange | Failed]:
        started = time.perf_counter()
        there: dict[SequenceRange, Sequence[LiveFile]] = {}
        files = self.task.entries.files([one.key for one in self.ranges]) if self.ranges else []
        for key, found in groupby(files, lambda file: file.range):
            there[SequenceRange.from_key(key)] = list(found)
        reports: Mapping[SequenceRange, Sequence[Report]] = {}
        alone: JobFailed | None = None
        try:
            reports = self._job(there)
        except JobFailed as error:
            alone = error
        for one in self.ranges:
            try:
                outcome: DecodedRange | Failed = self._outcome(one, there, reports, alone, started)
            except ObjbufError as error:
                outcome = Failed(one, error)
            self._forget(one)
            yield outcome

    def _outcome(
        self,
        one: SequenceRange,
        there: Mapping[SequenceRange, Sequence[LiveFile]],
        reports: Mapping[SequenceRange, Sequence[Report]],
        alone: JobFailed | None,
        started: float,
    ) -> DecodedRange | Failed:
        """`alone`: why the job of all ranges gave no reports, so that each is tried on its own."""
        if one not in there:
            return Failed(one, self._not_landed(one))
        if alone is not None:
            if len(there) == 1:
                return Failed(one, alone)
            started = time.perf_counter()
            reports = self._job({one: there[one]})
        return self._commit(one, there[one], reports.get(one, []), started)

    def _not_landed(self, one: SequenceRange) -> ObjbufError:
        return InvalidInput(
            f"range {one} is not in {self.task.entries.name}, and is decoded from there: land it first (materialise "
            "`entries` for it), then decode it again"
        )

    def _job(self, there: Mapping[SequenceRange, Sequence[LiveFile]]) -> dict[SequenceRange, list[Report]]:
        def cut(cores: int) -> list[Share]:
            parts = [(one, part) for one, files in there.items() for part in pieces(files, cores)]
            return [Share(number, one, part, _rows(there[one])) for number, (one, part) in enumerate(parts)]

        by_range: dict[SequenceRange, list[Report]] = {}
        for report in self._reports(cut):
            by_range.setdefault(report.range, []).append(report)
        return by_range

    def _reports(self, cut: Callable[[int], list[Share]]) -> list[Report]:
        if isinstance(self.task.decoder, JsonDecoder):
            return json_reports(self.spark, cut, self.task, self.task.decoder)
        return tasks.reports(self.spark, cut, self.task, REMEDY)

    def _commit(
        self, one: SequenceRange, landed: Sequence[LiveFile], reports: Sequence[Report], started: float
    ) -> DecodedRange:
        """The range as these reports say it is. Raises why not."""
        _check_reports(one, landed, reports)
        task, decoder = self.task, self.task.decoder
        failed = sum(report.failed for report in reports)
        if failed and task.on_error == "fail":
            first = sorted(chain.from_iterable(report.first for report in reports), key=_place)
            raise DecodingFailed(one.key, decoder.name, failed, first[:NAMED])
        rows = list(chain.from_iterable(report.rows for report in reports))
        letters = list(chain.from_iterable(report.letters for report in reports))
        version = self._commit_both(one, landed, rows, letters)
        kept = sum(file.rows for file in letters)
        return DecodedRange(
            one,
            rows=sum(file.rows for file in rows),
            entries=sum(report.taken for report in reports),
            others=sum(report.entries - report.taken for report in reports),
            dead_letters=kept,
            skipped=failed - kept,
            bytes_read=sum(report.bytes_read for report in reports),
            bytes_written=sum(file.size for file in (*rows, *letters)),
            files=len(rows) + len(letters),
            seconds=time.perf_counter() - started,
            version=version,
        )

    def _commit_both(
        self, one: SequenceRange, landed: Sequence[LiveFile], rows: Sequence[DataFile], letters: Sequence[DataFile]
    ) -> int | None:
        task, epoch = self.task, self.ranges[one]
        words: dict[str, str | int] = {"decoder": task.decoder.name, "decoder_version": task.decoder.version}
        both = RangeLetters(
            task.dead_letters,
            one.key,
            task.decoder.name,
            letters,
            epoch=epoch,
            run_id=self.run_id,
            metadata=words,
            may_grow=self.new_letters,
            still=lambda: self._check_landed(one, landed),
            owner=Owner(task.table, task.decoder.version, self.takes_over),
        )
        if self.dry_run:
            both.check()
            task.table.check(one.key, rows)
            return None

        def still() -> None:
            self._check_landed(one, landed)
            both.check_kept()

        both.keep()
        if not rows:  # a range without rows says, too, what it was decoded from
            rows = [task.table.put_empty(f"{task.table.folder(one.key)}/{file_name(task.job, _rows(landed))}")]
        version = task.table.commit(one.key, rows, epoch=epoch, run_id=self.run_id, metadata=words, still=still).version
        both.settle()
        return version

    def _check_landed(self, one: SequenceRange, landed: Sequence[LiveFile]) -> None:
        """Raises if `entries` has other files of the range than the tasks have read."""
        if {file.path for file in self.task.entries.files([one.key])} != {file.path for file in landed}:
            raise JobFailed(f"range {one} has landed anew while it was decoded: decode it again")

    def _forget(self, one: SequenceRange) -> None:
        """Delete what a dry run wrote, also what its tasks could not report; what stays is garbage for `maintain`."""
        if not self.dry_run:
            return
        task = self.task
        for table, part in ((task.table, None), (task.dead_letters, task.decoder.name)):
            with contextlib.suppress(ObjbufError):
                folder = table.folder(one.key, part)
                table.store.delete([i.path for i in table.store.list(folder) if f"/{task.job}-" in i.path])


def pieces(files: Sequence[LiveFile], cores: int) -> list[tuple[Piece, ...]]:
    """What each task of a range gets. Files are cut where they are, their row groups go to whoever has their first
    byte; files without rows are nobody's."""
    cut = [
        Piece(file.path, file.size, start, min(start + _PIECE_BYTES, file.size))
        for file in files
        if file.rows != 0
        for start in range(0, file.size, _PIECE_BYTES)
    ]
    packed = pack_for([piece.stop - piece.start for piece in cut], cores, TASK_BYTES, _WORTH_A_TASK)
    return [_joined(cut[part.start : part.stop]) for part in packed]


def _joined(some: Sequence[Piece]) -> tuple[Piece, ...]:
    """Neighbours in the same file as one, so that it is opened once."""
    found = []
    for path, same in groupby(some, lambda piece: piece.path):
        together = list(same)
        found.append(Piece(path, together[0].size, together[0].start, together[-1].stop))
    return tuple(found)


def _rows(files: Sequence[LiveFile]) -> int | None:
    """Of all these files, if they all say."""
    told = [file.rows for file in files if file.rows is not None]
    return sum(told) if len(told) == len(files) else None


def _place(failing: Failing) -> tuple[int, int]:
    return failing.sequence, failing.entry_index


def _check_reports(one: SequenceRange, landed: Sequence[LiveFile], reports: Sequence[Report]) -> None:
    """Raises if a task failed, or if they are not all of the range: what must not land in parts is worth a look."""
    for report in reports:
        if report.error is not None:
            raise report.error
    told, read = _rows(landed), sum(report.entries for report in reports)
    if len({report.share for report in reports}) != len(reports) or told not in (None, read):
        raise JobFailed(f"range {one}: tasks read {read} entries, and {told} are there; {REMEDY}")
