"""Writes of a decoding to its bucket go wrong, one at a time: no entry is in neither table, and the next one mends it.

Files of rows and letters, the letters' commit, the rows' commit, and what is taken out of the letters behind it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import LakeTable, TableSchema
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.spark.decoding import DecodedRange, typed_schema
from objbuf_dagster.spark.landing import Failed
from objbuf_dagster.spark.redriving import Redriven, redrive
from objbuf_dagster.store import RetryPolicy
from tests.spark.decoding import (
    Lake,
    Words,
    expected_letters,
    expected_words,
    letters_in,
    nothing_is_lost,
    words_in,
)
from tests.spark.here import Texts, here, land_texts
from tests.support.proxy import Proxy, Request, Spoiling, proxied
from tests.support.s3 import S3Location

TEXTS = ("one two", "bad apple", "three", "")
OLDER, NEWER = Words(version=1, bad=("bad",)), Words(version=2, bad=("three",))
"""What is a letter of one is rows of the other, both ways."""
MENDED = Words(version=2, bad=())
QUICK = RetryPolicy(attempts=1, base_seconds=0.001, cap_seconds=0.001)


@pytest.fixture
def proxy(s3: S3Location) -> Iterator[Proxy]:
    with proxied(s3) as found:
        yield found


class Nth:
    """Spoils the write with this number, and with `lasting` all behind it. Reads are more with each commit."""

    def __init__(self, number: int, way: Spoiling, *, lasting: bool = False) -> None:
        self.left = number
        self.way = way
        self.lasting = lasting

    def __call__(self, request: Request) -> Spoiling:
        is_write = request.method not in ("GET", "HEAD")
        self.left -= is_write
        is_it = is_write and self.left == 0
        return self.way if is_it or (self.lasting and self.left <= 0) else None

    @property
    def was_reached(self) -> bool:
        return self.left <= 0


@pytest.fixture
def lake(proxy: Proxy) -> Lake:
    """In the bucket, with the texts in `entries`, decoded by the older version."""

    def table(name: str, *schema: TableSchema) -> LakeTable:
        place = proxy.location.below(name)
        return LakeTable(place.url, *schema, options=place.options, retry=QUICK)

    made = Lake(
        Texts(TEXTS), table("entries"), table("words", typed_schema(OLDER)), table("dead_letters", DEAD_LETTERS)
    )
    land_texts(made.entries, TEXTS)
    made.succeed(here(), OLDER)
    return made


def decoded(lake: Lake, decoder: Words) -> bool:
    """Whether it succeeded; no error but ours may come out."""
    try:
        (outcome,) = lake.decode(here(), decoder)
    except ObjbufError:
        return False
    return isinstance(outcome, DecodedRange)


def is_exact(lake: Lake, decoder: Words) -> bool:
    rows = lake.filled.rows()
    words, letters = expected_words(decoder, rows), expected_letters(decoder, rows)
    return (words_in(lake.table), letters_in(lake.dead_letters)) == (words, letters)


@pytest.mark.parametrize(("way", "lasting"), [("lost", False), ("overdue", False), (403, True)], ids=str)
def test_whichever_write_of_a_decoding_goes_wrong_no_entry_is_in_neither_table(
    proxy: Proxy, lake: Lake, way: Spoiling, lasting: bool
) -> None:
    """With the last of these it is as if the process had died there. Each decoding meets what the one before left."""
    decoders = itertools.cycle((NEWER, OLDER))  # what was a letter is rows, and the other way round
    for number in itertools.count(1):
        decoder = next(decoders)
        proxy.spoil = spoil = Nth(number, way, lasting=lasting)
        done = decoded(lake, decoder)
        proxy.spoil = lambda _: None
        proxy.deliver()
        nothing_is_lost(decoder, lake)
        assert not done or is_exact(lake, decoder), f"write {number}"
        if not spoil.was_reached:
            break
    assert done
    assert number > 5


def test_whichever_write_of_a_redrive_goes_wrong_letters_move_over_once(proxy: Proxy, lake: Lake) -> None:
    def again() -> list[Redriven | Failed]:
        return list(redrive(here(), lake.entries, MENDED, lake.table, lake.dead_letters))

    for number in itertools.count(1):
        proxy.spoil = spoil = Nth(number, ("lost", "overdue")[number % 2])
        with contextlib.suppress(ObjbufError):
            again()
        proxy.spoil = lambda _: None
        proxy.deliver()
        nothing_is_lost(MENDED, lake)
        assert all(isinstance(one, Redriven) for one in again())
        assert is_exact(lake, MENDED), f"write {number}"
        if not spoil.was_reached:
            break
        lake.succeed(here(), OLDER)
    assert number > 3
