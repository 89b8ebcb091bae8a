"""Checks of a whole table, by its log: what was acked is there, nothing is there twice."""

from __future__ import annotations

from dataclasses import replace

from objbuf_dagster.lake import TABLE_CHECKS, DataFile, LakeTable, check_table
from objbuf_dagster.lake.files import add_action
from objbuf_dagster.ranges import SequenceRange
from tests.lake.landings import failed, key, land, write


def ranges(*ends: int, start: int = 0) -> list[SequenceRange]:
    """Neighbours that end so."""
    starts = [start, *(end + 1 for end in ends[:-1])]
    return [SequenceRange(first, last) for first, last in zip(starts, ends, strict=True)]


def table_with(table: LakeTable, *numbers: int) -> LakeTable:
    for number in numbers:
        land(table, key(number))
    return table


def test_a_table_with_every_range_before_the_frontier_passes(table: LakeTable) -> None:
    snapshot = table_with(table, 0, 1, 2).snapshot()

    for frontier in (0, 15, 30):
        checks = check_table(snapshot, ranges(9, 19, 29, 39), frontier)
        assert tuple(check.name for check in checks) == TABLE_CHECKS
        assert failed(checks) == []
    assert failed(check_table(snapshot, [], 30)) == []


def test_a_table_that_is_not_there_lacks_what_was_acked() -> None:
    assert failed(check_table(None, ranges(9, 19), 0)) == []
    assert failed(check_table(None, ranges(9, 19), 9)) == []
    assert failed(check_table(None, [], 20)) == []
    checks = check_table(None, ranges(9, 19), 10)
    assert failed(checks) == ["no_holes"]
    assert key(0) in checks[0].description
    assert key(1) not in checks[0].description


def test_a_range_that_was_acked_and_is_not_there_is_a_hole(local: LakeTable) -> None:
    snapshot = table_with(local, 0, 2).snapshot()

    checks = check_table(snapshot, ranges(9, 19, 29, 39), 30)

    assert failed(checks) == ["no_holes"]
    assert f"not in the table: {key(1)}" in checks[0].description
    assert checks[0].metadata["sequence"] == 10
    assert checks[0].metadata["ranges_missing"] == checks[0].metadata["holes"] == 1
    assert failed(check_table(snapshot, ranges(9, 19, 29, 39), 10)) == []


def test_a_range_that_waits_behind_one_that_failed_is_no_hole(local: LakeTable) -> None:
    snapshot = table_with(local, 0, 2).snapshot()

    assert failed(check_table(snapshot, ranges(9, 19, 29), 10)) == []


def test_a_hole_older_than_all_retained_ranges_is_told_and_does_not_fail(local: LakeTable) -> None:
    snapshot = table_with(local, 0, 1, 4, 5).snapshot()

    checks = check_table(snapshot, ranges(59, start=50), 60)

    assert failed(checks) == []
    assert checks[0].metadata["older_holes"] == 1
    assert "000000000020-000000000039" in checks[0].description


def test_a_gap_that_was_skipped_is_no_hole(local: LakeTable) -> None:
    snapshot = table_with(local, 0, 2).snapshot()
    skipping = [*ranges(9), *ranges(29, start=20)]

    checks = check_table(snapshot, skipping, 30)

    assert failed(checks) == []
    assert checks[0].metadata["sequences_skipped"] == 10
    smaller = [*ranges(9), *ranges(29, start=15)]
    assert failed(check_table(snapshot, smaller, 30)) == ["no_holes"]


def test_a_few_of_many_holes_are_named(local: LakeTable) -> None:
    (check, _) = check_table(None, ranges(*range(9, 100, 10)), 100)

    assert f"{key(0)}, {key(1)}, {key(2)} and 7 more" in check.description


def commit_anyhow(table: LakeTable, range_key: str, files: list[DataFile]) -> None:
    """As a landing without our checks would: through deltalake alone."""
    table.delta().create_write_transaction(
        [add_action(range_key, file) for file in files], "append", table.delta().schema(), ["_odb_range"]
    )


def test_ranges_that_share_sequences_are_found(local: LakeTable) -> None:
    table_with(local, 0, 1, 4)
    wide = SequenceRange(5, 32).key
    commit_anyhow(local, wide, write(local, wide))

    checks = check_table(local.snapshot(), [], 50)

    assert failed(checks) == ["no_holes", "no_overlaps"]
    assert "000000000033-000000000039" in checks[0].description
    assert "000000000020" not in checks[0].description
    assert f"{wide} and {key(0)}, {key(1)} and {wide}" in checks[1].description
    within = SequenceRange(30, 31).key
    commit_anyhow(local, within, write(local, within, files=1, rows=1))
    assert f"{within} and {wide}" in check_table(local.snapshot(), [], 50)[1].description


def test_a_file_with_sequences_of_another_range_is_found(local: LakeTable) -> None:
    files = write(local, key(0))
    beyond = {"minValues": {"_odb_sequence": 5}, "maxValues": {"_odb_sequence": 10}}
    local.commit(key(0), [files[0], replace(files[1], stats=beyond)], epoch=1)
    local.commit(key(1), [], epoch=1)

    checks = check_table(local.snapshot(), ranges(9, 19), 20)

    assert failed(checks) == ["no_overlaps"]
    assert files[1].path in checks[1].description
    assert files[0].path not in checks[1].description
