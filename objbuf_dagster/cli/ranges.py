"""`objbuf ranges`: plan, list and show the ranges that a buffer is landed by."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from objbuf_dagster.cli.shared import Buffer, Command, at_least_zero, buffer_options, buffer_url, examples, say
from objbuf_dagster.cli.text import duration, plural, size, utc

if TYPE_CHECKING:
    from objbuf_dagster.protocol import Manifest, RangeObject
    from objbuf_dagster.ranges import RangeLedger

# As in shared.py: a test compares these with the library's.
MAX_BATCHES = 1_000
MAX_BYTES = 1 << 30
MAX_WAIT = 10.0


def limit_options(max_wait: float) -> Callable[[Command], Command]:
    """The options that say where a range is cut, with this default for how long a batch may wait."""

    def decorate(command: Command) -> Command:
        for option in (
            click.option(
                "--max-wait",
                metavar="SECONDS",
                type=float,
                callback=at_least_zero,
                default=max_wait,
                show_default=True,
                help="Age of the oldest waiting batch at which it is planned although the range is not full; 0 plans "
                "all.",
            ),
            click.option(
                "--max-bytes",
                metavar="BYTES",
                type=click.IntRange(min=1),
                default=MAX_BYTES,
                show_default=True,
                help="Bytes of its objects, at the most; a larger batch has a range of its own.",
            ),
            click.option(
                "--max-batches",
                metavar="N",
                type=click.IntRange(min=1),
                default=MAX_BATCHES,
                show_default=True,
                help="Batches in a range, at the most.",
            ),
        ):
            command = option(command)
        return command

    return decorate


@click.group(invoke_without_command=True, epilog=examples("objbuf ranges list file:///tmp/buffer"))
@click.pass_context
def ranges(ctx: click.Context) -> None:
    """Plan, list and show ranges of sequences."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@ranges.command(
    epilog=examples(
        "objbuf ranges plan file:///tmp/buffer --dry-run",
        "objbuf ranges plan file:///tmp/buffer --max-wait 0",
        "objbuf ranges plan s3://my-bucket/events --max-batches 100 --max-ranges 10",
    )
)
@buffer_url
@limit_options(MAX_WAIT)
@click.option("--max-ranges", metavar="N", type=click.IntRange(min=1), help="Ranges to plan.  [default: no limit]")
@click.option("--skip-gap", is_flag=True, help="Go on behind sequences that were dequeued before they were planned.")
@click.option("--dry-run", is_flag=True, help="Print what would be planned, and write nothing.")
@buffer_options
def plan(
    buffer: Buffer,
    max_batches: int,
    max_bytes: int,
    max_wait: float,
    max_ranges: int | None,
    skip_gap: bool,
    dry_run: bool,
) -> None:
    """Cut what waits in the queue into ranges.

    Ranges leave no hole and never change, and no two that are used overlap. It is safe beside a running sensor and
    other planners: whoever is first decides, and the others go on behind.
    """
    from objbuf_dagster.ranges import Limits
    from objbuf_dagster.ranges import plan as extend

    store = buffer.open()
    source = buffer.manifests(store)
    manifest = source.read()
    if not buffer.exists(store, manifest):
        raise click.ClickException(buffer.missing())
    ledger = buffer.ledger(store)
    planned = extend(
        source,
        ledger,
        Limits(max_batches, max_bytes, max_wait),
        manifest=manifest,
        max_ranges=max_ranges,
        on_gap="skip" if skip_gap else "fail",
        dry_run=dry_run,
    )
    _print_table(planned, manifest.frontier)
    why = "" if planned else _why_not(manifest, ledger, max_wait)
    say(f"{'would plan' if dry_run else 'planned'} {plural(len(planned), 'range')}{why}")


def _why_not(manifest: Manifest, ledger: RangeLedger, max_wait: float) -> str:
    """What a person wonders about when nothing happens."""
    last = ledger.tail()
    waiting = manifest.next_sequence - max(manifest.frontier, last.end + 1 if last else 0)
    if waiting <= 0:
        return ": everything in the queue is planned" if manifest.entry_count else ": the queue is empty"
    verb = "waits" if waiting == 1 else "wait"
    return f": {plural(waiting, 'batch')} {verb} for more, or for {duration(max_wait)} to pass; --max-wait 0 plans now"


@ranges.command(
    "list",
    epilog=examples(
        "objbuf ranges list file:///tmp/buffer",
        "objbuf ranges list s3://my-bucket/events --since 0 --json",
    ),
)
@buffer_url
@click.option(
    "--since",
    metavar="SEQ",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Only ranges that hold this sequence or later ones.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per range.")
@buffer_options
def list_ranges(buffer: Buffer, since: int, as_json: bool) -> None:
    """List the planned ranges that are retained.

    A range is `queued` until the frontier has passed it, then `acked`; expired ones are not listed.
    """
    store = buffer.open()
    manifest = buffer.manifests(store).read()
    frontier = manifest.frontier
    found = buffer.ledger(store).list(since)
    if not found and not buffer.exists(store, manifest):
        raise click.ClickException(buffer.missing())
    if as_json:
        for planned in found:
            click.echo(json.dumps(_fields(planned, frontier)))
    elif found:
        _print_table(found, frontier)
    else:
        say("no ranges: `objbuf ranges plan` makes them" if not since else f"no ranges from sequence {since} on")


@ranges.command(
    epilog=examples(
        "objbuf ranges show file:///tmp/buffer 000000000000-000000000000",
    )
)
@buffer_url
@click.argument("key", metavar="KEY")
@buffer_options
def show(buffer: Buffer, key: str) -> None:
    """Print one range as JSON.

    It has the range's batches with sequence, location, size and metadata. KEY is the range as `objbuf ranges list`
    writes it. Sizes are in bytes, times in milliseconds since 1970.
    """
    from objbuf_dagster.ranges import SequenceRange

    wanted = SequenceRange.from_key(key)
    found = buffer.ledger(buffer.open()).read(wanted)
    click.echo(json.dumps({"key": key, **json.loads(found.to_bytes())}, indent=2))


def _fields(planned: RangeObject, frontier: int) -> dict[str, object]:
    from objbuf_dagster.ranges import range_of

    return {
        "key": range_of(planned).key,
        "start": planned.start,
        "end": planned.end,
        "batches": len(planned.batches),
        "bytes": planned.size,
        "missing": sum(batch.size is None for batch in planned.batches),
        "epoch": planned.epoch,
        "planned_at_ms": planned.planned_at_ms,
        "state": _state(planned, frontier),
    }


def _state(planned: RangeObject, frontier: int) -> str:
    if planned.end < frontier:
        return "acked"
    return "queued" if planned.start >= frontier else "partly acked"


def _print_table(found: list[RangeObject], frontier: int) -> None:
    from objbuf_dagster.ranges import range_of

    if not found:
        return
    width = max(len(range_of(planned).key) for planned in found)
    say(f"{'RANGE':<{width}}  {'BATCHES':>7}  {'SIZE':>10}  {'PLANNED AT':<20}  STATE")
    for planned in found:
        missing = sum(batch.size is None for batch in planned.batches)
        remark = f", {plural(missing, 'batch')} missing" if missing else ""
        say(
            f"{range_of(planned).key:<{width}}  {len(planned.batches):>7}  {size(planned.size):>10}  "
            f"{utc(planned.planned_at_ms):<20}  {_state(planned, frontier)}{remark}"
        )
