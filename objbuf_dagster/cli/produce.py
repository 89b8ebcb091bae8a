"""`objbuf produce`: one entry per line, durable when the command says so.

Memory is bounded by what is in flight: lines are read only while less than that is on its way, and the outcome of the
oldest call is looked at as the others go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

import click

from objbuf_dagster.cli.lines import LineGroups, open_input, reader_of
from objbuf_dagster.cli.progress import Progress
from objbuf_dagster.cli.shared import Buffer, above_zero, buffer_options, buffer_url, examples, note, say
from objbuf_dagster.cli.text import plural
from objbuf_dagster.errors import ObjbufError, StorageError

if TYPE_CHECKING:
    from objbuf_dagster.buffer import Producer, WriteHandle
    from objbuf_dagster.protocol import Compression

_CALL_BYTES = 4 << 20
_BATCH_BYTES = 16 << 20
_IN_FLIGHT_BYTES = 64 << 20
_IN_FLIGHT_CALLS = 900  # below the producer's max_buffered_inputs, so that only this module waits, and can be stopped
_CALLS_PER_SECOND = 10  # with --rate
_CATCH_UP_SECONDS = 0.5
_TICK_SECONDS = 0.25


class Pacer:
    """Lets so many entries per second through: never more over any longer time, and not less if there is input.

    After a pause in the input it makes up for half a second, no more.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def call_size(self, most: int) -> int:
        """Entries per call that keep the flow even."""
        return most if self._rate is None else max(1, min(most, int(self._rate / _CALLS_PER_SECOND)))

    def wait(self, entries: int, tick: Callable[[], bool]) -> None:
        """Wait until these entries are due; `tick` is called now and then, and ends the wait by returning True."""
        if self._rate is None:
            return
        self._due = max(self._due, self._clock() - _CATCH_UP_SECONDS) + entries / self._rate
        while (left := self._due - self._clock()) > 0 and not tick():
            self._sleep(min(left, _TICK_SECONDS))


class _Flight:
    """Calls whose outcome is open, oldest first, and the sum of those whose outcome is known."""

    def __init__(self) -> None:
        self._open: deque[tuple[WriteHandle, int, int]] = deque()
        self._open_bytes = 0
        self.handed_over = 0
        self.entries = 0
        self.bytes = 0
        self.batches = 0
        self.first: int | None = None
        self.last: int | None = None
        self.error: ObjbufError | None = None
        self.in_doubt = False  # whether some of what failed may be durable all the same
        self.first_missing: int | None = None  # the number of the first line that failed, from 1
        self._settled = 0

    def add(self, handle: WriteHandle, entries: int, amount: int) -> None:
        self._open.append((handle, entries, amount))
        self._open_bytes += _encoded(entries, amount)
        self.handed_over += entries

    @property
    def is_full(self) -> bool:
        return self._open_bytes >= _IN_FLIGHT_BYTES or len(self._open) >= _IN_FLIGHT_CALLS

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def settle(self, wait: float = 0.0) -> None:
        """Take the outcomes that are there; with `wait`, wait so many seconds for the oldest."""
        if wait and self._open:
            with contextlib.suppress(ObjbufError):  # told below, or not known yet
                self._open[0][0].await_durable(wait)
        while self._open and (outcome := self._open[0][0].result()) is not None:
            _, entries, amount = self._open.popleft()
            self._open_bytes -= _encoded(entries, amount)
            if isinstance(outcome, ObjbufError):
                self.error = self.error or outcome
                self.in_doubt = self.in_doubt or (isinstance(outcome, StorageError) and outcome.in_doubt)
                self.first_missing = self.first_missing or self._settled + 1
            else:
                self.entries += entries
                self.bytes += amount
                if outcome.sequence != self.last:
                    self.batches += 1
                    self.last = outcome.sequence
                self.first = outcome.sequence if self.first is None else self.first
            self._settled += entries

    def summary(self, conflict_rate: float) -> str:
        if self.first is None or self.last is None:
            where = "no sequence"
        elif self.first == self.last:
            where = f"sequence {self.first}"
        else:
            others = "" if self.last - self.first + 1 == self.batches else ", with those of others between"
            where = f"sequences {self.first} to {self.last}{others}"
        return (
            f"produced {plural(self.entries, 'entry')} ({plural(self.bytes, 'byte')}) in "
            f"{plural(self.batches, 'batch')}: {where}, conflict rate {conflict_rate:.1f}%"
        )

    def failure(self, reason: object) -> str:
        doubt = "; the others may be, too" if self.in_doubt else ""
        known = " known to be" if self.in_doubt else ""
        missing = f", line {self.first_missing} is the first that is not{known}" if self.first_missing else ""
        return (
            f"{self.entries} of the {self.handed_over} entries sent are durable{missing}{doubt}: "
            f"{str(reason).rstrip('.')}"
        )


