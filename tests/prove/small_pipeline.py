"""A whole pipeline in one process, small enough to run a thousand times: produce, take over, plan, land, ack, collect.

The parts are the real ones: producer, consumer, planner, what a landing's tasks run, the commit to a Delta table, the
ack, garbage collection. What Dagster would keep is kept here: the epoch, and which ranges have materialised. A step
that fails may be done again, as the next tick, run or job would: it finds out itself what is left to do. Before that
the frontier is moved, as a tick would: it may not pass what failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from objbuf_dagster.buffer import BufferPlace, Consumer, Durable, GarbageCollector, Producer
from objbuf_dagster.buffer.retention import DEFAULT_RETENTION_SECONDS, read_retention
from objbuf_dagster.errors import Fenced, ObjbufError, StorageError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.orchestration.acking import Survey, ack_surveyed
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, check_against, plan, range_of
from objbuf_dagster.spark.landing import Failed, commit, shares
from objbuf_dagster.spark.leaving_out import read_quarantine
from objbuf_dagster.spark.worker import Task
from objbuf_dagster.store import RetryingStore, RetryPolicy, Store
from tests.prove.proof import Entry
from tests.support.buffers import append, batch_name, manifest_of, put_batch
from tests.support.clocked import ClockedStore
from tests.support.faults import FaultStore, Script

NEVER = 3600.0
DAY = 24 * NEVER
_LIMITS = Limits(max_batches=2, max_wait=0)
_ATTEMPTS = 3
_CALLS = 3
_ENTRIES = 2

Step = tuple[str, Callable[[], None]]


class World:
    """A buffer with a clock of its own and a table, and their true state, whatever goes wrong on the way to them."""

    def __init__(self, table: LakeTable) -> None:
        self.now = 1_700_000_000.0
        self.buffer = ClockedStore(lambda: self.now)
        self._table = table
        self._frontier = self._next_sequence = 0
        self._acked: list[tuple[float, int]] = []
        """When the frontier was seen to move, and how far: what the collector notes of that may be wrong."""

    def clock(self) -> float:
        return self.now

    def rows(self) -> list[Entry]:
        """What is in `entries`."""
        if not self._table.exists():
            return []
        found = self._table.delta().to_pyarrow_table(columns=["_odb_sequence", "_odb_entry_index", "entry"])
        return [(row["_odb_sequence"], row["_odb_entry_index"], row["entry"].decode()) for row in found.to_pylist()]

    def wrongs(self) -> list[str]:
        """What must never be so, not even for a moment."""
        manifest = manifest_of(self.buffer)
        entries = list(manifest.entries())
        found = []
        if manifest.frontier < self._frontier or manifest.next_sequence < self._next_sequence:
            found.append("the frontier or the next sequence went back")
        if manifest.frontier != self._frontier:  # else it was looked at before
            reached = 0
            for landed in sorted(SequenceRange.from_key(key) for key in self._table.ranges()):
                if landed.start > reached:
                    break
                reached = landed.end + 1
            if reached < manifest.frontier:
                found.append(f"the frontier is {manifest.frontier}, and not all before it has landed")
            self._acked.append((self.now, manifest.frontier))
        self._frontier, self._next_sequence = manifest.frontier, manifest.next_sequence
        if len({entry.location for entry in entries}) != len(entries):
            found.append("a batch is in the manifest twice")
        there = {info.path for info in self.buffer.list("ingest")}
        due = max((reached for at, reached in self._acked if at <= self.now - DEFAULT_RETENTION_SECONDS), default=0)
        if (expired_before := read_retention(self.buffer, "ingest")[0].expired_before) > due:
            found.append(f"ranges before {expired_before} expired, and only those before {due} were due")
        ranges = [one for one in RangeLedger(self.buffer).list() if one.end >= expired_before]
        named = {entry.location for entry in entries} | {b.descriptor.location for one in ranges for b in one.batches}
        if named - there:
            found.append(f"a manifest entry or a retained range names {min(named - there)}, which is deleted")
        if any(later.start != earlier.end + 1 for earlier, later in pairwise(ranges)):
            found.append("the ranges have a hole, or share sequences")
        return found


@dataclass(slots=True)
class SmallPipeline:
    """One run of it in `world`, by way of `table`, through faults that `script` says. `heal` ends them.

    lateness: how many more attempts at steps end before a call that is overdue is done. With 0 that is when the one
        that made it has ended, so before anybody does something about its failure.
    also_late: does what is overdue elsewhere, at the same time.
    """

    world: World
    table: LakeTable
    script: Script
    policy: RetryPolicy
    lateness: int = 0
    also_late: Callable[[], None] = lambda: None
    told: list[Entry] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)
    doubtful: int = 0
    repeated: int = 0
    _settled: set[str] = field(default_factory=set)
    _epochs: list[int] = field(default_factory=list)
    _materialised: set[SequenceRange] = field(default_factory=set)
    _waited: set[str] = field(default_factory=set)
    _waiting: int = 0
    _taken_over: bool = False
    """By somebody else, and not taken back: only then may it be fenced, or while it takes over itself."""
    _taking_over: bool = False
    _stores: list[FaultStore] = field(default_factory=list)
    _buffer: Store = field(init=False)

    def __post_init__(self) -> None:
        self._buffer = self._through_faults(self.world.buffer)
        self.table.store = self._through_faults(self.table.store)

    def _through_faults(self, store: Store) -> Store:
        self._stores.append(FaultStore(store, self.script))
        return RetryingStore(self._stores[-1], self.policy)

    def heal(self) -> None:
        for store in self._stores:
            store.script = {}

    def _end_attempt(self) -> None:
        """What is overdue has waited for one more attempt, and is done if that is enough."""
        waits = any(store.overdue for store in self._stores)
        if waits and self._waiting < self.lateness:
            self._waiting += 1
        else:
            self.deliver()

    def deliver(self) -> None:
        """Whatever is overdue is done now."""
        for store in self._stores:
            store.deliver()
        self.also_late()

    def run(self, steps: Sequence[Step]) -> tuple[list[ObjbufError], list[str]]:
        """These, to the end: what fails is healed and done again. Gives the errors, and what may not have been."""
        errors: list[ObjbufError] = []
        wrongs: list[str] = []
        for name, step in steps:
            for _ in range(_ATTEMPTS):
                try:
                    step()
                except ObjbufError as error:
                    errors.append(error)
                    self._end_attempt()
                    wrongs += self.world.wrongs()
                    self.heal()
                    if isinstance(error, Fenced):
                        wrongs += self._take_back()
                    if self._epochs:
                        try:
                            self._ack()
                        except Fenced:
                            wrongs += self._unheard_of()
                    wrongs += self.world.wrongs()
                else:
                    self._end_attempt()
                    break
            else:
                wrongs.append(f"{name} fails for good: {errors[-1]}")
            wrongs += self.world.wrongs()
        self.heal()
        self.deliver()
        wrongs += self.world.wrongs()
        for _, step in self.settle():
            step()
        wrongs += self.world.wrongs()
        manifest = manifest_of(self.world.buffer)
        if manifest.frontier != manifest.next_sequence:
            wrongs.append(f"{manifest.entry_count} batches are left in the queue")
        return errors, wrongs

    def steps(self) -> list[Step]:
        """All of it, in order."""
        return [
            ("produce", lambda: self._produce("first", 3)),
            ("take over", lambda: self._take_over(1)),
            ("plan", self._plan),
            ("land the last range", lambda: self._land(only_last=True)),
            ("ack", self._ack),
            *self._round(),
            ("collect", lambda: self._collect("at once", 0.0)),
            ("produce", lambda: self._produce("second", 2)),
            ("plan", self._plan),
            ("take over", lambda: self._take_over(2)),
            ("be fenced", self._be_fenced),
            *self._round(),
            ("collect", lambda: self._collect("in a week", 8 * DAY)),
            ("produce", lambda: self._produce("third", 1)),
            *self._round(),
            ("collect", lambda: self._collect("in another", 8 * DAY)),
        ]

    def landing_steps(self) -> list[Step]:
        """Only what has to do with the table: a range lands, and lands again."""
        return [
            ("produce", lambda: self._produce("first", 2)),
            ("take over", lambda: self._take_over(1)),
            ("plan", self._plan),
            ("land", self._land),
            ("forget", self._materialised.clear),
            ("land", self._land),
            ("ack", self._ack),
        ]

    def settle(self) -> list[Step]:
        """What is left when all is well again."""
        return [("take over", lambda: self._take_over(1)), ("take back", self._take_back_if_fenced), *self._round()]

    def append_meanwhile(self) -> None:
        """Another producer is faster."""
        text = f"meanwhile {len(self.sent)}"
        location = put_batch(self.world.buffer, batch_name(int(self.world.now * 1000)), [text.encode()])
        self.sent.add(text)
        self.told.append((append(self.world.buffer, location), 0, text))

    def take_over_meanwhile(self) -> None:
        """Another deployment wants the buffer, and does nothing with it."""
        self._taken_over = True
        Consumer.open(self.world.buffer, gc_interval=None, clock=self.world.clock)

    def collect_meanwhile(self) -> None:
        """A person collects."""
        GarbageCollector(self.world.buffer, clock=self.world.clock).collect_once()

    def _take_back(self) -> list[str]:
        """As a person does who resets the sensor's cursor; the deployment still knows what materialised."""
        wrongs = self._unheard_of()
        self._epochs.append(Consumer.open(self._buffer, gc_interval=None, clock=self.world.clock).epoch)
        self._taken_over = False
        return wrongs

    def _unheard_of(self) -> list[str]:
        expected = self._taken_over or self._taking_over
        return [] if expected else ["its owner was fenced, and nobody took the buffer over"]

    def _take_back_if_fenced(self) -> None:
        """Who is taken over at the last call of all hears of it at the next: no step came after that one."""
        try:
            self._owner().read()
        except Fenced:
            if not self._taken_over:
                raise
            self._take_back()

    def _round(self) -> Sequence[Step]:
        return [("plan", self._plan), ("land", self._land), ("ack", self._ack)]

    def _produce(self, name: str, batches: int) -> None:
        """Batches of several calls. What surely is not durable is produced again when this is repeated."""
        failures: list[ObjbufError] = []
        producer = Producer(self._buffer, flush_interval=NEVER, compression="zstd", clock=self.world.clock)
        try:
            for batch in range(batches):
                failures += self._produce_batch(producer, f"{name} {batch}")
        finally:
            producer.close()
        if failures:
            raise failures[0]

    def _produce_batch(self, producer: Producer, name: str) -> list[ObjbufError]:
        calls = [[f"{name} {call} {number}" for number in range(_ENTRIES)] for call in range(_CALLS)]
        calls = [texts for texts in calls if texts[0] not in self._settled]
        self.repeated += sum(texts[0] in self.sent for texts in calls)
        handles = [producer.produce([text.encode() for text in texts], name.encode()) for texts in calls]
        self.sent.update(text for texts in calls for text in texts)
        failures = []
        try:
            producer.flush()
        except ObjbufError as error:
            failures.append(error)
        for texts, handle in zip(calls, handles, strict=True):
            outcome = handle.result()
            if isinstance(outcome, Durable):
                places = range(outcome.start_index, outcome.start_index + len(texts))
                self.told += [(outcome.sequence, index, text) for index, text in zip(places, texts, strict=True)]
                self._settled.add(texts[0])
            elif isinstance(outcome, StorageError) and outcome.in_doubt:
                self._settled.add(texts[0])  # never again: twice would be worse
                self.doubtful += 1
        return failures

    def _take_over(self, times: int) -> None:
        """The next one is another deployment, which has the same table, and no memory of what materialised."""
        if len(self._epochs) < times:
            self._taking_over = True
            self._epochs.append(Consumer.open(self._buffer, gc_interval=None, clock=self.world.clock).epoch)
            self._taking_over = False
            self._materialised.clear()

    def _owner(self) -> Consumer:
        """As every tick, run and job joins: in a process of its own, with the epoch that the deployment holds."""
        return Consumer.attach(self._buffer, epoch=self._epochs[-1], clock=self.world.clock)

    def _be_fenced(self) -> None:
        """The first owner wakes up, and would ack everything and collect."""
        first = self._epochs[0]
        sleeper = Consumer.attach(self._buffer, epoch=first, clock=self.world.clock)
        collector = GarbageCollector(self._buffer, epoch=first, grace_seconds=0, retention_seconds=0)
        last = manifest_of(self.world.buffer).next_sequence - 1
        for act in (lambda: sleeper.ack_through(last), collector.collect_once):
            try:
                act()
            except Fenced:
                continue
            raise AssertionError("a fenced consumer was let through")

    def _plan(self) -> None:
        manifest = self._owner().read()
        ledger = RangeLedger(self._buffer)
        plan(BufferPlace(self._buffer).manifests(), ledger, _LIMITS, manifest=manifest, clock=self.world.clock)

    def _land(self, *, only_last: bool = False) -> None:
        place = BufferPlace(self._buffer)
        for planned in RangeLedger(self._buffer).list(self._owner().read().frontier)[-1 if only_last else 0 :]:
            if range_of(planned) in self._materialised:
                continue
            (left_out,) = read_quarantine(place, [planned])
            if isinstance(left_out, ObjbufError):
                raise left_out
            without = {one.sequence for one in left_out.batches}
            task = Task(place.fetcher(), place.manifest_path, self.table.store, job="0" * 32)
            reports = [task.do(share) for share in shares(planned, 2, without)]
            outcome = commit(planned, reports, self.table, time.perf_counter(), None, verify=True, left_out=left_out)
            if isinstance(outcome, Failed):
                raise outcome.error
            self._materialised.add(range_of(planned))

    def _ack(self) -> None:
        ledger = RangeLedger(self._buffer)

        def look(manifest: Manifest) -> Survey:
            planned = tuple(ledger.list(manifest.frontier))
            for one in planned:
                check_against(manifest, one)
            done = frozenset(self._materialised.intersection(map(range_of, planned)))
            return Survey(manifest.frontier, manifest.next_sequence, planned, done)

        ack_surveyed(self._owner(), look)

    def _collect(self, name: str, after: float) -> None:
        """So much later, beside a batch that its producer never appended."""
        if name not in self._waited:
            self._waited.add(name)
            self.world.now += after
            put_batch(self.world.buffer, batch_name(int((self.world.now - NEVER) * 1000)))
            self.world.now += NEVER
        report = GarbageCollector(self._buffer, epoch=self._epochs[-1], clock=self.world.clock).collect_once()
        for error in report.failed.values():
            raise error
