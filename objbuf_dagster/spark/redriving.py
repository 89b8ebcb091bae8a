"""After a decoder was mended: the ranges that have dead letters are decoded again.

A range is decoded whole, from `entries`, by `land_decoded`: what now succeeds becomes rows first, and is a letter until
that is committed. So whatever dies in between, an entry is in one of the two; decoding the range again does the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.decode import Decoder
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import QUARANTINE, count_letters, letter_keys
from objbuf_dagster.lake.kept_for import TakesOver
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import land_decoded
from objbuf_dagster.spark.landing import Failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Redriven:
    """A range that was decoded again.

    before: its dead letters of this decoder until now. moved: those that are none any more.
    dead_letters: those that there are now, of before or new. rows: of the range in the typed table.
    version: of the typed table, that has it.
    """

    range: SequenceRange
    decoder: str
    before: int
    moved: int
    dead_letters: int
    rows: int
    seconds: float
    version: int | None


def redrive(
    spark: SparkSession,
    entries: LakeTable,
    decoder: Decoder,
    table: LakeTable,
    dead_letters: LakeTable,
    ranges: Collection[SequenceRange] | None = None,
    *,
    run_id: str | None = None,
    new_letters: bool = False,
    renamed: bool = False,
) -> Iterator[Redriven | Failed]:
    """Decode the ranges that have dead letters of this decoder again, all or these; in order, a few to a Spark job.

    The tables are those of `land_decoded`. `table` must be there already: letters whose rows went to a table that
    nobody reads would be gone unseen. A range that `entries` does not have any more fails, and its letters stay. One
    that fails does not stop the others. Safe to repeat, and to kill at any point.

    A range in which this decoder would make dead letters of other entries than before fails with NewLetters, and stays
    as it is: those have rows, perhaps of a decoder with larger limits. `new_letters` lets them become letters.

    So does a range with letters that were kept for another table than `table`, whatever version they are of: they would
    be gone from where they are looked for. Who names a table may guess wrong, so its name alone is not believed;
    `renamed` says that it is the same table under another name.

    Raises InvalidInput at once.
    """
    if decoder.name == QUARANTINE:
        raise InvalidInput(
            f"letters of {QUARANTINE!r} are batches that were left out, and no decoder brings them back: "
            "`objbuf quarantine --undo` does"
        )
    if not table.exists():
        raise InvalidInput(
            f"there is no table at {table.name}, where rows of {decoder.name} would go: name the one that it has, or "
            "decode a range by its asset first, which makes it"
        )
    send_by_value(decoder)
    wanted = None if ranges is None else [one.key for one in ranges]
    todo = sorted(count_letters(dead_letters, wanted, decoder.name).get(decoder.name, {}))
    takes_over: TakesOver = "anything" if renamed else "nothing"
    return _redriven(spark, entries, decoder, table, dead_letters, todo, run_id, new_letters, takes_over)


def _redriven(
    spark: SparkSession,
    entries: LakeTable,
    decoder: Decoder,
    table: LakeTable,
    dead_letters: LakeTable,
    todo: list[SequenceRange],
    run_id: str | None,
    new_letters: bool,
    takes_over: TakesOver,
) -> Iterator[Redriven | Failed]:
    for first in range(0, len(todo), _TOGETHER):
        some = todo[first : first + _TOGETHER]
        before = {one: letter_keys(dead_letters, one.key, decoder.name) for one in some}
        decoded = land_decoded(
            spark,
            entries,
            some,
            decoder,
            table,
            dead_letters,
            run_id=run_id,
            new_letters=new_letters,
            takes_over=takes_over,
        )
        for outcome in decoded:
            if isinstance(outcome, Failed):
                yield outcome
                continue
            was = before[outcome.range]
            now = letter_keys(dead_letters, outcome.range.key, decoder.name) if outcome.dead_letters else set()
            yield Redriven(
                outcome.range,
                decoder.name,
                before=len(was),
                moved=len(was - now),
                dead_letters=outcome.dead_letters,
                rows=outcome.rows,
                seconds=outcome.seconds,
                version=outcome.version,
            )


def send_by_value(decoder: Decoder) -> None:
    """Let the decoder's code travel with it, if it is from the current directory, which executors do not have.

    The package, or the one file, that it is in; what that imports from elsewhere, executors must have.
    """
    from pyspark import cloudpickle

    top = sys.modules.get(type(decoder).__module__.partition(".")[0])
    place = getattr(top, "__file__", None)
    here = os.path.join(os.path.realpath(os.getcwd()), "")
    if top is None or place is None or not os.path.realpath(place).startswith(here):
        return
    if "site-packages" not in place and top.__name__ != "objbuf_dagster":
        cloudpickle.register_pickle_by_value(top)  # type: ignore[no-untyped-call]
