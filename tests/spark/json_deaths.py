"""Drivers that decode or redrive JSON and kill themselves at the so-manyeth step, for a test to run.

Their Spark is a Connect server that outlives them: a driver costs no JVM then, and its tasks are in other processes, as
on a cluster.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pyspark.sql.connect.session  # noqa: F401  before the forks

from objbuf_dagster.decode import JsonDecoder
from objbuf_dagster.spark import decoding
from objbuf_dagster.spark.redriving import Redriven, redrive
from objbuf_dagster.spark.session import session
from tests.spark.decoding import Lake, lake_at, letters_in, rows_in
from tests.spark.here import Texts, land_texts
from tests.support.dying import WRITES, die_at_each_step, in_child

TEXTS = ('{"n": 1}', '{"n": "one"}', '{"n": 2, "more": "than the narrow one takes"}', '{"n": 3}')
NARROW, WIDE = JsonDecoder("n BIGINT", version=1, max_bytes=20), JsonDecoder("n BIGINT", version=2)
"""The third of TEXTS is a letter of one and a row of the other, the second is a letter of both."""

CASES: dict[str, tuple[JsonDecoder | None, JsonDecoder]] = {
    "first": (None, NARROW),
    "mended": (NARROW, WIDE),
    "narrowed": (WIDE, NARROW),
    "redriven": (NARROW, WIDE),
}
"""What has decoded the range before, and what does now: its asset, or a redrive."""

Found = tuple[list[tuple[int, int]], list[tuple[int, int]]]
"""Entry and `n` of each row, entry and decoder's version of each letter."""

WANTED: dict[JsonDecoder | None, Found] = {
    None: ([], []),
    NARROW: ([(0, 1), (3, 3)], [(1, 1), (2, 1)]),
    WIDE: ([(0, 1), (2, 2), (3, 3)], [(1, 2)]),
}


def lake_there(root: Path) -> Lake:
    return lake_at(root, Texts(TEXTS), NARROW)


def found_in(lake: Lake) -> Found:
    rows = [(row["_odb_entry_index"], row["n"]) for row in rows_in(lake.table)]
    return rows, [(index, version) for _, index, _, version, *_ in letters_in(lake.dead_letters)]


def decode(url: str, decoder: JsonDecoder, root: Path) -> None:
    with session(remote=url) as spark:
        lake_there(root).succeed(spark, decoder)


def act(url: str, case: str, root: Path) -> None:
    decoder = CASES[case][1]
    if case != "redriven":
        decode(url, decoder, root)
        return
    with session(remote=url) as spark:
        lake = lake_there(root)
        (outcome,) = redrive(spark, lake.entries, decoder, lake.table, lake.dead_letters)
        assert isinstance(outcome, Redriven), outcome


def prepare(url: str, case: str, root: Path) -> None:
    land_texts(lake_there(root).entries, TEXTS)
    before = CASES[case][0]
    if before is not None:
        decode(url, before, root)


def check(url: str, case: str, root: Path) -> None:
    """No entry is in neither table, none is there twice; decoding again makes it exactly what it should be."""
    (before, now), lake = CASES[case], lake_there(root)
    rows, letters = found_in(lake)
    assert rows in (WANTED[before][0], WANTED[now][0])
    entries = [index for index, _ in letters]
    assert len(entries) == len(set(entries))
    assert not rows or {*entries, *(index for index, _ in rows)} == set(range(len(TEXTS)))
    act(url, case, root)
    assert found_in(lake) == WANTED[now]


if __name__ == "__main__":
    place, server, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    assert in_child(lambda: prepare(server, name, place / "made")) == 0
    doing, checking = functools.partial(act, server, name), functools.partial(check, server, name)
    calls = (*WRITES, (decoding, "json_reports"))
    print(name, die_at_each_step(doing, checking, place / "made", place, calls), flush=True)
