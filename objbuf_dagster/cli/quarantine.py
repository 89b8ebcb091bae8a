"""`objbuf quarantine`: let a range land without a batch that cannot be read, and bring the batch back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from objbuf_dagster.cli.land import MAX_BATCH_BYTES
from objbuf_dagster.cli.shared import Buffer, ask, buffer_options, buffer_url, examples, say
from objbuf_dagster.cli.text import plural, utc

if TYPE_CHECKING:
    from objbuf_dagster.buffer import FetchHandle
    from objbuf_dagster.errors import ObjbufError
    from objbuf_dagster.protocol import Manifest, PlannedBatch, RangeObject
    from objbuf_dagster.ranges import RangeLedger
    from objbuf_dagster.ranges.quarantine import QuarantineLedger
    from objbuf_dagster.store import Store


_BEHIND = (
    "land it again, then decode it again (materialise the assets behind `entries` for that range) and rebuild states: "
    "until then they are as they were"
)


@click.command(
    epilog=examples(
        "objbuf quarantine file:///tmp/buffer 0 --reason 'zeros from byte 4096 on, producer lost' --yes",
        "objbuf quarantine s3://my-bucket/events 0 --undo",
    )
)
@buffer_url
@click.argument("sequence", metavar="SEQUENCE", type=click.IntRange(min=0, max=2**64 - 1))
@click.option("--reason", metavar="TEXT", help="Why; it goes into the dead letter. Needed, unless with --undo.")
@click.option("--undo", is_flag=True, help="Bring the batch back, while its object is there.")
@click.option("--yes", is_flag=True, help="Do not ask, although the batch can be read.")
@click.option(
    "--max-batch-bytes",
    metavar="BYTES",
    type=click.IntRange(min=1),
    default=MAX_BATCH_BYTES,
    show_default=True,
    help="As for `objbuf land`: a batch with more can't be read.",
)
@buffer_options
def quarantine(buffer: Buffer, sequence: int, reason: str | None, undo: bool, yes: bool, max_batch_bytes: int) -> None:
    """Let a range land without a batch that cannot be read.

    A corrupt or missing batch stops its range, and with it the frontier. This records SEQUENCE beside the ranges: from
    then on its range lands without that batch, whoever lands it, and one dead letter says so. A range that has landed
    already is changed when it lands again. The batch object stays for as long as those of its range do.

    --undo brings it back: the next landing of the range has the batch again, and its dead letter is gone.
    """
    from objbuf_dagster.buffer import FetchHandle
    from objbuf_dagster.ranges import range_of
    from objbuf_dagster.ranges.quarantine import QuarantineLedger

    if undo == (reason is not None):
        raise click.UsageError("give --reason to quarantine a batch, or --undo to bring it back")
    store = buffer.open()
    records = QuarantineLedger(store, buffer.data_prefix)
    recorded = records.read().get(sequence)
    if undo and (recorded is None or not recorded.active):
        say(f"sequence {sequence} is not quarantined")
        return
    planned = _range_with(buffer, buffer.manifests(store).read(), buffer.ledger(store), sequence)
    batch = planned.batches[sequence - planned.start]
    where = f"range {range_of(planned)}"
    if reason is None:
        _bring_back(buffer, store, records, batch)
        say(
            f"brought sequence {sequence} back: {where} has it again when it lands next, and its dead letter goes; "
            + _BEHIND
        )
        return
    if recorded is None or not recorded.active:
        _ask_if_it_can_be_read(FetchHandle(store, buffer.data_prefix, max_batch_bytes), batch, yes=yes)
    found, changed = records.add(sequence, batch.descriptor.location, reason)
    if changed:
        say(
            f"quarantined sequence {sequence}, {found.location}: {where} lands without it from now on; if it has "
            f"landed already, {_BEHIND}"
        )
    else:
        say(f"sequence {sequence} is quarantined since {utc(found.at_ms)}: {found.reason}")


def _range_with(buffer: Buffer, manifest: Manifest, ledger: RangeLedger, sequence: int) -> RangeObject:
    """The retained range that has this sequence. Raises InvalidInput, RangeExpired, RangeNotPlanned, BufferReplaced."""
    from objbuf_dagster.errors import InvalidInput, RangeNotPlanned
    from objbuf_dagster.ranges import SequenceRange, check_against

    if sequence >= manifest.next_sequence:
        last = f"its last is {manifest.next_sequence - 1}" if manifest.next_sequence else "it has none yet"
        raise InvalidInput(f"sequence {sequence} was never produced in {buffer.url}, {last}: correct it, or the URL")
    one = SequenceRange(sequence, sequence)
    found = ledger.list(sequence, limit=1)
    if not found or found[0].start > sequence:
        ledger.check_retained(one)
        raise RangeNotPlanned(
            one.key,
            "`objbuf ranges plan` makes a range of it; only a range can land without a batch"
            if sequence >= manifest.frontier
            else "it left the manifest before that, so no range needs it",
        )
    check_against(manifest, found[0])
    return found[0]


def _ask_if_it_can_be_read(fetch: FetchHandle, batch: PlannedBatch, *, yes: bool) -> None:
    """Leaving out what could land is a loss that a person must want. Raises if it cannot be told now."""
    try:
        block = fetch.check(batch.descriptor, fetch.fetch_bytes(batch.descriptor))
    except _unreadable():
        return
    ask(
        f"Sequence {batch.descriptor.sequence} can be read: its range would land without "
        f"{plural(block.count, 'record')}. Quarantine it all the same?",
        yes=yes,
    )


def _unreadable() -> tuple[type[ObjbufError], ...]:
    from objbuf_dagster.errors import CorruptData, NotFound, UnsupportedCompression, UnsupportedVersion

    return CorruptData, NotFound, UnsupportedCompression, UnsupportedVersion


def _bring_back(buffer: Buffer, store: Store, records: QuarantineLedger, batch: PlannedBatch) -> None:
    from objbuf_dagster.buffer.fetch import check_location
    from objbuf_dagster.errors import NotFound

    descriptor = batch.descriptor
    try:
        store.head(check_location(descriptor.location, buffer.data_prefix))
    except NotFound:
        raise NotFound(
            descriptor.location,
            f"the batch of sequence {descriptor.sequence} is gone, so its range could not land with it; nothing was "
            "changed",
        ) from None
    records.undo(descriptor.sequence)
