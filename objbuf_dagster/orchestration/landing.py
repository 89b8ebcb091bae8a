"""Landing in a step: ranges into a table, and what the UI shows of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from objbuf_dagster.buffer.manifest_store import entry_time_ms
from objbuf_dagster.errors import shown
from objbuf_dagster.orchestration.preview import preview
from objbuf_dagster.orchestration.range_asset import Outcome, RangeContext, RangeFailure, RangeResult
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import range_of
from objbuf_dagster.spark import Failed, Landed, land_all
from objbuf_dagster.spark.packing import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objbuf_dagster.lake import LakeTable

_PROGRESS_SECONDS = 10.0
_NAMED = 100
_SHOWN_FIRST = ("_odb_sequence", "_odb_entry_index", "entry")


def land(
    context: RangeContext, spark: SparkSession, table: LakeTable, dead_letters: LakeTable | None = None
) -> Iterator[Outcome]:
    """All ranges of the step, many in one Spark job, checked, one commit each; `dead_letters` is as for `land_all`."""
    tell = _progress(context)
    batches = amount = 0
    for job in jobs(context.planned):
        by_range = {range_of(one): one for one in job}
        size = sum(one.size for one in job)
        for outcome in land_all(
            spark,
            context.place,
            job,
            table,
            run_id=context.run_id,
            progress=functools.partial(tell, batches, amount),
            verify=True,
            dry_run=context.dry_run,
            dead_letters=dead_letters,
        ):
            if isinstance(outcome, Failed):
                yield RangeFailure(outcome.range, outcome.error)
                continue
            for one in outcome.quarantined:
                context.log.warning(
                    "range %s landed without sequence %d, which is quarantined: %s",
                    outcome.range,
                    one.sequence,
                    shown(one.reason),
                )
            planned = by_range[outcome.range]
            metadata = numbers(outcome, planned, planned.size / size if size else 1 / len(job))
            if not context.dry_run:
                metadata |= preview(context, table, outcome.range, _SHOWN_FIRST)
            yield RangeResult(outcome.range, metadata, outcome.checks)
        batches += sum(len(one.batches) for one in job)
        amount += size


def numbers(landed: Landed, planned: RangeObject, share: float = 1.0) -> dict[str, Any]:
    """What is worth a plot, and where the rows are. `share`: of the job that landed it, whose time is divided by it."""
    seconds = max(landed.seconds * share, 1e-9)
    oldest = [time_ms for batch in planned.batches[:1] if (time_ms := entry_time_ms(batch.descriptor)) is not None]
    found: dict[str, Any] = {
        "rows": landed.rows,
        "batches": landed.batches,
        "quarantined": len(landed.quarantined),
        "bytes": landed.bytes_read,
        "bytes_written": landed.bytes_written,
        "files": landed.files,
        "seconds": round(seconds, 3),
        "MB/s": round(landed.bytes_read / seconds / 1e6, 3),
        "first_sequence": planned.start,
        "last_sequence": planned.end,
    }
    if landed.quarantined:
        found["quarantined_sequences"] = ", ".join(str(one.sequence) for one in landed.quarantined[:_NAMED])
    if oldest:
        found["lag_seconds"] = round(max(0.0, time.time() - oldest[0] / 1000), 1)
    if landed.version is not None:
        found["table_version"] = landed.version
    return found


def _progress(context: RangeContext) -> Callable[[int, int, int, int], None]:
    """A line in the run's log every few seconds, for landings that take longer than that."""
    batches, amount = sum(len(one.batches) for one in context.planned), sum(one.size for one in context.planned)
    told = time.monotonic()

    def tell(before: int, size_before: int, done: int, size: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _PROGRESS_SECONDS and before + done < batches:
            told = time.monotonic()
            so_far = (size_before + size) / 1e6
            context.log.info("%d of %d batches written, %.1f of %.1f MB", before + done, batches, so_far, amount / 1e6)

    return tell
