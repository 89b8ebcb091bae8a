"""`objbuf dead-letters redrive`: after a decoder was mended, ranges that have dead letters are decoded again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from objbuf_dagster.cli.cluster import Cluster, cluster_options
from objbuf_dagster.cli.letters import Letters, letters_options
from objbuf_dagster.cli.shared import buffer_url, examples, say
from objbuf_dagster.cli.text import plural, printable, redact
from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    from objbuf_dagster.decode import Decoder
    from objbuf_dagster.lake import LakeTable
    from objbuf_dagster.ranges import SequenceRange
    from objbuf_dagster.spark.landing import Failed
    from objbuf_dagster.spark.redriving import Redriven

ENTRIES = "entries"


@click.command(
    epilog=examples(
        "objbuf dead-letters redrive file:///tmp/lake --decoder otlp_logs",
        "objbuf dead-letters redrive s3://my-bucket/lake --range 000000000000-000000000000",
    )
)
@buffer_url
@click.option(
    "--decoder",
    "decoders",
    metavar="NAME",
    multiple=True,
    help="Whose letters, and with what: otlp_logs, otlp_metrics, otlp_traces, or one's own as module:attribute. May be "
    "repeated.  [default: all that have letters]",
)
@click.option("--range", "keys", metavar="KEY", multiple=True, help="Only this range. May be repeated.")
@click.option(
    "--table",
    metavar="PATH",
    help="The folder of the table of the decoder's rows.  [default: otel_logs, otel_metrics, otel_traces; for one's "
    "own, the decoder's name]",
)
@click.option("--entries", metavar="PATH", default=ENTRIES, show_default=True, help="The folder of the raw table.")
@click.option(
    "--new-letters", is_flag=True, help="Also where entries that are no dead letters, and may have rows, become some."
)
@click.option(
    "--renamed", is_flag=True, help="The table is the one that the letters were kept for, under another name by now."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per range, and one with the sums.")
@cluster_options
@letters_options
def redrive(
    place: Letters,
    decoders: tuple[str, ...],
    keys: tuple[str, ...],
    table: str | None,
    entries: str,
    cluster: Cluster,
    new_letters: bool,
    renamed: bool,
    as_json: bool,
) -> None:
    """Decode ranges that have dead letters again, after their decoder was mended.

    URL is the lake. A range is decoded whole, from the raw table, and replaces itself: what now succeeds moves to the
    typed table and out of the dead letters, the rest stays. Killed anywhere, it loses and doubles nothing: run it
    again. A range that the raw table does not have any more fails, and its letters stay. One that fails does not stop
    the others; the exit code is 1.

    If the asset's decoder has settings of its own (larger limits, say), name it as module:attribute: by its plain name
    it has the default ones. A range in which that would make dead letters of entries that are none fails and stays.

    So does a range with letters that were kept for another table than the one that is to get the rows, be it the
    default or given by --table: say which one it is, or --renamed if it has another name by now.

    A decoder of one's own is imported from the current directory, or from wherever Python finds it, and its package or
    file goes to Spark with it.
    """
    letters = place.open()
    place.note_if_missing(letters)
    todo = _todo(place, letters, decoders, keys, table)
    report = _Report(as_json, sum(len(one.ranges) for one in todo))
    for one in todo:
        if not one.rows.exists():
            raise InvalidInput(
                f"there is no table at {one.rows.name}, where rows of {one.decoder.name} go: say with --table which "
                "one it is; or materialise its asset, which makes it"
            )
    if todo:
        _redrive(place, letters, entries, todo, cluster, report, new_letters=new_letters, renamed=renamed)
    report.finish()
    if report.failed:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class _Todo:
    decoder: Decoder
    rows: LakeTable
    ranges: list[SequenceRange]


def _todo(
    place: Letters, letters: LakeTable, names: tuple[str, ...], keys: tuple[str, ...], table: str | None
) -> list[_Todo]:
    """What there is to do, by decoder. Raises InvalidInput, before anything is done."""
    from objbuf_dagster.decode.named import find_decoder, table_of
    from objbuf_dagster.lake.dead_letters import QUARANTINE, count_letters
    from objbuf_dagster.ranges import SequenceRange
    from objbuf_dagster.spark.decoding import typed_schema

    for key in keys:
        SequenceRange.from_key(key)  # refuses what is none
    if QUARANTINE in names:
        raise click.UsageError(
            "a quarantined batch is no entry that a decoder could take: `objbuf quarantine --undo` brings it back"
        )
    given = {one.name: one for one in map(find_decoder, names)}
    if len(given) < len(names):
        raise click.UsageError("each --decoder needs a name of its own")
    counted = count_letters(letters, keys or None)
    chosen = [name for name in counted if name in given or (not names and name != QUARANTINE)]
    if table is not None and max(len(chosen), len(names)) > 1:
        raise click.UsageError(f"--table is for one decoder, and these have letters: {', '.join(chosen)}; give one")
    found = []
    for name in chosen:
        try:
            decoder = given.get(name) or find_decoder(name)
        except InvalidInput:
            raise InvalidInput(
                f"letters of {name!r} are in {plural(len(counted[name]), 'range')}, and it is no decoder of this "
                "package: give it as --decoder module:attribute, or choose others by --decoder"
            ) from None
        rows = place.table(table or table_of(name), typed_schema(decoder))
        found.append(_Todo(decoder, rows, sorted(counted[name])))
    return found


def _redrive(
    place: Letters,
    letters: LakeTable,
    entries: str,
    todo: list[_Todo],
    cluster: Cluster,
    report: _Report,
    *,
    new_letters: bool,
    renamed: bool,
) -> None:
    from objbuf_dagster.lake import ENTRIES as SCHEMA
    from objbuf_dagster.spark.redriving import redrive as decode_again

    raw = place.table(entries, SCHEMA)
    with cluster.session() as spark:
        for one in todo:
            outcomes = decode_again(
                spark,
                raw,
                one.decoder,
                one.rows,
                letters,
                one.ranges,
                new_letters=new_letters,
                renamed=renamed,
            )
            for outcome in outcomes:
                report.add(one.decoder.name, outcome)


@dataclass(slots=True)
class _Report:
    """What became of the ranges, printed as it happens."""

    as_json: bool
    ranges: int
    done: int = 0
    moved: int = 0
    dead: int = 0
    failed: int = 0

    def add(self, decoder: str, outcome: Redriven | Failed) -> None:
        from objbuf_dagster.lake.dead_letters import NewLetters
        from objbuf_dagster.spark.landing import Failed

        if isinstance(outcome, Failed):
            self.failed += 1
            error = redact(str(outcome.error))
            if isinstance(outcome.error, NewLetters):
                error += ": give it as --decoder module:attribute; --new-letters makes letters of them nevertheless"
            click.echo(
                printable(f"objbuf: range {outcome.range} of {decoder} failed, its letters stay: {error}"), err=True
            )
            if self.as_json:
                click.echo(json.dumps({"range": outcome.range.key, "decoder": decoder, "error": error}))
            return
        self.done += 1
        self.moved += outcome.moved
        self.dead += outcome.dead_letters
        if self.as_json:
            fields = {name: getattr(outcome, name) for name in ("before", "moved", "dead_letters", "rows", "version")}
            click.echo(json.dumps({"range": outcome.range.key, "decoder": decoder, **fields}))
            return
        if self.done == 1:
            say(f"{'RANGE':<25}  {'DECODER':<14}  {'BEFORE':>8}  {'MOVED':>8}  {'STILL DEAD':>10}  {'ROWS':>10}")
        say(
            f"{outcome.range.key:<25}  {decoder:<14}  {outcome.before:>8}  {outcome.moved:>8}  "
            f"{outcome.dead_letters:>10}  {outcome.rows:>10}"
        )

    def finish(self) -> None:
        sums = {"ranges": self.done, "failed": self.failed, "moved": self.moved, "dead_letters": self.dead}
        if self.as_json:
            click.echo(json.dumps(sums))
        elif not self.ranges:
            say("nothing to decode again: no dead letters like that")
        else:
            say(
                f"moved {plural(self.moved, 'dead letter')} of {plural(self.done, 'range')}, {self.dead} still dead"
                + (f"; {plural(self.failed, 'range')} failed" if self.failed else "")
            )
