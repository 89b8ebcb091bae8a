"""Which batches a read is about: all that was asked for, or an error that says why not; and nothing else is touched."""

from __future__ import annotations

import pytest

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.buffer.retention import Mark, Retention, retention_path
from objbuf_dagster.errors import BufferReplaced, InvalidInput, RangeExpired, RangeNotPlanned, RangesOverlap
from objbuf_dagster.protocol import BatchDescriptor, Manifest, PlannedBatch, RangeObject
from objbuf_dagster.protocol.range_object import range_path
from objbuf_dagster.ranges import RangeLedger, SequenceRange, plan
from objbuf_dagster.spark.options import FromTo, Options, Ranges, Selection, SinceFrontier
from objbuf_dagster.spark.pushdown import Sequences
from objbuf_dagster.spark.rows import read_rows
from objbuf_dagster.spark.selection import choose
from objbuf_dagster.spark.source import plan_partitions
from objbuf_dagster.store import MemoryStore, Store
from tests.spark.buffers import BY_TWO, ack, plan_ranges
from tests.support.buffers import append, fill, manifests, put_batch
from tests.support.counting import CountingStore


def expire(store: Store, before: int) -> None:
    store.put(retention_path("ingest"), Retention(60.0, (), (Mark(1_700_000_000_000, before),)).to_bytes())


def buffer_of_ten(*, planned: int = 3, acked: int = 2) -> MemoryStore:
    """Sequences 0 to 9: so many ranges of two are planned, and so many of these are acked."""
    store = MemoryStore()
    fill(store, 10, size=3)
    plan_ranges(store, planned)
    ack(store, 2 * acked - 1)
    return store


def chosen(store: Store, selection: Selection, wanted: Sequences | None = None) -> list[int]:
    found = choose(BufferPlace(store), selection, wanted or Sequences())
    return [batch.descriptor.sequence for batch in found]


def test_a_range_is_what_was_planned_also_after_its_ack() -> None:
    store = buffer_of_ten()

    assert chosen(store, Ranges((SequenceRange(0, 1), SequenceRange(4, 5)))) == [0, 1, 4, 5]


def test_since_the_frontier_is_all_that_is_not_acked() -> None:
    assert chosen(buffer_of_ten(), SinceFrontier()) == [4, 5, 6, 7, 8, 9]
    assert chosen(buffer_of_ten(planned=0, acked=0), SinceFrontier()) == list(range(10))
    assert chosen(buffer_of_ten(planned=5, acked=5), SinceFrontier()) == []


@pytest.mark.parametrize("planned", [2, 3, 5])
@pytest.mark.parametrize(
    ("first", "last", "found"),
    [(0, 9, range(10)), (None, None, range(10)), (1, 6, range(1, 7)), (None, 2, range(3)), (7, None, range(7, 10))],
)
def test_from_and_to_reach_over_acked_planned_and_new_batches(
    planned: int, first: int | None, last: int | None, found: range
) -> None:
    assert chosen(buffer_of_ten(planned=planned), FromTo(first, last)) == list(found)


def test_reading_from_the_end_on_gives_nothing_yet() -> None:
    assert chosen(buffer_of_ten(), FromTo(10, None)) == []
    assert chosen(MemoryStore(), FromTo(0, None)) == []


@pytest.mark.parametrize("selection", [FromTo(None, None), SinceFrontier()])
def test_an_empty_buffer_has_no_batches(selection: Selection) -> None:
    assert chosen(MemoryStore(), selection) == []


def test_sizes_are_known_wherever_they_come_from() -> None:
    found = choose(BufferPlace(buffer_of_ten()), FromTo(0, 9), Sequences())

    assert {batch.size for batch in found} == {4 + 3 + 7}


# What is not there


def test_a_range_that_nobody_planned_is_refused() -> None:
    with pytest.raises(RangeNotPlanned, match="000000000006-000000000007"):
        chosen(buffer_of_ten(), Ranges((SequenceRange(0, 1), SequenceRange(6, 7))))


def test_sequences_that_expired_are_refused_with_when() -> None:
    store = buffer_of_ten()
    expire(store, 2)

    with pytest.raises(RangeExpired, match="range 000000000000-000000000001 expired at 2023-11-14"):
        chosen(store, FromTo(0, 9))
    with pytest.raises(RangeExpired):
        chosen(store, Ranges((SequenceRange(0, 1),)))
    assert chosen(store, FromTo(None, 9)) == list(range(2, 10))
    assert chosen(store, FromTo(2, None)) == list(range(2, 10))


