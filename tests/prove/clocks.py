"""Clocks that jump by an hour, at any moment, on any side: no batch that somebody may still ask for is collected.

In half of the worlds producers, the planner and the collector have clocks of their own, which are an hour behind,
right, or an hour ahead, and jump between these; the store's clock goes on, as a bucket's does. In the other half all
are on one machine, with the buffer in a directory there: there is one clock, and the store's jumps with it, or, in half
of these, it goes on, and no range may expire a moment too early. Whatever an actor does, at each of its store calls
anything else may come first: a jump, some time, or another actor. Batches have names and ingestion times of any time,
negative ones and those of the future too.

Time passes without limit, but for one thing: a producer that has just found its batch young enough writes the manifest
within the other half of the grace period. Nothing can be said for one that is held up by hours in the middle of that.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from objbuf_dagster.buffer import Consumer, Durable, GarbageCollector, Producer, peek
from objbuf_dagster.buffer import metrics as m
from objbuf_dagster.buffer.retention import read_retention
from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError, OutOfOrderAck, StorageUnavailable
from objbuf_dagster.protocol import BatchDescriptor, Manifest, Metadata
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, frontier, plan, range_of
from objbuf_dagster.store import Store
from tests.prove import lags
from tests.prove.proof import Entry, Proof, Size, timed
from tests.support.buffers import append, batch_name, manifest_of, manifests, put_batch
from tests.support.clocked import ClockedStore
from tests.support.faults import Call, FaultStore

HOUR = 3600.0
Clock = Literal["producer", "collector", "planner"]
CLOCKS: tuple[Clock, ...] = ("producer", "collector", "planner")
STEPS = ("upload", "append", "collect", "plan", "ack")

_START = 1_700_000_000.0
_TO_WRITE = 290.0
"""Seconds that a manifest's write may take: a batch may be 300 s old before it, and 600 s is the grace period."""
_RETENTION = HOUR / 2
_STEADY = 0.5
"""Of the worlds with one clock: it does not jump."""
_MILLISECOND = 0.001  # by which collectors count
_DEEPEST = 2
_TIMES_MS = (-(2**63), -1, 0, int(_START * 1000), int((_START + HOUR) * 1000), 2**48, 2**63 - 1)
_NAMES_MS = (0, int((_START - HOUR) * 1000), int((_START + HOUR) * 1000), int((_START + 10_000 * HOUR) * 1000))
_TOLD = 5

Tally = Counter[tuple[str, str]]


@dataclass(slots=True)
class Acked:
    """Where the frontier came, and what the clock that tells retention has shown since: by no word of the collector's.

    Of a clock that jumps, nobody knows which of two readings was wrong: so an acked range is due once there were two
    that are the retention apart, the earlier one first. Of a clock that goes on that is when its time is over.
    """

    reached: int
    least: float
    rise: float = 0.0

    def see(self, reading: float) -> None:
        self.least = min(self.least, reading)
        self.rise = max(self.rise, reading - self.least)

    @property
    def is_due(self) -> bool:
        return self.rise >= _RETENTION - _MILLISECOND


_DIRECTORY = functools.partial(ClockedStore, own=False)


