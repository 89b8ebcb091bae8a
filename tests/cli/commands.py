"""Running `objbuf` in tests: in this process, or as a process of its own where that matters."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from click.testing import CliRunner, Result

from objbuf_dagster.buffer import Consumer, FetchHandle, Producer, peek
from objbuf_dagster.buffer.manifest_store import ManifestStore
from objbuf_dagster.cli.app import main
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.store import LocalStore, Store

COMMAND = (sys.executable, "-m", "objbuf_dagster.cli")


def run(*args: str | Path, given: bytes = b"") -> Result:
    """Run the command here. Like a user, it sees output and an exit code; an exception that escapes fails the test."""
    result = CliRunner().invoke(main, [str(arg) for arg in args], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def ok(*args: str | Path, given: bytes = b"") -> str:
    """The output of a command that succeeds and has nothing to complain about."""
    result = run(*args, given=given)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def error(*args: str | Path, given: bytes = b"", code: int = 1) -> str:
    """The message of a command that fails as all must: one line on stderr, nothing on stdout."""
    result = run(*args, given=given)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return one_line(result.stderr)


def one_line(stderr: str) -> str:
    assert stderr.startswith("objbuf: ")
    assert stderr.count("\n") == 1, stderr
    assert stderr.endswith("\n")
    return stderr.removeprefix("objbuf: ").rstrip("\n")


def start(*args: str | Path, stdin: int | IO[Any] | None = subprocess.DEVNULL, **more: Any) -> subprocess.Popen[bytes]:
    """The command as a process, with pipes for its output unless told otherwise."""
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen([*COMMAND, *map(str, args)], stdin=stdin, **settings)


def finish(process: subprocess.Popen[bytes], timeout: float = 30) -> tuple[int, bytes, str]:
    """Exit code, stdout and stderr, once it ends."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out or b"", (err or b"").decode()


def eventually(holds: Callable[[], bool], *, within: float = 20) -> float:
    """Wait until it holds, and return how long that took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < within, "it did not happen"
        time.sleep(0.02)
    return time.monotonic() - started


def fill(root: Path | Store, *batches: Sequence[bytes], metadata: bytes = b"") -> Store:
    """A buffer with these batches in its queue."""
    store = LocalStore(root) if isinstance(root, Path) else root
    with Producer(store) as producer:
        for entries in batches:
            producer.produce(entries, metadata).await_durable(10)
    return store


def entries_in(root: Path) -> list[bytes]:
    """All entries of the queue."""
    store = LocalStore(root)
    fetch = FetchHandle(store)
    return [entry for found in manifest_of(root).entries() for entry in fetch.fetch(found).entries]


def manifest_of(root: Path) -> Manifest:
    return ManifestStore(LocalStore(root)).read()


def acked(store: Store, through: int) -> None:
    """Move the frontier the way that an owner does."""
    Consumer.attach(store, epoch=peek(store).epoch).ack_through(through)


def files_in(root: Path) -> dict[str, bytes]:
    """Everything that is there, to see that nothing changed."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
