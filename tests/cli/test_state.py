"""`objbuf state`: how far a state is, and making it again."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import LocalStore
from tests.cli.commands import error, files_in, ok, one_line, run
from tests.lake.states import World, ledger_with, some_entries

OWN = ["--fold", "tests.lake.states:Accounts", "--decoder", "tests.lake.states:Lines"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(str(tmp_path / "lake"), buckets=16)
    rng = random.Random(1)
    start = 0
    for _ in range(3):
        start = world.land(start, some_entries(rng, 2)).end + 1
    return world


def test_a_rebuild_makes_the_state_and_show_tells_of_it(world: World) -> None:
    out = ok("state", "rebuild", f"{world.url}/accounts", *OWN)

    assert out.startswith("rebuilt from 3 ranges, ")
    assert out.endswith("through range 000000000004-000000000005\n")
    assert world.found() == world.expected()
    lines = ok("state", "show", f"{world.url}/accounts").splitlines()
    shown = {line[:15].strip(): line[15:] for line in lines}
    assert (shown["fold"], shown["scope"], shown["next sequence"]) == ("accounts 1", "all keys", "6")
    assert shown["keys"] == str(len(world.expected()))
    document = json.loads(ok("state", "show", f"file://{world.url}/accounts", "--json"))
    assert document["table_version"] == 1
    assert document["cursor"]["next_sequence"] == 6


def test_a_state_that_is_there_is_replaced_only_after_a_yes_and_keeps_its_scope(world: World) -> None:
    ok("state", "rebuild", f"{world.url}/accounts", *OWN, "--prefix", "a", "--prefix", "b1")
    before = files_in(Path(world.url))

    assert error("state", "rebuild", f"{world.url}/accounts", *OWN).endswith("pass --yes if you are sure")
    assert files_in(Path(world.url)) == before
    ok("state", "rebuild", f"{world.url}/accounts", *OWN, "--yes")
    assert "a, b1" in ok("state", "show", f"{world.url}/accounts")


def test_a_hole_is_noted_and_the_buffer_tells_whether_it_is_a_gap(world: World, tmp_path: Path) -> None:
    world.land(9, [["a1 put 1"]])
    result = run("state", "rebuild", f"{world.url}/accounts", *OWN)
    assert result.exit_code == 0
    assert "sequences 6 to 8 are not in" in one_line(result.stderr)
    ranges = [SequenceRange(0, 1), SequenceRange(2, 3), SequenceRange(4, 5), SequenceRange(9, 9)]
    ledger_with(LocalStore(tmp_path / "buffer"), *ranges)

    ok("state", "rebuild", f"{world.url}/accounts", *OWN, "--yes", "--buffer", tmp_path / "buffer")

    assert "6 to 8" in ok("state", "show", f"{world.url}/accounts")
    assert world.found() == world.expected()


def test_what_is_no_state_or_not_there_is_told(world: World) -> None:
    assert "there is no table at" in error("state", "show", f"{world.url}/nothing")
    assert "is no state" in error("state", "show", f"{world.url}/entries")
    assert "no fold of this package" in error("state", "rebuild", f"{world.url}/x", "--fold", "x")
    assert "nothing in" in error("state", "rebuild", f"{world.url}/x", "--entries", "none", *OWN)
    assert "TABLE is a folder of a lake" in error("state", "show", "s3://bucket", code=2)
