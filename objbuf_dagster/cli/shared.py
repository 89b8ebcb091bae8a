"""What all commands have in common: the buffer or table they work on, notes on stderr, asking first."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from objbuf_dagster.cli.text import hide_secret, printable, redact

if TYPE_CHECKING:
    from objbuf_dagster.buffer import ManifestStore
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.protocol import Manifest
    from objbuf_dagster.ranges import RangeLedger
    from objbuf_dagster.store import Store

# The library's own defaults, written down again because importing it would double the time of `--help`. A test
# compares them.
MANIFEST_PATH = "ingest/manifest"
DATA_PREFIX = "ingest"
TIMEOUT_SECONDS = 60.0

TABLE = "entries"

DEBUG_VARIABLE = "OBJBUF_DEBUG"

_STORE_OPTION = (
    "A setting of the bucket's store, as obstore names it: endpoint, region, ... Credentials are better left to the "
    "environment (AWS_ACCESS_KEY_ID, ...): other users of this machine can see a command line."
)

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer as the command line names it."""

    url: str
    manifest_path: str = MANIFEST_PATH
    data_prefix: str = DATA_PREFIX
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = TIMEOUT_SECONDS

    def open(self) -> Store:
        """Its store; nothing is read yet. Raises InvalidInput."""
        from objbuf_dagster.store import check_path, open_store

        _quieten_logging()
        scheme = scheme_of(self.url)
        if scheme == "memory":
            raise click.ClickException("a memory:// buffer would be gone when this command ends: use a directory")
        if self.options and scheme == "file":
            raise click.UsageError("--option is for buckets: a directory has no settings, leave it out")
        check_path(self.manifest_path)
        check_path(self.data_prefix)
        return open_store(self.url, options=self.options, timeout_seconds=self.timeout_seconds)

    def manifests(self, store: Store) -> ManifestStore:
        """Its manifest, for looking at."""
        from objbuf_dagster.buffer import ManifestStore

        return ManifestStore(store, self.manifest_path)

    def ledger(self, store: Store) -> RangeLedger:
        from objbuf_dagster.ranges import RangeLedger

        return RangeLedger(store, self.data_prefix)

    def exists(self, store: Store, manifest: Manifest) -> bool:
        """Whether there is a manifest at all; asks the store only where the manifest could be the empty one."""
        from objbuf_dagster.errors import NotFound

        if manifest.next_sequence or manifest.epoch:
            return True
        try:
            store.head(self.manifest_path)
        except NotFound:
            return False
        return True

    def note_if_missing(self, store: Store, manifest: Manifest) -> bool:
        """Whether there is a manifest; if not, says so."""
        if self.exists(store, manifest):
            return True
        note(self.missing())
        return False

    def missing(self) -> str:
        return (
            f"there is no manifest {self.manifest_path} in {self.url}: nothing was produced there yet, or the URL or "
            "--manifest-path is not right"
        )


@dataclass(frozen=True, slots=True)
class Lake:
    """A table of a lake as the command line names it."""

    url: str
    table: str = TABLE
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = TIMEOUT_SECONDS

    def open(self, *, any_columns: bool = False) -> LakeTable:
        """Its table, with the columns of `entries` or, to look after it, with any; nothing is read yet.

        Raises InvalidInput.
        """
        from objbuf_dagster.lake import ENTRIES, LakeTable
        from objbuf_dagster.lake.location import open_lake
        from objbuf_dagster.store import check_path

        _quieten_logging()
        if self.options and scheme_of(self.url) == "file":
            raise click.UsageError("options are for buckets: a lake in a directory has no settings, leave them out")
        open_lake(self.url, options=self.options)  # what is wrong with it is easier told without the table's name
        check_path(self.table)
        url = f"{self.url}{'' if self.url.endswith('/') else '/'}{self.table}"
        schema = None if any_columns else ENTRIES
        return LakeTable(url, schema, options=self.options, timeout_seconds=self.timeout_seconds)


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "file"


def buffer_url(command: Command) -> Command:
    """The first argument of every command; goes on top."""
    return click.argument("url", metavar="URL")(command)


