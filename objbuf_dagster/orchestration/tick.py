"""One tick of the sensor: look at the manifest, ack what has materialised, start what is to run, plan what is new.

Everything it does may be cut off at any point and done again by the next tick, since it remembers nothing that it could
not find again: ranges are objects in the buffer, attempts are Dagster's runs, and what is materialised is in Dagster's
event log. The cursor holds the epoch, which proves that the buffer is still ours, and where to begin looking.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from objbuf_dagster.buffer import state_of
from objbuf_dagster.errors import BufferReplaced, Fenced, InvalidInput, NotFound, ObjbufError, SequenceGap
from objbuf_dagster.orchestration import observations
from objbuf_dagster.orchestration.acking import Survey, ack_surveyed, survey
from objbuf_dagster.orchestration.cursor import RESET, Cursor
from objbuf_dagster.orchestration.resources import BufferResource
from objbuf_dagster.orchestration.runs import Attempts, attempts
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.orchestration.telling import plural, ranges_ahead, sentence
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange, check_against, plan, range_of
from objbuf_dagster.ranges.quarantine import QuarantineLedger

_ADDED_AT_ONCE = 500
"""Ranges that a tick has time to read and to add as partitions; the next one goes on behind them."""

_LONGEST_PAUSE = 3600.0


@dataclass(slots=True)
class TickResult:
    """What a tick wants of Dagster, and the sentence that tells what it saw and did."""

    cursor: Cursor
    sentence: str = ""
    partitions: list[SequenceRange] = field(default_factory=list)
    runs: list[tuple[SequenceRange, int]] = field(default_factory=list)
    observations: list[dg.AssetObservation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tick:
    """All that a tick works with. `sizes`, kept between ticks, saves asking again for batches that wait."""

    instance: dg.DagsterInstance
    source: BufferSource
    sensor: str
    settings: SensorSettings
    buffer: BufferResource
    sizes: MutableMapping[int, int] = field(default_factory=dict)
    clock: Callable[[], float] = time.time

    def run(self, cursor_text: str | None) -> TickResult:
        """Raises, with nothing changed by us, if the buffer is not ours or the cursor is none of ours."""
        identity = self.buffer.identity()
        if not cursor_text:
            return self._take_over(identity)
        return self._go_on(Cursor.from_text(cursor_text, identity, self.sensor))

    def _take_over(self, identity: str) -> TickResult:
        """Only this, and the rest in the next tick: when something else is wrong, the epoch is not taken each time."""
        ledger = self.buffer.ledger()
        known = self._last_partition(ledger)
        tail = ledger.tail(known)
        manifest = self.buffer.place().manifests().read()  # after the tail: it knows all that was planned until then
        _check_chain(manifest, tail)
        consumer = self.buffer.consumer()  # last: whatever fails after it would let the next tick take it again
        self.sizes.clear()
        state = dataclasses.replace(state_of(manifest, self.clock()), epoch=consumer.epoch)
        numbers = observations.numbers_of(state, in_flight=0, waiting=0)
        cursor = Cursor(identity, consumer.epoch, state.next_sequence, known, None, numbers)
        return TickResult(
            cursor,
            f"took the buffer over with epoch {consumer.epoch}: the frontier is {state.frontier}, "
            f"{plural(state.queue_length, 'batch')} in the queue",
            observations=[observations.observation(self.source, identity, numbers, None)],
        )

    def _last_partition(self, ledger: RangeLedger) -> SequenceRange | None:
        """The last range that Dagster knows of, which must be one of this buffer's."""
        keys = self.instance.get_dynamic_partitions(str(self.source.partitions.name))
        if not keys:
            return None
        try:
            known = SequenceRange.from_key(keys[-1])
        except InvalidInput as error:
            raise InvalidInput(
                f"the last partition of {self.source.partitions.name!r} is none of the sensor's, delete it: {error}. "
                "The buffer was not taken over"
            ) from None
        starts = ledger.starts()
        there: SequenceRange | None = None
        if starts and starts[0] <= known.start:
            try:
                there = range_of(ledger.at(known.start))
            except NotFound:
                there = None
        elif starts:
            return known  # older than all that is retained
        if there != known:
            raise InvalidInput(
                f"Dagster has a partition {known}, and this buffer has no such range: the partitions "
                f"{self.source.partitions.name!r} are of another buffer, or this one was made anew. Give it another "
                "DAGSTER_HOME, or the source another name. The buffer was not taken over"
            )
        return known

    def _go_on(self, cursor: Cursor) -> TickResult:
        consumer = self.buffer.attach(cursor.epoch)
        ledger = self.buffer.ledger()
        move = self.source.ack == "auto"
        try:
            manifest, seen = ack_surveyed(consumer, lambda now: self._survey(now, ledger, cursor), move=move)
        except Fenced as error:
            if error.current < error.held:
                raise _went_back(self.buffer.place().manifests().read(), cursor) from error
            reset = RESET.format(sensor=self.sensor)
            raise Fenced(error.held, error.current, f"{reset}, and the other one is fenced then") from error
        outcome = TickResult(cursor)
        if known_all := self._learn(outcome, manifest, seen, ledger):
            tries = attempts(self.instance, self.sensor, self.source.gates, map(range_of, seen.open), self.clock())
            self._start_again(outcome, seen.open, tries)
            self._plan(outcome, manifest, seen, tries, ledger)
            self._restore(outcome)
        else:
            tries = {}
        self._tell(outcome, manifest, seen, tries, known_all)
        return outcome

    def _survey(self, manifest: Manifest, ledger: RangeLedger, cursor: Cursor) -> Survey:
        if manifest.next_sequence < cursor.next_sequence:
            raise _went_back(manifest, cursor)
        known_end = -1 if cursor.known is None else cursor.known.end
        if manifest.frontier == manifest.next_sequence and known_end + 1 == manifest.next_sequence:
            return Survey(
                manifest.frontier, manifest.next_sequence, (), frozenset()
            )  # nothing there: nothing to look for
        return survey(self.instance, self.source, ledger, manifest, cursor.oldest)

    def _learn(self, outcome: TickResult, manifest: Manifest, seen: Survey, ledger: RangeLedger) -> bool:
        """Add the ranges that Dagster does not know, in rising order. Returns whether it knows all of them then."""
        known = outcome.cursor.known
        after, end = (-1, -1) if known is None else (known.start, known.end)
        if end + 1 < seen.frontier:  # ranges that were acked before we knew of them: another deployment's, or home's
            unknown = ledger.list(end + 1, known, limit=_ADDED_AT_ONCE + 1)
        else:
            unknown = [one for one in seen.planned if one.start > after]
        complete = len(unknown) <= _ADDED_AT_ONCE
        for one in unknown[:_ADDED_AT_ONCE]:
            self._add(outcome, one, ledger)
        outcome.cursor = dataclasses.replace(
            outcome.cursor,
            next_sequence=manifest.next_sequence,
            oldest=range_of(seen.planned[0]) if seen.planned else known,  # which is acked, if nothing lies behind it
        )
        return complete

    def _add(self, outcome: TickResult, planned: RangeObject, ledger: RangeLedger) -> None:
        known = outcome.cursor.known
        if known is not None and planned.start > known.end + 1 and self.settings.on_gap == "skip":
            first = max(known.end + 1, ledger.retention().expired_before)  # what expired was planned, and landed
            if first < planned.start:
                outcome.observations.append(
                    observations.gap(self.source, outcome.cursor.buffer, first, planned.start - 1)
                )
        outcome.partitions.append(range_of(planned))
        outcome.cursor = dataclasses.replace(outcome.cursor, known=range_of(planned))

    def _start_again(
        self, outcome: TickResult, planned: Sequence[RangeObject], tries: dict[SequenceRange, Attempts]
    ) -> None:
        """Ranges that are planned and do not run: never started, because a tick was cut off, or failed."""
        running = sum(one.active for one in tries.values())
        for one in map(range_of, planned):
            tried = tries[one]
            if running + len(outcome.runs) >= self.settings.max_in_flight:
                break
            pause = min(self.settings.retry_seconds * 2 ** (tried.count - 1), _LONGEST_PAUSE) if tried.count else 0.0
            due = self.clock() >= tried.last_ended + pause
            if not tried.active and tried.count < self.settings.max_attempts and due:
                outcome.runs.append((one, tried.count + 1))

    def _plan(
        self,
        outcome: TickResult,
        manifest: Manifest,
        seen: Survey,
        tries: dict[SequenceRange, Attempts],
        ledger: RangeLedger,
    ) -> None:
        """Cut off what is new, as much as may run. Ranges that wait for a person take no room, until they are many."""
        given_up = sum(self._is_given_up(tried) for tried in tries.values())
        room = self.settings.max_in_flight - (len(tries) - given_up)
        known = outcome.cursor.known
        is_new = manifest.next_sequence > (0 if known is None else known.end + 1)
        room = min(room, self.settings.max_ahead - ranges_ahead(manifest, seen))
        if not is_new or room <= 0 or given_up >= self.settings.max_in_flight:
            return
        try:
            added = plan(
                self.buffer.place().manifests(),
                ledger,
                self.settings.limits,
                manifest=manifest,
                max_ranges=room,
                hint=known,
                tail=_last(seen, known, ledger),
                sizes=self.sizes,
                on_gap=self.settings.on_gap,
                clock=self.clock,
            )
        except SequenceGap as error:
            remedy = "with on_gap: skip the sensor goes on without them, and notes it on the buffer's asset"
            raise SequenceGap(error.first, error.last, remedy) from error
        first = max(0 if known is None else known.end + 1, manifest.frontier)
        if added and added[0].start > first:
            return  # another planner was there since we looked: the next tick learns its ranges, then these, in order
        for one in added:
            self._add(outcome, one, ledger)
            outcome.runs.append((range_of(one), 1))

    def _restore(self, outcome: TickResult) -> None:
        """Partitions that somebody deleted, and that are to run: without them, Dagster would refuse all of the tick."""
        name = str(self.source.partitions.name)
        gone = [one for one, _ in outcome.runs if one not in outcome.partitions]
        gone = [one for one in gone if not self.instance.has_dynamic_partition(name, one.key)]
        outcome.partitions = [*gone, *outcome.partitions]

    def _is_given_up(self, tried: Attempts) -> bool:
        return not tried.active and tried.count >= self.settings.max_attempts

    def _tell(
        self,
        outcome: TickResult,
        manifest: Manifest,
        seen: Survey,
        tries: dict[SequenceRange, Attempts],
        known_all: bool,
    ) -> None:
        """The sentence, and an observation if a number changed."""
        now = self.clock()
        given_up = [one for one, tried in tries.items() if self._is_given_up(tried)]
        settled = {*given_up, *(one for one, _ in outcome.runs)}
        in_flight = sum(tried.active for tried in tries.values()) + len(outcome.runs)
        state = state_of(manifest, now)
        numbers = observations.numbers_of(state, in_flight, len(given_up))
        if _changed(numbers, outcome.cursor.observed):
            numbers |= self._quarantined()
            outcome.cursor = dataclasses.replace(outcome.cursor, observed=numbers)
            outcome.observations.append(
                observations.observation(self.source, outcome.cursor.buffer, numbers, outcome.cursor.oldest)
            )
        outcome.sentence = sentence(
            outcome.runs,
            outcome.partitions,
            manifest,
            seen,
            given_up=given_up,
            failing=[one for one, tried in tries.items() if tried.count and not tried.active and one not in settled],
            in_flight=in_flight,
            known_all=known_all,
            max_ahead=self.settings.max_ahead,
        )

    def _quarantined(self) -> dict[str, int]:
        """How many batches ranges land without, of a buffer that ever had one quarantined.

        It is one GET, so only where there is something to tell anyway.
        """
        try:
            found = QuarantineLedger(self.buffer.store(), self.buffer.data_prefix).read()
        except ObjbufError:
            return {}  # landings fail for it and say why; a number to plot is no reason to stop planning and acking
        return {"quarantined": len(found.active)} if found.batches else {}


