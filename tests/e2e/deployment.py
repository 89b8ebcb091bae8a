"""One running deployment and its producers, and what must be true of them at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.fold_latest import ServiceLatest
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.ranges import SequenceRange
from tests.e2e.logs import ENVELOPE, text_of
from tests.e2e.producing import Entry, durable, producing, sent
from tests.e2e.running import UNFINISHED, Dagster

SETTINGS = {
    "OBJBUF_REGULATOR": "balanced",
    "OBJBUF_MAX_BATCHES": "10",
    "OBJBUF_MAX_WAIT": "3",
    "OBJBUF_SENSOR_SECONDS": "1",
    "OBJBUF_RETRY_SECONDS": "1",  # what a test kills shall be tried again while somebody is looking
}

CHECKS = ("contiguous_sequences", "no_duplicates", "rows_match_footers")

_FEW_BATCHES = 14
_PRODUCERS = 2


@dataclass(slots=True)
class Deployment:
    """Dagster, and the ledger of every producer that has written into its buffer."""

    dagster: Dagster
    place: Path
    ledgers: list[Path] = field(default_factory=list)

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Two producers at the same time. What they were told is durable is in their ledgers afterwards."""
        new = [self.place / f"producer-{len(self.ledgers) + one}" for one in range(_PRODUCERS)]
        self.ledgers.extend(new)
        with producing(self.dagster.buffer_at, *new):
            yield

    def produce_a_few_ranges(self) -> None:
        """Enough batches for two or three, on top of what is there."""
        enough = self.dagster.next_sequence + _FEW_BATCHES
        with self.producing():
            self.dagster.wait_until("there are enough batches", lambda: self.dagster.next_sequence >= enough)

    def settle(self) -> None:
        """Wait until everything has landed and is acked, and nothing runs."""
        self.dagster.wait_until(
            "the frontier is at the end", lambda: self.dagster.frontier == self.dagster.next_sequence
        )
        self.dagster.wait_until("no run is left", lambda: not self.dagster.runs(*UNFINISHED))

    def rows(self) -> list[Entry]:
        """The table's, ordered by sequence and index; each is in the partition of its range.

        The typed table and the dead letters are compared with it: each entry is in one of them.
        """
        entries = self._table("entries", "_odb_metadata", "entry")
        logs = {place: text_of(entry) for place, (payload, entry) in entries.items() if payload == ENVELOPE}
        others = {place: entry.decode() for place, (payload, entry) in entries.items() if payload != ENVELOPE}
        assert {place: body for place, (body,) in self._table("otel_logs", "Body").items()} == logs
        letters = self._table("dead_letters", "entry") if others else {}
        assert {place: entry.decode() for place, (entry,) in letters.items()} == others
        return sorted((*place, text) for place, text in {**logs, **others}.items())

    def _table(self, name: str, *columns: str) -> dict[tuple[int, int], tuple[Any, ...]]:
        """These columns of a table, by sequence and index of the entry, which is there once."""
        names = ["_odb_sequence", "_odb_entry_index", "_odb_range", *columns]
        place = self.dagster.lake_at.below(name)
        read = LakeTable(place.url, None, options=place.options).delta().to_pyarrow_table(columns=names)
        rows = list(zip(*(read[column].to_pylist() for column in names), strict=True))
        for sequence, key in {(row[0], row[2]) for row in rows}:
            one = SequenceRange.from_key(key)
            assert one.start <= sequence <= one.end
        found = {(row[0], row[1]): row[3:] for row in rows}
        assert len(found) == len(rows), f"{name} has something twice"
        return found

    def assert_in_order(self) -> None:
        """Rows rise by sequence and index in every data file, as stored; and a producer's entries, as it sent them."""
        place = self.dagster.lake_at.below("entries")
        dataset = LakeTable(place.url, None, options=place.options).delta().to_pyarrow_dataset()
        for file in dataset.get_fragments():
            stored = file.to_table(columns=["_odb_sequence", "_odb_entry_index"])
            _assert_rising(zip(*(column.to_pylist() for column in stored.columns), strict=True), file.path)
        for ledger in self.ledgers:
            told = durable(ledger)
            _assert_rising(((sequence, index) for sequence, index, _ in told), ledger.name)
            order = {text: number for number, text in enumerate(sent(ledger))}
            _assert_rising((order[text] for _, _, text in told), ledger.name)

    def assert_settled(self) -> None:
        """Every range is materialised, none is missing between them, and the frontier is at the end."""
        dagster = self.dagster
        assert dagster.not_materialised() == dagster.not_materialised("otel_logs") == []
        assert dagster.materialised("otel_logs") == dagster.materialised()
        ranges = [SequenceRange.from_key(key) for key in dagster.materialised()]
        assert [one.start for one in ranges] == [0, *(one.end + 1 for one in ranges[:-1])]
        assert ranges[-1].end + 1 == dagster.frontier == dagster.next_sequence
        self._assert_the_state_has_it_all()

    def _assert_the_state_has_it_all(self) -> None:
        """`service_latest` is what `otel_logs` folds to, though a run may have died before it got there."""
        dagster = self.dagster
        place = dagster.lake_at.below("service_latest")
        state = StateTable(place.url, ServiceLatest(), options=place.options)

        def reached() -> int:
            cursor = state.cursor()
            return 0 if cursor is None else cursor.next_sequence

        dagster.wait_until("the state is where the frontier is", lambda: reached() == dagster.frontier)
        dagster.wait_until("no run is left", lambda: not dagster.runs(*UNFINISHED))
        logs = self._table("otel_logs", "ServiceName")
        records = Counter(service for (service,) in logs.values() if service)
        last = {service: place for place, (service,) in sorted(logs.items()) if service}
        found = {row["ServiceName"]: row for row in state.rows().to_pylist()}
        assert {service: row["Records"] for service, row in found.items()} == records
        assert {service: (row["_odb_sequence"], row["_odb_entry_index"]) for service, row in found.items()} == last

    def assert_exactly_once(self) -> None:
        """What producers were told is durable is what the table holds; Dagster and the buffer say so too."""
        told = sorted(entry for ledger in self.ledgers for entry in durable(ledger))
        assert told, "nothing was produced"
        assert self.rows() == told
        self.assert_in_order()
        self.assert_settled()
        dagster = self.dagster
        assert dagster.frontier == told[-1][0] + 1
        latest = {dagster.runs_of(key)[0] for key in dagster.materialised()}
        for check in CHECKS:
            ended = dagster.checked_by(check)
            assert {ended.get(run) for run in latest} == {"SUCCEEDED"}
            assert "FAILED" not in ended.values()


def _assert_rising(values: Iterable[Any], where: str) -> None:
    for before, after in pairwise(values):
        assert before < after, f"{where}: {after} comes after {before}"
