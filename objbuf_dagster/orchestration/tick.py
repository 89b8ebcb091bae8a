"""One tick of the sensor: look at the manifest, ack what has materialised, start what is to run, plan what is new.

Everything it does may be cut off at any point and done again by the next tick, since it remembers nothing that it could
not find again: ranges are objects in the buffer, attempts are Dagster's runs, and what is materialised is in Dagster's
event log. The cursor holds the epoch, which proves that the buffer is still ours, and where to begin looking.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import dagster as dg

from objbuf_dagster.buffer import metrics, state_of
from objbuf_dagster.buffer.manifest_store import entry_time_ms
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import BufferReplaced, Fenced, ObjbufError, SequenceGap
from objbuf_dagster.orchestration import observations
from objbuf_dagster.orchestration.acking import Survey, ack_surveyed, survey
from objbuf_dagster.orchestration.catching_up import CatchUp, states_behind
from objbuf_dagster.orchestration.chain import check_chain, last_partition, still_there, went_back
from objbuf_dagster.orchestration.cursor import RESET, Cursor
from objbuf_dagster.orchestration.host import RunHost
from objbuf_dagster.orchestration.materialised import last_batch
from objbuf_dagster.orchestration.regulation import Steering, steer
from objbuf_dagster.orchestration.resources import BufferResource
from objbuf_dagster.orchestration.runs import Attempts, Runs, is_due, runs_of
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.orchestration.telling import plural, ranges_ahead, sentence, waiting_for
from objbuf_dagster.protocol import Manifest, RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.ranges.ledger import overlap
from objbuf_dagster.ranges.planner import waiting_bytes
from objbuf_dagster.ranges.quarantine import QuarantineLedger
from objbuf_dagster.ranges.regulator import Waiting
from objbuf_dagster.store import Blob, RememberingStore

_ADDED_AT_ONCE = 500
"""Ranges that a tick has time to read and to add as partitions; the next one goes on behind them."""

_ON_GAP = "with on_gap: skip the sensor goes on without them, and notes it on the buffer's asset"


@dataclass(slots=True)
class TickResult:
    """What a tick wants of Dagster, and the sentence that tells what it saw and did. `note` is told once, if at all.

    catch_up: a run for states that stayed behind, if one is to start. skipped: gaps that it went on behind, in words.
    """

    cursor: Cursor
    sentence: str = ""
    note: str = ""
    skipped: list[str] = field(default_factory=list)
    partitions: list[SequenceRange] = field(default_factory=list)
    runs: list[tuple[SequenceRange, int]] = field(default_factory=list)
    catch_up: CatchUp | None = None
    observations: list[dg.AssetObservation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the sensor's process keeps between ticks. Nothing depends on it: losing it costs a few requests.

    sizes: of batches that wait, by sequence; None for one that is not there. manifests: the last one, by its buffer.
    metrics: of the regulator, and of the consumer that each tick is.
    """

    sizes: dict[int, int | None] = field(default_factory=dict)
    manifests: dict[str, Blob] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)


