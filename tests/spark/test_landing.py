"""Landing: a range's rows are in the table exactly once, or not at all."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import BufferReplaced, CorruptData, InvalidInput, NotFound, ObjbufError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch
from objbuf_dagster.ranges import Limits, RangeLedger, SequenceRange, plan, range_of
from objbuf_dagster.spark.landing import Failed, Landed, land, land_all
from objbuf_dagster.spark.reading import read
from objbuf_dagster.store import LocalStore, ObjectInfo, Store
from tests.spark.landing import Filled, fill, rows_in
from tests.spark.rows import Row, batch, entries, of_every_kind
from tests.support.buffers import append, batch_name, put_batch


def files_of(table: LakeTable, number: int, filled: Filled) -> set[str]:
    return {file.path for file in table.files([range_of(filled.ranges[number]).key])}


def test_a_range_becomes_exactly_its_rows(spark: SparkSession, places: tuple[Store, LakeTable]) -> None:
    store, table = places
    filled = fill(store, of_every_kind(), per_range=40)

    results = [land(spark, filled.place, planned, table) for planned in filled.ranges]

    assert rows_in(spark, table) == filled.rows()
    assert [result.rows for result in results] == [len(filled.rows(number)) for number in range(2)]
    by_deltalake = table.delta().to_pyarrow_table().drop_columns("_odb_range")
    ordered = by_deltalake.sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")])
    assert list(zip(*(column.to_pylist() for column in ordered.columns), strict=True)) == filled.rows()
    assert by_rust(table) == filled.rows()


def by_rust(table: LakeTable) -> list[Row]:
    """As deltalake's own engine reads it, which does not use pyarrow's Parquet."""
    names = ", ".join(column.name for column in table.schema.data)
    query = f"SELECT {names} FROM t ORDER BY _odb_sequence, _odb_entry_index"  # noqa: S608
    found = pa.table(QueryBuilder().register("t", table.delta()).execute(query))
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_landing_again_replaces_exactly_that_range(
    spark: SparkSession, places: tuple[Store, LakeTable], tmp_path: Path
) -> None:
    store, table = places
    filled = fill(store, [batch(n, [b"%d" % n]) for n in range(6)], per_range=2)
    list(land_all(spark, filled.place, filled.ranges, table))
    before = [files_of(table, number, filled) for number in range(3)]

    again = land(spark, filled.place, filled.ranges[1], table)

    after = [files_of(table, number, filled) for number in range(3)]
    assert (after[0], after[2]) == (before[0], before[2])
    assert not after[1] & before[1]
    assert again.rows == 2
    assert rows_in(spark, table) == filled.rows()


def test_the_result_tells_what_was_done(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    result = land(spark, small.place, small.ranges[0], table, run_id="run-7")

    assert result.range == range_of(small.ranges[0])
    assert (result.batches, result.rows, result.files) == (3, 1 + 2 + 3, 1)
    assert result.bytes_read == small.ranges[0].size
    assert result.bytes_written == sum(file.size for file in table.files())
    assert 0 < sum(result.task_seconds.values()) <= result.seconds
    assert set(result.task_seconds) == {"fetch", "check", "build", "write"}
    assert result.version == table.version()
    last = table.delta().history(1)[0]
    assert last["objbuf"] == {
        "range": range_of(small.ranges[0]).key,
        "rows": 6,
        "epoch": small.ranges[0].epoch,
        "software": last["objbuf"]["software"],
        "run_id": "run-7",
    }


def test_files_carry_statistics_that_tell_their_sequences(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    list(land_all(spark, small.place, small.ranges, table))

    found = {file.range: file.stats for file in table.files()}
    for planned in small.ranges:
        stats = found[range_of(planned).key]
        assert stats["minValues"]["_odb_sequence"] == planned.start
        assert stats["maxValues"]["_odb_sequence"] == planned.end
        assert stats["maxValues"]["_odb_ingestion_time_ms"] == planned.end


def test_filters_skip_files(spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path) -> None:
    """The files of other ranges are gone, so whoever opens them fails."""
    list(land_all(spark, small.place, small.ranges, table))
    for number in (0, 2):
        for path in files_of(table, number, small):
            (tmp_path / "lake/entries" / path).unlink()

    dataset = table.delta().to_pyarrow_dataset()
    assert dataset.to_table(filter=ds.field("_odb_sequence") == 4).num_rows == 5
    assert dataset.to_table(filter=ds.field("_odb_ingestion_time_ms") == 4).num_rows == 5


def test_duckdb_reads_the_files_of_a_table(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    land(spark, small.place, small.ranges[0], table)

    paths = [str(tmp_path / "lake/entries" / path) for path in files_of(table, 0, small)]
    found = duckdb.sql("SELECT * EXCLUDE (_odb_range) FROM read_parquet($1) ORDER BY 1, 2", params=[paths]).fetchall()
    assert found == small.rows(0)


def test_a_buffer_that_was_made_anew_does_not_replace_the_rows_of_the_old(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    land(spark, small.place, small.ranges[0], table)
    anew = LocalStore(tmp_path / "anew")
    locations = [put_batch(anew, batch_name(n), [b"new %d" % n]) for n in range(3)]
    for location in locations:
        append(anew, location)
    place = BufferPlace(anew)
    (planned,) = plan(place.manifests(), RangeLedger(anew), Limits(max_wait=0))
    assert range_of(planned) == range_of(small.ranges[0])

    with pytest.raises(BufferReplaced, match="another buffer's"):
        land(spark, place, planned, table)

    assert rows_in(spark, table) == small.rows(0)


def test_a_buffer_that_was_made_anew_and_has_no_rows_does_not_replace_those_of_the_old(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    land(spark, small.place, small.ranges[0], table)
    anew = LocalStore(tmp_path / "anew")
    for location in [put_batch(anew, batch_name(n), []) for n in range(3)]:
        append(anew, location)
    place = BufferPlace(anew)
    (planned,) = plan(place.manifests(), RangeLedger(anew), Limits(max_wait=0))
    assert range_of(planned) == range_of(small.ranges[0])

    for dry_run in (True, False):
        with pytest.raises(BufferReplaced, match="another buffer's"):
            land(spark, place, planned, table, dry_run=dry_run)

    assert rows_in(spark, table) == small.rows(0)


def test_a_range_without_rows_lands_too(spark: SparkSession, table: LakeTable, tmp_path: Path) -> None:
    filled = fill(LocalStore(tmp_path / "empty"), [batch(0, []), batch(1, [])], per_range=2)

    result = land(spark, filled.place, filled.ranges[0], table)

    assert result.rows == 0
    assert list(table.ranges()) == [result.range.key]
    assert rows_in(spark, table) == rows_in(spark, table, native=False) == []


def test_nothing_to_land_starts_no_job(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    assert list(land_all(spark, small.place, [], table)) == []
    assert not table.exists()


def damage_corrupt(filled: Filled, location: str) -> str:
    filled.place.store.put(location, b"\xff" * len(filled.place.store.read(location)))
    return "batch has version 65535"


def damage_truncated(filled: Filled, location: str) -> str:
    data = filled.place.store.read(location)
    filled.place.store.put(location, data[:10] + data[-7:])
    return "batch is corrupt"


def damage_missing(filled: Filled, location: str) -> str:
    filled.place.store.delete([location])
    return "its data is lost or expired"


@pytest.mark.parametrize("damage", [damage_corrupt, damage_truncated, damage_missing])
def test_a_bad_batch_fails_its_range_and_no_other(
    damage: object, spark: SparkSession, small: Filled, table: LakeTable
) -> None:
    location = small.batches[4].descriptor.location
    assert callable(damage)
    reason = damage(small, location)

    outcomes = list(land_all(spark, small.place, small.ranges, table))

    failed = outcomes[1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ObjbufError)
    assert location in str(failed.error)
    assert "sequence 4" in str(failed.error)
    assert reason in str(failed.error)
    assert isinstance(outcomes[0], Landed)
    assert isinstance(outcomes[2], Landed)
    assert rows_in(spark, table) == small.rows(0, 2)


def test_a_bad_batch_leaves_the_rows_that_were_there(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    land(spark, small.place, small.ranges[1], table)
    version = table.version()
    damage_missing(small, small.batches[4].descriptor.location)

    with pytest.raises(NotFound, match=r"sequence 4"):
        land(spark, small.place, small.ranges[1], table)

    assert table.version() == version
    assert rows_in(spark, table) == small.rows(1)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("elsewhere/a.batch", "outside the buffer's data prefix"),
        ("ingest/../secret", "must stay inside the store"),
        ("ingest/ranges/../../etc/passwd", "must stay inside the store"),
    ],
)
def test_a_location_outside_the_buffer_is_never_fetched(
    location: str, why: str, spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    secret = batch(0, [b"secret"]).data
    for folder in ("elsewhere", "etc"):
        (tmp_path / "buffer" / folder).mkdir()
    for path in ("elsewhere/a.batch", "secret", "etc/passwd"):  # a batch like any other, but for where it is
        (tmp_path / "buffer" / path).write_bytes(secret)
    planned = small.ranges[0]
    outside = PlannedBatch(BatchDescriptor(1, location), len(secret))
    bad = dataclasses.replace(planned, batches=(planned.batches[0], outside, planned.batches[2]))

    with pytest.raises(CorruptData, match=rf"sequence 1\b.*{why}"):
        land(spark, small.place, bad, table)

    assert not table.exists()


def test_progress_is_told_and_ends_with_everything(spark: SparkSession, table: LakeTable, tmp_path: Path) -> None:
    filled = fill(
        LocalStore(tmp_path / "much"),
        [batch(n, entries(40_000, 1000, seed=n), compression="none") for n in range(8)],
        per_range=8,
    )
    told: list[tuple[int, int]] = []

    land(spark, filled.place, filled.ranges[0], table, progress=lambda *so_far: told.append(so_far))

    assert told == sorted(told)
    assert told[-1] == (8, filled.ranges[0].size)


class Gated(LocalStore):
    """Objects whose name ends so are not read before the file `gate` is there."""

    def __init__(self, root: Path, ending: str, gate: Path) -> None:
        super().__init__(root)
        self.ending = ending
        self.gate = gate

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        late = time.monotonic() + 30
        while path.endswith(self.ending) and not self.gate.exists() and time.monotonic() < late:
            time.sleep(0.02)
        return super().read(path, max_bytes=max_bytes)


def test_progress_is_told_while_tasks_run(spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path) -> None:
    """The last batch of all waits until what landed before it was told."""
    gate = tmp_path / "gate"
    place = dataclasses.replace(small.place, store=Gated(tmp_path / "buffer", "8.batch", gate))
    told: list[tuple[int, int]] = []

    def progress(batches: int, amount: int) -> None:
        told.append((batches, amount))
        if batches == 6:
            gate.touch()

    outcomes = list(land_all(spark, place, small.ranges, table, progress=progress))

    assert all(isinstance(outcome, Landed) for outcome in outcomes)
    assert (6, small.ranges[0].size + small.ranges[1].size) in told[:-1]
    assert told == sorted(told)
    assert told[-1] == (9, sum(one.size for one in small.ranges))


class Hanging(LocalStore):
    """A store that does not answer who lists it, and says that it was asked."""

    def __init__(self, root: Path, asked: Path) -> None:
        super().__init__(root)
        self.asked = asked

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        self.asked.touch()
        time.sleep(600)
        return super().list(prefix, after=after)


def test_a_store_that_hangs_holds_up_its_progress_and_not_the_commit(
    spark: SparkSession, small: Filled, table: LakeTable, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    table.store = Hanging(tmp_path / "lake/entries", asked)
    place = dataclasses.replace(small.place, store=Gated(tmp_path / "buffer", ".batch", asked))
    told: list[tuple[int, int]] = []

    landed = land(spark, place, small.ranges[0], table, progress=lambda *so_far: told.append(so_far))

    assert landed.seconds < 60
    assert told == [(3, small.ranges[0].size)]
    assert list(table.ranges()) == [landed.range.key]


def test_a_range_that_is_given_twice_is_refused_before_anything_starts(
    spark: SparkSession, small: Filled, table: LakeTable
) -> None:
    first, second, _ = small.ranges

    with pytest.raises(InvalidInput, match=range_of(first).key) as raised:
        land_all(spark, small.place, [first, second, first], table)

    assert range_of(second).key not in str(raised.value)
    assert not table.exists()


def test_a_table_in_the_place_of_the_buffer_is_refused_before_anything_starts(
    spark: SparkSession, small: Filled, table: LakeTable
) -> None:
    assert isinstance(small.place.store, LocalStore)
    there = [info.path for info in small.place.store.list()]
    for below in ("", "ingest/entries"):
        inside = LakeTable(small.place.store.root / below)
        with pytest.raises(InvalidInput, match="give the table a place of its own"):
            land(spark, small.place, small.ranges[0], inside)
        with pytest.raises(InvalidInput, match="give the table a place of its own"):
            land_all(spark, small.place, small.ranges, inside)
    assert [info.path for info in small.place.store.list()] == there


def test_reading_some_ranges_gives_those(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    list(land_all(spark, small.place, small.ranges, table))
    wanted: list[SequenceRange | str] = [
        range_of(small.ranges[0]),
        range_of(small.ranges[2]).key,
        "000000009990-000000009999",
    ]

    for native in (True, False):
        frame = read(spark, table, wanted, native=native)
        assert frame.count() == len(small.rows(0, 2))
        assert {row[0] for row in frame.select("_odb_range").distinct().collect()} == {str(one) for one in wanted[:2]}


def test_both_ways_of_reading_give_the_same(spark: SparkSession, small: Filled, table: LakeTable) -> None:
    list(land_all(spark, small.place, small.ranges, table))

    assert rows_in(spark, table, native=True) == rows_in(spark, table, native=False) == small.rows()
    assert read(spark, table, native=True).columns == read(spark, table, native=False).columns


def test_a_table_that_is_not_there_reads_as_no_rows(spark: SparkSession, table: LakeTable) -> None:
    frame = read(spark, table)

    assert frame.count() == 0
    assert frame.columns == [column.name for column in table.schema.columns]


def test_landing_works_on_a_cluster_whose_executors_lack_the_package(
    cluster_spark: SparkSession, small: Filled, table: LakeTable
) -> None:
    outcomes = list(land_all(cluster_spark, small.place, small.ranges, table))

    assert all(isinstance(outcome, Landed) for outcome in outcomes)
    assert rows_in(cluster_spark, table, native=True) == rows_in(cluster_spark, table, native=False) == small.rows()


def test_landing_works_through_spark_connect(connect_spark: SparkSession, small: Filled, table: LakeTable) -> None:
    outcomes = list(land_all(connect_spark, small.place, small.ranges, table))

    assert all(isinstance(outcome, Landed) for outcome in outcomes)
    assert rows_in(connect_spark, table, native=True) == rows_in(connect_spark, table, native=False) == small.rows()
