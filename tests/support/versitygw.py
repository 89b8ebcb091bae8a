"""A real S3 server for tests: versitygw, built by Go, which keeps objects as files in a directory.

`python -m tests.support.versitygw [DIRECTORY]` builds it (once) and prints where it is. Conditional puts are what tests
need it for. It looks at the condition and publishes the object under one lock; a GET reads the ETag before it opens the
file, so what it can give is new bytes with an old ETag, which lose their compare-and-swap, and never the reverse. Both
hold with ETags in extended attributes, so the directory's file system must have them; with its `--sidecar` a GET gave
bytes and a checksum that did not belong together.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "v1.8.0"  # another one must pass tests/contract many times over

BUCKET = "objbuf-test"
REGION = "us-east-1"
ACCESS_KEY_ID = "test"
SECRET_ACCESS_KEY = "test-secret-key"  # noqa: S105, tests look for it where it must not be

_MODULE = f"github.com/versity/versitygw@{VERSION}"
_COMMAND = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
_REPOSITORY = Path(__file__).parents[2]
_PROBE_SECONDS = 30
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
    with open(target.with_name(f".{target.name}.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait, and then find what is built here
        if not target.exists():
            _build(go, target)
    return target


def _build(go: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        # Without cgo, no C compiler is needed; without symbols, linking is quicker.
        given = {**os.environ, "GOBIN": place, "CGO_ENABLED": "0"}
        _run([go, "list", "-m", _MODULE], given, place, _PROBE_SECONDS)  # whoever is offline hears so soon
        _run([go, "install", "-ldflags=-s -w", _COMMAND], given, place, _BUILD_SECONDS)
        os.replace(Path(place) / "versitygw", target)  # whole, or not there


def _run(command: Sequence[str], variables: Mapping[str, str], directory: str, seconds: float) -> None:
    """Run it, or raise Unavailable with what it said. What it started ends with it."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = str(process.wait(seconds))
        except subprocess.TimeoutExpired:
            status = f"no end after {seconds} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status != "0":
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            raise Unavailable(f"versitygw could not be built, {' '.join(command[1:3])}: {status}: {text[-2000:]}")


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
    """A server on the loopback for as long as the context lasts, or this process: nothing is left, however it ends.

    Raises Unavailable where its directory would have no extended attributes.
    """
    _check_attributes()
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


def _check_attributes() -> None:
    with tempfile.TemporaryDirectory(prefix="objbuf-s3-") as directory:
        try:
            os.setxattr(directory, "user.objbuf", b"1")
        except OSError as error:
            raise Unavailable(
                f"versitygw keeps ETags in extended attributes, which {tempfile.gettempdir()} does not take: "
                f"set TMPDIR to a directory on another file system ({error.strerror})"
            ) from error


def _keep(binary: str) -> None:
    """Run the server until stdin closes, which it does when whoever started this is gone; then clean up."""
    with tempfile.TemporaryDirectory(prefix="objbuf-s3-") as directory:
        Path(directory, BUCKET).mkdir()  # a directory is a bucket
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY_ID, "ROOT_SECRET_KEY": SECRET_ACCESS_KEY}
        mark = Path(directory, f"mark-{uuid.uuid4().hex}", "of-ours")  # in a bucket of its own
        mark.parent.mkdir()
        mark.touch()
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
                if answers(server, port, mark):
                    shutil.rmtree(mark.parent)
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


def answers(server: subprocess.Popen[bytes], port: int, mark: Path, *, seconds: float = _START_SECONDS) -> bool:
    """Whether it listens in time and shows this file, by its directory as the bucket.

    Somebody else may have been given its port meanwhile, and would be taken for it as long as it tries to start.
    """
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        if _shows(port, mark):
            return True
        time.sleep(0.05)
    return False


def _shows(port: int, mark: Path) -> bool:
    from objbuf_dagster.errors import ObjbufError
    from objbuf_dagster.store import CloudStore

    options = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": REGION,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
    }
    store = CloudStore(f"s3://{mark.parent.name}", options=options, timeout_seconds=5)
    try:
        return any(info.path == mark.name for info in store.list())
    except ObjbufError:
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
