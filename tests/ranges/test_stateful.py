"""Everything at once: producers, planners that race, takeovers, lost answers, crashes between any two store calls.

Hypothesis drives the real client over a store that fails as it says, and a model holds what must be true after every
step: no hole between ranges, no two of them used that overlap, nothing durable that is not in the queue exactly once,
nothing acked that was not reported materialised, everything that is not acked found again, nothing deleted that
somebody can still ask for.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from objbuf_dagster.buffer import Consumer, Durable, FetchHandle, GarbageCollector, Producer
from objbuf_dagster.errors import (
    Fenced,
    InvalidInput,
    ObjbufError,
    OutOfOrderAck,
    RangeExpired,
    RangesOverlap,
    SequenceGap,
    StorageUnavailable,
)
from objbuf_dagster.protocol import Manifest, decode_batch
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, frontier, plan, range_of
from objbuf_dagster.store import Conflict, MemoryStore, Payload, RetryingStore, Store
from tests.support.buffers import manifest_of, manifests
from tests.support.faults import AT_ONCE, Call, Fault, FaultStore


class Crash(BaseException):
    """The process is gone. Nothing may catch this."""


_FAULTS: dict[str, Fault] = {"fail": "fail", "lost": "lost", "unavailable": "unavailable"}


class CrashingStore(FaultStore):
    """Besides failing, it can end the process before a call, or after a put."""

    def __init__(self, inner: Store, troubles: list[str | None]) -> None:
        self._troubles = iter(troubles)
        self._is_last = False
        super().__init__(inner, self._next)

    def _next(self, _: Call) -> Fault | None:
        trouble = next(self._troubles, None)
        if trouble == "crash before":
            raise Crash
        self._is_last = trouble == "crash after"
        return _FAULTS.get(trouble or "")

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        result = super().put(path, data, if_version=if_version, if_absent=if_absent)
        if self._is_last:
            raise Crash
        return result


calm: st.SearchStrategy[list[str | None]] = st.just([])
failing = st.lists(st.sampled_from([None, None, None, "fail", "lost", "unavailable"]), max_size=8)
crashing = st.lists(
    st.sampled_from([None, None, None, "fail", "lost", "unavailable", "crash before", "crash after"]), max_size=10
)


moments = st.tuples(st.sampled_from(["get", "list", "put", "put"]), st.integers(1, 3))
"""Of a planner: the calls between which it matters what others do; it asks for sizes in any order."""


def retrying(store: Store) -> Store:
    return RetryingStore(store, AT_ONCE)


class Buffer(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore()
        self.ledger = RangeLedger(self.store)
        self.now = 1_700_000_000.0
        self.produced = 0
        self.durable: dict[str, list[bytes]] = {}  # location -> entries, as producers were told
        self.history: dict[int, str] = {}  # sequence -> location, as the manifest ever said
        self.chain: dict[int, SequenceRange] = {}  # start -> range, as the ledger ever said
        self.materialised: set[SequenceRange] = set()
        self.given_up: set[int] = set()  # sequences acked by hand, landed or not
        self.deployments: list[Consumer] = []

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def trouble(self) -> Iterator[None]:
        """What a process in trouble may end with."""
        with contextlib.suppress(Crash, StorageUnavailable, Fenced, OutOfOrderAck):
            yield

    def plan_as(self, store: Store, max_batches: int, max_ranges: int | None = None) -> None:
        """As one who knows of acks by hand."""
        limits = Limits(max_batches=max_batches, max_wait=0)
        added = plan(
            manifests(store),
            RangeLedger(store),
            limits,
            max_ranges=max_ranges,
            on_gap="skip" if self.given_up else "fail",
            clock=self.clock,
        )
        self.use(map(range_of, added))

    def use(self, ranges: Iterable[SequenceRange]) -> None:
        """Whoever was given a range may land it from now on."""
        for one in ranges:
            assert self.chain.setdefault(one.start, one) == one, "a range never changes"

    def settle(self) -> None:
        """What a person does about ranges that overlap: the one that nobody used goes."""
        while True:
            try:
                self.ledger.tail()
                self.ledger.list()
            except RangesOverlap as error:
                assert self.given_up, "only acks by hand let planners begin at different places"
                used = [key in {one.key for one in self.chain.values()} for key in (error.earlier, error.later)]
                assert not all(used), "nobody used the other one"
                keep = error.unused in {one.key for one in self.chain.values()}
                self.store.delete([error.other_path if keep else error.path])
            else:
                return

    def look(self) -> Manifest:
        """The manifest, whose entries are remembered: they may be acked before the next look."""
        manifest = manifest_of(self.store)
        for entry in manifest.entries():
            assert self.history.setdefault(entry.sequence, entry.location) == entry.location
        return manifest

    def ack_unplanned(self, ahead: int) -> None:
        """By hand, so many sequences and one behind the last range; what is planned before them goes, too."""
        manifest = self.look()
        tail = self.ledger.tail()
        first = max(manifest.frontier, 0 if tail is None else tail.end + 1)
        through = min(first + ahead, manifest.next_sequence - 1)
        if through >= manifest.frontier:
            self.given_up.update(range(manifest.frontier, through + 1))
            Consumer.attach(self.store, epoch=manifest.epoch).ack_through(through)

    @rule(calls=st.integers(1, 4), troubles=st.one_of(calm, failing))
    def produce(self, calls: int, troubles: list[str | None]) -> None:
        self.produce_to(retrying(CrashingStore(self.store, troubles)), calls)

    def produce_to(self, store: Store, calls: int) -> None:
        producer = Producer(store, flush_interval=3600, flush_size_bytes=1, max_in_flight=1, clock=self.clock)
        handles = []
        for _ in range(calls):
            entry = b"%d" % self.produced
            self.produced += 1
            handles.append((entry, producer.produce([entry])))
        with self.trouble():
            producer.close()
        for entry, handle in handles:
            outcome = handle.result()
            assert outcome is not None, "close leaves nothing open"
            if isinstance(outcome, Durable):
                self.durable[outcome.location] = [entry]

    @rule()
    def upload_and_die(self) -> None:
        """A producer that crashed between batch and manifest leaves an orphan."""
        with contextlib.suppress(StorageUnavailable):
            faulty = FaultStore(self.store, lambda call: "unavailable" if call.path == "ingest/manifest" else None)
            producer = Producer(faulty, clock=self.clock)
            producer.produce([b"orphan"])
            producer.close()

    @rule(max_batches=st.integers(1, 5), max_ranges=st.integers(1, 4), troubles=st.one_of(calm, crashing))
    def plan(self, max_batches: int, max_ranges: int, troubles: list[str | None]) -> None:
        store = retrying(CrashingStore(self.store, troubles))
        with self.trouble():
            self.plan_as(store, max_batches, max_ranges)
        self.settle()

    @rule(mine=st.integers(1, 5), theirs=st.integers(1, 5), at=st.integers(1, 12))
    def plan_while_another_plans(self, mine: int, theirs: int, at: int) -> None:
        def somebody_else(call: Call) -> None:
            if call.number == at:
                self.plan_as(self.store, theirs)

        self.plan_as(FaultStore(self.store, somebody_else), mine)

    @rule(
        fresh=st.integers(3, 9),
        ahead=st.integers(0, 4),
        mine=st.integers(1, 9),
        theirs=st.integers(1, 5),
        moments=st.tuples(moments, moments),
        last=st.booleans(),
        troubles=st.one_of(calm, crashing),
    )
    def plan_while_somebody_acks_what_is_not_planned(
        self,
        fresh: int,
        ahead: int,
        mine: int,
        theirs: int,
        moments: tuple[tuple[str, int], tuple[str, int]],
        last: bool,
        troubles: list[str | None],
    ) -> None:
        """By hand, whatever is landed; and two other planners go on behind it (or had done so before).

        The second of them comes in the middle of the first, and begins with what it had seen before the ack.
        """

        def ack_and_plan(call: Call) -> None:
            if (call.method, call.nth) == moments[0]:
                self.plan_between(theirs, moments[1], ahead)

        self.produce_to(self.store, fresh)
        if last:
            self.ack_unplanned(ahead)
        with self.trouble(), contextlib.suppress(SequenceGap, RangesOverlap):
            self.plan_as(FaultStore(retrying(CrashingStore(self.store, troubles)), ack_and_plan), mine)
        self.settle()

    def plan_between(self, max_batches: int, at: tuple[str, int], ahead: int) -> None:
        def ack_and_plan(call: Call) -> None:
            if (call.method, call.nth) == at:
                self.ack_unplanned(ahead)
                self.plan_as(self.store, max_batches + 1, max_ranges=1)

        with contextlib.suppress(StorageUnavailable, SequenceGap, RangesOverlap):
            self.plan_as(FaultStore(self.store, ack_and_plan), max_batches)
            self.ack_unplanned(ahead)
            self.plan_as(self.store, max_batches, max_ranges=1)

    @rule(at=st.integers(1, 6), calls=st.integers(1, 3), troubles=st.one_of(calm, failing), takes=st.booleans())
    def produce_while_somebody_else_writes(self, at: int, calls: int, troubles: list[str | None], takes: bool) -> None:
        """Another producer appends, or a consumer takes the epoch, between any two calls of a producer."""
        self.produce_to(self.between(at, troubles, takes), calls)

    def between(self, at: int, troubles: list[str | None], takes: bool) -> Store:
        """A store in trouble, for one process; in the middle of it, another one changes the manifest."""

        def somebody_else(call: Call) -> None:
            if call.number == at and takes:
                self.deployments.append(Consumer.open(self.store, gc_interval=None, clock=self.clock))
            elif call.number == at:
                self.produce_to(self.store, 1)

        return retrying(FaultStore(CrashingStore(self.store, troubles), somebody_else))

    @rule(troubles=st.one_of(calm, crashing))
    def take_over(self, troubles: list[str | None]) -> None:
        with self.trouble():
            consumer = Consumer.open(retrying(CrashingStore(self.store, troubles)), gc_interval=None, clock=self.clock)
            assert all(other.epoch != consumer.epoch for other in self.deployments), "an epoch has one owner"
            self.deployments.append(consumer)

    @precondition(lambda self: self.chain)
    @rule(data=st.data())
    def materialise(self, data: st.DataObject) -> None:
        """Any planned range, in any order, however often: its batches are there and say what was produced."""
        wanted = data.draw(st.sampled_from(sorted(self.chain.values())))
        try:
            planned = self.ledger.read(wanted)
        except RangeExpired:
            assert wanted in self.materialised or self.given_up.issuperset(wanted)
            return
        for batch in planned.batches:
            fetched = FetchHandle(self.store).fetch(batch.descriptor)
            told = self.durable.get(batch.descriptor.location)
            assert told is None or list(fetched.entries) == told
        self.materialised.add(wanted)

    @precondition(lambda self: self.deployments)
    @rule(data=st.data(), troubles=st.one_of(calm, crashing))
    def ack(self, data: st.DataObject, troubles: list[str | None]) -> None:
        """Any deployment, the fenced ones included, acks what it may."""
        owner = data.draw(st.sampled_from(self.deployments))
        before = manifest_of(self.store)
        self.ack_as(owner, retrying(CrashingStore(self.store, troubles)))
        if before.epoch != owner.epoch:
            assert manifest_of(self.store).to_bytes() == before.to_bytes(), "a fenced consumer changes nothing"

    @precondition(lambda self: self.deployments)
    @rule(data=st.data(), at=st.integers(1, 4), troubles=st.one_of(calm, crashing), takes=st.booleans())
    def ack_while_somebody_else_writes(
        self, data: st.DataObject, at: int, troubles: list[str | None], takes: bool
    ) -> None:
        """A producer appends, or another consumer takes the epoch, between any two calls of one that acks."""
        owner = data.draw(st.sampled_from(self.deployments))
        before = manifest_of(self.store)
        self.ack_as(owner, self.between(at, troubles, takes))
        if before.epoch != owner.epoch:
            assert manifest_of(self.store).frontier == before.frontier, "a fenced consumer acks nothing"

    def ack_as(self, owner: Consumer, store: Store) -> None:
        before = manifest_of(self.store)
        planned = [range_of(one) for one in self.ledger.list(since=before.frontier)]
        target = frontier(before.frontier, planned, self.materialised)
        if target == before.frontier:
            return
        with self.trouble():
            Consumer.attach(store, epoch=owner.epoch).ack_through(target - 1)
            assert manifest_of(self.store).frontier == target

    @rule()
    def land_everything(self) -> None:
        """A good day: plan, materialise and ack all there is, so that trouble meets buffers with a past."""
        self.plan_as(self.store, 3)
        manifest = manifest_of(self.store)
        planned = [range_of(one) for one in self.ledger.list(since=manifest.frontier)]
        self.materialised.update(planned)
        if manifest.entry_count:
            self.deployments.append(Consumer.open(self.store, gc_interval=None))
            self.deployments[-1].ack_through(frontier(manifest.frontier, planned, self.materialised) - 1)

    @rule(hours=st.integers(0, 48), retention=st.integers(0, 72), troubles=st.one_of(calm, crashing))
    def collect(self, hours: int, retention: int, troubles: list[str | None]) -> None:
        self.now += hours * 3600
        store = retrying(CrashingStore(self.store, troubles))
        with self.trouble():
            try:
                GarbageCollector(store, retention_seconds=retention * 3600, clock=self.clock).collect_once()
            except InvalidInput:
                assert not manifest_of(self.store).next_sequence

    @precondition(lambda self: self.history)
    @rule()
    def reopen(self) -> None:
        """A new consumer finds everything that is not acked."""
        consumer = Consumer.open(self.store, gc_interval=None, clock=self.clock)
        self.deployments.append(consumer)
        manifest = manifest_of(self.store)
        found = {entry.sequence: entry.location for entry in consumer.next_descriptors(10_000)}
        assert found == {n: self.history[n] for n in range(manifest.frontier, manifest.next_sequence)}

    @invariant()
    def the_queue_only_grows_at_its_end_and_holds_what_is_durable_once(self) -> None:
        manifest = self.look()
        assert sorted(self.history) == list(range(manifest.next_sequence))
        times = Counter(self.history.values())
        assert all(count == 1 for count in times.values()), "nothing twice"
        assert self.durable.keys() <= times.keys(), "nothing lost"

    @invariant()
    def ranges_have_no_hole_and_no_overlap_and_never_change(self) -> None:
        self.look()
        listed = self.ledger.list()
        self.use(map(range_of, listed))
        for planned in listed:
            assert [self.history[b.descriptor.sequence] for b in planned.batches] == [
                b.descriptor.location for b in planned.batches
            ]
        chain = [self.chain[start] for start in sorted(self.chain)]
        for one, following in pairwise(chain):
            assert one.end < following.start
            assert self.given_up.issuperset(range(one.end + 1, following.start))

    @invariant()
    def nothing_is_acked_that_was_not_materialised(self) -> None:
        done = {sequence for one in self.materialised for sequence in one}
        assert set(range(manifest_of(self.store).frontier)) <= done | self.given_up

    @invariant()
    def what_can_be_asked_for_is_there(self) -> None:
        wanted = {entry.location for entry in manifest_of(self.store).entries()}
        wanted |= {b.descriptor.location for planned in self.ledger.list() for b in planned.batches}
        for location in wanted:
            decode_batch(self.store.read(location))

    def teardown(self) -> None:
        """However it ended: with no more trouble, everything that is durable gets landed and acked."""
        if not hasattr(self, "store"):
            return
        self.plan_as(self.store, 1000)
        for planned in self.ledger.list():
            self.materialised.add(range_of(planned))
        manifest = manifest_of(self.store)
        ranges = [range_of(one) for one in self.ledger.list(since=manifest.frontier)]
        assert frontier(manifest.frontier, ranges, self.materialised) == manifest.next_sequence
        if manifest.entry_count:
            Consumer.open(self.store, gc_interval=None).ack_through(manifest.next_sequence - 1)
        assert manifest_of(self.store).entry_count == 0


Buffer.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestBuffer = Buffer.TestCase


def test_a_crash_is_not_an_error_of_ours() -> None:
    """Or the machine above would test nothing."""
    assert not issubclass(Crash, ObjbufError | Exception)
