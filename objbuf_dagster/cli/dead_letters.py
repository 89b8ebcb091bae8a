"""`objbuf dead-letters`: the entries that could not be decoded: list them, look at one, decode them again, let go."""

from __future__ import annotations

import base64
import codecs
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from objbuf_dagster.cli.letters import Letters, letters_options
from objbuf_dagster.cli.redrive import redrive
from objbuf_dagster.cli.shared import ask, buffer_url, examples, say
from objbuf_dagster.cli.text import plural, utc
from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    from objbuf_dagster.lake import LakeTable, LiveFile

_SHOWN_BYTES = 4096
_SHORT_BYTES = 32
_HEX_BYTES = 16
_HAS_ROWS = "(has rows, decode again) "

_decoder_option = click.option("--decoder", metavar="NAME", help="Only letters of this decoder.")


@click.group("dead-letters", invoke_without_command=True, epilog=examples("objbuf dead-letters list file:///tmp/lake"))
@click.pass_context
def dead_letters(ctx: click.Context) -> None:
    """Look at entries that could not be decoded, and decode them again."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@dead_letters.command(
    "list",
    epilog=examples(
        "objbuf dead-letters list file:///tmp/lake",
        "objbuf dead-letters list s3://my-bucket/lake --decoder otlp_logs --reason 'cut short' --limit 20",
    ),
)
@buffer_url
@click.option("--range", "key", metavar="KEY", help="Only letters of this range.")
@_decoder_option
@click.option("--reason", metavar="TEXT", help="Only letters whose reason has this text in it, in any case.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Letters at the most.  [default: all]")
@click.option(
    "--table",
    metavar="PATH",
    help="The folder of the table of the decoder's rows, to tell letters whose entries have rows.  [default: as "
    "`redrive` has it]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per letter, without its bytes.")
@letters_options
def list_letters(
    place: Letters,
    key: str | None,
    decoder: str | None,
    reason: str | None,
    limit: int | None,
    table: str | None,
    as_json: bool,
) -> None:
    """List dead letters, by range and decoder.

    URL is the lake. Each letter is an entry that a decoder took and could not decode, or, with the decoder
    `quarantine`, a whole batch that was left out. Their bytes are not read: `objbuf dead-letters show` has them.

    An entry may have rows and a letter where a decoding is under way or was killed; its rows count, and the letter is
    marked: decode the range again, and it goes.
    """
    if table is not None and decoder is None:
        raise click.UsageError("--table is for one decoder: give --decoder")
    _list(place, _Filter(key, decoder, reason, table), limit, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which letters, and where the decoder's rows are."""

    key: str | None
    decoder: str | None
    reason: str | None
    table: str | None


def _list(place: Letters, chosen: _Filter, limit: int | None, *, as_json: bool) -> None:
    table = place.open()
    place.note_if_missing(table)
    width = len("SEQUENCE")
    found = 0
    for letter in _letters(place, table, chosen):
        if found == limit:
            if not as_json:
                say(f"and more: --limit {limit} ends here")
            return
        found += 1
        if as_json:
            click.echo(json.dumps({**_fields(letter), "has_rows": letter["has_rows"]}))
            continue
        if found == 1:
            say(f"{'RANGE':<25}  {'SEQUENCE':>{width}}  {'INDEX':>6}  {'DECODER':<14}  {'VERSION':>7}  REASON")
        say(
            f"{letter['range']:<25}  {letter['_odb_sequence']:>{width}}  {letter['_odb_entry_index']:>6}  "
            f"{letter['decoder']:<14}  {letter['decoder_version']:>7}  {_HAS_ROWS if letter['has_rows'] else ''}"
            f"{letter['reason']}"
        )
    if not as_json:
        say(plural(found, "dead letter") if found else "no dead letters" + (" like that" if table.exists() else ""))


