"""`objbuf lake`: look at a table that ranges land in, and keep it small. Needs no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from objbuf_dagster.cli.shared import TABLE, Lake, ask, buffer_url, examples, lake_options, note, say
from objbuf_dagster.cli.text import duration, plural, redact, size, utc

if TYPE_CHECKING:
    from objbuf_dagster.lake import LakeStat, LakeTable, MaintainReport
    from objbuf_dagster.lake.decoded_from import Outdated

# As in shared.py: a test compares these with the library's.
RETENTION = 7 * 86400.0
SHORTEST_RETENTION = 3600.0

_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_SHOWN = 3
_LONGEST_RETENTION = 100 * 365 * 86400.0


@click.group(invoke_without_command=True, epilog=examples("objbuf lake stat file:///tmp/lake"))
@click.pass_context
def lake(ctx: click.Context) -> None:
    """Look at a table that ranges landed in, and keep it small."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@lake.command(
    "stat",
    epilog=examples(
        "objbuf lake stat file:///tmp/lake",
        "objbuf lake stat s3://my-bucket/lake --table entries --json",
    ),
)
@buffer_url
@click.option(
    "--entries", metavar="NAME", default=TABLE, show_default=True, help="The table that a typed one is decoded from."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with stable keys, times in milliseconds.")
@lake_options
def stat_table(place: Lake, entries: str, as_json: bool) -> None:
    """Show what a table has: ranges, rows, files, the last landing.

    URL is the lake; the table is the folder --table in it. Files that no version of the table names are not counted.
    Of a typed table, ranges are told that have landed with more or fewer entries since they were decoded.
    """
    from objbuf_dagster.lake import stat

    table = place.open(any_columns=True)
    found = stat(table)
    late = _outdated(table, replace(place, table=entries))
    _note_if_empty(found.version, table)
    if as_json:
        landing = found.last_landing
        document = {"table": redact(table.name), **asdict(found), "outdated": [one.range.key for one in late]}
        if landing is not None:
            document["last_landing"] = {
                "version": landing.version,
                "time_ms": int(landing.time.timestamp() * 1000),
                **landing.metadata,
            }
        click.echo(json.dumps(document, indent=2))
    else:
        for label, value in _rows(table, found):
            say(f"{label:<15}{value}")
    if late:
        from objbuf_dagster.lake.decoded_from import REMEDY

        named = ", ".join(map(str, late[:_SHOWN])) + (f" and {len(late) - _SHOWN} more" if late[_SHOWN:] else "")
        note(f"ranges have landed in {entries} with other rows since they were decoded: {named}; {REMEDY}")


def _outdated(table: LakeTable, entries: Lake) -> list[Outdated]:
    """Looks at the other table only for one that says what it was decoded from."""
    from objbuf_dagster.lake.decoded_from import outdated, says_what_it_read

    typed = table.snapshot()
    return outdated(typed, entries.open(any_columns=True).snapshot()) if says_what_it_read(typed) else []


def _rows(table: LakeTable, found: LakeStat) -> Iterator[tuple[str, str]]:
    yield "table", redact(table.name)
    yield "version", "none" if found.version is None else str(found.version)
    yield "ranges", str(found.ranges)
    if found.ranges:
        yield "  sequences", f"{found.first_sequence} to {found.last_sequence}"
    yield "rows", "unknown: another program wrote files without saying" if found.rows is None else str(found.rows)
    yield "files", f"{found.files} ({size(found.bytes)})"
    if found.last_landing is not None:
        words = found.last_landing.metadata
        when = utc(int(found.last_landing.time.timestamp() * 1000))
        yield "last landing", f"{words['range']} at {when}, version {found.last_landing.version}"


def _note_if_empty(version: int | None, table: LakeTable) -> None:
    if version is None:
        note(f"there is no table at {table.name}: nothing has landed there yet, or the URL or --table is not right")


def _seconds(_: click.Context, __: click.Parameter, given: str) -> float:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?(s|min|h|d|)", given.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else _LONGEST_RETENTION + 1
    if value > _LONGEST_RETENTION:
        raise click.BadParameter("give seconds, or a number with s, min, h or d, for example 7d.")
    return value


@lake.command(
    epilog=examples(
        "objbuf lake maintain file:///tmp/lake --dry-run",
        "objbuf lake maintain s3://my-bucket/lake --retention 30d --yes",
    ),
)
@buffer_url
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
@click.option(
    "--retention",
    metavar="SECONDS",
    callback=_seconds,
    default=f"{RETENTION:g}",
    help="How long replaced files and those of killed landings stay: seconds, or 90min, 12h, 30d. At least an hour, "
    "and longer than a landing or a reader may take. More than 7d is set in the table's properties, and holds for what "
    "is replaced from then on.  [default: 7d]",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@lake_options
def maintain(place: Lake, dry_run: bool, retention: float, yes: bool) -> None:
    """Write a checkpoint, and delete the files that nobody needs any more.

    Those are the data files of ranges that landed again and of landings that were killed, once they are older than the
    retention, and old files of the table's log. It may run beside landings, and may be repeated.
    """
    from objbuf_dagster.lake import maintain as maintain_table

    if not dry_run and retention < SHORTEST_RETENTION:
        raise click.UsageError(
            f"a --retention of {duration(retention)} could delete the files of a landing that is still running: give "
            "at least 1h"
        )
    table = place.open(any_columns=True)
    report = maintain_table(table, retention=retention, dry_run=True)
    _note_if_empty(report.version, table)
    if not dry_run:
        if report.files_deleted:
            ask(f"Delete {_amount(report)} (retention {duration(retention)})? This cannot be undone.", yes=yes)
        report = maintain_table(table, retention=retention)
    say(f"{'would delete' if dry_run else 'deleted'} {_amount(report)}")
    if report.foreign_files:
        note(
            f"left {plural(report.foreign_files, 'old file')} alone that no landing in this table wrote, the first is "
            f"{report.first_foreign}: if it is of a buffer or of another table, move that to a place of its own"
        )
    if report.checkpoint_version is not None:
        say(f"checkpoint of version {report.checkpoint_version} in {duration(report.seconds)}")


def _amount(report: MaintainReport) -> str:
    parts = [f"{plural(report.files_deleted, 'file')} ({size(report.bytes_freed)})"] if report.files_deleted else []
    parts += [plural(report.log_files_deleted, "log file")] if report.log_files_deleted else []
    temporary = report.temporary_files_deleted
    parts += [plural(temporary, "temporary file")] if temporary else []
    return " and ".join(parts) or "nothing"