def _check_chain(manifest: Manifest, tail: RangeObject | None) -> None:
    """The last range must be one of this manifest's. Raises BufferReplaced."""
    if tail is None:
        return
    if tail.end >= manifest.next_sequence:
        raise BufferReplaced(f"its next sequence is {manifest.next_sequence}, but range {range_of(tail)} is planned")
    check_against(manifest, tail)


def _went_back(manifest: Manifest, cursor: Cursor) -> BufferReplaced:
    """Sequences and epochs of a buffer never fall."""
    return BufferReplaced(
        f"its next sequence is {manifest.next_sequence} and its epoch {manifest.epoch}, but sequence "
        f"{cursor.next_sequence - 1} and epoch {cursor.epoch} were there before"
    )


def _last(seen: Survey, known: SequenceRange | None, ledger: RangeLedger) -> RangeObject | None:
    """The object of the last range that is known: at hand while it is not acked."""
    if seen.planned and range_of(seen.planned[-1]) == known:
        return seen.planned[-1]
    try:
        return None if known is None else ledger.at(known.start)
    except NotFound:
        return None


def _changed(numbers: dict[str, int | float], before: object) -> bool:
    """Lag grows all the time; it is worth an observation only together with something else."""
    if not isinstance(before, dict):
        return True
    return any(before.get(name) != value for name, value in numbers.items() if name != "lag_seconds")
