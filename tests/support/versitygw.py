"""A real S3 server for tests: versitygw, built by Go, which keeps objects as files in a directory.

`python -m tests.support.versitygw [DIRECTORY]` builds it (once) and prints where it is. Conditional puts are what tests
need it for. It looks at the condition and publishes the object under one lock; a GET reads the ETag before it opens the
file, so what it can give is new bytes with an old ETag, which lose their compare-and-swap, and never the reverse. Both
hold with ETags in extended attributes, so the directory's file system must have them; with its `--sidecar` a GET gave
bytes and a checksum that did not belong together.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION = "v1.8.0"  # another one must pass tests/contract many times over

BUCKET = "objbuf-test"
REGION = "us-east-1"
ACCESS_KEY_ID = "test"
SECRET_ACCESS_KEY = "test-secret-key"  # noqa: S105, tests look for it where it must not be

_MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
_REPOSITORY = Path(__file__).parents[2]
_BUILD_SECONDS = 1500
_START_SECONDS = 60
_STARTS = 5


class Unavailable(Exception):
    """There is no such server on this machine, and none can be built; the text says why."""


def found() -> Path | None:
    """The server's binary, if it is there: the one that OBJBUF_TEST_S3_SERVER names, or one that was built before."""
    if named := os.environ.get("OBJBUF_TEST_S3_SERVER"):
        return Path(named)
    built = _tools() / _name()
    return built if built.exists() else None


def build(directory: Path | None = None) -> Path:
    """The binary, in this directory or where `found` looks for it. Raises Unavailable."""
    target = (directory or _tools()).absolute() / _name()
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise Unavailable("versitygw is built by Go, which is not here")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        # Without cgo, no C compiler is needed; without symbols, linking is quicker.
        given = {**os.environ, "GOBIN": place, "CGO_ENABLED": "0"}
        command = [go, "install", "-ldflags=-s -w", _MODULE]
        try:
            subprocess.run(
                command, env=given, cwd=place, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=True
            )
        except subprocess.SubprocessError as error:
            raise Unavailable(f"{_MODULE} could not be built: {getattr(error, 'stderr', None) or error}") from error
        os.replace(Path(place) / "versitygw", target)  # whole, or not there
    return target


def _tools() -> Path:
    return Path(os.environ.get("OBJBUF_TEST_TOOLS") or _REPOSITORY / ".pytest_cache" / "tools")


def _name() -> str:
    return f"versitygw-{VERSION}"


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs and has an empty bucket, BUCKET."""

    endpoint: str
    pid: int
    directory: Path


@contextlib.contextmanager
def serving(binary: Path) -> Iterator[Server]:
    """A server on the loopback for as long as the context lasts, or this process: nothing is left, however it ends."""
    command = [sys.executable, "-m", "tests.support.versitygw", "--serve", str(binary)]
    with subprocess.Popen(
        command,
        cwd=_REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the tests, which close stdin when they are done
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            said = keeper.stdout.readline().decode().split()
            assert said, "versitygw did not start, see its error above"
            port, pid, directory = said
            yield Server(f"http://127.0.0.1:{port}", int(pid), Path(directory))
        finally:
            keeper.stdin.close()
            keeper.wait()


def _keep(binary: str) -> None:
    """Run the server until stdin closes, which it does when whoever started this is gone; then clean up."""
    with tempfile.TemporaryDirectory(prefix="objbuf-s3-") as directory:
        Path(directory, BUCKET).mkdir()  # a directory is a bucket
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY_ID, "ROOT_SECRET_KEY": SECRET_ACCESS_KEY}
        for _ in range(_STARTS):
            port = _free_port()
            log = Path(directory, ".log")
            with log.open("wb") as out:
                server = subprocess.Popen(
                    [binary, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", directory],
                    env={**os.environ, **keys, "VGW_REGION": REGION},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            try:
                if _answers(server, port):
                    print(port, server.pid, directory, flush=True)
                    _wait(server)
                    return
            finally:
                server.kill()
                server.wait()
        sys.exit(log.read_text())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Whether it listens in time. It does not if somebody else was given its port meanwhile."""
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            time.sleep(0.1)
            return server.poll() is None
        time.sleep(0.05)
    return False


def _wait(server: subprocess.Popen[bytes]) -> None:
    """Until stdin closes, or the server has ended by itself."""

    def end_with_the_parent() -> None:
        os.read(sys.stdin.fileno(), 1)
        server.kill()

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    server.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # cleaning up on the way
        _keep(sys.argv[2])
    else:
        print(build(Path(sys.argv[1]) if sys.argv[1:] else None))
