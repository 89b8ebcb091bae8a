"""Decoding in a step: ranges of `entries` into a typed table and dead letters, and what the UI shows of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from objbuf_dagster.orchestration.range_asset import Outcome, RangeContext, RangeFailure, RangeResult
from objbuf_dagster.spark.decoding import DecodedRange, land_decoded
from objbuf_dagster.spark.landing import Failed
from objbuf_dagster.spark.packing import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objbuf_dagster.decode import Decoder
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.spark.decoding_worker import OnError


def decode(
    context: RangeContext,
    spark: SparkSession,
    entries: LakeTable,
    decoder: Decoder,
    table: LakeTable,
    dead_letters: LakeTable,
    *,
    on_error: OnError = "dead_letter",
    observed: dg.AssetKey | None = None,
) -> Iterator[Outcome]:
    """All ranges of the step, many in one Spark job; see `land_decoded`.

    observed: an asset that stands for the dead letters: it gets an observation of each range, with how many there are.
    """
    for job in jobs(context.planned):
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
            if observed is not None and not context.dry_run:
                context.dagster.log_event(_observation(observed, outcome, decoder))
            yield RangeResult(outcome.range, numbers(outcome, decoder))


def numbers(decoded: DecodedRange, decoder: Decoder) -> dict[str, Any]:
    """What is worth a plot, and who made the rows."""
    found: dict[str, Any] = {
        "rows": decoded.rows,
        "entries": decoded.entries,
        "entries_of_others": decoded.others,
        "dead_letters": decoded.dead_letters,
        "skipped": decoded.skipped,
        "bytes": decoded.bytes_read,
        "bytes_written": decoded.bytes_written,
        "files": decoded.files,
        "seconds": round(decoded.seconds, 3),
        "rows/s": round(decoded.rows / max(decoded.seconds, 1e-9), 1),
        "first_sequence": decoded.range.start,
        "last_sequence": decoded.range.end,
        "decoder": decoder.name,
        "decoder_version": decoder.version,
    }
    if decoded.version is not None:
        found["table_version"] = decoded.version
    return found


def _observation(asset: dg.AssetKey, decoded: DecodedRange, decoder: Decoder) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset,
        partition=decoded.range.key,
        metadata={
            "dead_letters": decoded.dead_letters,
            "decoder": decoder.name,
            "decoder_version": decoder.version,
        },
    )