@dataclass(frozen=True, slots=True)
class Tick:
    """All that a tick works with.

    host: where runs are, None if nothing is known of it.
    states: assets that hold a state of what lands, which a run of the landing job brings up to date when it ends.
    """

    instance: dg.DagsterInstance
    source: BufferSource
    sensor: str
    settings: SensorSettings
    buffer: BufferResource
    kept: Kept = field(default_factory=Kept)
    host: RunHost | None = None
    tick_seconds: float = 5.0
    clock: Callable[[], float] = time.time
    states: tuple[dg.AssetKey, ...] = ()

    def run(self, cursor_text: str | None) -> TickResult:
        """Raises, with nothing changed by us, if the buffer is not ours or the cursor is none of ours.

        Of a tick that raises, Dagster keeps neither cursor nor requests: as long as ticks fail nothing is started, and
        the gate stays as the last one left it that did not. What has changed since is told by the first that does not.
        """
        identity = self.buffer.identity()
        if not cursor_text:
            return self._take_over(identity)
        return self._go_on(Cursor.from_text(cursor_text, identity, self.sensor))

    def _take_over(self, identity: str) -> TickResult:
        """Only this, and the rest in the next tick: when something else is wrong, the epoch is not taken each time.

        Nor if this deployment holds it: an evaluation that nobody keeps, such as a preview, must fence nobody.
        """
        ledger = self.buffer.ledger()
        known, planned = last_partition(self.instance, self.source, ledger)
        tail = ledger.tail(known)
        manifest = self.buffer.place().manifests().read()  # after the tail: it knows all that was planned until then
        check_chain(manifest, tail)
        self.kept.sizes.clear()
        if self._holds(identity, manifest, ledger, tail):
            epoch, did = manifest.epoch, "goes on with"
        else:  # last: whatever fails after it would let the next tick take it again
            epoch, did = self.buffer.consumer().epoch, "took the buffer over with"
        state = dataclasses.replace(state_of(manifest, self.clock()), epoch=epoch)
        numbers = observations.numbers_of(state)
        batch = None if planned is None else last_batch(planned)
        skipped = state.frontier if tail is None else 0  # what left before anything was planned is nobody's gap
        cursor = Cursor(
            identity, epoch, state.next_sequence, known, observed=numbers, known_batch=batch, skipped=skipped
        )
        return TickResult(
            cursor,
            f"{did} epoch {epoch}: the frontier is {state.frontier}, "
            f"{plural(state.queue_length, 'batch')} in the queue",
            observations=[observations.observation(self.source, identity, numbers, None, known, batch)],
        )

    def _holds(self, identity: str, manifest: Manifest, ledger: RangeLedger, tail: RangeObject | None) -> bool:
        """Whether this deployment has the epoch of the manifest, and has it of this buffer and no older one."""
        last = observations.published(self.instance, self.source.key)
        ours = None if last is None or last.buffer != identity else observations.Held.of(last)
        if ours is None or ours.epoch != manifest.epoch:
            return False
        try:
            still_there(ledger, ours.known, ours.known_batch)
        except BufferReplaced:
            return False
        return ours.known is not None or tail is None

    def _go_on(self, cursor: Cursor) -> TickResult:
        store = RememberingStore(self.buffer.store(), self.buffer.manifest_path, cursor.buffer, self.kept.manifests)
        consumer = self.buffer.attach(cursor.epoch, store, self.kept.metrics)
        ledger = self.buffer.ledger()
        move = self.source.ack == "auto"
        try:
            manifest, seen = ack_surveyed(consumer, lambda now: self._survey(now, ledger, cursor), move=move)
        except Fenced as error:
            if error.current < error.held:
                raise went_back(self.buffer.place().manifests().read(), cursor) from error
            reset = RESET.format(sensor=self.sensor)
            remedy = f"{reset}, and the other one is fenced then"
            raise Fenced(error.held, error.current, remedy, in_doubt=error.in_doubt) from error
        outcome = TickResult(cursor)
        runs, tries, steering = Runs(), dict[SequenceRange, Attempts](), None
        if known_all := self._learn(outcome, manifest, seen, ledger):
            self._note_gap(outcome, manifest.frontier, ledger)
            waiting = self._waiting(manifest, outcome.cursor, ledger)
            runs = self._look(outcome, seen, waiting)
            tries = {one: runs.tries[one] for one in map(range_of, seen.open)}
            if tries or waiting.batches or outcome.cursor.regulation.gate.held:
                steering = self._steer(outcome, waiting, runs)
                outcome.note = steering.note
                memory = dataclasses.replace(outcome.cursor.regulation, gate=steering.gate)
                outcome.cursor = dataclasses.replace(outcome.cursor, regulation=memory)
                self._start_again(outcome, seen.open, tries, steering)
                self._plan(outcome, manifest, seen, tries, ledger, steering)
                self._restore(outcome)
            self._catch_up(outcome, manifest.frontier, tries, steering)
        self._tell(outcome, manifest, seen, runs, tries, steering, known_all)
        return outcome

    def _waiting(self, manifest: Manifest, cursor: Cursor, ledger: RangeLedger) -> Waiting:
        """What is in no range yet."""
        batches = _unplanned(manifest, cursor)
        first = manifest.next_sequence - batches
        oldest = manifest.entry(first) if batches else None
        time_ms = None if oldest is None else entry_time_ms(oldest)
        regulator, _ = self.settings.regulation(self.tick_seconds)
        size = 0.0 if not batches else None
        if batches and regulator.on:
            size = waiting_bytes(self.buffer.place().manifests(), ledger, manifest, first, self.kept.sizes)
        return Waiting(batches, 0.0 if time_ms is None else max(0.0, self.clock() - time_ms / 1000), size)

    def _look(self, outcome: TickResult, seen: Survey, waiting: Waiting) -> Runs:
        """What runs, and what was learned from ranges that landed since the last look. Nothing is asked for nothing."""
        regulator, _ = self.settings.regulation(self.tick_seconds)
        memory = outcome.cursor.regulation.with_planned(seen.open)
        open_now = dict.fromkeys(map(range_of, seen.open))
        landed = [flight.of for flight in memory.flights if flight.of not in open_now]
        if not open_now and not landed and not (regulator.on and waiting.batches):
            return Runs()
        now = self.clock()
        runs = runs_of(self.instance, self.source, self.sensor, [*open_now, *landed], now)
        memory = memory.learned(regulator, runs, landed, now)
        outcome.cursor = dataclasses.replace(outcome.cursor, regulation=memory)
        return runs

    def _steer(self, outcome: TickResult, waiting: Waiting, runs: Runs) -> Steering:
        """The figures for what may start. Changes nothing."""
        memory = outcome.cursor.regulation
        return steer(
            *self.settings.regulation(self.tick_seconds),
            memory,
            waiting,
            runs,
            [one for one, tried in runs.tries.items() if tried.active],
            now=self.clock(),
            memory_use=self.host.memory(self.instance) if self.host else [],
            disk=self.host.disk(self.instance) if self.host else None,
            run_memory=self.host.run_memory() if self.host else None,
        )

    def _survey(self, manifest: Manifest, ledger: RangeLedger, cursor: Cursor) -> Survey:
        if manifest.next_sequence < cursor.next_sequence:
            raise went_back(manifest, cursor)
        told = max(cursor.skipped, 0 if cursor.known is None else cursor.known.end + 1)
        if manifest.frontier == manifest.next_sequence == told:
            return Survey(manifest.frontier, told, (), frozenset())  # nothing there: nothing to look for
        ours = observations.Held(cursor.epoch, cursor.oldest, cursor.known, cursor.known_batch)
        return survey(self.instance, self.source, ledger, manifest, ours)

    def _learn(self, outcome: TickResult, manifest: Manifest, seen: Survey, ledger: RangeLedger) -> bool:
        """Add the ranges that Dagster does not know, in rising order. Returns whether it knows all of them then."""
        known = outcome.cursor.known
        after, end = (-1, -1) if known is None else (known.start, known.end)
        if max(end + 1, outcome.cursor.skipped) < seen.frontier:
            # ranges that were acked before we knew of them: another deployment's, or home's
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
        if known is not None and planned.start <= known.end:
            raise overlap(ledger.data_prefix, known, range_of(planned))
        if known is not None and self.settings.on_gap == "skip":
            self._note_gap(outcome, planned.start, ledger)
        outcome.partitions.append(range_of(planned))
        outcome.cursor = dataclasses.replace(outcome.cursor, known=range_of(planned), known_batch=last_batch(planned))

    def _note_gap(self, outcome: TickResult, before: int, ledger: RangeLedger) -> None:
        """Sequences before this one that left the manifest and are in no range: told once, or an error in each tick."""
        cursor = outcome.cursor
        first = max(cursor.skipped, 0 if cursor.known is None else cursor.known.end + 1)
        if first >= before:
            return
        if first < (expired := ledger.retention().expired_before):
            tail = ledger.tail(cursor.known)  # the last range never expires: behind it, nothing was planned
            planned = 0 if tail is None else tail.end + 1
            first = max(first, min(expired, planned))  # what expired before that was planned, and landed
        if first < before and self.settings.on_gap == "fail":
            raise SequenceGap(first, before - 1, _ON_GAP)
        if first < before:
            outcome.observations.append(observations.gap(self.source, cursor.buffer, first, before - 1))
            outcome.skipped.append(f"skipped sequences {first} to {before - 1}, which left the manifest unplanned")
        outcome.cursor = dataclasses.replace(cursor, skipped=before)

    def _start_again(
        self,
        outcome: TickResult,
        planned: Sequence[RangeObject],
        tries: dict[SequenceRange, Attempts],
        steering: Steering,
    ) -> None:
        """Ranges that are planned and do not run: never started, because a tick was cut off, or failed."""
        room = min(self.settings.max_in_flight - sum(one.active for one in tries.values()), steering.ranges)
        for one in map(range_of, planned):
            tried = tries[one]
            if len(outcome.runs) >= room:
                break
            due = is_due(tried.count, tried.last_ended, self.settings.retry_seconds, self.clock())
            if not tried.active and tried.count < self.settings.max_attempts and due:
                outcome.runs.append((one, tried.count + 1))

    def _plan(
        self,
        outcome: TickResult,
        manifest: Manifest,
        seen: Survey,
        tries: dict[SequenceRange, Attempts],
        ledger: RangeLedger,
        steering: Steering,
    ) -> None:
        """Cut off what is new, as much as may run. Ranges that wait for a person take no room, until they are many."""
        given_up = sum(self._is_given_up(tried) for tried in tries.values())
        room = self.settings.max_in_flight - (len(tries) - given_up)
        known = outcome.cursor.known
        is_new = manifest.next_sequence > (0 if known is None else known.end + 1)
        room = min(room, self.settings.max_ahead - ranges_ahead(manifest, seen))
        room = int(min(room, steering.ranges - len(outcome.runs)))
        if not is_new or room <= 0 or given_up >= self.settings.max_in_flight:
            return
        try:
            added = plan(
                self.buffer.place().manifests(),
                ledger,
                steering.decision.limits,
                manifest=manifest,
                max_ranges=room,
                hint=known,
                tail=still_there(
                    ledger, known, outcome.cursor.known_batch, [*seen.planned, *([seen.known] if seen.known else [])]
                ),
                sizes=self.kept.sizes,
                on_gap=self.settings.on_gap,
                clock=self.clock,
            )
        except SequenceGap as error:
            raise SequenceGap(error.first, error.last, _ON_GAP) from error
        first = max(0 if known is None else known.end + 1, manifest.frontier)
        if added and added[0].start > first:
            return  # another planner was there since we looked: the next tick learns its ranges, then these, in order
        for one in added:
            self._add(outcome, one, ledger)
            outcome.runs.append((range_of(one), 1))
        memory = outcome.cursor.regulation.with_planned(added)
        outcome.cursor = dataclasses.replace(outcome.cursor, regulation=memory)

    def _restore(self, outcome: TickResult) -> None:
        """Partitions that somebody deleted, and that are to run: without them, Dagster would refuse all of the tick."""
        name = str(self.source.partitions.name)
        gone = [one for one, _ in outcome.runs if one not in outcome.partitions]
        gone = [one for one in gone if not self.instance.has_dynamic_partition(name, one.key)]
        outcome.partitions = [*gone, *outcome.partitions]

    def _catch_up(
        self,
        outcome: TickResult,
        frontier: int,
        tries: dict[SequenceRange, Attempts],
        steering: Steering | None,
    ) -> None:
        """States that a run was killed before, or failed at, while nothing else would start one.

        Nothing is asked for once they are found where the frontier is: an idle tick stays what it is. A closed gate
        lets such a run through as it would a range.
        """
        cursor = outcome.cursor
        is_held = cursor.regulation.gate.held and (steering is None or steering.passes < 1)
        busy = outcome.runs or is_held or any(one.active for one in tries.values())
        if not self.states or busy or cursor.caught_up == frontier:
            return
        found = states_behind(self.instance, self.source, self.states, frontier, self.settings, self.clock())
        outcome.catch_up = found.start
        outcome.note = outcome.note or found.note
        if found.settled:
            outcome.cursor = dataclasses.replace(cursor, caught_up=frontier)

    def _is_given_up(self, tried: Attempts) -> bool:
        return not tried.active and tried.count >= self.settings.max_attempts

    def _tell(
        self,
        outcome: TickResult,
        manifest: Manifest,
        seen: Survey,
        runs: Runs,
        tries: dict[SequenceRange, Attempts],
        steering: Steering | None,
        known_all: bool,
    ) -> None:
        """The sentence, and an observation if a number changed."""
        now = self.clock()
        given_up = [one for one, tried in tries.items() if self._is_given_up(tried)]
        settled = {*given_up, *(one for one, _ in outcome.runs)}
        flying = {*(one for one, tried in tries.items() if tried.active), *(one for one, _ in outcome.runs)}
        in_flight = len(flying)
        is_full = max(in_flight, len(given_up)) >= self.settings.max_in_flight or (
            steering is not None and len(outcome.runs) >= steering.ranges
        )
        memory = outcome.cursor.regulation
        numbers = observations.numbers_of(
            state_of(manifest, now), in_flight, len(given_up), memory.bytes_of(flying), held=memory.gate.held
        )
        changed = _changed(numbers, outcome.cursor.observed)
        shown = steering
        if shown is None and (known_all or changed):  # an idle machine has a pressure, too, and asking for it is free
            waiting = self._waiting(manifest, outcome.cursor, self.buffer.ledger())
            shown = dataclasses.replace(self._steer(outcome, waiting, runs), gate=memory.gate)
        if shown is not None and (changed or shown.has_moved(outcome.cursor.observed)):
            conflicts = self.kept.metrics.conflict_rate("consumer")
            numbers |= shown.numbers() | self._quarantined()
            numbers |= {} if conflicts is None else {"conflict_rate": round(conflicts, 1)}
            outcome.cursor = dataclasses.replace(outcome.cursor, observed=numbers)
            outcome.observations.append(
                observations.observation(
                    self.source,
                    outcome.cursor.buffer,
                    numbers,
                    outcome.cursor.oldest,
                    outcome.cursor.known,
                    outcome.cursor.known_batch,
                )
            )
        outcome.sentence = sentence(
            outcome.runs,
            outcome.partitions,
            manifest,
            seen,
            skipped=outcome.skipped,
            given_up=given_up,
            failing=[one for one, tried in tries.items() if tried.count and not tried.active and one not in settled],
            in_flight=in_flight,
            known_all=known_all,
            max_ahead=self.settings.max_ahead,
            gates=[gate.to_user_string() for gate in self.source.gates],
            now=now,
            waiting=waiting_for(
                _unplanned(manifest, outcome.cursor) if known_all else 0,
                held=steering.held if steering else "",
                busy=steering.busy if steering and not outcome.runs else "",
                is_full=is_full,
            ),
        )
        if outcome.catch_up:
            outcome.sentence = f"{outcome.sentence.removesuffix('; nothing to do')}; {outcome.catch_up}"
        known = {**(shown.numbers() if shown else outcome.cursor.observed), **numbers}
        for gauge in metrics.REGULATOR:
            self.kept.metrics.set(gauge, known.get(gauge.partition(".")[2], math.nan))

    def _quarantined(self) -> dict[str, int]:
        """How many batches ranges land without, of a buffer that ever had one quarantined.

        It is one GET, so only where there is something to tell anyway.
        """
        try:
            found = QuarantineLedger(self.buffer.store(), self.buffer.data_prefix).read()
        except ObjbufError:
            return {}  # landings fail for it and say why; a number to plot is no reason to stop planning and acking
        return {"quarantined": len(found.active)} if found.batches else {}


def _unplanned(manifest: Manifest, cursor: Cursor) -> int:
    """Batches that are in no range that we know of."""
    return max(0, manifest.next_sequence - max(0 if cursor.known is None else cursor.known.end + 1, manifest.frontier))


def _changed(numbers: dict[str, int | float], before: object) -> bool:
    """Lag grows all the time; it is worth an observation only together with something else."""
    if not isinstance(before, dict):
        return True
    return any(before.get(name) != value for name, value in numbers.items() if name != "lag_seconds")
