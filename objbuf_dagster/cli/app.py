"""The command group, and what becomes of errors: one line on stderr that says what to do.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C (143 for SIGTERM). A reader that closes the pipe (`| head`) has
seen enough, which is no failure.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from objbuf_dagster import __version__
from objbuf_dagster.cli.dead_letters import dead_letters
from objbuf_dagster.cli.inspect import manifest, stat
from objbuf_dagster.cli.lake import lake
from objbuf_dagster.cli.land import land
from objbuf_dagster.cli.produce import produce
from objbuf_dagster.cli.quarantine import quarantine
from objbuf_dagster.cli.ranges import ranges
from objbuf_dagster.cli.shared import DEBUG_VARIABLE, debugging, examples
from objbuf_dagster.cli.state import state
from objbuf_dagster.cli.tail import tail
from objbuf_dagster.cli.text import printable, redact
from objbuf_dagster.cli.transfer import export, import_
from objbuf_dagster.cli.upkeep import ack, gc
from objbuf_dagster.errors import ObjbufError

_INTERRUPTED = 130


class _App(click.Group):
    """A group whose commands may raise what they like."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Always as `objbuf`, and always to the end of the process: nothing calls it for its value."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
        try:
            # Commands return nothing: what comes back is the exit code of `ctx.exit`.
            code = super().main(args, **{**extra, "prog_name": "objbuf", "standalone_mode": False}) or 0
            if sys.stdout is not None and not code:
                sys.stdout.flush()  # while an error can still be told, and none was
        except Exception as error:  # noqa: BLE001  reported, never shown as it is
            code = _report(error)
        _flush_or_silence()
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> None:
        try:
            super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  click would take some of them for its own; obstore's panics are no Exception
            ctx.exit(_report(error))


def _report(error: BaseException) -> int:
    """Say what went wrong, and return the exit code."""
    if debugging():
        lines = redact("".join(traceback.format_exception(error))).splitlines()
        _say("\n".join(map(printable, lines)))
    if isinstance(error, BrokenPipeError):
        return 0
    if isinstance(error, click.ClickException):
        _complain(_usage(error) if isinstance(error, click.UsageError) else error.message)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _complain("interrupted")
        return _INTERRUPTED
    if isinstance(error, ObjbufError):
        _complain(str(error))
    elif isinstance(error, OSError):
        named = isinstance(error.filename, str | bytes)
        what = f"read {os.fsdecode(error.filename)}" if named else "write the output"
        _complain(f"cannot {what}: {error.strerror or error}")
    elif isinstance(error, MemoryError):
        _complain("out of memory: give it more, or smaller input")
    else:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        _complain(f"internal error: {what}; please report it with {DEBUG_VARIABLE}=1 output")
    return 1


def _usage(error: click.UsageError) -> str:
    """Which command was used wrongly, how, and where to read on."""
    command = error.ctx.command_path if error.ctx is not None else "objbuf"
    name = command.removeprefix("objbuf").strip()
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{name + ': ' if name else ''}{message}; see `{command} --help`"


def _complain(message: str) -> None:
    _say(f"objbuf: {printable(redact(message))}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads stderr either
        click.echo(text, err=True)


def _flush_or_silence() -> None:
    """What cannot be written now would be tried again by the interpreter at its end, and end in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


@click.group(
    cls=_App,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "printf 'one\\ntwo\\n' | objbuf produce file:///tmp/buffer",
        "objbuf tail file:///tmp/buffer",
        "objbuf stat s3://my-bucket/events",
    ),
)
@click.version_option(__version__, prog_name="objbuf", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Fill, look at and look after an object-storage buffer.

    URL is a directory (/tmp/buffer, file:///tmp/buffer) or a place in a bucket (s3://bucket/prefix, gs://..., az://...).
    Buckets take their settings and credentials from the environment the way their own tools do (AWS_REGION,
    AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), or from --option.

    Exit codes: 0 done, 1 failed (one line on stderr says why and what to do), 2 wrong usage, 130 Ctrl-C.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _command in (
    produce,
    tail,
    stat,
    manifest,
    ranges,
    land,
    lake,
    dead_letters,
    quarantine,
    state,
    export,
    import_,
    gc,
    ack,
):
    main.add_command(_command)
