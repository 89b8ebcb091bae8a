"""`objbuf state`: how far a state is, and making it again."""

from __future__ import annotations

import json
import os
import pty
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from objbuf_dagster.cli.text import plural
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import LocalStore
from tests.cli.commands import error, files_in, finish, ok, one_line, run, start
from tests.lake.states import Accounts, Lines, World, ledger_with, some_entries
from tests.lake.test_state_since import land_json

OWN = ["--fold", "tests.lake.states:Accounts", "--decoder", "tests.lake.states:Lines"]


def asked(*args: str) -> str:
    """What the command asks at a terminal, where it gets a no."""
    terminal, theirs = pty.openpty()
    try:
        process = start(*args, stdin=theirs)
        os.write(terminal, b"n\n")
        code, out, err = finish(process, timeout=60)
    finally:
        os.close(terminal)
        os.close(theirs)
    assert (code, out) == (1, b"")
    assert err.endswith("nothing was changed, as you wished\n")
    return err


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


def test_a_rebuild_never_takes_another_fold_than_made_the_state_unless_told(world: World) -> None:
    ok("state", "rebuild", f"{world.url}/accounts", *OWN)
    before = files_in(Path(world.url))

    told = error("state", "rebuild", f"{world.url}/accounts", "--yes")

    assert "was made by the fold accounts, which is none of this package" in told
    assert "--fold" in told
    assert "--decoder" in told
    told = error("state", "rebuild", f"{world.url}/accounts", *OWN[:2], "--yes")
    assert "reads who, which rows of decoder otlp_logs do not have: name the decoder" in told
    assert files_in(Path(world.url)) == before
    question = asked("state", "rebuild", f"{world.url}/accounts", "--fold", "service_latest")
    assert "by the fold accounts 1, through range 000000000004-000000000005, with one by the fold serv" in question
    assert files_in(Path(world.url)) == before


def test_a_state_of_this_package_is_rebuilt_without_a_word_about_its_fold(world: World) -> None:
    ok("state", "rebuild", f"{world.url}/latest")
    ok("state", "rebuild", f"{world.url}/latest", "--yes")
    assert "service_latest 1" in ok("state", "show", f"{world.url}/latest")


@pytest.mark.parametrize("cursor", [b"garbage", b"newer"])
def test_a_state_whose_cursor_cannot_be_read_is_rebuilt_by_the_fold_that_is_named(world: World, cursor: bytes) -> None:
    ok("state", "rebuild", f"{world.url}/accounts", *OWN)
    path = world.state.load().cursor_path
    assert path is not None
    if cursor == b"newer":
        schema = pa.schema([*Accounts.key, *Accounts.value], {"objbuf.cursor": '{"version": 2}'})
        pq.write_table(schema.empty_table(), f"{world.url}/accounts/{path}")
    else:
        Path(world.url, "accounts", path).write_bytes(cursor)

    assert "--decoder" in error("state", "rebuild", f"{world.url}/accounts", "--yes")
    assert error("state", "rebuild", f"{world.url}/accounts", *OWN).endswith("pass --yes if you are sure")
    ok("state", "rebuild", f"{world.url}/accounts", *OWN, "--yes")
    assert world.found() == world.expected()


def test_a_typed_table_that_is_named_and_not_there_is_refused(world: World) -> None:
    told = error("state", "rebuild", f"{world.url}/accounts", *OWN, "--of", "typo")
    assert told.endswith("lake/typo: correct --of, or leave it out for the decoder's")
    assert not (Path(world.url) / "accounts").exists()
    ok("state", "rebuild", f"{world.url}/accounts", *OWN, "--of", "lines")


def test_a_state_of_json_is_rebuilt_from_its_table(tmp_path: Path) -> None:
    world = World(str(tmp_path / "lake"), buckets=16)
    land_json(world, 0, [["a1 put 1", "b1 put 1"]])
    args = (*OWN[:2], "--decoder", "tests.lake.test_state_since:JSON", "--of", "json")
    assert ok("state", "rebuild", f"{world.url}/accounts", *args).startswith("rebuilt from 1 range, 2 rows: 2 keys")
    assert world.found() == world.expected()


def test_a_rebuild_by_another_decoder_than_the_tables_is_told(tmp_path: Path) -> None:
    world = World(str(tmp_path / "lake"), buckets=16)
    world.land(0, [["a1 put 1", "damaged"]])
    result = run(
        "state", "rebuild", f"{world.url}/accounts", *OWN[:2], "--decoder", "tests.lake.test_state_since:Mended"
    )
    assert result.exit_code == 0
    assert "redrive first" in one_line(result.stderr)


def test_keys_are_counted_in_english(tmp_path: Path) -> None:
    world = World(str(tmp_path / "lake"), buckets=16)
    world.land(0, [["a1 put 1", "b1 put 1"]])
    assert ": 2 keys, through range" in ok("state", "rebuild", f"{world.url}/accounts", *OWN)
    assert [plural(2, noun) for noun in ("key", "entry", "day", "try")] == ["2 keys", "2 entries", "2 days", "2 tries"]


class Unmade(Lines):
    """A decoder that cannot be made, for a reason of its own."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


def test_a_decoder_that_cannot_be_made_is_told(world: World) -> None:
    told = error("state", "rebuild", f"{world.url}/x", *OWN[:2], "--decoder", "tests.cli.test_state:Unmade")
    assert "cannot be made without arguments (RuntimeError: no licence): name an attribute that is one" in told


def test_what_is_no_state_or_not_there_is_told(world: World) -> None:
    assert "there is no table at" in error("state", "show", f"{world.url}/nothing")
    assert "is no state" in error("state", "show", f"{world.url}/entries")
    assert "no fold of this package" in error("state", "rebuild", f"{world.url}/x", "--fold", "x")
    assert "nothing in" in error("state", "rebuild", f"{world.url}/x", "--entries", "none", *OWN)
    assert "TABLE is a folder of a lake" in error("state", "show", "s3://bucket", code=2)