def test_a_range_that_only_begins_before_what_expired_is_still_there() -> None:
    store = buffer_of_ten()
    expire(store, 3)

    assert chosen(store, FromTo(None, 5)) == [2, 3, 4, 5]


def test_sequences_acked_without_a_plan_are_refused_with_where_to_begin() -> None:
    store = buffer_of_ten(planned=1, acked=3)

    for selection in (FromTo(0, 9), FromTo(None, None)):
        with pytest.raises(RangeNotPlanned, match=r"000000000002-000000000005 is not planned.*from=6"):
            chosen(store, selection)
    with pytest.raises(RangeNotPlanned, match="000000000003-000000000005"):
        chosen(store, FromTo(3, 9))
    assert chosen(store, FromTo(6, None)) == [6, 7, 8, 9]
    assert chosen(store, FromTo(0, 1)) == [0, 1]


def test_sequences_acked_before_anything_was_planned_are_refused_if_asked_for() -> None:
    store = buffer_of_ten(planned=0, acked=1)

    with pytest.raises(RangeNotPlanned, match="000000000000-000000000001 is not planned"):
        chosen(store, FromTo(0, None))
    assert chosen(store, FromTo(None, None)) == list(range(2, 10))


def test_a_hole_is_no_smaller_for_a_filter_that_begins_in_it() -> None:
    store = buffer_of_ten(planned=1, acked=2)
    plan(manifests(store), RangeLedger(store), BY_TWO, on_gap="skip")

    with pytest.raises(RangeNotPlanned, match="000000000003-000000000003 is not planned"):
        chosen(store, FromTo(None, None), Sequences().since(3))
    assert chosen(store, FromTo(None, None), Sequences().only([1, 5])) == [1, 5]


def test_an_end_that_is_not_produced_yet_is_refused() -> None:
    with pytest.raises(InvalidInput, match="to=10 is not produced yet, the buffer's last sequence is 9: leave 'to'"):
        chosen(buffer_of_ten(), FromTo(0, 10))
    with pytest.raises(InvalidInput, match="from=11 is beyond the end"):
        chosen(buffer_of_ten(), FromTo(11, None))
    with pytest.raises(InvalidInput, match="the buffer has no sequence yet"):
        chosen(MemoryStore(), FromTo(0, 0))


@pytest.mark.parametrize("selection", [SinceFrontier(), FromTo(0, None)])
def test_ranges_of_another_buffer_are_refused(selection: Selection) -> None:
    store = buffer_of_ten(acked=0)
    store.delete(["ingest/manifest"])
    fill(store, 8)

    with pytest.raises(BufferReplaced, match="sequence 0 is"):
        chosen(store, selection)


def test_ranges_beyond_the_manifest_are_another_buffers() -> None:
    store = buffer_of_ten(planned=5, acked=0)
    store.delete(["ingest/manifest"])
    fill(store, 2)

    with pytest.raises(BufferReplaced, match="its next sequence is 2"):
        chosen(store, SinceFrontier())


def test_ranges_that_overlap_are_refused() -> None:
    """Rows would come twice."""
    store = buffer_of_ten(planned=2, acked=1)
    batches = tuple(PlannedBatch(one, 1) for one in manifests(store).read().entries(after=2, limit=3))
    store.put(range_path("ingest", 3), RangeObject(3, 5, 0, 0, batches).to_bytes())

    with pytest.raises(RangesOverlap):
        chosen(store, FromTo(0, 5))


def test_what_is_planned_while_we_look_is_not_taken_for_another_buffer() -> None:
    """The manifest was read, then somebody produced and planned: the next look at the manifest explains the range."""
    store = buffer_of_ten(planned=5, acked=0)

    class Growing(CountingStore):
        def list(self, prefix: str = "", *, after: str | None = None):  # type: ignore[no-untyped-def]
            fill(self.inner, 2)
            plan_ranges(self.inner, 1)
            return super().list(prefix, after=after)

    assert chosen(Growing(store), SinceFrontier()) == list(range(10))


# What is not wanted is not looked at


