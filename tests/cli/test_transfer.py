"""`objbuf export` and `objbuf import`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from objbuf_dagster.lake.state import StateTable
from tests.cli.commands import error, files_in, ok
from tests.lake.states import Accounts, World
from tests.lake.test_transfer import resum

OWN = ["--fold", "tests.lake.states:Accounts"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(str(tmp_path / "lake"))
    world.land(0, [["a1 put 1"], ["b1 put 2|a1 put 3"]])
    world.apply()
    return world


def test_a_state_goes_out_and_comes_back(world: World, tmp_path: Path) -> None:
    out = ok("export", f"{world.url}/accounts", tmp_path / "out")
    assert out.startswith("exported version 1: 2 rows in ")
    assert "accounts 1, through range 000000000000-000000000001" in out

    assert ok("import", tmp_path / "out", f"{world.url}/again", *OWN).startswith("imported 2 rows in ")

    world.state = StateTable(f"{world.url}/again", Accounts(), buckets=4)
    assert world.found() == world.expected()


def test_tables_of_ranges_go_out_and_come_back(world: World, tmp_path: Path) -> None:
    assert "sequences 0 to 1" in ok("export", f"{world.url}/lines", tmp_path / "out")
    ok("import", tmp_path / "out", f"file://{world.url}/again")
    assert "ranges         1" in ok("lake", "stat", world.url, "--table", "again")


def test_refusals_say_what_to_do_and_change_nothing(world: World, tmp_path: Path) -> None:
    ok("export", f"{world.url}/accounts", tmp_path / "out")
    before = files_in(tmp_path)

    assert "is not empty" in error("export", f"{world.url}/accounts", tmp_path / "out")
    assert "is not empty" in error("import", tmp_path / "out", f"{world.url}/lines", *OWN)
    assert "--fold module:attribute" in error("import", tmp_path / "out", f"{world.url}/x")
    assert "its fold is accounts, not service_latest" in error(
        "import", tmp_path / "out", f"{world.url}/x", "--fold", "service_latest"
    )
    assert "land that range first" in error("import", tmp_path / "out", tmp_path / "elsewhere" / "x", *OWN)
    assert "is no export" in error("import", tmp_path / "lake", f"{world.url}/x")
    assert files_in(tmp_path) == before
    victim = max((tmp_path / "out").rglob("*.parquet"))
    victim.write_bytes(b"x" + victim.read_bytes()[1:])
    assert "is damaged" in error("import", tmp_path / "out", f"{world.url}/x", *OWN)


def test_tables_of_ranges_go_to_the_lake_of_their_buffer_only(world: World, tmp_path: Path) -> None:
    ok("export", f"{world.url}/lines", tmp_path / "out")
    other = World(str(tmp_path / "other"), tag="c")
    other.land(0, [["a1 put 1"], ["a1 put 1"]])

    assert "is of ingest/b000000.batch to ingest/b000001.batch, and here of" in error(
        "import", tmp_path / "out", f"{other.url}/again"
    )
    assert not (tmp_path / "other" / "again").exists()
    behind = World(str(tmp_path / "behind"))
    behind.land(2, [["a1 put 1"]])
    assert "or pass --trust-cursor" in error("import", tmp_path / "out", f"{behind.url}/again")
    ok("import", tmp_path / "out", f"{behind.url}/again", "--trust-cursor")
    told = error("import", tmp_path / "out", tmp_path / "new" / "lines")
    assert "there is no `entries` to compare its ranges with" in told
    assert not (tmp_path / "new").exists()
    ok("import", tmp_path / "out", tmp_path / "new" / "lines", "--trust-cursor")
    ok("export", f"{world.url}/entries", tmp_path / "whole")
    ok("import", tmp_path / "whole", tmp_path / "newer" / "entries")


def test_what_an_export_names_is_never_run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("export", f"{world.url}/accounts", tmp_path / "out")
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    cursor = json.loads((tmp_path / "out" / "cursor.json").read_text())
    (tmp_path / "out" / "cursor.json").write_text(json.dumps({**cursor, "fold": "stranger:Fold"}))
    resum(tmp_path / "out")
    monkeypatch.chdir(tmp_path)

    told = error("import", tmp_path / "out", f"{world.url}/again")

    assert "the export is of the fold stranger:Fold, which is none of this package" in told
    assert "--fold module:attribute" in told
    assert not (tmp_path / "ran").exists()
    assert "stranger" not in sys.modules


def test_an_export_that_was_made_up_ends_without_a_table(world: World, tmp_path: Path) -> None:
    ok("export", f"{world.url}/lines", tmp_path / "out")
    (tmp_path / "out" / "cursor.json").write_text('{"runs": 5}')
    resum(tmp_path / "out")
    assert "cursor is not the one that its data has" in error("import", tmp_path / "out", f"{world.url}/again")
    assert not (tmp_path / "lake" / "again").exists()


def test_an_export_to_the_current_directory_is_refused_with_what_to_do(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert error("export", f"{world.url}/accounts", ".").endswith("name a directory inside of it")


def test_a_cursor_can_be_trusted_where_nothing_tells(world: World, tmp_path: Path) -> None:
    ok("export", f"{world.url}/accounts", tmp_path / "out")
    ok("import", tmp_path / "out", tmp_path / "elsewhere" / "accounts", *OWN, "--trust-cursor")

    world.state = StateTable(tmp_path / "elsewhere" / "accounts", Accounts(), buckets=4)
    assert world.found() == world.expected()
