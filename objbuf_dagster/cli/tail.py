"""`objbuf tail`: the queue's entries, read without owning anything."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from objbuf_dagster.cli.shared import Buffer, above_zero, buffer_options, buffer_url, examples, note
from objbuf_dagster.errors import BufferReplaced, CorruptData, NotFound

if TYPE_CHECKING:
    from objbuf_dagster.buffer import FetchHandle, ManifestStore
    from objbuf_dagster.protocol import ConsumedBatch, Manifest, Metadata

_AT_ONCE = 4096  # entries per write


class _Queue:
    """What the manifest holds from a sequence on; goes on where it ended when asked again."""

    def __init__(self, source: ManifestStore, fetch: FetchHandle, start: int | None) -> None:
        self._source = source
        self._fetch = fetch
        self._cursor = -1 if start is None else start
        self._next = 0  # the next sequence, as last seen

    def batches(self, manifest: Manifest) -> Iterator[ConsumedBatch]:
        """All that this manifest has and earlier ones had not. Raises BufferReplaced if it is another buffer's."""
        if manifest.next_sequence < self._next:
            raise BufferReplaced(
                f"its next sequence is {manifest.next_sequence}, but {self._next - 1} was there before"
            )
        self._next = manifest.next_sequence
        self._skip_to(manifest.frontier)
        for entry in manifest.entries(after=self._cursor - 1):
            if entry.sequence < self._cursor:
                continue  # dequeued since, and skipped
            try:
                batch = self._fetch.fetch(entry)
            except NotFound:
                frontier = self._source.read().frontier
                if entry.sequence >= frontier:
                    raise
                self._skip_to(frontier)
                continue
            except CorruptData as error:
                raise click.ClickException(
                    f"{error}. Restore the object, or go on behind it with --from {entry.sequence + 1}; `objbuf "
                    "quarantine` lets its range land without it"
                ) from None
            self._cursor = entry.sequence + 1
            yield batch

    def _skip_to(self, frontier: int) -> None:
        if 0 <= self._cursor < frontier:
            note(
                f"what lies between sequences {self._cursor} and {frontier} was acked and has left the queue, going on "
                f"at {frontier}; `objbuf ranges list` shows what can be replayed"
            )
        self._cursor = max(self._cursor, frontier)


_LONGEST_POLL_SECONDS = 3600.0


@click.command(
    epilog=examples(
        "objbuf tail file:///tmp/buffer",
        "objbuf tail file:///tmp/buffer --from 0 --limit 10 --json",
        "objbuf tail s3://my-bucket/events | head -n 5",
    )
)
@buffer_url
@click.option("--from", "start", metavar="SEQ", type=click.IntRange(min=0), help="First sequence.  [default: frontier]")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="Entries at the most.  [default: all]")
@click.option("--follow", "-f", is_flag=True, help="Wait for more until Ctrl-C.")
@click.option(
    "--poll",
    metavar="SECONDS",
    type=float,
    callback=above_zero,
    default=1.0,
    show_default=True,
    help="With --follow: seconds between two looks at the manifest.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object per entry: sequence, index, ingestion_time_ms, metadata_base64, and entry (or entry_base64, "
    "if it is not UTF-8).",
)
@buffer_options
def tail(buffer: Buffer, start: int | None, limit: int | None, follow: bool, poll: float, as_json: bool) -> None:
    """Print the queue's entries, oldest first.

    Each entry is printed as it is, and a newline. Nothing is acked and nobody is fenced. What was acked is not in the
    queue any more. Entries can hold anything, also what confuses a terminal: --json escapes it.
    """
    from objbuf_dagster.buffer import FetchHandle

    store = buffer.open()
    source = buffer.manifests(store)
    queue = _Queue(source, FetchHandle(store, buffer.data_prefix), start)
    render = _as_json if as_json else _as_bytes
    write = _output()
    manifest = source.read()
    if not buffer.exists(store, manifest):
        if not follow:
            raise click.ClickException(buffer.missing())
        note(buffer.missing())
    left = limit
    try:
        while left != 0:
            for batch in queue.batches(manifest):
                left = _print(batch, left, render, write)
                if left == 0:
                    break
            if not follow or left == 0:
                break
            time.sleep(min(poll, _LONGEST_POLL_SECONDS))
            manifest = source.read()
    except KeyboardInterrupt:
        if not follow:
            raise
        # With --follow this is the way to end it.


def _print(
    batch: ConsumedBatch,
    left: int | None,
    render: Callable[[ConsumedBatch, range], list[bytes]],
    write: Callable[[bytes], None],
) -> int | None:
    """Print the batch, or as much of it as the limit leaves; returns what is left of the limit."""
    count = len(batch.entries) if left is None else min(left, len(batch.entries))
    for first in range(0, count, _AT_ONCE):
        write(b"".join(render(batch, range(first, min(count, first + _AT_ONCE)))))
    return None if left is None else left - count


def _as_bytes(batch: ConsumedBatch, indexes: range) -> list[bytes]:
    parts = [b"\n"] * (2 * len(indexes))
    parts[::2] = batch.entries[indexes.start : indexes.stop]
    return parts


def _as_json(batch: ConsumedBatch, indexes: range) -> list[bytes]:
    covers = _covering(batch.metadata, indexes.start)
    lines = []
    for index in indexes:
        item = covers(index)
        document: dict[str, Any] = {
            "sequence": batch.sequence,
            "index": index,
            "ingestion_time_ms": item.ingestion_time_ms if item else None,
            "metadata_base64": base64.b64encode(item.payload).decode() if item else None,
        }
        entry = batch.entries[index]
        try:
            document["entry"] = entry.decode()
        except UnicodeDecodeError:
            document["entry_base64"] = base64.b64encode(entry).decode()
        lines.append(json.dumps(document).encode() + b"\n")
    return lines


def _covering(items: tuple[Metadata, ...], first: int) -> Callable[[int], Metadata | None]:
    """The metadata item of each index, asked for in rising order from `first`."""
    at = -1

    def advance(index: int) -> Metadata | None:
        nonlocal at
        while at + 1 < len(items) and items[at + 1].start_index <= index:
            at += 1
        return items[at] if at >= 0 else None

    advance(first)
    return advance


def _output() -> Callable[[bytes], None]:
    if sys.stdout is None:
        raise click.ClickException("standard output is closed: there is nowhere to print to")
    stream = sys.stdout.buffer

    def write(data: bytes) -> None:
        stream.write(data)
        stream.flush()

    return write
