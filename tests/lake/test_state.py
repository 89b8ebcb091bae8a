"""A state against an oracle in plain Python: what is applied, in which order, and when it must not go on."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.buffer.retention import Mark, Retention, retention_path
from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound
from objbuf_dagster.lake import LakeTable, maintain
from objbuf_dagster.lake.fold import Scope
from objbuf_dagster.lake.state import CURSOR, StateTable
from objbuf_dagster.lake.state_cursor import RebuildNeeded
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import LocalStore
from tests.lake.states import Accounts, World, decode, ledger_with, oracle, some_entries


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path / "lake"))


class More(Accounts):
    """The next version, with another column."""

    version = 2
    value = Accounts.value.append(pa.field("closed", pa.int64()))


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_state_is_what_plain_python_makes_of_the_same_entries(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    scope = rng.choice([Scope(), Scope.of("a"), Scope.of("a1", "b"), Scope.of("nobody")])
    world = World(str(tmp_path_factory.mktemp("lake")), scope, rng.choice([1, 4, 16]), rng=rng)
    start = rng.choice([0, 7])
    for _ in range(rng.randrange(2, 5)):
        for _ in range(rng.randrange(1, 3)):
            start = world.land(start, some_entries(rng, rng.randrange(1, 4))).end + 1
        report = world.apply(ranges_at_once=rng.choice([1, 2, 32]))
        assert world.found() == world.expected()
        assert report.cursor is not None
        assert report.cursor.next_sequence == start
        assert report.cursor.keys == len(world.expected())
        assert report.cursor.ranges == len(world.landed)
        assert (report.waiting, report.changed) == (None, 0)

    assert world.rebuild().cursor == world.apply().cursor
    assert world.found() == world.expected()


def test_blocks_and_memory_that_are_far_too_small_change_nothing(world: World) -> None:
    """Every chunk is a block of its own, and all touched state is written out after each."""
    rng = random.Random(3)
    for number in range(3):
        world.land(4 * number, some_entries(rng, 4, keys=50))
        snapshot = world.state.load_or_create()
        shadow = world.state.shadow(snapshot, chunk_bytes=1, working_bytes=1)
        rows = pa.Table.from_batches([*_typed(world, 4 * number)])
        shadow.add(block for at in range(len(rows)) for block in rows.slice(at, 1).to_batches())
        report = world.state.cursor_of(
            last_range=SequenceRange(4 * number, 4 * number + 3).key,
            next_sequence=4 * number + 4,
            first_sequence=0,
            ranges=number + 1,
            rows=0,
            keys=shadow.keys,
        )
        written = len(_files(world))
        shadow.save()
        assert len(_files(world)) <= written, "files of states in between are left"
        assert world.state.commit(snapshot, world.state.prepare(shadow, report)) == number + 1
        assert world.found() == world.expected()


def _typed(world: World, start: int) -> list[pa.RecordBatch]:
    from objbuf_dagster.lake.state_rows import ordered

    one = next(one for one in world.landed if one.start == start)
    return list(ordered(world.typed, world.typed.files([one.key]), world.state.fold.reads))


def _files(world: World) -> list[Path]:
    assert world.state.root is not None
    return list(world.state.root.rglob("*.parquet"))


def test_only_buckets_with_touched_keys_are_rewritten(world: World) -> None:
    world.land(0, [[f"a{number} put 1" for number in range(40)]])
    world.apply()
    before = world.state.load().files
    world.land(1, [["a1 put 2"]])
    world.apply()
    after = world.state.load().files

    assert sum(before[bucket] != after[bucket] for bucket in before) == 1
    assert world.found() == world.expected()


def test_ranges_without_rows_that_matter_move_the_cursor_alone(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.apply()
    before = world.state.load()
    world.land(1, [["damaged"], ["b1 noise 3"], [""]])

    report = world.apply()

    after = world.state.load()
    assert after.cursor is not None
    assert (after.cursor.next_sequence, after.version) == (4, before.version + 1)
    assert after.files == before.files
    assert (report.ranges, report.commits) == (1, 1)


def test_nothing_due_commits_nothing_and_makes_no_table(world: World) -> None:
    assert world.apply().version is None
    assert not world.state.root or not world.state.root.exists()
    world.land(0, [["a1 put 1"]])
    first = world.apply()
    again = world.apply()

    assert (again.ranges, again.commits, again.version) == (0, 0, first.version)
    assert again.cursor == first.cursor


def test_it_waits_at_a_hole_and_goes_on_when_it_is_filled(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.land(2, [["a1 put 4"]])

    waiting = world.apply()

    assert waiting.cursor is not None
    assert waiting.cursor.next_sequence == 1
    assert "sequences 1 to 1 are in no table" in str(waiting.waiting)
    assert world.found() == world.expected(through=0)
    world.land(1, [["a1 close 0"]], typed=False)
    assert "has landed and is not in" in str(world.apply().waiting)
    world.land(1, [["a1 close 0"]], entries=False)
    done = world.apply()
    assert (done.waiting, done.ranges) == (None, 2)
    assert world.found() == world.expected()


def test_it_does_not_begin_behind_a_range_that_is_still_to_land(world: World, tmp_path: Path) -> None:
    world.ledger = ledger_with(LocalStore(tmp_path / "buffer"), SequenceRange(0, 0), SequenceRange(1, 1))
    world.land(1, [["a1 put 4"]])

    assert "range 000000000000-000000000000 is not in" in str(world.apply().waiting)
    assert world.found() == {}
    world.land(0, [["a1 put 1"]])
    assert world.apply().ranges == 2
    assert world.found() == world.expected()


def test_a_gap_is_told_and_only_a_rebuild_goes_over_it(world: World, tmp_path: Path) -> None:
    world.ledger = ledger_with(LocalStore(tmp_path / "buffer"), SequenceRange(0, 0), SequenceRange(5, 5))
    world.land(0, [["a1 put 1"]])
    world.land(5, [["a1 put 4"]])

    with pytest.raises(RebuildNeeded, match=r"sequences 1 to 4 .*skipped as a gap.*rebuild") as raised:
        world.apply()

    assert (raised.value.why, raised.value.first, raised.value.last) == ("gap", 1, 4)
    assert world.found() == world.expected(through=0), "what is before the gap is applied"
    report = world.rebuild()
    assert report.cursor is not None
    assert report.cursor.gaps == ((1, 4),)
    assert world.found() == world.expected()
    world.land(6, [["a1 put 5"]])
    assert world.apply().ranges == 1
    assert world.found() == world.expected()


def test_a_rebuild_does_not_pass_a_range_that_is_still_to_land(world: World, tmp_path: Path) -> None:
    ranges = [SequenceRange(0, 0), SequenceRange(1, 1), SequenceRange(2, 2)]
    world.ledger = ledger_with(LocalStore(tmp_path / "buffer"), *ranges)
    world.land(0, [["a1 put 1"]])
    world.land(2, [["a1 put 4"]])

    report = world.rebuild()

    assert report.cursor is not None
    assert report.cursor.next_sequence == 1
    assert "sequences 1 to 1 are not in" in str(report.waiting)
    world.ledger = None
    assert "name the buffer" in str(world.rebuild().waiting)
    over = world.rebuild(over_gaps=True).cursor
    assert over is not None
    assert over.gaps == ((1, 1),)


def test_expired_ranges_are_told_and_a_rebuild_makes_it_again_from_entries(world: World, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buffer")
    ranges = [SequenceRange(0, 0), SequenceRange(1, 1), SequenceRange(2, 2)]
    world.ledger = ledger_with(store, *ranges)
    store.put(retention_path("ingest"), Retention(expired=(Mark(1, 2),)).to_bytes())
    world.land(0, [["a1 put 1"]])
    world.land(1, [["a2 put 7"]], typed=False)
    world.land(2, [["a1 put 4"]])

    with pytest.raises(RebuildNeeded, match="range 000000000001-000000000001 has expired") as raised:
        world.apply()

    assert (raised.value.why, raised.value.first, raised.value.last) == ("expired", 1, 1)
    world.rebuild()
    assert world.found() == world.expected()


def test_sequences_that_expired_without_a_trace_are_told(world: World, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buffer")
    world.ledger = ledger_with(store, SequenceRange(2, 2))
    store.put(retention_path("ingest"), Retention(expired=(Mark(1, 2),)).to_bytes())
    world.land(0, [["a1 put 1"]])
    world.apply()
    world.land(2, [["a1 put 4"]])

    with pytest.raises(RebuildNeeded, match="sequences 1 to 1 have expired"):
        world.apply()


def test_a_state_that_begins_behind_the_first_sequence_says_so_once(world: World, tmp_path: Path) -> None:
    """As of a buffer that was consumed otherwise before."""
    world.ledger = ledger_with(LocalStore(tmp_path / "buffer"), SequenceRange(5, 5), SequenceRange(6, 6))
    world.land(5, [["a1 put 4"]])

    told = world.apply().begins

    assert told is not None
    assert "begins at sequence 5: what came before is in no table that it could read" in told
    assert "rebuild the state" in told
    world.land(6, [["a1 put 5"]])
    assert world.apply().begins is None
    assert world.found() == world.expected()
    assert world.rebuild().begins == told, "it is begun again"


def test_a_state_with_everything_has_nothing_to_say_of_its_beginning(world: World) -> None:
    world.land(0, [["a1 put 4"]])
    assert world.apply().begins is None
    assert world.rebuild().begins is None


@pytest.mark.parametrize("ranges", [(2,), (2, 3)], ids=["one range", "two"])
def test_a_state_is_not_begun_where_all_before_has_expired_and_is_in_no_table(
    world: World, tmp_path: Path, ranges: tuple[int, ...]
) -> None:
    store = LocalStore(tmp_path / "buffer")
    world.ledger = ledger_with(store, *(SequenceRange(start, start) for start in ranges))
    store.put(retention_path("ingest"), Retention(expired=(Mark(1, 2),)).to_bytes())
    for start in ranges:
        world.land(start, [["a1 put 4"]])

    with pytest.raises(RebuildNeeded, match=r"sequences 0 to 1 have expired.*rebuild") as raised:
        world.apply()

    assert (raised.value.why, raised.value.first, raised.value.last) == ("expired", 0, 1)
    assert world.state.snapshot() is None
    assert "begins at sequence 2" in str(world.rebuild().begins), "a person has decided"
    assert world.apply().begins is None
    assert world.found() == world.expected()


@pytest.mark.parametrize("typed", [True, False], ids=["in both tables", "in entries alone"])
def test_what_expired_and_is_in_entries_is_used(world: World, tmp_path: Path, typed: bool) -> None:
    store = LocalStore(tmp_path / "buffer")
    world.ledger = ledger_with(store, SequenceRange(3, 3))
    store.put(retention_path("ingest"), Retention(expired=(Mark(1, 3),)).to_bytes())
    world.land(0, [["a1 put 1"], ["a2 put 1"], ["a3 put 1"]], typed=typed)
    world.land(3, [["a1 put 4"]])

    if not typed:
        with pytest.raises(RebuildNeeded, match="range 000000000000-000000000002 has expired"):
            world.apply()
        world.rebuild()

    assert world.apply().begins is None
    assert world.found() == world.expected()


def test_tables_that_have_some_of_what_expired_begin_where_landing_began(world: World, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buffer")
    world.ledger = ledger_with(store, SequenceRange(6, 6))
    store.put(retention_path("ingest"), Retention(expired=(Mark(1, 6),)).to_bytes())
    world.land(5, [["a1 put 4"]])
    world.land(6, [["a1 put 5"]])

    assert "begins at sequence 5" in str(world.apply().begins)
    assert world.found() == world.expected()


def test_a_rebuild_takes_keys_out_that_are_gone(world: World) -> None:
    world.land(0, [["a1 put 1", "b1 put 1"]])
    world.land(1, [["a1 put 4"]])
    world.apply()
    version = world.state.load().version
    world.land(0, [["a1 put 1"]])  # b1 was a mistake: the range landed again without it

    changed = world.apply()
    assert changed.changed == -1
    assert "b1" in world.found()
    report = world.rebuild()

    assert report.version == version + 1, "one transaction"
    assert world.found() == world.expected()
    assert world.apply().changed == 0


def test_a_rebuild_goes_no_further_than_the_typed_table(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.land(1, [["a1 put 4"]], typed=False)
    assert world.rebuild().ranges == 1
    world.land(1, [["a1 put 4"]], entries=False)
    assert world.apply().ranges == 1
    assert world.found() == world.expected()


def test_a_rebuild_without_entries_is_refused_and_changes_nothing(world: World) -> None:
    with pytest.raises(InvalidInput, match=r"nothing in .*entries to rebuild"):
        world.rebuild()
    assert world.state.snapshot() is None


def test_another_version_of_the_fold_is_refused_until_it_is_rebuilt(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.apply()
    old = world.state
    world.state = StateTable(old.url, More(), buckets=old.buckets)

    with pytest.raises(RebuildNeeded, match=r"fold accounts has version 1, not 2.*columns") as raised:
        world.apply()
    assert raised.value.why == "fold"
    world.rebuild()

    assert world.found() == world.expected()
    assert world.state.rows().schema.names == [*Accounts.key.names, *More.value.names]
    with pytest.raises(RebuildNeeded, match="fold"):
        old.load()


@pytest.mark.parametrize(("scope", "buckets", "says"), [(Scope.of("a"), 4, "scope"), (Scope(), 8, "buckets")])
def test_another_scope_or_number_of_buckets_is_refused(world: World, scope: Scope, buckets: int, says: str) -> None:
    world.land(0, [["a1 put 1", "b1 put 1"]])
    world.apply()
    world.scope = scope
    world.state = StateTable(world.state.url, Accounts(), scope, buckets=buckets)

    with pytest.raises(RebuildNeeded, match=says):
        world.apply()
    world.rebuild()
    assert world.found() == world.expected()


def test_the_same_buffer_at_another_place_is_known_by_its_batches(world: World, tmp_path: Path) -> None:
    """As after an import, beside a copy of the buffer."""
    world.buffer = "file:///one"
    last = world.land(0, [["a1 put 1"], ["a2 put 1"]])
    world.apply()
    world.land(2, [["a1 put 2"]])
    world.buffer = "file:///two"
    world.ledger = ledger_with(LocalStore(tmp_path / "cut otherwise"), SequenceRange(0, 0), SequenceRange(1, 2))
    with pytest.raises(RebuildNeeded, match="made from the buffer file:///one"):
        world.apply()
    world.ledger = ledger_with(LocalStore(tmp_path / "moved"), last, SequenceRange(2, 2))

    world.apply()

    assert world.found() == world.expected()
    world.ledger = None
    world.apply()  # it has the new place in its cursor


def test_another_buffer_is_refused(world: World, tmp_path: Path) -> None:
    world.buffer = "file:///one"
    world.land(0, [["a1 put 1"]])
    world.apply()
    world.buffer = "file:///two"
    with pytest.raises(RebuildNeeded, match="made from the buffer file:///one") as raised:
        world.apply()
    assert raised.value.why == "replaced"

    anew = World(str(tmp_path / "anew"), tag="c")
    anew.land(0, [["a9 put 1"]])
    anew.land(1, [["a9 put 1"]])
    anew.state = world.state
    with pytest.raises(RebuildNeeded, match=r"was of the batches ingest/b000000\.batch"):
        anew.apply()
    assert world.found() == world.expected()


def test_ranges_that_were_cut_anew_are_refused(world: World, tmp_path: Path) -> None:
    world.land(0, [["a1 put 1"], ["a1 put 2"]])
    world.apply()
    anew = World(str(tmp_path / "anew"))
    anew.land(1, [["a1 put 2"], ["a1 put 3"]])
    anew.state = world.state

    with pytest.raises(RebuildNeeded, match="ranges were cut anew"):
        anew.apply()


def test_the_cursor_outlives_checkpoints_and_upkeep(world: World) -> None:
    for number in range(14):
        world.land(number, [[f"a{number % 3} put {number}"]])
        world.apply()
    report = maintain(world.state)

    assert report.checkpoint_version == 14
    assert maintain(LakeTable(world.state.url)).version == 14, "as upkeep opens it, by name"
    world.land(14, [["a1 put 1"]])
    world.apply()
    assert world.found() == world.expected()
    cursor = world.state.cursor()
    assert cursor is not None
    assert cursor.ranges == 15


def test_a_table_that_is_no_state_is_refused(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    other = StateTable(world.entries.url, Accounts())
    with pytest.raises(InvalidInput, match="not one of ours"):
        other.load()
    with pytest.raises(NotFound):
        world.state.delta()
    write_deltalake(f"{world.url}/foreign", pa.table({"a": [1]}))
    with pytest.raises(InvalidInput, match="not one of ours"):
        maintain(LakeTable(f"{world.url}/foreign"))


def test_a_state_that_somebody_else_wrote_to_is_refused_and_can_be_rebuilt(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.apply()
    snapshot = world.state.load()
    assert snapshot.cursor_path is not None
    assert world.state.root is not None
    (world.state.root / snapshot.cursor_path).write_bytes(b"garbage")

    with pytest.raises(CorruptData, match="state cursor"):
        world.apply()
    world.rebuild()
    assert world.found() == world.expected()


def test_readers_see_no_cursor_as_a_row(world: World) -> None:
    world.land(0, [["a1 put 1"]])
    world.apply()

    rows = world.state.delta().to_pyarrow_table()
    assert len(rows) == 1
    assert CURSOR not in rows["_odb_bucket"].to_pylist()


def test_the_oracle_sees_differences(world: World) -> None:
    """Else it would prove nothing."""
    world.land(0, [["a1 put 1"], ["a1 put 2"]])
    world.apply()
    (one,) = world.landed
    assert oracle([(one, [["a1 put 2"], ["a1 put 1"]])]) != world.found()
    assert [block.num_rows for block in decode(_entries(world))] == [2]


def _entries(world: World) -> pa.RecordBatch:
    table = world.entries.delta().to_pyarrow_table().select(world.entries.schema.to_arrow().names)
    (batch,) = table.cast(world.entries.schema.to_arrow()).combine_chunks().to_batches()
    return batch
