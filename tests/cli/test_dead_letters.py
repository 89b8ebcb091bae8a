"""`objbuf dead-letters list` and `show`: each letter once, found by what is known of it, its bytes as they were."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.ranges import SequenceRange
from tests.cli.commands import error, ok, run
from tests.cli.letters import put_letters
from tests.cli.test_app import as_arguments
from tests.spark.decoding import Words
from tests.spark.here import RANGE, here, lake_of
from tests.support.s3 import S3Location

FIRST, SECOND = SequenceRange(0, 9).key, SequenceRange(10, 19).key


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Letters of two ranges and two decoders."""
    table = LakeTable(tmp_path / "lake/dead_letters", DEAD_LETTERS)
    put_letters(table, SECOND, "otlp_logs", [(12, 0, "truncated at byte 4", b"\xff\x00" * 20)])
    put_letters(table, FIRST, "words", [(1, 2, "it says bad", b"a bad one\nof two lines")])
    put_letters(table, FIRST, "otlp_logs", [(0, 7, "Truncated", b"x"), (1, 2, "no envelope", b"")], version=3)
    return tmp_path / "lake"


def test_letters_are_listed_by_range_and_decoder(lake: Path) -> None:
    head, *lines, total = ok("dead-letters", "list", lake).splitlines()

    assert head.split() == ["RANGE", "SEQUENCE", "INDEX", "DECODER", "VERSION", "REASON"]
    assert [line.split(None, 5) for line in lines] == [
        [FIRST, "0", "7", "otlp_logs", "3", "Truncated"],
        [FIRST, "1", "2", "otlp_logs", "3", "no envelope"],
        [FIRST, "1", "2", "words", "1", "it says bad"],
        [SECOND, "12", "0", "otlp_logs", "1", "truncated at byte 4"],
    ]
    assert total == "4 dead letters"


def test_a_letter_whose_entry_has_rows_is_marked(tmp_path: Path) -> None:
    """As a driver leaves it that is killed between the two commits."""
    killed = lake_of(tmp_path, ["one", "bad apple", "three"])
    killed.succeed(here(), Words())
    killed.succeed(here(), Words(version=2, bad=()))
    put_letters(killed.dead_letters, RANGE.key, "words", [(0, 1, "it says bad", b"bad apple"), (0, 7, "odd", b"")])

    by_name = ok("dead-letters", "list", tmp_path / "lake").splitlines()
    told = ok("dead-letters", "list", tmp_path / "lake", "--decoder", "words", "--table", "words", "--json")
    elsewhere = ok("dead-letters", "list", tmp_path / "lake", "--decoder", "words", "--table", "other", "--json")

    assert [line.split(None, 5)[5] for line in by_name[1:3]] == ["(has rows, decode again) it says bad", "odd"]
    assert [json.loads(line)["has_rows"] for line in told.splitlines()] == [True, False]
    assert [json.loads(line)["has_rows"] for line in elsewhere.splitlines()] == [None, None]
    assert "give --decoder" in error("dead-letters", "list", tmp_path / "lake", "--table", "words", code=2)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--range", SECOND], [12]),
        (["--decoder", "words"], [1]),
        (["--decoder", "otlp_logs", "--range", FIRST], [0, 1]),
        (["--reason", "TRUNCATED"], [0, 12]),
        (["--limit", "3"], [0, 1, 1]),
        (["--range", SequenceRange(50, 59).key], []),
        (["--decoder", "nobody"], []),
    ],
)
def test_filters_leave_what_was_asked_for(lake: Path, filters: list[str], found: list[int]) -> None:
    lines = ok("dead-letters", "list", lake, "--json", *filters).splitlines()

    assert [json.loads(line)["sequence"] for line in lines] == found


def test_json_has_stable_keys(lake: Path) -> None:
    (line,) = ok("dead-letters", "list", lake, "--json", "--decoder", "words").splitlines()

    assert json.loads(line) == {
        "range": FIRST,
        "sequence": 1,
        "entry_index": 2,
        "decoder": "words",
        "decoder_version": 1,
        "reason": "it says bad",
        "ingestion_time_ms": 1_700_000_000_000,
        "data_path": "ingest/1.batch",
        "manifest_path": "ingest/manifest",
        "metadata_base64": "AQI=",
        "has_rows": None,
    }


def test_a_limit_says_that_there_is_more_only_if_there_is(lake: Path) -> None:
    assert ok("dead-letters", "list", lake, "--limit", "3").splitlines()[-1] == "and more: --limit 3 ends here"
    assert ok("dead-letters", "list", lake, "--limit", "4").splitlines()[-1] == "4 dead letters"


def test_nothing_there_is_said(lake: Path, tmp_path: Path) -> None:
    nothing = run("dead-letters", "list", tmp_path / "typo")
    assert (nothing.exit_code, nothing.stdout) == (0, "no dead letters\n")
    assert "there is no table at" in nothing.stderr
    assert ok("dead-letters", "list", lake, "--decoder", "nobody") == "no dead letters like that\n"
    assert not (tmp_path / "typo").exists()


def test_a_range_that_is_none_is_refused(lake: Path) -> None:
    assert error("dead-letters", "list", lake, "--range", "all").startswith("not a range: 'all'")