def test_only_the_range_objects_and_batches_that_a_filter_leaves_are_asked_for() -> None:
    store = CountingStore(buffer_of_ten(planned=3, acked=0))

    assert chosen(store, FromTo(0, 9), Sequences().only([2, 8])) == [2, 8]

    assert store.count("head") == 1
    assert {path for method, path in store.calls if method == "read"} == {range_path("ingest", n) for n in (2, 4)}
    assert store.count("get", path="ingest/manifest") == 1


def test_ranges_that_a_filter_leaves_out_are_not_read() -> None:
    store = CountingStore(buffer_of_ten())

    assert chosen(store, Ranges((SequenceRange(0, 1), SequenceRange(2, 3))), Sequences().since(3)) == [3]

    assert store.count("read") == 1
    assert store.count(path="ingest/manifest") == 0


def test_a_filter_that_leaves_nothing_costs_one_get() -> None:
    store = CountingStore(buffer_of_ten())

    assert chosen(store, FromTo(0, 9), Sequences().only([])) == []
    assert sum(store.calls.values()) == 1


def test_many_new_batches_are_not_all_asked_for_their_sizes() -> None:
    inner = MemoryStore()
    manifest = Manifest.empty()
    for _ in range(10_000):
        manifest.append("ingest/the-same.batch")
    inner.put("ingest/manifest", manifest.to_bytes())
    put_batch(inner, "ingest/the-same.batch")
    store = CountingStore(inner)

    found = choose(BufferPlace(store), SinceFrontier(), Sequences())

    assert len(found) == 10_000
    assert {batch.size for batch in found} == {4 + 1 + 7}
    assert store.count("head") <= 4096


def test_a_long_queue_of_batches_of_many_sizes_is_read() -> None:
    """Sizes of most of them are guessed then, and nothing may be refused for a guess."""
    store = MemoryStore()
    manifest = Manifest.empty()
    for sequence in range(5_000):
        manifest.append(put_batch(store, f"ingest/{sequence}.batch", [b"x" * (sequence % 7)]))
    store.put("ingest/manifest", manifest.to_bytes())
    place = BufferPlace(store)

    found = choose(place, SinceFrontier(), Sequences())
    rows = [row for block in read_rows(place, found) for row in block.select(["_odb_sequence", "entry"]).to_pylist()]

    assert [row["_odb_sequence"] for row in rows] == list(range(5_000))
    assert all(row["entry"] == b"x" * (row["_odb_sequence"] % 7) for row in rows)


def test_a_location_outside_the_buffer_is_not_even_asked_for_its_size() -> None:
    inner = MemoryStore()
    append(inner, "elsewhere/x.batch")
    append(inner, "ingest/missing.batch")
    store = CountingStore(inner)

    assert [batch.size for batch in choose(BufferPlace(store), SinceFrontier(), Sequences())] == [None, None]
    assert store.count("head", path="elsewhere/x.batch") == 0


# Partitions


def planned_of(sizes: list[int]) -> MemoryStore:
    store = MemoryStore()
    batches = tuple(PlannedBatch(BatchDescriptor(n, f"ingest/{n}.batch"), size) for n, size in enumerate(sizes))
    RangeLedger(store).create(RangeObject(0, len(sizes) - 1, 0, 0, batches))
    return store


def partitions(sizes: list[int], *, partition_bytes: int = 64 << 20, min_partitions: int = 2) -> list[list[int]]:
    place = BufferPlace(planned_of(sizes))
    options = Options(place, Ranges((SequenceRange(0, len(sizes) - 1),)), partition_bytes, min_partitions)
    return [[batch.size or 0 for batch in share] for share in plan_partitions(options, Sequences())]


def test_partitions_are_balanced_by_size() -> None:
    mib = 1 << 20
    found = [sum(share) for share in partitions([32 * mib] + [mib] * 64 + [32 * mib])]

    assert len(found) == 3
    assert max(found) - min(found) <= mib


def test_little_data_is_one_partition_however_many_cores_there_are() -> None:
    assert len(partitions([100] * 10, min_partitions=16)) == 1


def test_data_worth_it_is_shared_by_all_cores() -> None:
    assert len(partitions([4 << 20] * 10, min_partitions=4)) == 4


def test_many_tiny_batches_count_as_work_too() -> None:
    assert len(partitions([10] * 4096)) > 2
