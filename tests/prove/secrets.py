"""Secrets that nobody could mistake for anything else, everything that processes let others see, and a search in it."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import quote

KEY = "s3cr3tKEYofAWS/With+Slash0123456789abcd"
TOKEN = "t0k3nOfASession//Very+Long0123456789abcdefghijk=="  # noqa: S105, opens nothing
ACCOUNT_KEY = base64.b64encode(b"the account key of nobody at all, 32+").decode()
SIGNATURE = "s1gn4tureOfASAS%2BToken%3D"
PRIVATE_KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCg00gl3"
PASSWORD = "p4ssw0rdInAnAddress"  # noqa: S105, opens nothing
SPARK_KEY = "k3yAmongSparksSettings01234"
SPARK_TOKEN = "t0k3nOfASparkConnectServer"  # noqa: S105, opens nothing

SECRETS = (KEY, TOKEN, ACCOUNT_KEY, SIGNATURE, PRIVATE_KEY, PASSWORD, SPARK_KEY, SPARK_TOKEN)


def leaks(text: str | bytes) -> list[str]:
    """The secrets that are in it, in any of the spellings that they travel in; each with what is around it."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    found = []
    for secret in SECRETS:
        for spelling in {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], *_base64(secret)}:
            at = data.find(spelling.encode())
            if at >= 0:
                around = data[max(0, at - 150) : at + len(spelling) + 50]
                found.append(f"{secret} in {around!r}")
                break
    return found


def _base64(secret: str) -> Iterator[str]:
    """As part of something longer that was encoded: three ways, by where it begins."""
    for before in range(3):
        encoded = base64.b64encode(b"?" * before + secret.encode() + b"?" * 3).decode()
        yield encoded[4 if before else 0 : -8]


def written(folder: Path) -> dict[str, bytes]:
    """All that is in the files of a folder, by path, and whatever databases among them keep compressed."""
    found = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in folder.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            found[f"{path}, unpacked"] = b"\n".join(_unpacked(database))
    return found


def _unpacked(database: sqlite3.Connection) -> Iterator[bytes]:
    tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
    for table in tables:
        for row in database.execute(f'select * from "{table}"'):  # noqa: S608, the names of its own tables
            for value in row:
                if isinstance(value, bytes):
                    with contextlib.suppress(zlib.error):
                        yield zlib.decompress(value)


class Commands:
    """The command lines of a process and of those that it starts, looked at again and again until the context ends.

    They are told from others by a variable that they inherit, also when their parent is gone: start the process with
    `variables` in its environment. What ends between two looks may be missed: they are `seconds` apart.
    """

    def __init__(self, seconds: float = 0.05) -> None:
        self._seconds = seconds
        self.seen: set[str] = set()
        self.variables = {"TEST_COMMANDS_OF": uuid.uuid4().hex}
        self._mark = "=".join(*self.variables.items()).encode()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Commands:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(self._seconds):
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it ended just now, or is another user's
                    if self._mark in (path / "environ").read_bytes():
                        command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                        self.seen.add(command.decode(errors="replace"))


Form = Literal["xml", "json", "text", "page", "page with a title"]


def _repeated(form: Form, headers: Mapping[str, str], path: str) -> str:
    sent = " ".join(f"{name}:{value}" for name, value in headers.items()) + f" {path}"
    if form == "xml":
        return f"<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>{sent}</CanonicalRequest></Error>"
    if form == "json":
        return json.dumps({"error": "SignatureDoesNotMatch", "headers": headers, "path": path})
    if form == "text":
        return f"SignatureDoesNotMatch {sent}"
    title = "<head><title>SignatureDoesNotMatch</title></head>" if form == "page with a title" else ""
    return f"<!DOCTYPE html><html>{title}<body><h1>SignatureDoesNotMatch</h1><pre>{sent}</pre></body></html>"


@contextlib.contextmanager
def telltale(status: int = 403, form: Form = "xml") -> Iterator[str]:
    """A server, by its address, that refuses everything and says in its answer all that it was sent, in one line.

    Real ones do so, if not that bluntly: S3 repeats the request that it cannot verify.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002, the name is the base's
            pass

        def _serve(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = _repeated(form, dict(self.headers.items()), self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.encode())

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815, the base's names

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # clients keep connections open

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
