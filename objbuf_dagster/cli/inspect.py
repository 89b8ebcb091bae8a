"""Commands that look at a buffer as a whole: `objbuf stat` and `objbuf manifest dump`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from objbuf_dagster.cli.regulator import regulator_of, told
from objbuf_dagster.cli.shared import Buffer, buffer_options, buffer_url, examples, note, say
from objbuf_dagster.cli.text import duration, plural, redact, size, utc

if TYPE_CHECKING:
    from objbuf_dagster.protocol import Manifest
    from objbuf_dagster.store import Store

_CONFLICTS = "not known from here: each producer and consumer measures its own"
_NO_HOME = "n/a: set DAGSTER_HOME to the pipeline's, which alone knows"
_READERS = 16
_MOST_ADDED = 1_000
"""Ranges past the frontier whose bytes are added up: each has to be read."""


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The chain of range objects, in numbers. Keys are None where nothing is planned and retained.

    past_frontier_bytes: of what is planned and not acked: in flight, landed and waiting for others, or failed. None if
        it is too many ranges to look.
    next_start: where the next one starts.
    """

    planned: int
    past_frontier: int
    past_frontier_bytes: int | None
    first: str | None
    last: str | None
    expired_before: int
    next_start: int


@dataclass(frozen=True, slots=True)
class _Objects:
    count: int
    bytes: int


@click.command(
    epilog=examples(
        "objbuf stat file:///tmp/buffer",
        "objbuf stat s3://my-bucket/events --objects",
        "objbuf stat file:///tmp/buffer --json",
    )
)
@buffer_url
@click.option("--objects", is_flag=True, help="Also count the batch objects and their bytes: lists all of them.")
@click.option("--asset", default="buffer", show_default=True, help="The buffer's asset in Dagster, by its key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with stable keys, times in seconds.")
@buffer_options
def stat(buffer: Buffer, objects: bool, asset: str, as_json: bool) -> None:
    """Show how a buffer is doing: queue, lag, owner, ranges.

    One manifest read, one listing of the ranges, a read of those past the frontier, and what is quarantined. The lag is
    how long the oldest entry in the queue has been waiting. The memory is this machine's, or its container's, which
    matters if runs are here. What the sensor's regulator does is known to Dagster alone: it is shown, as of when the
    sensor last said it, if DAGSTER_HOME is the pipeline's.
    """
    from objbuf_dagster.buffer.manifest_store import entry_time_ms, state_of
    from objbuf_dagster.ranges.gate import memory_level, memory_use

    store = buffer.open()
    manifest = buffer.manifests(store).read()
    state = state_of(manifest, time.time())
    oldest = manifest.entry(manifest.frontier)
    exists = buffer.exists(store, manifest)
    if not exists and not as_json:
        raise click.ClickException(buffer.missing())
    ranges = _count_ranges(buffer, store, state.frontier)
    used = memory_level(memory_use())
    regulator = regulator_of(buffer, asset) if os.environ.get("DAGSTER_HOME") else None
    document: dict[str, Any] = {
        "url": redact(buffer.url),
        "manifest_path": buffer.manifest_path,
        "data_prefix": buffer.data_prefix,
        "exists": exists,
        "epoch": state.epoch,
        "frontier": state.frontier,
        "next_sequence": state.next_sequence,
        "queue_length": state.queue_length,
        "lag_seconds": None if oldest is not None and entry_time_ms(oldest) is None else state.lag_seconds,
        "conflict_rate": (regulator or {}).pop("conflict_rate", None),
        "ranges": asdict(ranges),
        "waiting_batches": max(0, state.next_sequence - max(state.frontier, ranges.next_start)),
        "memory_in_use": None if used is None else round(used, 3),
        "regulator": regulator,
        "quarantined": _quarantined(buffer, store),
        "objects": asdict(_count_objects(buffer, store)) if objects else None,
    }
    if as_json:
        click.echo(json.dumps(document, indent=2))
        if not exists:
            raise click.ClickException(buffer.missing())
    else:
        for label, value in _rows(document):
            say(f"{label:<15}{value}")


