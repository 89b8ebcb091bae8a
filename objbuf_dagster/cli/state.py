"""`objbuf state`: look at a state table, and make it again from `entries`. Needs no Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from objbuf_dagster.cli.shared import DATA_PREFIX, Buffer, ask, examples, note, say
from objbuf_dagster.cli.text import plural
from objbuf_dagster.cli.transfer import beside, option_of_store, table_at

if TYPE_CHECKING:
    from objbuf_dagster.lake.delta import DeltaPlace
    from objbuf_dagster.lake.state_cursor import StateCursor
    from objbuf_dagster.ranges import RangeLedger

DEFAULT_FOLD = "service_latest"


@click.group(
    invoke_without_command=True,
    epilog=examples("objbuf state rebuild file:///tmp/lake/service_latest --yes"),
)
@click.pass_context
def state(ctx: click.Context) -> None:
    """Look at the latest state of keys, and make it again."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@state.command(
    epilog=examples(
        "objbuf state rebuild file:///tmp/lake/service_latest --yes && "
        "objbuf state show file:///tmp/lake/service_latest",
    )
)
@click.argument("table", metavar="TABLE")
@click.option("--json", "as_json", is_flag=True, help="The cursor as one JSON object with stable keys.")
@option_of_store
def show(table: str, as_json: bool, options: dict[str, str]) -> None:
    """Show how far a state is, and what made it.

    TABLE is the URL of the state, such as file:///tmp/lake/service_latest.
    """
    from objbuf_dagster.lake.state import cursor_at

    version, cursor = cursor_at(table_at(table, options))
    if as_json:
        click.echo(json.dumps({"table_version": version, "cursor": cursor.to_json() if cursor else None}, indent=2))
        return
    if cursor is None:
        say("nothing was applied yet")
        return
    for label, value in (
        ("fold", f"{cursor.fold} {cursor.fold_version}"),
        ("scope", ", ".join("/".join(prefix) for prefix in cursor.scope) or "all keys"),
        ("version", str(version)),
        ("keys", str(cursor.keys)),
        ("last range", cursor.last_range),
        ("next sequence", str(cursor.next_sequence)),
        ("applied", f"{plural(cursor.ranges, 'range')}, {plural(cursor.rows, 'row')}, from {cursor.first_sequence} on"),
        ("gaps", ", ".join(f"{first} to {last}" for first, last in cursor.gaps) or "none"),
        ("buffer", cursor.buffer or "unknown"),
    ):
        say(f"{label:<15}{value}")