@dead_letters.command(
    epilog=examples(
        "objbuf dead-letters show file:///tmp/lake 0 0",
        "objbuf dead-letters show file:///tmp/lake 0 0 --raw | od -c",
    )
)
@buffer_url
@click.argument("sequence", metavar="SEQUENCE", type=click.IntRange(min=0))
@click.argument("index", metavar="INDEX", type=click.IntRange(min=0))
@_decoder_option
@click.option("--raw", is_flag=True, help="Write the entry's bytes as they are, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, bytes in base64.")
@letters_options
def show(place: Letters, sequence: int, index: int, decoder: str | None, raw: bool, as_json: bool) -> None:
    """Show one dead letter: where it came from, why it failed, its bytes.

    SEQUENCE and INDEX are those that `objbuf dead-letters list` writes. Bytes are shown as text where they are UTF-8
    and in hexadecimal where not, the first 4096 of them; --raw writes all.
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json are two ways to write it: give one of them")
    found = _at(place.open(), sequence, index, decoder)
    if not found:
        of = f" of {decoder}" if decoder else ""
        raise InvalidInput(
            f"there is no dead letter{of} for sequence {sequence}, entry {index}: `objbuf dead-letters list` shows "
            "those that there are"
        )
    if len(found) > 1:
        names = ", ".join(str(letter["decoder"]) for letter in found)
        raise InvalidInput(f"several decoders have a letter for this entry: give --decoder, one of {names}")
    if raw:
        click.echo(found[0]["entry"], nl=False)
    elif as_json:
        encoded = base64.b64encode(found[0]["entry"]).decode()
        click.echo(json.dumps({**_fields(found[0]), "entry_base64": encoded}, indent=2))
    else:
        for line in _shown(found[0]):
            say(line)


dead_letters.add_command(redrive)


@dead_letters.command(epilog=examples("objbuf dead-letters remove file:///tmp/lake --decoder old_events --yes"))
@buffer_url
@click.option("--decoder", metavar="NAME", required=True, help="Whose letters.")
@click.option("--range", "keys", metavar="KEY", multiple=True, help="Only this range. May be repeated.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@letters_options
def remove(place: Letters, decoder: str, keys: tuple[str, ...], yes: bool) -> None:
    """Remove the dead letters of a decoder that is not used any more.

    URL is the lake. Nothing else brings these entries to anybody's notice again; the raw table keeps them. Letters of
    a decoder that is in use are for `objbuf dead-letters redrive`.
    """
    from objbuf_dagster.lake.dead_letters import QUARANTINE, RangeLetters, count_letters
    from objbuf_dagster.ranges import SequenceRange

    if decoder == QUARANTINE:
        raise click.UsageError("letters of quarantined batches go with them: `objbuf quarantine --undo`")
    table = place.open()
    place.note_if_missing(table)
    wanted = [SequenceRange.from_key(key).key for key in keys] or None
    ranges = count_letters(table, wanted, decoder).get(decoder, {})
    if not ranges:
        say("no dead letters like that")
        return
    of = f"{plural(sum(ranges.values()), 'dead letter')} of {decoder} in {plural(len(ranges), 'range')}"
    ask(f"Remove {of}? The entries stay in the raw table, and nobody is told of them any more.", yes=yes)
    for one in ranges:
        letters = RangeLetters(table, one.key, decoder, [], epoch=0, metadata={"removed": decoder})
        letters.keep()
        letters.settle()
    say(f"removed {of}")


def _letters(place: Letters, table: LakeTable, chosen: _Filter) -> Iterator[dict[str, Any]]:
    """The letters like that, in order, without their bytes; `has_rows` is None where the decoder's table is not."""
    from objbuf_dagster.lake.dead_letters import read_letters
    from objbuf_dagster.ranges import SequenceRange

    ranges = None if chosen.key is None else [SequenceRange.from_key(chosen.key).key]
    columns = [column.name for column in table.schema.data if column.name != "entry"]
    text = None if chosen.reason is None else chosen.reason.casefold()
    about: tuple[str, str | None] | None = None
    with_rows: set[tuple[int, int]] | None = None
    for file, block in read_letters(table, ranges, chosen.decoder, columns):
        if about != (file.range, file.part):
            about = file.range, file.part
            with_rows = _with_rows(place, table, chosen.table, file)
        for row in block.to_pylist():
            if text is None or text in row["reason"].casefold():
                at = row["_odb_sequence"], row["_odb_entry_index"]
                has_rows = None if with_rows is None else at in with_rows
                yield {"range": file.range, "decoder": file.part, "has_rows": has_rows, **row}