def _rows(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "buffer", f"{document['url']} ({document['manifest_path']})"
    yield "epoch", str(document["epoch"]) + ("" if document["epoch"] else " (no consumer has taken it)")
    yield "frontier", f"{document['frontier']} (first sequence that is not acked)"
    yield "next sequence", str(document["next_sequence"])
    yield "queue length", plural(document["queue_length"], "batch")
    lag = document["lag_seconds"]
    yield "lag", "unknown: the oldest batch carries no time" if lag is None else duration(lag)
    conflicts = document["conflict_rate"]
    yield "conflict rate", _CONFLICTS if conflicts is None else f"{conflicts:.1f}% of the sensor's manifest writes"
    ranges = document["ranges"]
    added = ranges["past_frontier_bytes"]
    of_them = f" ({size(added)})" if added else ""
    yield "ranges", f"{ranges['planned']} planned, {ranges['past_frontier']} past the frontier{of_them}"
    if ranges["last"] is not None:
        yield "  first", ranges["first"]
        yield "  last", ranges["last"]
    if ranges["expired_before"]:
        yield "  expired", f"before sequence {ranges['expired_before']}"
    yield "waiting", f"{plural(document['waiting_batches'], 'batch')} in no range yet"
    used = document["memory_in_use"]
    yield "memory", "unknown" if used is None else f"{100 * used:.0f}% in use on this machine"
    yield "regulator", told(document["regulator"]) if os.environ.get("DAGSTER_HOME") else _NO_HOME
    if document["quarantined"] is None:
        yield "quarantined", "unknown, see the note"
    for number, one in enumerate(document["quarantined"] or []):
        yield "" if number else "quarantined", f"sequence {one['sequence']} since {utc(one['at_ms'])}: {one['reason']}"
    if document["objects"] is not None:
        yield "objects", f"{plural(document['objects']['count'], 'batch')}, {size(document['objects']['bytes'])}"


def _count_ranges(buffer: Buffer, store: Store, frontier: int) -> _Ranges:
    """From one listing: a range ends before the next one starts, so only those past the frontier are read, for their
    bytes, and the first and the last.
    """
    from concurrent.futures import ThreadPoolExecutor

    from objbuf_dagster.ranges import SequenceRange, range_of

    ledger = buffer.ledger(store)
    expired_before = ledger.retention().expired_before
    starts = ledger.starts()
    if not starts:
        return _Ranges(0, 0, 0, None, None, expired_before, 0)
    last = ledger.at(starts[-1])
    ends = [*(start - 1 for start in starts[1:]), last.end]
    retained = [SequenceRange(start, end) for start, end in zip(starts, ends, strict=True) if end >= expired_before]
    past = [planned.start for planned in retained if planned.end >= frontier]
    with ThreadPoolExecutor(_READERS) as pool:
        few = [start for start in past if start != last.start] if len(past) <= _MOST_ADDED else []
        sizes = [planned.size for planned in pool.map(ledger.at, few)]
    return _Ranges(
        planned=len(retained),
        past_frontier=len(past),
        past_frontier_bytes=sum(sizes) + (last.size if past else 0) if len(past) <= _MOST_ADDED else None,
        first=range_of(ledger.at(retained[0].start)).key if retained else None,
        last=retained[-1].key if retained else None,
        expired_before=expired_before,
        next_start=last.end + 1,
    )


def _quarantined(buffer: Buffer, store: Store) -> list[dict[str, Any]] | None:
    """The batches that ranges land without; None, and a note, if that cannot be read."""
    from objbuf_dagster.errors import CorruptData, UnsupportedVersion
    from objbuf_dagster.ranges.quarantine import QuarantineLedger

    try:
        active = QuarantineLedger(store, buffer.data_prefix).read().active
    except (CorruptData, UnsupportedVersion) as error:
        note(str(error))
        return None
    names = ("sequence", "location", "reason", "at_ms")
    return [{name: getattr(one, name) for name in names} for one in active]


def _count_objects(buffer: Buffer, store: Store) -> _Objects:
    from objbuf_dagster.protocol.ulid import batch_time_ms

    count = total = 0
    for info in store.list(buffer.data_prefix):
        name = info.path[len(buffer.data_prefix) + 1 :]
        if "/" not in name and batch_time_ms(name) is not None:
            count += 1
            total += info.size
    return _Objects(count, total)


@click.group(invoke_without_command=True, epilog=examples("objbuf manifest dump file:///tmp/buffer"))
@click.pass_context
def manifest(ctx: click.Context) -> None:
    """Look into the manifest."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@manifest.command(
    epilog=examples(
        "objbuf manifest dump file:///tmp/buffer",
        "objbuf manifest dump /tmp/buffer/ingest/manifest",
        "objbuf manifest dump s3://my-bucket/events | head -n 20",
    )
)
@click.argument("url", metavar="URL_OR_FILE")
@buffer_options
def dump(buffer: Buffer) -> None:
    """Print a manifest as JSON.

    URL_OR_FILE is a buffer's URL, or the path of a manifest file. The output is the reference implementation's:
    version, epoch, next_sequence, entries (sequence, location, metadata with start_index, ingestion_time_ms,
    payload_base64).
    """
    found = _read_manifest(buffer)
    pieces: list[str] = []
    for piece in _document(found):
        pieces.append(piece)
        if len(pieces) >= 1000:
            click.echo("".join(pieces), nl=False)
            pieces = []
    click.echo("".join(pieces))


def _read_manifest(buffer: Buffer) -> Manifest:
    from objbuf_dagster.protocol import Manifest

    path = _local_path(buffer.url)
    if path is not None and not os.path.exists(path):
        raise click.ClickException(f"there is neither a buffer nor a manifest file at {path}: correct the path")
    if path is not None and not os.path.isdir(path):
        with open(path, "rb") as file:
            return Manifest.from_bytes(file.read(), path=path)
    store = buffer.open()
    found = buffer.manifests(store).read()
    if not buffer.exists(store, found):
        raise click.ClickException(buffer.missing())
    return found


def _local_path(url: str) -> str | None:
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return None  # the store says what is wrong with it
    return unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path else None


def _document(found: Manifest) -> Iterator[str]:
    """What `json.dumps(..., indent=2)` gives for the whole, one entry at a time."""
    from objbuf_dagster.protocol.range_object import metadata_to_json

    head = json.dumps({"version": 1, "epoch": found.epoch, "next_sequence": found.next_sequence}, indent=2)
    yield head.removesuffix("\n}") + ',\n  "entries": ['
    separator = "\n"
    for entry in found.entries():
        document = {
            "sequence": entry.sequence,
            "location": entry.location,
            "metadata": metadata_to_json(entry.metadata),
        }
        yield separator + "\n".join(f"    {line}" for line in json.dumps(document, indent=2).split("\n"))
        separator = ",\n"
    yield "\n  ]\n}" if found.entry_count else "]\n}"