@state.command(
    epilog=examples("objbuf state rebuild file:///tmp/lake/service_latest --buffer file:///tmp/buffer --yes"),
)
@click.argument("table", metavar="TABLE")
@click.option("--of", metavar="PATH", help="The typed table, beside it.  [default: the decoder's]")
@click.option(
    "--entries",
    "entries_name",
    metavar="PATH",
    default="entries",
    show_default=True,
    help="The table that it is made from, beside it.",
)
@click.option(
    "--fold",
    "fold_name",
    metavar="NAME",
    help="What makes it: service_latest, or one's own as module:attribute.  [default: what made the state that is "
    "there, if it is one of this package; service_latest where there is none]",
)
@click.option(
    "--decoder",
    "decoder_name",
    metavar="NAME",
    default="otlp_logs",
    show_default=True,
    help="What decodes the entries, or one's own as module:attribute, also if the asset's has other limits.",
)
@click.option(
    "--prefix",
    "prefixes",
    metavar="TEXT",
    multiple=True,
    help="Only keys whose first column begins so; may be repeated.  [default: as it was made, else all]",
)
@click.option(
    "--buffer",
    "buffer_url",
    metavar="URL",
    help="The buffer, which tells sequences that were skipped from those that are still to land.",
)
@click.option(
    "--data-prefix", metavar="PATH", default=DATA_PREFIX, show_default=True, help="Folder of its batches and ranges."
)
@click.option("--over-gaps", is_flag=True, help="Pass over sequences that are not there, whatever the buffer says.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@option_of_store
def rebuild(
    table: str,
    of: str | None,
    entries_name: str,
    fold_name: str | None,
    decoder_name: str,
    prefixes: tuple[str, ...],
    buffer_url: str | None,
    data_prefix: str,
    over_gaps: bool,
    yes: bool,
    options: dict[str, str],
) -> None:
    """Make a state again from `entries`, in one transaction.

    Readers see the old one until it is done; keys that no entry has any more are gone then. It goes as far as the typed
    table does, and whatever keeps the state up to date goes on from there. Of JSON, which only Spark decodes, it is
    made from the typed table.
    """
    from objbuf_dagster.decode import JsonDecoder, decode_block, rows_schema
    from objbuf_dagster.decode.named import find_decoder, table_of
    from objbuf_dagster.errors import InvalidInput, shown
    from objbuf_dagster.lake import LakeTable, TableSchema
    from objbuf_dagster.lake.fold import Scope
    from objbuf_dagster.lake.fold_named import find_fold
    from objbuf_dagster.lake.state import BUCKETS, StateTable
    from objbuf_dagster.lake.state_run import Sources
    from objbuf_dagster.lake.state_run import rebuild as rebuild_state

    place = table_at(table, options)
    there, before = _before(place)
    fold, decoder = find_fold(fold_name or _fold_of(table, there, before)), find_decoder(decoder_name)
    lacking = [name for name in fold.reads if name not in rows_schema(decoder).names]
    if lacking:
        raise InvalidInput(
            f"fold {fold.name} reads {shown(lacking[0])}, which rows of decoder {decoder.name} do not have: name the "
            "decoder of its table with --decoder"
        )
    scope = Scope.of(*prefixes) if prefixes else Scope(before.scope if before else ())
    made = StateTable.at(place, fold, scope, buckets=before.buckets if before else BUCKETS)
    typed = beside(table, of or table_of(decoder.name), options)
    sources = Sources(
        LakeTable(typed.url, TableSchema.from_arrow(rows_schema(decoder)), **typed.settings),
        LakeTable(beside(table, entries_name, options).url, **typed.settings),
        _ledger(buffer_url, data_prefix, options),
        before.buffer if before else None,
    )
    if of is not None and sources.typed.snapshot() is None:
        raise InvalidInput(f"there is no table at {typed.name}: correct --of, or leave it out for the decoder's")
    if there:
        new = f"one by the fold {fold.name} {fold.version}"
        ask(f"Replace {_told(before)} with {new}?", yes=yes)
    by_spark = isinstance(decoder, JsonDecoder)
    decode = None if by_spark else lambda block: (rows for rows, _ in decode_block(decoder, block))
    report = rebuild_state(made, sources, decode, over_gaps=over_gaps)
    if report.waiting:
        note(f"it ended there: {report.waiting}")
    for told in filter(None, [report.begins, report.stale]):
        note(told)
    if report.cursor is not None:
        say(
            f"rebuilt from {plural(report.ranges, 'range')}, {plural(report.rows, 'row')}: "
            f"{plural(report.cursor.keys, 'key')}, through range {report.cursor.last_range}"
        )


def _before(place: DeltaPlace) -> tuple[bool, StateCursor | None]:
    """Whether a state is there now, and its cursor; one that cannot be read is no obstacle to replacing it."""
    from objbuf_dagster.errors import CorruptData, NotFound, UnsupportedVersion
    from objbuf_dagster.lake.state import cursor_at

    try:
        return True, cursor_at(place)[1]
    except NotFound:
        return False, None
    except (CorruptData, UnsupportedVersion):
        return True, None


def _fold_of(table: str, there: bool, before: StateCursor | None) -> str:
    """The name of the fold to take where nobody says: never another one than made what is there."""
    from objbuf_dagster.errors import InvalidInput, shown
    from objbuf_dagster.lake.fold_named import OURS

    if not there:
        return DEFAULT_FOLD
    if before is not None and before.fold in OURS:
        return before.fold
    none = "which is none of this package"
    made = f"was made by the fold {shown(before.fold)}, {none}" if before else "does not tell what made it"
    raise InvalidInput(
        f"the state at {table} {made}: name what makes it with --fold, for one's own as module:attribute, and what "
        "decodes its entries with --decoder"
    )


def _told(before: StateCursor | None) -> str:
    if before is None:
        return "a state that does not tell what made it"
    made = f"by the fold {before.fold} {before.fold_version}, through range {before.last_range},"
    return f"the state of {plural(before.keys, 'key')} {made}"


def _ledger(url: str | None, data_prefix: str, options: dict[str, str]) -> RangeLedger | None:
    if url is None:
        return None
    buffer = Buffer(url, data_prefix=data_prefix, options=options)
    return buffer.ledger(buffer.open())