class World:
    """A buffer in use, from its first batch until everything has landed; `tally` counts what happened to it.

    one_clock: everybody's clock is the same, and jumps: the store's, which `make` is given, too.
    """

    def __init__(
        self,
        chance: random.Random,
        tally: Tally,
        make: Callable[[Callable[[], float]], Store],
        one_clock: bool = False,
    ) -> None:
        self.now = _START
        self._one_clock = one_clock
        self._ahead = dict.fromkeys(CLOCKS, 0.0)
        self.store = make(self._store_clock)
        self.told: list[Entry] = []
        self.sent: set[str] = set()
        self.wrongs: list[str] = []
        self._chance = chance
        self._tally = tally
        self._rows: dict[SequenceRange, list[Entry]] = {}
        self._acked: list[Acked] = []
        self._depth = 0
        self._hasty = chance.random() < 0.7
        """Producers are not held up: else most of what they upload is too old to be appended."""
        self._is_steady = one_clock and chance.random() < _STEADY
        self._producing = 0
        self._left: float | None = None  # of the time for a manifest's write, while there is one
        self._epoch = Consumer.open(self.store, gc_interval=None).epoch
        self._actors = (self._produce, self._plan, self._land_and_ack, self._collect, self._collect)

    @property
    def rows(self) -> list[Entry]:
        """What has landed."""
        return [row for rows in self._rows.values() for row in rows]

    def live(self, actions: int) -> None:
        """So many actions and all that comes between, then land what is left."""
        for _ in range(self._chance.randrange(3)):
            self._append_oddly()
        for _ in range(actions):
            self._between("rest", None)
            self._chance.choice(self._actors)()
            self._look()
        self._depth = _DEEPEST  # nobody comes between any more
        self._plan()
        self._land_and_ack()
        self._look()

    def _uptime(self) -> float:
        return self.now

    def _store_clock(self) -> float:
        return self._clock("producer") if self._one_clock else self.now

    def _clock(self, whose: Clock) -> float:
        return self.now + self._ahead[whose]

    def _store_for(self, doing: str) -> Store:
        return FaultStore(self.store, functools.partial(self._between, doing))

    def _between(self, doing: str, call: Call | None) -> None:
        """Before a store call that is made one at a time: anything."""
        if call is not None and call.method in ("head", "read"):
            return
        if doing == "produce" and call is not None:
            doing = "upload" if call.path.endswith(".batch") else "append"
        if doing != "append" or call is None or call.method != "put" or self._left is not None:
            self._disturb(doing, call)
            return
        self._left = _TO_WRITE
        self._disturb(doing, call)
        self._left = None

    def _disturb(self, doing: str, call: Call | None) -> None:
        if not self._is_steady and self._chance.random() < 0.4:
            whose = self._chance.choice(CLOCKS)
            ahead = self._chance.choice([ahead for ahead in (-HOUR, 0, HOUR) if ahead != self._ahead[whose]])
            self._ahead.update(dict.fromkeys(CLOCKS if self._one_clock else (whose,), ahead))
            self._see_clock()
            self._tally[doing, whose] += 1
        if self._chance.random() < 0.4:
            self._pass_time()
        often = 0.5 if doing == "append" else 0.2  # between upload and append is where it is decided
        if call is not None and self._depth < _DEEPEST and self._chance.random() < often:
            self._depth += 1
            self._chance.choice(self._actors)()
            self._depth -= 1

    def _pass_time(self) -> None:
        seconds = self._chance.choice((0.1, 60.0, 700.0, 2 * HOUR))
        if self._hasty and self._producing:
            seconds = min(seconds, 20.0)
        if self._left is not None:
            seconds = min(seconds, self._left)
            self._left -= seconds
        self.now += seconds
        self._see_clock()

    def _see_clock(self) -> None:
        for one in self._acked:
            one.see(self._store_clock())

    def _append_oddly(self) -> None:
        """What another implementation, or a clock that was never set, puts there."""
        text = f"odd {len(self.sent)}"
        location = put_batch(self.store, batch_name(self._chance.choice(_NAMES_MS)), [text.encode()])
        times = [Metadata(0, self._chance.choice(_TIMES_MS), b"")] if self._chance.random() < 0.8 else []
        self.sent.add(text)
        self.told.append((append(self.store, location, times), 0, text))

    def _produce(self) -> None:
        self._producing += 1
        texts = [f"entry {len(self.sent)}", f"entry {len(self.sent) + 1}"]
        self.sent.update(texts)
        producer = Producer(
            self._store_for("produce"),
            flush_interval=HOUR,
            clock=lambda: self._clock("producer"),
            uptime=self._uptime,
        )
        handle = producer.produce([text.encode() for text in texts])
        with contextlib.suppress(StorageUnavailable):  # too late to be appended
            producer.close()
        self._producing -= 1
        outcome = handle.result()
        if isinstance(outcome, Durable):
            self.told += [(outcome.sequence, index, text) for index, text in enumerate(texts)]
            self._tally["produced", "durable"] += 1
        else:
            self._tally["produced", "too late"] += 1
        if self._chance.random() < 0.2:  # and another one, whose producer dies
            put_batch(self.store, batch_name(int(self._clock("producer") * 1000)))

    def _plan(self) -> None:
        limits = Limits(max_batches=2, max_wait=0 if self._depth == _DEEPEST else self._chance.choice((0, 60)))
        store = self._store_for("plan")
        plan(manifests(store), RangeLedger(store), limits, clock=lambda: self._clock("planner"))

    def _land_and_ack(self) -> None:
        store = self._store_for("ack")
        consumer = Consumer.attach(store, epoch=self._epoch, clock=lambda: self._clock("planner"))
        ledger = RangeLedger(store)
        for planned in ledger.list(consumer.read().frontier):
            try:
                batches = [consumer.fetch_descriptor(batch.descriptor) for batch in planned.batches]
            except NotFound as error:
                self.wrongs.append(f"a range that has not landed lost a batch: {error}")
                continue
            self._rows[range_of(planned)] = [
                (batch.sequence, index, entry.decode())
                for batch in batches
                for index, entry in enumerate(batch.entries)
            ]

        def decide(manifest: Manifest) -> BatchDescriptor | None:
            planned = ledger.list(manifest.frontier)
            reached = frontier(manifest.frontier, map(range_of, planned), self._rows.keys())
            return next((one.batches[-1].descriptor for one in planned if one.end == reached - 1), None)

        try:
            consumer.ack_as(decide)
        except OutOfOrderAck:  # others produced, planned and landed since it read the manifest: the next one does it
            self._tally["acks", "too early"] += 1
        self._acked.append(Acked(manifest_of(self.store).frontier, self._store_clock()))
        self._check_lag(consumer.metrics.snapshot().gauges.get(m.CONSUMER_LAG_SECONDS, 0.0))

    def _collect(self) -> None:
        collector = GarbageCollector(
            self._store_for("collect"),
            epoch=self._epoch,
            retention_seconds=_RETENTION,
            clock=lambda: self._clock("collector"),
            uptime=self._uptime,
        )
        is_used = manifest_of(self.store).next_sequence > 0
        try:
            report = collector.collect_once()
        except InvalidInput:  # nothing was ever appended when it looked
            if is_used:
                raise
            return
        self._tally["collected", "batches"] += len(report.deleted)
        self._tally["collected", "with one clock"] += len(report.deleted) * self._one_clock
        self._tally["collected", "ranges"] += report.expired_ranges
        self._tally["collected", "ranges with one clock"] += report.expired_ranges * self._one_clock

    def _look(self) -> None:
        """What must never be so."""
        manifest = manifest_of(self.store)
        there = {info.path for info in self.store.list("ingest")}
        expired_before = read_retention(self.store, "ingest")[0].expired_before
        due = max((one.reached for one in self._acked if one.is_due), default=0)
        if expired_before > due:
            self.wrongs.append(f"ranges before {expired_before} expired, but only those before {due} were due")
        ranges = [one for one in RangeLedger(self.store).list() if one.end >= due]
        named = {entry.location for entry in manifest.entries()}
        named |= {batch.descriptor.location for one in ranges for batch in one.batches}
        if named - there:
            self.wrongs.append(f"a manifest entry or a retained range names {min(named - there)}, which is deleted")
        for whose in CLOCKS:
            self._check_lag(peek(self.store, clock=lambda whose=whose: self._clock(whose)).lag_seconds)  # type: ignore[misc]

    def _check_lag(self, seconds: float) -> None:
        self._tally["lag", "read"] += 1
        if seconds < 0:
            self.wrongs.append(f"a lag of {seconds} s")


