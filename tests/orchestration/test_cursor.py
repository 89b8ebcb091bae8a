"""Cursors that are damaged, of another buffer or release, or older than the buffer."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dagster._core.storage.tags import RUN_KEY_TAG
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.errors import BufferReplaced, Fenced, InvalidInput
from objbuf_dagster.orchestration import ack_materialised
from objbuf_dagster.orchestration.cursor import VERSION, Cursor
from objbuf_dagster.orchestration.regulation import Flight, Memory
from objbuf_dagster.ranges import Limits, SequenceRange, plan
from objbuf_dagster.ranges.gate import GateState
from objbuf_dagster.ranges.regulator import State
from objbuf_dagster.ranges.regulator_cost import Sample
from objbuf_dagster.store import MemoryStore
from tests.orchestration.sensing import PAIRS, Sensing, key, keys, produce, sensing
from tests.support.buffers import manifests

BUFFER = "memory://x ingest/manifest ingest"
REMEDY = r"reset the cursor.*dagster sensor cursor buffer_sensor --delete.*no `.env` names another.*Nothing is lost"

ranges = st.builds(lambda start, more: SequenceRange(start, start + more), st.integers(0, 10**15), st.integers(0, 99))
sizes = st.floats(1e-6, 1e20)
spans = st.tuples(st.floats(0, 1e10), st.floats(0, 1e10))
memories = st.builds(
    Memory,
    st.builds(
        State,
        *[st.floats(0, 1e20)] * 4,
        st.lists(st.builds(Sample, sizes, sizes, st.floats(1, 1e3)), max_size=3).map(tuple),
        st.sets(st.integers(0, 2**64 - 1), max_size=5).map(lambda some: tuple(sorted(some))),
    ),
    st.sampled_from([GateState(), GateState(True, "memory"), GateState(True, "disk")]),
    st.lists(
        st.builds(Flight, ranges, st.integers(0, 10**18), st.integers(0, 10**9), st.floats(0, 1e9)), max_size=3
    ).map(tuple),
    st.lists(spans, max_size=3).map(tuple),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
)
cursors = st.builds(
    Cursor,
    st.just(BUFFER),
    st.integers(0, 2**64),
    st.integers(0, 2**64),
    st.none() | ranges,
    st.none() | ranges,
    st.dictionaries(st.sampled_from(["epoch", "lag"]), st.integers(0) | st.floats(0, 1e9)),
    memories,
    st.none() | st.text(max_size=30),
    st.integers(0, 2**64),
    st.integers(0, 2**64),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(
    [
        *("version", "buffer", "epoch", "next_sequence", "known", "oldest", "observed", "regulation", "more"),
        *("known_batch", "skipped", "caught_up"),
    ]
)
parts = st.sampled_from(["state", "gate", "flights", "ended", "cut_ms", "last_ms", "more"])


def parse(text: str) -> Cursor | None:
    try:
        return Cursor.from_text(text, BUFFER, "buffer_sensor")
    except InvalidInput:
        return None


@given(cursors)
def test_a_cursor_comes_back_as_it_was_written(cursor: Cursor) -> None:
    assert parse(cursor.to_text()) == cursor


def test_what_the_regulator_learned_under_an_older_release_is_learned_anew() -> None:
    text = (
        '{"version": 3, "buffer": "memory://x ingest/manifest ingest", "epoch": 4, "next_sequence": 30, "known": null, '
        '"oldest": null, "observed": {"epoch": 4}, "regulation": {"state": {"version": 1, "seconds": 20.15, '
        '"arrival_seconds": 20.0, "size": 60000000.0, "batches": 10.0, "sums": [2.71, 155.06744384765625, 0.0, '
        '8873.030310496688, 0.0, 0.0, 54.6065, 3124.6089935302734, 0.0], "counted": [0, 10, 20]}, "gate": {"version": '
        '1, "held": true, "why": "memory"}, "flights": [], "ended": [[1.0, 21.0]], "cut_ms": 1763400000000, "last_ms": '
        '1763400005000}, "known_batch": null, "skipped": 0, "caught_up": 0}'
    )
    found = parse(text)
    assert found is not None
    assert (found.epoch, found.next_sequence) == (4, 30)
    assert found.regulation.state == State()
    assert found.regulation.gate == GateState(True, "memory")


@given(st.text())
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    assert parse(text) is None


@given(cursors, st.dictionaries(fields, values, max_size=3), st.sets(fields, max_size=2))
def test_a_cursor_with_other_values_is_a_cursor_or_refused(
    cursor: Cursor, changed: dict[str, Any], dropped: set[str]
) -> None:
    # given
    document = json.loads(cursor.to_text()) | changed
    text = json.dumps({name: value for name, value in document.items() if name not in dropped})
    # when
    found = parse(text)
    # then
    if found is not None:
        assert (found.buffer, type(found.epoch), type(found.next_sequence)) == (BUFFER, int, int)
        assert min(found.epoch, found.next_sequence) >= 0
        assert parse(found.to_text()) is not None


@given(cursors, st.dictionaries(parts, values, max_size=2), st.sets(parts, max_size=1))
def test_a_cursor_with_another_regulation_is_a_cursor_or_refused(
    cursor: Cursor, changed: dict[str, Any], dropped: set[str]
) -> None:
    # given
    document = json.loads(cursor.to_text())
    regulation = document["regulation"] | changed
    document["regulation"] = {name: value for name, value in regulation.items() if name not in dropped}
    # when
    found = parse(json.dumps(document))
    # then
    assert found is None or parse(found.to_text()) == found


@given(cursors, st.data())
def test_a_cursor_with_a_piece_missing_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    # given
    text = cursor.to_text()
    end = data.draw(st.integers(0, len(text) - 1))
    # then
    assert parse(text[:end]) is None


@pytest.mark.parametrize("text", ["damaged", "[]", "{}", "[" * 100_000, "1" * 5000, '{"version": 3}', "null"])
def test_a_damaged_cursor_is_refused_with_what_to_do(sensor: Sensing, text: str) -> None:
    # given
    produce(sensor.store, 2)
    sensor.tick()
    sensor.cursor = text
    # then
    with pytest.raises(InvalidInput, match=f"the sensor's cursor is damaged.*{REMEDY}"):
        sensor.tick()
    assert sensor.buffer.peek().epoch == 1


@pytest.mark.parametrize(
    "changed", [{"epoch": -1}, {"next_sequence": -1}, {"epoch": 1.5}, {"epoch": True}, {"skipped": 0.5}], ids=str
)
def test_a_number_that_cannot_be_is_damage(changed: dict[str, Any]) -> None:
    assert parse(json.dumps(json.loads(Cursor(BUFFER, 1).to_text()) | changed)) is None


@pytest.mark.parametrize("version", [0, *range(1, VERSION), VERSION + 1, "3", True, 3.0, None, "x" * 1000])
def test_a_cursor_of_another_release_is_refused_with_what_to_do(sensor: Sensing, version: object) -> None:
    # given
    sensor.tick()
    sensor.cursor = json.dumps(json.loads(sensor.cursor or "") | {"version": version})
    # then
    with pytest.raises(InvalidInput, match=f"this release writes {VERSION}.*{REMEDY}") as caught:
        sensor.tick()
    assert len(str(caught.value)) < 1000


def test_a_cursor_of_another_buffer_is_refused_with_what_to_do(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 2)
    with sensing() as other:
        other.tick()
        sensor.cursor = other.cursor
        # then: resetting it would take that buffer's partitions for this one's
        with pytest.raises(InvalidInput, match=r"of another buffer.*Correct the buffer's URL.*another DAGSTER_HOME"):
            sensor.tick()
    assert sensor.buffer.peek().epoch == 0


class TestABufferMadeAnew:
    """What is in Dagster is about the old one."""

    @pytest.fixture
    def landed(self, sensor: Sensing) -> Sensing:
        """Sequences 0 to 5 landed and acked with epoch 1."""
        produce(sensor.store, 6)
        sensor.tick()
        sensor.tick()
        for one in (key(0, 1), key(2, 3), key(4, 5)):
            sensor.land(one)
        sensor.tick()
        assert sensor.frontier == 6
        return sensor

    @staticmethod
    def make_anew(sensor: Sensing, batches: int, *, epoch: int = 0, all_of_it: bool = False) -> dict[str, bytes]:
        """Delete the manifest (or all there is), produce anew and take the epoch so often. Returns what is there."""
        sensor.store.delete([info.path for info in sensor.store.list()] if all_of_it else ["ingest/manifest"])
        produce(sensor.store, batches)
        for _ in range(epoch):
            Consumer.open(sensor.store, gc_interval=None).close()
        return contents(sensor)

    @pytest.mark.parametrize("epoch", [0, 1], ids=["untouched", "with an epoch like ours"])
    def test_a_manifest_that_went_back_is_refused(self, landed: Sensing, epoch: int) -> None:
        # given
        before = self.make_anew(landed, 3, epoch=epoch)
        # when
        expected = f"next sequence is 3 and its epoch {epoch}, but sequence 5 and epoch 1 were there before"
        with pytest.raises(BufferReplaced, match=expected):
            landed.tick()
        # then
        assert contents(landed) == before
        assert landed.partitions == [key(0, 1), key(2, 3), key(4, 5)]

    @pytest.mark.parametrize("epoch", [0, 1], ids=["untouched", "with an epoch like ours"])
    def test_a_longer_manifest_is_refused_too(self, landed: Sensing, epoch: int) -> None:
        # given
        before = self.make_anew(landed, 9, epoch=epoch)
        # when
        with pytest.raises(BufferReplaced, match="next sequence is 9" if epoch == 0 else "sequence 0 is ingest/"):
            landed.tick()
        # then
        assert contents(landed) == before

    @pytest.mark.parametrize("batches", [0, 3, 9])
    def test_a_reset_cursor_does_not_take_it_over(self, landed: Sensing, batches: int) -> None:
        # given
        before = self.make_anew(landed, batches)
        landed.cursor = None
        # when
        with pytest.raises(BufferReplaced, match="made anew"):
            landed.tick()
        # then
        assert contents(landed) == before

    @pytest.fixture
    def refilled(self, sensor: Sensing) -> Iterator[tuple[Sensing, Sensing]]:
        """Sequences 0 to 3 landed with epoch 1; then all was deleted, 8 batches were produced, and another deployment
        took epoch 1. The first one's next sequence did not fall, and its epoch is the manifest's."""
        produce(sensor.store, 4)
        sensor.tick()
        sensor.tick()
        sensor.land(key(0, 1))
        sensor.land(key(2, 3))
        sensor.tick()
        self.make_anew(sensor, 8, all_of_it=True)
        with sensing(sensor.store, PAIRS) as other:
            other.tick()
            assert other.state.epoch == sensor.state.epoch == 1
            yield sensor, other

    def test_an_equal_epoch_does_not_let_two_plan(self, refilled: tuple[Sensing, Sensing]) -> None:
        # given
        first, second = refilled
        before = contents(first)
        # when
        with pytest.raises(BufferReplaced, match=f"range {key(2, 3)} was there before, and is gone although"):
            first.tick()
        # then
        assert contents(first) == before
        assert len(second.tick().runs) == 4

    def test_an_equal_epoch_does_not_let_two_ack(self, refilled: tuple[Sensing, Sensing]) -> None:
        # given the new owner's plan has the same keys, and the old one's lake has them all
        first, second = refilled
        second.tick()
        for one in second.partitions:
            first.report(one)
        before = contents(first)
        # when
        with pytest.raises(BufferReplaced, match=f"range {key(2, 3)} was there before with the last batch ingest/"):
            first.tick()
        with pytest.raises(BufferReplaced, match="made anew"):
            ack_materialised(first.instance, first.source, first.buffer)
        # then
        assert contents(first) == before
        # when
        second.land(key(0, 1))
        second.tick()
        # then
        assert second.frontier == 2

    def test_hooks_know_it_before_the_first_range_is_acked(self, sensor: Sensing) -> None:
        # given: a range was planned, and nothing else happened
        produce(sensor.store, 2)
        sensor.tick()
        sensor.tick()
        self.make_anew(sensor, 2, all_of_it=True)
        with sensing(sensor.store, PAIRS) as other:
            other.tick()
            other.tick()
            # when its run lands what the new owner has planned
            sensor.report(key(0, 1))
            with pytest.raises(BufferReplaced):
                ack_materialised(sensor.instance, sensor.source, sensor.buffer)
        # then
        assert sensor.frontier == 0

    def test_a_reset_cursor_takes_an_equal_epoch_from_the_other(self, refilled: tuple[Sensing, Sensing]) -> None:
        # given
        first, second = refilled
        second.tick()
        # when
        first.cursor = None
        first.tick()
        # then
        assert first.state.epoch == 2
        with pytest.raises(Fenced):
            second.tick()

    def test_a_known_range_that_expired_is_not_missed(self, landed: Sensing) -> None:
        # given: all that is known has expired, and its objects are gone, since others went on
        produce(landed.store, 2)
        plan(manifests(landed.store), landed.buffer.ledger(), Limits(max_wait=0))
        landed.buffer.attach(1).ack_through(7)
        for days in (0, 8, 16, 400):
            clock = functools.partial(lambda later: time.time() + later, days * 86400.0)
            GarbageCollector(landed.store, clock=clock).collect_once()
        assert landed.buffer.ledger().starts() == [6]
        # when
        produce(landed.store, 2)
        landed.tick()
        # then
        assert landed.partitions[-1] == key(8, 9)

    def test_an_empty_manifest_with_our_epoch_is_refused(self, landed: Sensing) -> None:
        # given
        self.make_anew(landed, 0, epoch=1)
        # then
        with pytest.raises(BufferReplaced, match="next sequence is 0"):
            landed.tick()

    def test_the_same_keys_do_not_ack_what_never_landed(self, landed: Sensing) -> None:
        # given
        before = self.make_anew(landed, 6, all_of_it=True)
        landed.cursor = None
        # when
        with pytest.raises(InvalidInput, match=r"000000000004-000000000005.*another DAGSTER_HOME.*not taken over"):
            landed.tick()
        # then
        assert contents(landed) == before

    def test_the_same_ranges_planned_by_another_are_landed_anew(self, landed: Sensing) -> None:
        # given: another deployment planned ranges with the keys that this one has materialised
        self.make_anew(landed, 6, all_of_it=True)
        with sensing(landed.store, PAIRS) as other:
            other.tick()
            other.tick()
        # when
        landed.cursor = None
        landed.tick()
        landed.tick()
        again = landed.tick()
        # then
        assert landed.frontier == 0
        runs = [run.tags[RUN_KEY_TAG] for run in landed.instance.get_runs() if not run.is_finished]
        assert sorted(runs) == [f"{one}:2" for one in (key(0, 1), key(2, 3), key(4, 5))]
        assert again.runs == []
        # when
        landed.land(key(0, 1))
        landed.tick()
        # then
        assert landed.frontier == 2

    def test_a_mark_older_than_the_range_does_not_pass_it(self, sensor: Sensing) -> None:
        # given a person's mark for a range of the old buffer
        produce(sensor.store, 2)
        sensor.tick()
        sensor.tick()
        sensor.fail(key(0, 1))
        sensor.mark(key(0, 1))
        sensor.tick()
        # when another deployment plans the same range in the new one
        self.make_anew(sensor, 2, all_of_it=True)
        with sensing(sensor.store, PAIRS) as other:
            other.tick()
            other.later = 1
            other.tick()
        sensor.cursor = None
        sensor.tick()
        # then
        assert keys(sensor.tick()) == [key(0, 1)]
        assert sensor.frontier == 0


def test_partitions_of_another_buffer_refuse_the_takeover(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    # when the buffer's URL is another one now
    sensor.store = MemoryStore()
    produce(sensor.store, 2)
    sensor.cursor = None
    # then
    with pytest.raises(InvalidInput, match=r"this buffer has no such range.*another DAGSTER_HOME.*not taken over"):
        sensor.tick()
    assert sensor.buffer.peek().epoch == 0


@pytest.mark.parametrize(
    "added",
    [
        "longer than the keys of ranges",
        "000000000000-000000000001\x7f",
        "999999999999-000000000000",
        "9" * 12 + "-" + "9" * 90,
    ],
)
def test_a_partition_that_is_no_range_is_left_aside_when_the_cursor_was_reset(sensor: Sensing, added: str) -> None:
    # given
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    # when a person has added one
    sensor.instance.add_dynamic_partitions(str(sensor.source.partitions.name), [added])
    sensor.cursor = None
    # then it goes on behind the last range, and neither names nor starts the other
    assert sensor.tick().sentence.startswith("goes on with epoch 1")
    produce(sensor.store, 1)
    assert keys(sensor.tick()) == [key(2, 2)]
    assert sensor.partitions == [key(0, 1), added, key(2, 2)]


def test_a_partition_that_is_no_range_is_left_aside_when_nothing_is_planned(sensor: Sensing) -> None:
    # given
    sensor.instance.add_dynamic_partitions(str(sensor.source.partitions.name), ["mine"])
    produce(sensor.store, 1)
    # then
    assert sensor.tick().sentence.startswith("took the buffer over")
    assert keys(sensor.tick()) == [key(0, 0)]


def test_a_partition_that_somebody_added_refuses_the_takeover_and_is_to_be_deleted(sensor: Sensing) -> None:
    # given
    produce(sensor.store, 2)
    sensor.tick()
    sensor.tick()
    name = str(sensor.source.partitions.name)
    sensor.instance.add_dynamic_partitions(name, [key(100, 199)])
    sensor.cursor = None
    # then
    with pytest.raises(InvalidInput, match=f"a partition {key(100, 199)}, .* If somebody added it by hand, delete it"):
        sensor.tick()
    # when
    sensor.instance.delete_dynamic_partition(name, key(100, 199))
    # then
    assert sensor.tick().sentence.startswith("goes on with epoch 1")


def contents(sensor: Sensing) -> dict[str, bytes]:
    return {info.path: sensor.store.get(info.path).data for info in sensor.store.list()}
