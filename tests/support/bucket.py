"""A bucket behind a real HTTP server on the loopback, which holds objects and misbehaves when told to.

It speaks as much of S3's and Google's XML protocol as the stores use. For what moto cannot do: wrong answers, none,
half ones.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

ACCESS_KEY = "AKIDTESTONLY"
SECRET_KEY = "s3cr3t/of+the/test"  # noqa: S105, opens nothing


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as S3 says it."""

    status: int
    code: str = "Trouble"


Trouble = Answer | Literal["hang", "drop", "half", "huge", "lost"]
"""`hang`: no answer. `drop`: the connection ends without one. `half`: fewer bytes than announced. `huge`: announces a
TiB, then hangs. `lost`: does it, then drops the connection."""


class FakeBucket:
    """`fail` says what the next requests meet; `requests` has the method of every one so far, `sent` the bytes of all
    bodies. One that is not `is_modern` does not know conditions of a GET; one that `ignores` headers does not know
    these conditions of a PUT. It sends `bytes_per_second`, if that is set."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests: list[str] = []
        self.sent = 0
        self.is_modern = True
        self.ignores: frozenset[str] = frozenset()
        self.bytes_per_second: int | None = None
        self.closing = threading.Event()
        self.mutex = threading.Lock()
        self._trouble: Trouble | None = None
        self._times: int | None = None
        self._generation = 1000

    @property
    def s3_options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }

    @property
    def google_options(self) -> dict[str, str]:
        """A service account that needs no token, so that nobody looks for one elsewhere."""
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True}
        return {
            "service_account_key": json.dumps(account | {"client_email": "", "private_key": "", "private_key_id": ""})
        }

    def fail(self, trouble: Trouble | None, *, times: int | None = None) -> None:
        """Let this many of the next requests (all, without a number) meet `trouble`, and count from zero again."""
        with self.mutex:
            self._trouble, self._times = trouble, times
            self.requests.clear()

    def next_trouble(self, method: str) -> Trouble | None:
        with self.mutex:
            self.requests.append(method)
            return self._trouble if self._times is None or len(self.requests) <= self._times else None

    def put(self, key: str, data: bytes) -> None:
        self._generation += 1
        self.objects[key] = (data, self._generation)


@contextmanager
def fake_bucket() -> Iterator[FakeBucket]:
    """A bucket for as long as the context lasts."""

    class Handler(_Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False
        Handler.bucket = bucket = FakeBucket(server)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield bucket
        finally:
            bucket.closing.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    bucket: FakeBucket

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002, the name is the base's
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.bucket.next_trouble(self.command)
        if trouble == "hang":
            self.bucket.closing.wait(30)
        elif trouble == "half":
            self._answer(200, b"four", announced=100)
        elif trouble == "huge":
            self._answer(200, b"four", announced=1 << 40)
            self.wfile.flush()
            self.bucket.closing.wait(30)
        elif isinstance(trouble, Answer):
            self._answer(trouble.status, f"<Error><Code>{trouble.code}</Code></Error>".encode())
        elif trouble != "drop":
            with self.bucket.mutex:
                status, answer = self._perform(body)
            if trouble != "lost":
                self._answer(status, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815, the names are the base's

    def _perform(self, body: bytes) -> tuple[int, bytes]:  # noqa: PLR0911, one for each answer
        url, objects = urlsplit(self.path), self.bucket.objects
        _, _, key = unquote(url.path).removeprefix("/").partition("/")
        if self.command == "POST":
            return 200, self._delete_all(re.findall(r"<Key>(.*?)</Key>", body.decode()))
        if not key:
            return 200, self._listing()
        if self.command == "PUT":
            if not self._condition_holds(key):
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
            self.bucket.put(key, body)
            return 200, b""
        if key not in objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>"
        if self.command == "DELETE":
            del objects[key]
            return 204, b""
        if self.bucket.is_modern and self.headers.get("If-None-Match") == _e_tag(objects[key][0]):
            return 304, b""
        data = objects[key][0]
        if self.headers.get("If-Match") not in (None, _e_tag(data)):
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            return 206, data[int(found[1]) : int(found[2]) + 1]
        return 200, data

    def _delete_all(self, keys: list[str]) -> bytes:
        for key in keys:
            self.bucket.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return f"<DeleteResult>{deleted}</DeleteResult>".encode()

    def _condition_holds(self, key: str) -> bool:
        data, generation = self.bucket.objects.get(key, (None, 0))
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != generation:
            return False
        if self._asked("If-None-Match") == "*" and data is not None:
            return False
        tag = self._asked("If-Match")
        return tag is None or (data is not None and tag == _e_tag(data))

    def _asked(self, condition: str) -> str | None:
        return None if condition in self.bucket.ignores else self.headers.get(condition)

    def _listing(self) -> bytes:
        when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        contents = "".join(
            f"<Contents><Key>{key}</Key>{when}<ETag>x</ETag><Size>{len(data)}</Size></Contents>"
            for key, (data, _) in sorted(self.bucket.objects.items())
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, *, announced: int | None = None) -> None:
        _, _, key = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        data, generation = self.bucket.objects.get(key, (b"", 1))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if announced is None else announced))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", _e_tag(data))
        self.send_header("x-goog-generation", str(generation))
        if status == 206:
            start = int(re.findall(r"\d+", self.headers["Range"])[0])
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
        self.end_headers()
        if self.command != "HEAD":
            self._send(body)

    def _send(self, body: bytes) -> None:
        rate = self.bucket.bytes_per_second
        step = max(1, rate // 10) if rate else max(1, len(body))
        for at in range(0, len(body), step):
            if rate and self.bucket.closing.wait(step / rate):
                return
            self.bucket.sent += len(body[at : at + step])
            try:
                self.wfile.write(body[at : at + step])
            except ConnectionError:  # who has seen enough goes away
                return


def _e_tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()}"'