def live_through(
    proof: Proof,
    worlds: int,
    size: Size,
    bucket: Callable[[Callable[[], float]], Store] = ClockedStore,
    directory: Callable[[Callable[[], float]], Store] = _DIRECTORY,
) -> Tally:
    """Try so many worlds, every other with its buffer in a directory, and count what went wrong in them."""
    tally: Tally = Counter()
    for number in range(worlds):
        one_clock = bool(number % 2)
        world = World(size.chance("clocks", number), tally, directory if one_clock else bucket, one_clock)
        try:
            world.live(actions=5)
        except ObjbufError as error:
            world.wrongs.append(f"{type(error).__name__}: {error}")
        proof.tried += 1
        proof.compare(world.told, world.sent, world.rows)
        proof.invented += len(world.wrongs)
        if world.wrongs and len(proof.notes) < _TOLD:
            proof.notes.append(f"world {number}: {world.wrongs[0]}")
    return tally


def prove(size: Size) -> Iterator[Proof]:
    worlds = size.pick(300, 20_000)
    proof = Proof("clocks jump by an hour (produce, plan, ack, gc)", "interleavings", wanted=worlds)
    with timed(proof):
        tally = live_through(proof, worlds, size)
    jumps = {step: [tally[step, whose] for whose in CLOCKS] for step in STEPS}
    proof.notes.append(
        "jumps of the producer's, collector's and planner's clocks at: "
        + ", ".join(f"{step} {'/'.join(map(str, counts))}" for step, counts in jumps.items())
        + "; in every other world they are one, and the store's"
    )
    proof.notes.append(
        f"{tally['produced', 'durable']} batches produced, {tally['produced', 'too late']} too late to be, "
        f"{tally['collected', 'batches']} collected ({tally['collected', 'with one clock']} of a directory), "
        f"{tally['collected', 'ranges']} ranges expired "
        f"({tally['collected', 'ranges with one clock']} of a directory), "
        f"{tally['lag', 'read']} lags read, none negative"
    )
    yield proof
    yield lags.prove_lags()
