"""`objbuf export` and `objbuf import`: a table as a directory of plain files, and back. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from objbuf_dagster.cli.shared import Lake, examples, say, store_option
from objbuf_dagster.cli.text import plural, size

if TYPE_CHECKING:
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.lake.fold import Fold
    from objbuf_dagster.lake.state_cursor import StateCursor
    from objbuf_dagster.lake.transfer import Transferred

option_of_store = store_option(
    "--option", "options", "A setting of the bucket's store, as obstore names it: endpoint, region, ..."
)


def table_at(url: str, options: Mapping[str, str]) -> LakeTable:
    """A table by its own URL, with whatever columns it has; nothing is read yet."""
    lake, table = _split(url)
    return Lake(lake, table, options).open(any_columns=True)


def beside(url: str, name: str, options: Mapping[str, str]) -> LakeTable:
    """Another table of the same lake, with any columns."""
    return Lake(_split(url)[0], name, options).open(any_columns=True)


def _split(url: str) -> tuple[str, str]:
    lake, slash, table = url.rstrip("/").rpartition("/")
    if not table or lake.endswith(":/"):
        raise click.UsageError(f"TABLE is a folder of a lake, for example file:///tmp/lake/entries, not {url}")
    return (lake or "/") if slash else ".", table


@click.command(
    epilog=examples(
        "objbuf export file:///tmp/lake/entries entries.export",
        "objbuf export s3://my-bucket/lake/entries entries.export",
    )
)
@click.argument("table", metavar="TABLE")
@click.argument("directory", metavar="DIR")
@option_of_store
def export(table: str, directory: str, options: dict[str, str]) -> None:
    """Write one version of a table to a directory, with its cursor, its columns and checksums.

    TABLE is the URL of a state, such as .../lake/service_latest, or of a table that ranges land in. DIR must be empty
    or not there. What lands while it is written is not in it. `sha256sum -c SHA256SUMS` checks it as well.
    """
    from objbuf_dagster.lake.transfer import export_table

    done = export_table(table_at(table, options), directory)
    say(f"exported version {done.version}: {_amount(done)}")
    say(f"  {told(done.cursor)}")


@click.command(
    "import",
    epilog=examples(
        "objbuf export file:///tmp/lake/entries entries.export && objbuf import entries.export file:///tmp/lake/again",
    ),
)
@click.argument("directory", metavar="DIR")
@click.argument("table", metavar="TABLE")
@click.option(
    "--fold",
    "fold_name",
    metavar="NAME",
    help="The fold that the state is to go on with, module:attribute for one's own.  [default: the one that the export "
    "names, if it is one of this package]",
)
@click.option(
    "--entries",
    metavar="PATH",
    default="entries",
    show_default=True,
    help="The table of the same lake that tells whether the export is of its buffer.",
)
@click.option(
    "--trust-cursor",
    is_flag=True,
    help="Take it although the lake does not have the range that a state's cursor ends with, or all ranges of a table, "
    "or no table that tells.",
)
@option_of_store
def import_(
    directory: str, table: str, fold_name: str | None, entries: str, trust_cursor: bool, options: dict[str, str]
) -> None:
    """Make a table of what `objbuf export` wrote, where nothing is yet.

    Everything is checked before anything is written. A damaged file, a TABLE that is not empty, and a cursor of another
    buffer, fold or version are refused.
    """
    from objbuf_dagster.lake.files import batches_of
    from objbuf_dagster.lake.transfer import cursor_in, import_table

    place = table_at(table, options)
    cursor = cursor_in(directory)
    fold = None if cursor is None else _fold_of(cursor, fold_name)
    landed = beside(table, entries, options).snapshot()
    batches = None if cursor is None or landed is None else batches_of(landed.live([cursor.last_range]))
    done = import_table(directory, place, fold=fold, batches=batches, landed=landed, trust=trust_cursor)
    say(f"imported {_amount(done)}")
    say(f"  {told(done.cursor)}")


def _fold_of(cursor: StateCursor, name: str | None) -> Fold:
    """The fold to go on with: one's own only if it is named here, since finding it runs its module."""
    from objbuf_dagster.errors import InvalidInput, shown
    from objbuf_dagster.lake.fold_named import OURS, find_fold

    if name is None and cursor.fold not in OURS:
        raise InvalidInput(
            f"the export is of the fold {shown(cursor.fold)}, which is none of this package: name what it is to go on "
            "with, --fold module:attribute. Nothing was written"
        )
    return find_fold(name or cursor.fold)


def _amount(done: Transferred) -> str:
    return f"{plural(done.rows, 'row')} in {plural(done.files, 'file')} ({size(done.bytes)})"


def told(cursor: Mapping[str, Any]) -> str:
    """How far a table is, in words."""
    if "runs" in cursor:
        return "sequences " + (", ".join(f"{first} to {last}" for first, last in cursor["runs"]) or "none")
    return f"{cursor['fold']} {cursor['fold_version']}, through range {cursor['last_range']}"
