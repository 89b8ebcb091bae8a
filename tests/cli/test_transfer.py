"""`objbuf export` and `objbuf import`."""

from __future__ import annotations

from pathlib import Path

import pytest

from objbuf_dagster.lake.state import StateTable
from tests.cli.commands import error, files_in, ok
from tests.lake.states import Accounts, World

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


def test_a_cursor_can_be_trusted_where_nothing_tells(world: World, tmp_path: Path) -> None:
    ok("export", f"{world.url}/accounts", tmp_path / "out")
    ok("import", tmp_path / "out", tmp_path / "elsewhere" / "accounts", *OWN, "--trust-cursor")

    world.state = StateTable(tmp_path / "elsewhere" / "accounts", Accounts(), buckets=4)
    assert world.found() == world.expected()
