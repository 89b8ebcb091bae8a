"""`objbuf land`: ranges become rows of a table, on Spark.

Ranges go to Spark in groups, and each is committed for itself: one that fails stops neither the others of its group nor
the next group. Only what this very run has committed is acked. A range that lands again replaces itself: whether the
rows in the table are those of this buffer is not known for sure, so none is left out for being there already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from objbuf_dagster.cli.cluster import Cluster, cluster_options
from objbuf_dagster.cli.progress import LandingProgress
from objbuf_dagster.cli.ranges import limit_options
from objbuf_dagster.cli.shared import (
    Buffer,
    Lake,
    ask,
    buffer_options,
    examples,
    note,
    say,
    scheme_of,
    store_option,
    table_option,
)
from objbuf_dagster.cli.text import plural, printable, redact, size
from objbuf_dagster.errors import ObjbufError

if TYPE_CHECKING:
    from objbuf_dagster.buffer import BufferPlace
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.protocol import Manifest, RangeObject
    from objbuf_dagster.ranges import RangeLedger
    from objbuf_dagster.spark.landing import Failed, Landed
    from objbuf_dagster.store import Store

_ALL = "all"
_MAX_WAIT = 0.0  # `all` leaves nothing in the queue that could land

# As in shared.py: a test compares it with the library's.
MAX_BATCH_BYTES = 1 << 30


@click.command(
    epilog=examples(
        "objbuf land all --buffer file:///tmp/buffer --lake file:///tmp/lake --ack",
        "objbuf land 000000000000-000000000000 --buffer s3://my-bucket/events --lake s3://my-bucket/lake",
    )
)
@click.argument("wanted", metavar="RANGE...|all", nargs=-1, required=True)
@click.option("--buffer", "url", metavar="URL", required=True, help="The buffer.")
@click.option("--lake", "lake_url", metavar="URL", required=True, help="Where the table is, or will be.")
@table_option
@click.option(
    "--ack", is_flag=True, help="Afterwards move the frontier behind what landed, up to the first that did not."
)
@click.option("--yes", is_flag=True, help="With --ack: do not ask, although a consumer owns the buffer.")
@cluster_options
@limit_options(_MAX_WAIT)
@click.option(
    "--max-batch-bytes",
    metavar="BYTES",
    type=click.IntRange(min=1),
    default=MAX_BATCH_BYTES,
    show_default=True,
    help="The most a batch may have, as an object and once decompressed; its range fails if it has more. A task "
    "needs the memory for it.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per range, landed or failed, and one with the sums."
)
@store_option(
    "--lake-option",
    "lake_options",
    "As --option, for the lake. It has those of the buffer too, if both are in the same kind of store.",
)
@buffer_options
def land(
    buffer: Buffer,
    wanted: tuple[str, ...],
    lake_url: str,
    table: str,
    ack: bool,
    yes: bool,
    cluster: Cluster,
    max_batches: int,
    max_bytes: int,
    max_wait: float,
    max_batch_bytes: int,
    as_json: bool,
    lake_options: dict[str, str],
) -> None:
    """Land ranges in a Delta table, on Spark.

    RANGE is a key as `objbuf ranges list` writes it, also of a range that was acked long ago and is retained. `all`
    plans what is in the queue (with the --max options), then lands every range that is not acked.

    A range is in the table once, however often it lands: landing it again replaces it. One that fails, say for a
    corrupt batch, leaves the table and the frontier as they were and does not stop the others; the exit code is 1.
    Ranges that share a Spark job share its seconds.

    The frontier moves only with --ack, and nobody is fenced. If another consumer takes the buffer over in the meantime,
    nothing is acked. Spark needs Java 17 or newer; OBJBUF_DEBUG=1 shows its log.
    """
    from objbuf_dagster.buffer import BufferPlace
    from objbuf_dagster.lake.location import check_apart
    from objbuf_dagster.ranges import Limits

    if _ALL in wanted and len(set(wanted)) > 1:
        raise click.UsageError("`all` has every range in it: give it alone, or only keys of ranges")
    store = buffer.open()
    same_kind = scheme_of(buffer.url) == scheme_of(lake_url)
    options = {**(buffer.options if same_kind else {}), **lake_options}
    lake = Lake(lake_url, table, options, buffer.timeout_seconds).open()
    place = BufferPlace(store, buffer.manifest_path, buffer.data_prefix, max_batch_bytes)
    check_apart(lake.store, lake.name, place)
    manifest = buffer.manifests(store).read()
    unmoved = manifest.frontier if ack else None
    if _ALL in wanted and not buffer.note_if_missing(store, manifest):
        _nothing(None, as_json, unmoved)
        return
    if ack and manifest.epoch:
        ask(
            f"Epoch {manifest.epoch}: a consumer owns this buffer. What is acked here leaves its queue, landed there "
            "or not. Ack what lands?",
            yes=yes,
        )
    ledger = buffer.ledger(store)
    limits = Limits(max_batches, max_bytes, max_wait)
    planned = _all(buffer, store, manifest, limits) if _ALL in wanted else _named(ledger, wanted)
    if not planned:
        waiting = "what is there waits for more; --max-wait 0 plans now"
        _nothing(waiting if manifest.entry_count else "the queue is empty", as_json, unmoved)
        return
    lake.snapshot()  # a table that will not do is told before Spark starts
    report = _Report(planned, as_json)
    error: BaseException | None = None
    try:
        _land(planned, place, lake, cluster, report)
    except (KeyboardInterrupt, ObjbufError, click.ClickException) as stopped:
        error = stopped  # what has landed until then is in the table, and may be acked
    frontier, sentence = unmoved, ""
    try:
        if ack:
            frontier, sentence = _ack(buffer, store, manifest, planned, report)
    except (KeyboardInterrupt, ObjbufError, click.ClickException) as failed:
        if error is not None:  # why landing stopped is what is raised
            note(f"nothing was acked: {failed.message if isinstance(failed, click.ClickException) else failed}")
        error = error or failed
    if error is None or report.landed:
        report.finish(frontier, sentence)
    if error is not None:
        raise error
    if report.failed:
        raise click.exceptions.Exit(1)


def _nothing(why: str | None, as_json: bool, frontier: int | None) -> None:
    """What is printed if there is nothing to land; without a reason, it was told already."""
    if as_json:
        _Report([], as_json).finish(frontier, "")
    elif why is not None:
        say(f"landed nothing: {why}")


def _all(buffer: Buffer, store: Store, manifest: Manifest, limits: Any) -> list[RangeObject]:
    """Every range that is not acked, those that the queue still lacks included."""
    from objbuf_dagster.ranges import plan

    ledger = buffer.ledger(store)
    plan(buffer.manifests(store), ledger, limits, manifest=manifest)
    return ledger.list(manifest.frontier)


def _named(ledger: RangeLedger, keys: Iterable[str]) -> list[RangeObject]:
    """These ranges in order, each once. Raises RangeNotPlanned, RangeExpired."""
    from objbuf_dagster.ranges import SequenceRange

    return [ledger.read(wanted) for wanted in sorted({SequenceRange.from_key(key) for key in keys})]


@dataclass(slots=True)
class _Report:
    """What became of the ranges, printed as it happens."""

    planned: Sequence[RangeObject]
    as_json: bool
    landed: list[Landed] = field(default_factory=list)
    failed: int = 0
    started: float = 0.0
    ended: float = 0.0

    def add(self, outcome: Landed | Failed) -> None:
        from objbuf_dagster.spark.landing import Failed

        self.ended = time.perf_counter()
        if isinstance(outcome, Failed):
            self.failed += 1
            error = redact(str(outcome.error))
            click.echo(printable(f"objbuf: range {outcome.range} failed: {error}"), err=True)
            if self.as_json:
                click.echo(json.dumps({"range": outcome.range.key, "error": error}))
            return
        self.landed.append(outcome)
        for one in outcome.quarantined:
            note(f"range {outcome.range} landed without sequence {one.sequence}, which is quarantined: {one.reason}")
        if self.as_json:
            without = {"quarantined": [one.sequence for one in outcome.quarantined]} if outcome.quarantined else {}
            numbers = {**_numbers([outcome]), **without}
            click.echo(json.dumps({"range": outcome.range.key, **numbers, "version": outcome.version}))
        else:
            self._row(outcome)

    def _row(self, one: Landed) -> None:
        from objbuf_dagster.ranges import range_of

        width = max(len(range_of(planned).key) for planned in self.planned)
        if len(self.landed) == 1:
            say(
                f"{'RANGE':<{width}}  {'BATCHES':>7}  {'ROWS':>10}  {'READ':>10}  {'WRITTEN':>10}  {'FILES':>5}  "
                f"{'SECONDS':>7}  {'SPEED':>12}"
            )
        speed = _speed(one.bytes_read, one.seconds)
        say(
            f"{one.range.key:<{width}}  {one.batches:>7}  {one.rows:>10}  {size(one.bytes_read):>10}  "
            f"{size(one.bytes_written):>10}  {one.files:>5}  {one.seconds:>7.1f}  {speed:>12}"
        )

    def finish(self, frontier: int | None, acked: str) -> None:
        """The sums, then what was acked: where the frontier is now, and that in words, if it was asked to move."""
        seconds = self.ended - self.started
        sums = {**_numbers(self.landed), "seconds": round(seconds, 3)}
        if self.as_json:
            click.echo(json.dumps({"landed": len(self.landed), "failed": self.failed, **sums, "frontier": frontier}))
            return
        what = "nothing"
        if self.landed:
            what = (
                f"{plural(len(self.landed), 'range')}: {plural(sums['batches'], 'batch')}, "
                f"{plural(sums['rows'], 'row')}, {size(sums['bytes_read'])} read, {size(sums['bytes_written'])} "
                f"written to {plural(sums['files'], 'file')} in {seconds:.1f} s ({_speed(sums['bytes_read'], seconds)})"
            )
        say(f"landed {what}" + (f"; {plural(self.failed, 'range')} failed" if self.failed else ""))
        if acked:
            say(acked)


def _numbers(landed: Sequence[Landed]) -> dict[str, Any]:
    return {
        "batches": sum(one.batches for one in landed),
        "rows": sum(one.rows for one in landed),
        "bytes_read": sum(one.bytes_read for one in landed),
        "bytes_written": sum(one.bytes_written for one in landed),
        "files": sum(one.files for one in landed),
        "seconds": round(sum(one.seconds for one in landed), 3),
    }


def _speed(amount: int, seconds: float) -> str:
    return f"{size(amount / max(seconds, 1e-9))}/s"


def _land(planned: list[RangeObject], place: BufferPlace, lake: LakeTable, cluster: Cluster, report: _Report) -> None:
    """Land them all, as far as Spark lives. Raises what stops the rest: no Spark, or none that can do it."""
    from objbuf_dagster.errors import JobFailed
    from objbuf_dagster.spark.landing import Failed, land_all
    from objbuf_dagster.spark.packing import jobs

    progress = LandingProgress(sum(len(one.batches) for one in planned), sum(one.size for one in planned))
    progress.say("starting Spark")
    try:
        with cluster.session() as spark:
            progress.say("landing")
            report.started = time.perf_counter()
            for job in jobs(planned):
                shown = progress.update if progress.is_shown else None
                for outcome in land_all(spark, place, job, lake, progress=shown):
                    progress.clear()
                    if isinstance(outcome, Failed) and isinstance(outcome.error, JobFailed):
                        cluster.check_answers(spark)
                    report.add(outcome)
                progress.job_done(sum(len(one.batches) for one in job), sum(one.size for one in job))
            progress.clear()
    finally:
        progress.clear()


def _ack(
    buffer: Buffer, store: Store, manifest: Manifest, planned: list[RangeObject], report: _Report
) -> tuple[int, str]:
    """Move the frontier behind the unbroken run of what landed in this run. Returns where it is now, and in words."""
    from objbuf_dagster.buffer import Consumer
    from objbuf_dagster.errors import Fenced
    from objbuf_dagster.ranges import frontier, range_of

    before = manifest.frontier
    landed = {one.range for one in report.landed}
    chain = [range_of(one) for one in buffer.ledger(store).list(before)] if landed else []
    reached = frontier(before, chain, landed)
    if reached == before:
        waiting = next((one for one in chain if one not in landed), None)
        why = f": range {waiting} has not landed in this run" if waiting is not None else ""
        return before, f"acked nothing, the frontier stays at {before}{why}"
    last = next(one for one in planned if one.end == reached - 1).batches[-1].descriptor
    consumer = Consumer.attach(store, buffer.manifest_path, buffer.data_prefix, epoch=manifest.epoch)
    try:
        consumer.ack_through(last.sequence, location=last.location)
    except Fenced as error:
        raise click.ClickException(
            f"another consumer took over in the meantime (epoch {error.held}, now {error.current}): what landed is in "
            "the table, and nothing was acked; look at `objbuf stat`, then decide again"
        ) from None
    consumer.close()
    left = plural(len(consumer), "batch")
    return reached, f"acked through {last.sequence}: the frontier is {reached}, {left} in the queue"