def above_zero(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """A finite number above 0; click's own ranges take `nan` and `inf`."""
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter("give a number above 0.")
    return value


timeout_option = click.option(
    "--timeout",
    metavar="SECONDS",
    type=float,
    default=TIMEOUT_SECONDS,
    show_default=True,
    callback=above_zero,
    help="How long one request to a bucket may take; large objects are read by many.",
)


def buffer_options(command: Command) -> Command:
    """The options that say more about the buffer; hands it to the command as its first argument."""

    @functools.wraps(command)
    def run(
        url: str, manifest_path: str, data_prefix: str, options: dict[str, str], timeout: float, **rest: Any
    ) -> Any:
        return command(Buffer(url, manifest_path, data_prefix, options, timeout), **rest)

    decorated: Command = run
    for decorate in (
        timeout_option,
        store_option("--option", "options", _STORE_OPTION),
        click.option(
            "--data-prefix",
            metavar="PATH",
            default=DATA_PREFIX,
            show_default=True,
            help="Folder of the batches, below the URL.",
        ),
        click.option(
            "--manifest-path",
            metavar="PATH",
            default=MANIFEST_PATH,
            show_default=True,
            help="The manifest's path below the URL.",
        ),
    ):
        decorated = decorate(decorated)
    return decorated


table_option = click.option(
    "--table",
    metavar="PATH",
    default=TABLE,
    show_default=True,
    help="The table's folder, below the lake's URL.",
)


def lake_options(command: Command) -> Command:
    """The options that say more about a lake's table; hands it to the command as its first argument."""

    @functools.wraps(command)
    def run(url: str, table: str, options: dict[str, str], timeout: float, **rest: Any) -> Any:
        return command(Lake(url, table, options, timeout), **rest)

    return table_option(store_option("--option", "options", _STORE_OPTION)(timeout_option(run)))


def store_option(flag: str, name: str, about: str) -> Callable[[Command], Command]:
    """An option KEY=VALUE for a store; the command gets a mapping."""
    return click.option(
        flag,
        name,
        metavar="KEY=VALUE",
        multiple=True,
        callback=key_values("region=eu-central-1"),
        help=f"{about} May be repeated.",
    )


def key_values(example: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, str]]:
    """A callback that makes a mapping of KEY=VALUE options, and remembers those that are secrets."""

    def parse(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        flag = option.opts[0]
        values = {}
        for number, item in enumerate(given, 1):
            key, equals, value = item.partition("=")
            if not (key and equals):
                message = f"the {_ordinal(number)} {flag} is not KEY=VALUE, for example {flag} {example}"
                raise click.BadParameter(message)  # without what was given: it may be a secret
            hide_secret(key, value)
            values[key] = value
        return values

    return parse


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def at_least_zero(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """A finite number, of seconds or the like; click's own ranges take `nan` and `inf`."""
    if value is not None and not 0 <= value < math.inf:
        raise click.BadParameter("give a number of 0 or more.")
    return value


def examples(*lines: str) -> str:
    """An epilog that click does not wrap. Tests run each line that has `objbuf` in it."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def note(message: str) -> None:
    """One line on stderr that is not an error."""
    click.echo(f"objbuf: note: {printable(redact(message))}", err=True)


def say(text: str = "") -> None:
    """One line of human output; whatever it quotes is made fit for a terminal."""
    click.echo(printable(text))


def ask(question: str, *, yes: bool) -> None:
    """Go on only if the person agrees, or has with --yes. Raises ClickException otherwise."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.ClickException("this needs a yes, and there is no terminal to ask at: pass --yes if you are sure")
    try:
        agreed = click.confirm(printable(question), err=True)
    except click.Abort:
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise click.ClickException("nothing was changed, as you wished")


def debugging() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def _quieten_logging() -> None:
    """Errors are one line: what the library logs besides is for debugging."""
    import logging

    logger = logging.getLogger("objbuf_dagster")
    if debugging():
        logging.basicConfig(level=logging.DEBUG)
    elif not logger.handlers:
        logger.addHandler(logging.NullHandler())  # a logger without any would write to stderr
