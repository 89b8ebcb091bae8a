"""Exports that somebody made up, with checksums that fit: each is refused for what it is, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, UnsupportedVersion
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, QUARANTINE
from objbuf_dagster.lake.state_cursor import StateCursor
from objbuf_dagster.lake.transfer import cursor_in, export_table, import_table
from tests.cli.letters import put_letters
from tests.lake.states import Accounts, World
from tests.lake.test_transfer import resum

NESTED = 200_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(str(tmp_path / "lake"))
    world.land(0, [["a1 put 1", "b2 put 3"]])
    world.land(1, [["a1 put 1"], ["a2 close 0"]])
    world.apply()
    return world


@pytest.fixture
def ranges(world: World, tmp_path: Path) -> Path:
    export_table(world.typed, tmp_path / "ranges")
    return tmp_path / "ranges"


@pytest.fixture
def state(world: World, tmp_path: Path) -> Path:
    export_table(world.state, tmp_path / "state")
    return tmp_path / "state"


def change(path: Path, how: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(how(json.loads(path.read_text()))))
    resum(path.parent)


def refused(export: Path, says: str) -> None:
    target = export.parent / "again"
    with pytest.raises(CorruptData, match=f"{says}.*copy it again from where it was exported, or export anew"):
        import_table(export, LakeTable(target), fold=Accounts(), trust=True)
    assert not target.exists()


@pytest.mark.parametrize(
    "cursor", [{"runs": [[0, 99]]}, {"runs": []}, {"runs": 5}, {"runs": [[0, 2]], "more": 1}, {}, {"runs": [0, 2]}]
)
def test_a_cursor_of_ranges_is_compared_with_the_data(ranges: Path, cursor: Any) -> None:
    assert json.loads((ranges / "cursor.json").read_text()) == {"runs": [[0, 2]]}
    change(ranges / "cursor.json", lambda _: cursor)
    refused(ranges, "cursor is not the one that its data has")


def test_a_cursor_of_another_table_is_refused(state: Path, ranges: Path) -> None:
    cursor = json.loads((state / "cursor.json").read_text())
    change(ranges / "cursor.json", lambda _: cursor)
    refused(ranges, "cursor is not the one that its data has")
    change(state / "cursor.json", lambda _: {"runs": [[0, 2]]})
    with pytest.raises(UnsupportedVersion, match="state cursor"):
        import_table(state, LakeTable(state.parent / "again"), fold=Accounts(), trust=True)


def test_a_state_that_claims_to_be_ranges_as_well_is_refused(state: Path) -> None:
    """Else nobody would ask for its fold."""
    change(state / "cursor.json", lambda cursor: {**cursor, "runs": 5})
    refused(state, "cursor has fields that none has")


@pytest.mark.parametrize("name", ["cursor.json", "manifest.json"])
def test_documents_that_are_nested_too_deeply_are_refused(ranges: Path, name: str) -> None:
    (ranges / name).write_text('{"a":' * NESTED)
    resum(ranges)
    refused(ranges, f"{name} is no JSON")
    if name == "cursor.json":
        with pytest.raises(CorruptData, match="is no JSON"):
            cursor_in(ranges)


def test_a_schema_that_is_nested_too_deeply_is_refused(ranges: Path) -> None:
    (ranges / "schema.json").write_text('{"type":' * NESTED)
    resum(ranges)
    refused(ranges, "schema cannot be read")


def test_a_cursor_file_that_is_nested_too_deeply_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.schema([], {"objbuf.cursor": "[" * NESTED}).empty_table(), sink)
    with pytest.raises(CorruptData, match="cannot be read"):
        StateCursor.from_file(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("kind", ["state", "ranges"])
def test_partitions_that_the_table_does_not_have_are_refused(request: pytest.FixtureRequest, kind: str) -> None:
    export: Path = request.getfixturevalue(kind)
    manifest = json.loads((export / "manifest.json").read_text())
    for file in manifest["files"]:
        name = Path(file["path"]).name
        (export / "data" / file["path"]).rename(export / "data" / name)
        (export / "data" / "other=1").mkdir(exist_ok=True)
        (export / "data" / name).rename(export / "data" / "other=1" / name)
        file |= {"path": f"other=1/{name}", "partition": {"other": "1"}}
    change(export / "manifest.json", lambda _: manifest)
    refused(export, "other partitions than")
    change(export / "manifest.json", lambda _: {**manifest, "partitions": [*manifest["partitions"], "other"]})
    refused(export, "other partitions than" if kind == "ranges" else "of no table that we know")


def test_partitions_that_are_no_ranges_or_share_sequences_are_refused(ranges: Path) -> None:
    manifest = json.loads((ranges / "manifest.json").read_text())

    def move(key: str) -> None:
        for file in manifest["files"]:
            if file["partition"]["_odb_range"] != "000000000000-000000000000":
                path = f"_odb_range={key}/{Path(file['path']).name}"
                (ranges / "data" / path).parent.mkdir(exist_ok=True)
                (ranges / "data" / file["path"]).rename(ranges / "data" / path)
                file |= {"path": path, "partition": {"_odb_range": key}}
        change(ranges / "manifest.json", lambda _: manifest)

    move("000000000000-000000000002")
    refused(ranges, "shares sequences")
    move("elsewhere")
    refused(ranges, "is of no range")


def test_data_of_other_types_than_the_schema_says_is_refused(ranges: Path) -> None:
    def retyped(schema: Any) -> Any:
        for field in schema["fields"]:
            if field["name"] == "amount":
                field["type"] = "string"
        return schema

    change(ranges / "schema.json", retyped)
    refused(ranges, "another type of amount")


@pytest.mark.parametrize("column", ["who", "total", "_odb_bucket"])
def test_a_state_whose_columns_may_be_null_where_its_own_may_not_is_refused(state: Path, column: str) -> None:
    """It would be taken, and every application would ask for a rebuild."""

    def loosened(schema: Any) -> Any:
        for field in schema["fields"]:
            field["nullable"] = field["nullable"] or field["name"] == column
        return schema

    change(state / "schema.json", loosened)
    refused(state, "columns are not those that its cursor says")


@pytest.mark.parametrize("key", ["delta.invariants", "delta.generationExpression", "delta.columnMapping.id", "other"])
@pytest.mark.parametrize("kind", ["state", "ranges"])
def test_columns_with_rules_of_their_own_are_refused(request: pytest.FixtureRequest, kind: str, key: str) -> None:
    export: Path = request.getfixturevalue(kind)

    def ruled(schema: Any) -> Any:
        schema["fields"][0]["metadata"] = {"comment": "who it is", key: '{"expression":{"expression":"1=0"}}'}
        return schema

    change(export / "schema.json", ruled)
    refused(export, f"a column of its schema has {key}")


def test_a_version_that_no_table_has_is_refused(ranges: Path) -> None:
    change(ranges / "manifest.json", lambda manifest: {**manifest, "version": -1})
    refused(ranges, "of no table that we know")


@pytest.mark.parametrize("name", ["manifest.json", "cursor.json", "data"])
@pytest.mark.timeout(60)
def test_a_pipe_is_not_waited_for(ranges: Path, name: str) -> None:
    """As what is unpacked from elsewhere may have one."""
    path = next((ranges / "data").rglob("*.parquet")) if name == "data" else ranges / name
    path.unlink()
    os.mkfifo(path)
    refused(ranges, f"{path.name} is no regular file")
    if name == "cursor.json":
        with pytest.raises(CorruptData, match="is no regular file"):
            cursor_in(ranges)


def test_a_schema_without_the_partitions_is_refused(ranges: Path) -> None:
    change(
        ranges / "schema.json",
        lambda schema: {**schema, "fields": [each for each in schema["fields"] if each["name"] != "_odb_range"]},
    )
    refused(ranges, "lacks a column")


def test_statistics_cannot_say_how_many_rows_there_are(ranges: Path) -> None:
    def more(manifest: Any) -> Any:
        manifest["files"][0]["stats"]["numRecords"] = 10**6
        return manifest

    change(ranges / "manifest.json", more)
    refused(ranges, "statistics are")


@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS"])
def test_a_path_that_leaves_the_export_is_named(ranges: Path, name: str) -> None:
    if name == "manifest.json":
        text = (ranges / name).read_text()
        (ranges / name).write_text(text.replace('"path": "', '"path": "../'))
        resum(ranges)
    else:
        (ranges / name).write_text(f"{'0' * 64}  ../x\n")
    refused(ranges, r"names a file that it cannot have.*\.\./")


def other_lake(tmp_path: Path, *starts: tuple[int, int], tag: str = "b") -> World:
    """With ranges that start here and have so many batches."""
    other = World(str(tmp_path / "other"), tag=tag)
    for start, batches in starts:
        other.land(start, [["a1 put 7"]] * batches)
    return other


@pytest.mark.parametrize("table", ["entries", "typed"])
@pytest.mark.parametrize(
    ("starts", "tag", "says"),
    [
        (((0, 1), (1, 2)), "c", r"another buffer.*is of ingest/b.*and here of ingest/c.*decode the ranges here again"),
        (((0, 2), (2, 1)), "b", r"another buffer.*range 000000000000-000000000000 is cut otherwise here"),
        (((0, 1),), "b", r"nothing here tells.*000000000001-000000000002 is not in.*land .* or pass --trust-cursor"),
    ],
)
def test_ranges_of_another_buffer_are_refused(
    world: World, tmp_path: Path, table: str, starts: tuple[tuple[int, int], ...], tag: str, says: str
) -> None:
    export_table(getattr(world, table), tmp_path / "out")
    landed = other_lake(tmp_path, *starts, tag=tag).entries.snapshot()
    with pytest.raises(InvalidInput, match=says):
        import_table(tmp_path / "out", LakeTable(tmp_path / "again"), landed=landed)
    if "trust" not in says:
        with pytest.raises(InvalidInput, match="another buffer"):
            import_table(tmp_path / "out", LakeTable(tmp_path / "again"), landed=landed, trust=True)
    assert not (tmp_path / "again").exists()
    if "trust" in says:
        import_table(tmp_path / "out", LakeTable(tmp_path / "again"), landed=landed, trust=True)


def test_ranges_of_the_same_buffer_are_taken(world: World, tmp_path: Path) -> None:
    letters = LakeTable(f"{world.url}/dead_letters", DEAD_LETTERS)
    key = "000000000000-000000000000"
    put_letters(letters, key, "lines", [(0, 1, "reason", b"x")], batch="ingest/b{:06d}.batch")
    put_letters(letters, key, QUARANTINE, [(0, 0, "left out", b"")], batch="ingest/a{:06d}.batch")
    for number, table in enumerate([world.typed, world.entries, letters]):
        export_table(table, tmp_path / f"out{number}")
        import_table(tmp_path / f"out{number}", LakeTable(tmp_path / f"{number}"), landed=world.entries.snapshot())
        assert LakeTable(tmp_path / f"{number}", None).ranges() == table.ranges()


def test_dead_letters_of_another_buffer_are_refused(world: World, tmp_path: Path) -> None:
    letters = LakeTable(f"{world.url}/dead_letters", DEAD_LETTERS)
    put_letters(letters, "000000000000-000000000000", "lines", [(0, 1, "reason", b"x")], batch="ingest/z{:06d}.batch")
    export_table(letters, tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"another buffer.*is of ingest/z000000.batch .*and here of ingest/b000000"):
        import_table(tmp_path / "out", LakeTable(tmp_path / "again"), landed=world.entries.snapshot(), trust=True)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("table", ["entries", "typed"])
def test_rows_of_a_range_that_has_none_here_are_of_another_buffer(world: World, tmp_path: Path, table: str) -> None:
    export_table(getattr(world, table), tmp_path / "out")
    other = World(str(tmp_path / "other"))
    for one in world.landed:
        other.entries.commit(one.key, [], epoch=1)
    with pytest.raises(InvalidInput, match=r"another buffer.*range 000000000000-000000000000 has rows, and none here"):
        import_table(tmp_path / "out", LakeTable(tmp_path / "again"), landed=other.entries.snapshot(), trust=True)


def test_a_typed_table_needs_entries_or_trust(ranges: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no `entries` to compare.*--entries, or pass --trust-cursor"):
        import_table(ranges, LakeTable(tmp_path / "again"))
    assert not (tmp_path / "again").exists()
    import_table(ranges, LakeTable(tmp_path / "again"), trust=True)


def test_a_state_goes_on_and_comes_back_after_entries_were_rewritten(world: World, state: Path, tmp_path: Path) -> None:
    """By others, who cut names of batches off."""
    cursor = world.state.cursor()
    assert cursor is not None
    assert cursor.batches is not None
    cut = (cursor.batches[0][:-9], cursor.batches[1][:-10] + "1")
    cursor.check_batches("state", cut)
    import_table(state, LakeTable(tmp_path / "again"), fold=Accounts(), batches=cut)