def _with_rows(place: Letters, letters: LakeTable, named: str | None, file: LiveFile) -> set[tuple[int, int]] | None:
    from objbuf_dagster.decode.named import table_of
    from objbuf_dagster.lake.dead_letters import QUARANTINE, letters_with_rows

    decoder = file.part or ""
    if decoder == QUARANTINE:
        return None
    rows = place.table(named or table_of(decoder), None)
    try:
        return letters_with_rows(letters, rows, file.range, decoder) if rows.exists() else None
    except InvalidInput:  # what has the decoder's name is another table
        if named is not None:
            raise
        return None


def _at(table: LakeTable, sequence: int, index: int, decoder: str | None) -> list[dict[str, Any]]:
    """The letters of one entry, whole; one of each decoder that has one."""
    import pyarrow.compute as pc

    from objbuf_dagster.lake.dead_letters import count_letters, read_letters

    ranges = {one.key for of in count_letters(table, None, decoder).values() for one in of if sequence in one}
    found = []
    for file, block in read_letters(table, ranges, decoder):
        here = block.filter(
            pc.and_(pc.equal(block["_odb_sequence"], sequence), pc.equal(block["_odb_entry_index"], index))
        )
        found += [{"range": file.range, "decoder": file.part, **row} for row in here.to_pylist()]
    return found


def _fields(letter: dict[str, Any]) -> dict[str, Any]:
    metadata = letter["_odb_metadata"]
    return {
        "range": letter["range"],
        "sequence": letter["_odb_sequence"],
        "entry_index": letter["_odb_entry_index"],
        "decoder": letter["decoder"],
        "decoder_version": letter["decoder_version"],
        "reason": letter["reason"],
        "ingestion_time_ms": letter["_odb_ingestion_time_ms"],
        "data_path": letter["_odb_data_path"],
        "manifest_path": letter["_odb_manifest_path"],
        "metadata_base64": None if metadata is None else base64.b64encode(metadata).decode(),
    }


def _shown(letter: dict[str, Any]) -> Iterator[str]:
    """For people: where it came from, why it failed, its bytes."""
    time_ms, metadata, entry = letter["_odb_ingestion_time_ms"], letter["_odb_metadata"], letter["entry"]
    for label, value in (
        ("range", letter["range"]),
        ("sequence", letter["_odb_sequence"]),
        ("entry index", letter["_odb_entry_index"]),
        ("decoder", f"{letter['decoder']}, version {letter['decoder_version']}"),
        ("reason", letter["reason"]),
        ("ingested", "unknown" if time_ms is None else utc(time_ms)),
        ("batch", letter["_odb_data_path"]),
        ("manifest", letter["_odb_manifest_path"]),
        ("metadata", "none" if metadata is None else _short(metadata)),
        ("bytes", len(entry)),
    ):
        yield f"{label:<13}{value}"
    yield from _dump(entry[:_SHOWN_BYTES])
    if len(entry) > _SHOWN_BYTES:
        yield f"and {len(entry) - _SHOWN_BYTES} bytes more: --raw writes all"


def _short(data: bytes) -> str:
    more = f" and {len(data) - _SHORT_BYTES} bytes more" if len(data) > _SHORT_BYTES else ""
    return (data[:_SHORT_BYTES].hex(" ") or "empty") + more


def _dump(data: bytes) -> Iterator[str]:
    """Lines of text, if it is some; else of hexadecimal numbers."""
    with contextlib.suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < _SHOWN_BYTES)
        if all(character.isprintable() or character in "\n\r\t" for character in text):
            yield from text.splitlines()
            return
    for at in range(0, len(data), _HEX_BYTES):
        line = data[at : at + _HEX_BYTES]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{at:08x}  {line.hex(' '):<{3 * _HEX_BYTES}} {plain}"
