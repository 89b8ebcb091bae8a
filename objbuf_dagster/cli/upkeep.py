"""Commands that change a buffer by hand, and ask first: `objbuf gc` and `objbuf ack`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from objbuf_dagster.cli.shared import Buffer, ask, at_least_zero, buffer_options, buffer_url, examples, note, say
from objbuf_dagster.cli.text import duration, plural, size

if TYPE_CHECKING:
    from objbuf_dagster.buffer import BufferState, GcReport
    from objbuf_dagster.store import Store

# As in shared.py: a test compares these with the library's.
GRACE_SECONDS = 600.0


@click.command(
    epilog=examples(
        "objbuf gc file:///tmp/buffer --dry-run",
        "objbuf gc s3://my-bucket/events --retention 2592000 --yes",
    )
)
@buffer_url
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=float,
    callback=at_least_zero,
    default=GRACE_SECONDS,
    show_default=True,
    help="Age in seconds below which a batch is never deleted: a producer may be about to append it.",
)
@click.option(
    "--retention",
    metavar="SECONDS",
    type=float,
    callback=at_least_zero,
    help="Seconds that acked ranges stay replayable, for this pass.  [default: what the buffer's owner uses, else 7 "
    "days]",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@buffer_options
def gc(buffer: Buffer, dry_run: bool, grace: float, retention: float | None, yes: bool) -> None:
    """Delete the batches that nobody can ask for any more.

    One pass. A batch goes if it is in no manifest entry and no retained range, is older than the oldest entry, and
    older than the grace period, by its name and by the store's own clock. A directory has no clock of its own: there an
    earlier pass must have seen it, as long ago as the grace period. A pass also records the frontier: that is
    how acked ranges get old, and expire.
    """
    from objbuf_dagster.buffer import GarbageCollector

    store = buffer.open()
    now = time.time()  # for both passes, so that the second deletes no more than the first one showed

    def collect(*, rehearse: bool) -> GcReport:
        collector = GarbageCollector(
            store,
            buffer.manifest_path,
            buffer.data_prefix,
            grace_seconds=grace,
            retention_seconds=retention,
            clock=lambda: now,
        )
        return collector.collect_once(dry_run=rehearse)

    _check_collectable(buffer, store)
    report = collect(rehearse=True)
    what = _amount(report)
    if not dry_run and (report.deleted or report.expired_ranges):
        kept = f"grace {duration(grace)}, retention {duration(report.retention_seconds)}"
        ask(f"Delete {what} ({kept})? This cannot be undone.", yes=yes)
    if not dry_run:
        shown, report = report, collect(rehearse=False)
        what = _amount(report)
        if kept_back := len(shown.deleted) - len(report.deleted) - len(report.failed):
            what += f"; kept {kept_back} of those shown, which are too young by the store's clock or named by now"
            if not store.has_own_clock:
                what += ", or go once a pass has seen them for the grace period: run it again then"
        if (left := shown.expired_ranges - report.expired_ranges) > 0:
            what += f"; let {left} of the ranges shown be, for another pass came in between: run it again"
    for path in report.deleted:
        say(path)
    say(f"{'would delete' if dry_run else 'deleted'} {what} (retention {duration(report.retention_seconds)})")
    if report.failed:
        path, error = next(iter(report.failed.items()))
        raise click.ClickException(
            f"{plural(len(report.failed), 'object')} could not be deleted, run it again; the first is {path}: {error}"
        )


def _check_collectable(buffer: Buffer, store: Store) -> None:
    """Beside a wrong manifest every batch looks like garbage: a typing error must not delete a buffer."""
    manifest = buffer.manifests(store).read()
    if not buffer.exists(store, manifest):
        raise click.ClickException(f"{buffer.missing()}. Nothing was deleted")
    oldest = manifest.entry(manifest.frontier)
    if oldest is not None and not oldest.location.startswith(f"{buffer.data_prefix}/"):
        raise click.ClickException(
            f"the manifest's batches are not below {buffer.data_prefix}/ but at {oldest.location}: --manifest-path and "
            "--data-prefix are of different buffers. Nothing was deleted"
        )


def _amount(report: GcReport) -> str:
    if not report.deleted and not report.expired_ranges:
        return "nothing"
    expired = f" and {plural(report.expired_ranges, 'expired range')}" if report.expired_ranges else ""
    return f"{plural(len(report.deleted), 'batch')} ({size(report.bytes)}){expired}"


@click.command(epilog=examples("objbuf ack file:///tmp/buffer 0 --yes"))
@buffer_url
@click.argument("sequence", metavar="SEQ", type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="Do not ask.")
@buffer_options
def ack(buffer: Buffer, sequence: int, yes: bool) -> None:
    """Move the frontier through SEQ by hand.

    The batches up to SEQ leave the queue, landed or not; nobody checks. It is for what can never land. The running
    owner is not fenced: it goes on behind SEQ.
    """
    from objbuf_dagster.buffer import Consumer
    from objbuf_dagster.buffer.manifest_store import state_of
    from objbuf_dagster.errors import Fenced, OutOfOrderAck

    store = buffer.open()
    manifest = buffer.manifests(store).read()
    state = state_of(manifest, time.time())
    if not state.frontier <= sequence < state.next_sequence:
        raise OutOfOrderAck(_why_not(sequence, state), expected=state.frontier, got=sequence)
    last = manifest.entry(sequence)
    leaving = sequence + 1 - state.frontier
    _warn_of_unplanned(buffer, store, state, sequence)
    ask(
        f"Epoch {state.epoch}, frontier {state.frontier}: {plural(leaving, 'batch')}, sequences {state.frontier} to "
        f"{sequence}, leave the queue whether they were landed or not. Go on?",
        yes=yes,
    )
    consumer = Consumer.attach(store, buffer.manifest_path, buffer.data_prefix, epoch=state.epoch)
    try:
        consumer.ack_through(sequence, location=last.location if last else None)
    except Fenced as error:
        changed = "It is acked or not, the answer was lost" if error.in_doubt else "Nothing was changed"
        raise click.ClickException(
            f"another consumer took over in this moment (epoch {error.held}, now {error.current}). {changed}: look at "
            "`objbuf stat`, then decide again"
        ) from None
    consumer.close()
    say(f"acked through {sequence}: the frontier is {sequence + 1}, {plural(len(consumer), 'batch')} in the queue")


def _why_not(sequence: int, state: BufferState) -> str:
    if sequence < state.frontier:
        return f"sequence {sequence} is acked already: the frontier is {state.frontier}. Nothing was changed"
    if not state.next_sequence:
        return f"sequence {sequence} was never produced: this buffer is empty. Check the URL and --manifest-path"
    return (
        f"sequence {sequence} was never produced: the last one is {state.next_sequence - 1}. Nothing was changed, ack "
        "what is there"
    )


def _warn_of_unplanned(buffer: Buffer, store: Store, state: BufferState, sequence: int) -> None:
    """What is acked before it is in a range can never be replayed, and stops the planner, since it left a gap."""
    last = buffer.ledger(store).tail()
    first = max(state.frontier, last.end + 1 if last else 0)
    unplanned = sequence + 1 - first
    if unplanned > 0:
        stops = ", and planning will stop at the gap" if last else ""
        note(
            f"{plural(unplanned, 'batch')} in no range yet: once acked, no replay is possible{stops}; "
            "`objbuf ranges plan --max-wait 0` first keeps them"
        )
