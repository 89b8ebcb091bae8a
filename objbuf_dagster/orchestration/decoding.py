"""Decoding in a step: ranges of `entries` into a typed table and dead letters, and what the UI shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from objbuf_dagster.buffer.metrics import DECODED_DEAD_LETTERS, DECODED_ROWS, DECODED_SKIPPED, Metrics
from objbuf_dagster.lake.location import check_apart
from objbuf_dagster.orchestration.preview import preview
from objbuf_dagster.orchestration.range_asset import Outcome, RangeContext, RangeFailure, RangeResult
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import DecodedRange, as_range, land_decoded
from objbuf_dagster.spark.landing import Failed
from objbuf_dagster.spark.packing import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objbuf_dagster.decode import Decoder
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.spark.decoding_worker import OnError


_EXPIRED_AT_ONCE = 16
"""Ranges in a Spark job, of those whose size nobody knows any more."""


def decode(
    context: RangeContext,
    spark: SparkSession,
    entries: LakeTable,
    decoder: Decoder,
    table: LakeTable,
    dead_letters: LakeTable,
    *,
    on_error: OnError = "dead_letter",
    letters_asset: dg.AssetKey | None = None,
    metrics: Metrics | None = None,
) -> Iterator[Outcome]:
    """All ranges of the step, many in one Spark job; see `land_decoded`.

    letters_asset: stands for the dead letters: it is materialised for each range, with how many there are.
    metrics: counts rows, dead letters, and entries that were dropped; the context's unless given.
    """
    for place in (table, dead_letters):
        check_apart(place.store, place.name, context.place)
    counted = metrics or context.metrics
    for job in _jobs(context):
        sizes = {as_range(one): one.size if isinstance(one, RangeObject) else 0 for one in job}
        size = sum(sizes.values())
        for outcome in land_decoded(
            spark,
            entries,
            job,
            decoder,
            table,
            dead_letters,
            on_error=on_error,
            run_id=context.run_id,
            dry_run=context.dry_run,
        ):
            if isinstance(outcome, Failed):
                yield RangeFailure(outcome.range, outcome.error)
                continue
            if outcome.skipped:
                context.log.warning(
                    "range %s: %d entries that %s cannot decode were dropped, since on_error is skip",
                    outcome.range,
                    outcome.skipped,
                    decoder.name,
                )
            found = numbers(outcome, decoder, sizes[outcome.range] / size if size else 1 / len(job))
            if not context.dry_run:
                counted.count(DECODED_ROWS, outcome.rows)
                counted.count(DECODED_DEAD_LETTERS, outcome.dead_letters)
                counted.count(DECODED_SKIPPED, outcome.skipped)
                if letters_asset is not None:
                    context.dagster.log_event(_letters(letters_asset, outcome, decoder))
                found |= preview(context, table, outcome.range, decoder.schema.names)
            yield RangeResult(outcome.range, found)


def _jobs(context: RangeContext) -> Iterator[Sequence[RangeObject | SequenceRange]]:
    yield from jobs(context.planned)
    for start in range(0, len(context.expired), _EXPIRED_AT_ONCE):
        yield context.expired[start : start + _EXPIRED_AT_ONCE]


def numbers(decoded: DecodedRange, decoder: Decoder, share: float = 1.0) -> dict[str, Any]:
    """What is worth a plot, and who made the rows. `share`: of the job that decoded it, whose time is divided by it."""
    seconds = max(decoded.seconds * share, 1e-9)
    found: dict[str, Any] = {
        "rows": decoded.rows,
        "entries": decoded.entries,
        "entries_of_others": decoded.others,
        "dead_letters": decoded.dead_letters,
        "skipped": decoded.skipped,
        "bytes": decoded.bytes_read,
        "bytes_written": decoded.bytes_written,
        "files": decoded.files,
        "seconds": round(seconds, 3),
        "rows/s": round(decoded.rows / seconds, 1),
        "first_sequence": decoded.range.start,
        "last_sequence": decoded.range.end,
        "decoder": decoder.name,
        "decoder_version": decoder.version,
    }
    if decoded.version is not None:
        found["table_version"] = decoded.version
    return found


def _letters(asset: dg.AssetKey, decoded: DecodedRange, decoder: Decoder) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset,
        partition=decoded.range.key,
        metadata={
            "dead_letters": decoded.dead_letters,
            "decoder": decoder.name,
            "decoder_version": decoder.version,
        },
    )