def test_what_a_letter_says_moves_no_cursor(lake: Path) -> None:
    table = LakeTable(lake / "dead_letters", DEAD_LETTERS)
    put_letters(table, FIRST, "words", [(1, 2, "bad\x1b[2J\nbytes", b"\x1b[2J")])

    out = ok("dead-letters", "list", lake, "--decoder", "words") + ok(
        "dead-letters", "show", lake, "1", "2", "--decoder", "words"
    )

    assert "\x1b" not in out
    assert "bad\\x1b[2J\\nbytes" in out


def test_a_letter_of_text_is_shown_as_text(lake: Path) -> None:
    lines = ok("dead-letters", "show", lake, "1", "2", "--decoder", "words").splitlines()

    assert lines == [
        f"range        {FIRST}",
        "sequence     1",
        "entry index  2",
        "decoder      words, version 1",
        "reason       it says bad",
        "ingested     2023-11-14T22:13:20Z",
        "batch        ingest/1.batch",
        "manifest     ingest/manifest",
        "metadata     01 02",
        "bytes        22",
        "a bad one",
        "of two lines",
    ]


def test_a_letter_of_other_bytes_is_shown_in_hexadecimal(lake: Path) -> None:
    lines = ok("dead-letters", "show", lake, "12", "0").splitlines()

    assert lines[-3:] == [
        "00000000  ff 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff 00  ................",
        "00000010  ff 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff 00  ................",
        "00000020  ff 00 ff 00 ff 00 ff 00                          ........",
    ]


def test_a_large_letter_is_cut_and_says_so(lake: Path) -> None:
    table = LakeTable(lake / "dead_letters", DEAD_LETTERS)
    put_letters(table, FIRST, "words", [(1, 2, "long", ("a" + "é" * 5000).encode())])

    lines = ok("dead-letters", "show", lake, "1", "2", "--decoder", "words").splitlines()

    assert lines[-2] == "a" + "é" * 2047, "half a letter at the end is left away"
    assert lines[-1] == "and 5905 bytes more: --raw writes all"


def test_raw_writes_the_bytes_and_nothing_else(lake: Path) -> None:
    result = run("dead-letters", "show", lake, "12", "0", "--raw")

    assert result.exit_code == 0
    assert result.stdout_bytes == b"\xff\x00" * 20


def test_json_of_one_letter_has_its_bytes(lake: Path) -> None:
    found = json.loads(ok("dead-letters", "show", lake, "12", "0", "--json"))

    assert base64.b64decode(found["entry_base64"]) == b"\xff\x00" * 20
    assert (found["range"], found["reason"]) == (SECOND, "truncated at byte 4")


def test_a_letter_that_is_not_there_is_refused_with_what_to_do(lake: Path, tmp_path: Path) -> None:
    assert error("dead-letters", "show", lake, "1", "3").startswith(
        "there is no dead letter for sequence 1, entry 3: `objbuf dead-letters list` shows"
    )
    assert "there is no dead letter" in error("dead-letters", "show", tmp_path / "typo", "1", "3")
    assert "of words" in error("dead-letters", "show", lake, "12", "0", "--decoder", "words")


def test_two_decoders_letters_of_one_entry_need_a_name(lake: Path) -> None:
    assert error("dead-letters", "show", lake, "1", "2", "--raw").endswith("give --decoder, one of otlp_logs, words")
    assert run("dead-letters", "show", lake, "1", "2", "--decoder", "otlp_logs", "--raw").stdout_bytes == b""


def test_another_table_is_refused(tmp_path: Path) -> None:
    LakeTable(tmp_path / "lake/entries").commit(FIRST, [], epoch=1)

    assert "is partitioned by" in error("dead-letters", "list", tmp_path / "lake", "--dead-letters", "entries")


def test_letters_in_a_bucket_are_found(s3: S3Location) -> None:
    table = LakeTable(f"{s3.url}/failed", DEAD_LETTERS, options=s3.options)
    put_letters(table, FIRST, "words", [(1, 2, "it says bad", b"abc")])
    where = [s3.url, *as_arguments(s3), "--dead-letters", "failed"]

    assert ok("dead-letters", "list", *where).splitlines()[-1] == "1 dead letter"
    assert run("dead-letters", "show", *where, "1", "2", "--raw").stdout_bytes == b"abc"


def test_letters_of_a_decoder_that_is_gone_can_be_removed(lake: Path) -> None:
    remove = ["dead-letters", "remove", str(lake), "--decoder"]

    refused = run(*remove, "otlp_logs")
    assert refused.exit_code == 1
    assert len(ok("dead-letters", "list", lake, "--json").splitlines()) == 4

    assert ok(*remove, "otlp_logs", "--range", SECOND, "--yes") == "removed 1 dead letter of otlp_logs in 1 range\n"
    assert ok(*remove, "otlp_logs", "--yes") == "removed 2 dead letters of otlp_logs in 1 range\n"
    assert ok(*remove, "otlp_logs", "--yes") == "no dead letters like that\n"
    (left,) = ok("dead-letters", "list", lake, "--json").splitlines()
    assert json.loads(left)["decoder"] == "words"
    assert "quarantine --undo" in error(*remove, "quarantine", "--yes", code=2)