def _encoded(entries: int, amount: int) -> int:
    return amount + 4 * entries  # empty lines take room, too


class _Stop:
    """Ctrl-C (or SIGTERM) asks to stop reading; what is read becomes durable. A second one does not wait for that."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @contextlib.contextmanager
    def listening(self) -> Iterator[_Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@click.command(
    epilog=examples(
        "objbuf produce file:///tmp/buffer access.log",
        "objbuf produce s3://my-bucket/events access.log --compression zstd --metadata 'from host 7'",
        "seq 1000 | objbuf produce file:///tmp/buffer --rate 5000",
    )
)
@buffer_url
@click.argument("file", metavar="[FILE]", required=False, type=click.Path())
@click.option("--metadata", metavar="TEXT", default="", help="Payload that every call carries.  [default: none]")
@click.option(
    "--compression", type=click.Choice(["none", "zstd"]), default="none", show_default=True, help="Of the batches."
)
@click.option("--rate", metavar="N", type=float, callback=above_zero, help="Entries per second.  [default: no limit]")
@click.option(
    "--batch-lines",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Lines per produce call. Fewer go after a second, or at 4 MiB.",
)
@buffer_options
def produce(
    buffer: Buffer, file: str | None, metadata: str, compression: Compression, rate: float | None, batch_lines: int
) -> None:
    """Write one entry per line, from FILE or stdin.

    An entry is the line's bytes as they are, without the newline; an empty line is an empty entry. When the command
    ends, everything is durable: in the bucket, and in the manifest. Ctrl-C stops reading and makes durable what was
    read.
    """
    from objbuf_dagster.buffer import Producer

    with open_input(file) as stream:
        producer = Producer(
            buffer.open(),
            buffer.manifest_path,
            buffer.data_prefix,
            compression=compression,
            flush_size_bytes=_BATCH_BYTES,
        )
        flight = _Flight()
        reason: Exception | None = None
        typing = stream.isatty()
        if typing:
            note("reading lines from the terminal; end with Ctrl-D")
        progress = Progress(_length(stream), quiet=typing)
        with _Stop().listening() as stop:
            try:
                try:
                    _send(stream, producer, os.fsencode(metadata), Pacer(rate), batch_lines, flight, progress, stop)
                except OSError as error:
                    reason = click.ClickException(f"cannot read {file or 'standard input'}: {error.strerror}")
                except (ObjbufError, click.ClickException) as error:
                    reason = error
                while flight.is_open:
                    _settle(flight, progress, _TICK_SECONDS)
                with contextlib.suppress(ObjbufError):  # the handles told it already
                    producer.close()
            except KeyboardInterrupt:
                _give_up(flight, progress)
        progress.clear()
    reason = flight.error or reason
    if reason is not None:
        raise click.ClickException(flight.failure(reason))
    say(flight.summary(producer.conflict_rate))
    if stop.signal is not None:
        click.echo("objbuf: interrupted: what was read until then is durable", err=True)
        raise click.exceptions.Exit(128 + stop.signal)


def _send(
    stream: BinaryIO,
    producer: Producer,
    payload: bytes,
    pacer: Pacer,
    batch_lines: int,
    flight: _Flight,
    progress: Progress,
    stop: _Stop,
) -> None:
    """Hand over all lines of the stream, until it ends, a write fails, or the person wants to stop."""

    def tick() -> bool:
        _settle(flight, progress)
        return stop.signal is not None or flight.error is not None

    def send(lines: list[bytes]) -> bool:
        """Whether to go on."""
        pacer.wait(len(lines), tick)
        while flight.is_full and flight.error is None:
            _settle(flight, progress, _TICK_SECONDS)
        if flight.error is None:
            flight.add(producer.produce(lines, payload), len(lines), sum(map(len, lines)))
        return not tick()

    groups = LineGroups(reader_of(stream), max_lines=pacer.call_size(batch_lines), max_bytes=_CALL_BYTES)
    for lines in groups:
        if not (send(lines) if lines else not tick()):
            break
    if stop.signal is not None and flight.error is None:
        for lines in groups.rest():
            send(lines)


def _settle(flight: _Flight, progress: Progress, wait: float = 0.0) -> None:
    flight.settle(wait)
    progress.update(flight.entries, flight.bytes, flight.bytes + flight.entries)


def _length(stream: BinaryIO) -> int | None:
    """How much there is to read, where that can be known."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _give_up(flight: _Flight, progress: Progress) -> None:
    """End at once: uploads that hang in a thread would keep the interpreter from doing so."""
    progress.clear()
    flight.settle()
    others = flight.handed_over - flight.entries
    message = f"objbuf: interrupted twice: {plural(flight.entries, 'entry')} are durable, {others} may be or not"
    click.echo(message, err=True)
    sys.stderr.flush()
    os._exit(128 + signal.SIGINT)
