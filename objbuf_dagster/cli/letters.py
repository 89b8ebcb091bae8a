"""Where dead letters are, as the command line says it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from objbuf_dagster.cli.shared import Command, Lake, note, store_option

if TYPE_CHECKING:
    from objbuf_dagster.lake import LakeTable, TableSchema

DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True, slots=True)
class Letters:
    """The table of dead letters as the command line names it, and what is beside it."""

    url: str
    name: str
    options: dict[str, str] = field(repr=False)

    def open(self) -> LakeTable:
        from objbuf_dagster.lake.dead_letters import DEAD_LETTERS as SCHEMA

        return self.table(self.name, SCHEMA)

    def note_if_missing(self, table: LakeTable) -> None:
        """No letters is good news; no table may be a wrong URL."""
        if not table.exists():
            note(
                f"there is no table at {table.name}: nothing has failed yet, or the URL or --dead-letters is not right"
            )

    def table(self, name: str, schema: TableSchema | None) -> LakeTable:
        """A table of the same lake; nothing is read yet. Raises InvalidInput."""
        from objbuf_dagster.lake import LakeTable

        return LakeTable(Lake(self.url, name, self.options).open().url, schema, options=self.options)


def letters_options(command: Command) -> Command:
    """The options that say where the letters are; hands them to the command as its first argument."""

    @functools.wraps(command)
    def run(url: str, dead_letters: str, options: dict[str, str], **rest: Any) -> Any:
        return command(Letters(url, dead_letters, options), **rest)

    named = click.option(
        "--dead-letters",
        metavar="PATH",
        default=DEAD_LETTERS,
        show_default=True,
        help="The folder of the table of dead letters, below the lake's URL.",
    )
    about = "A setting of the bucket's store, as obstore names it: endpoint, region, ..."
    return named(store_option("--option", "options", about)(run))
