"""Landing in a step: ranges into a table, and what the UI shows of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from objbuf_dagster.buffer.manifest_store import entry_time_ms
from objbuf_dagster.lake.preview import head
from objbuf_dagster.orchestration.range_asset import Outcome, RangeContext, RangeFailure, RangeResult
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import range_of
from objbuf_dagster.spark import Failed, Landed, land_all
from objbuf_dagster.spark.packing import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objbuf_dagster.lake import LakeTable

_PROGRESS_SECONDS = 10.0
_PREVIEW_ROWS = 5
_PREVIEW_FIRST = ("_odb_sequence", "_odb_entry_index", "entry")
_PREVIEW_TEXT = 200


def land(context: RangeContext, spark: SparkSession, table: LakeTable) -> Iterator[Outcome]:
    """All ranges of the step, many in one Spark job, checked, one commit each."""
    tell = _progress(context)
    batches = amount = 0
    for job in jobs(context.planned):
        by_range = {range_of(one): one for one in job}
        for outcome in land_all(
            spark,
            context.place,
            job,
            table,
            run_id=context.run_id,
            progress=functools.partial(tell, batches, amount),
            verify=True,
            dry_run=context.dry_run,
        ):
            if isinstance(outcome, Failed):
                yield RangeFailure(outcome.range, outcome.error)
                continue
            metadata = numbers(outcome, by_range[outcome.range])
            if not context.dry_run:
                metadata |= _preview(context, table, outcome)
            yield RangeResult(outcome.range, metadata, outcome.checks)
        batches += sum(len(one.batches) for one in job)
        amount += sum(one.size for one in job)


def numbers(landed: Landed, planned: RangeObject) -> dict[str, Any]:
    """What is worth a plot, and where the rows are."""
    seconds = max(landed.seconds, 1e-9)
    oldest = [time_ms for batch in planned.batches[:1] if (time_ms := entry_time_ms(batch.descriptor)) is not None]
    found: dict[str, Any] = {
        "rows": landed.rows,
        "batches": landed.batches,
        "bytes": landed.bytes_read,
        "bytes_written": landed.bytes_written,
        "files": landed.files,
        "seconds": round(landed.seconds, 3),
        "MB/s": round(landed.bytes_read / seconds / 1e6, 3),
        "first_sequence": planned.start,
        "last_sequence": planned.end,
    }
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


def _preview(context: RangeContext, table: LakeTable, landed: Landed) -> dict[str, Any]:
    """The first rows, to look at. Failing to show them is no reason to fail what has landed."""
    try:
        rows = head(table, landed.range.key, _PREVIEW_ROWS)
    except Exception as error:  # noqa: BLE001
        context.log.warning("no preview of range %s: %s", landed.range, error)
        return {}
    if not rows:
        return {}
    columns = sorted(rows[0], key=lambda name: name not in _PREVIEW_FIRST)
    return {
        "preview": dg.MetadataValue.table(
            [dg.TableRecord({name: _shown(row[name]) for name in columns}) for row in rows],
            dg.TableSchema([dg.TableColumn(name, "string") for name in columns]),
        )
    }


def _shown(value: Any) -> str:
    """As text that any log, database and browser can bear: short, of ASCII, without control characters."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = value[: _PREVIEW_TEXT // 2].hex()
    text = ascii(value[:_PREVIEW_TEXT])[1:-1] if isinstance(value, str) else ascii(value)
    return text if len(text) <= _PREVIEW_TEXT else f"{text[: _PREVIEW_TEXT - 3]}..."
