"""A proxy in front of an S3 server: sees every request, and spoils those that a test names."""

from __future__ import annotations

import contextlib
import functools
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from tests.support.s3 import S3Location

Spoiling = int | Literal["lost", "twice", "late", "overdue"] | None
"""A status: nothing is done, this is the answer. `lost`: it is done, and the connection ends without an answer.
`twice`: it is done and done again, and the answer is the second one's. `late`: the answer is 503, and it is done when
the next request comes, before that. `overdue`: the answer is 503, and it is done when `deliver` is called."""


_MOST_SECONDS = 60.0
"""For an answer of the server's, else the test would wait for it to its end."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    number: int
    """From 1, in the order in which they came."""

    @property
    def object(self) -> str:
        """The path without its query, unquoted."""
        return unquote(urlsplit(self.path).path)


@dataclass
class Proxy:
    location: S3Location
    requests: list[Request] = field(default_factory=list)
    spoil: Callable[[Request], Spoiling] = lambda request: None
    _late: list[Callable[[], object]] = field(default_factory=list)
    _overdue: list[Callable[[], object]] = field(default_factory=list)
    _arriving: threading.Lock = field(default_factory=threading.Lock)

    def arrive(self, method: str, path: str, headers: Mapping[str, str]) -> Request:
        """Take it down. Of those that come at once each has a number of its own."""
        with self._arriving:
            request = Request(method, path, headers, len(self.requests) + 1)
            self.requests.append(request)
        return request

    def delay(self, perform: Callable[[], object], spoiling: Literal["late", "overdue"]) -> None:
        with self._arriving:
            (self._late if spoiling == "late" else self._overdue).append(perform)

    def deliver(self) -> None:
        """Do what is late or overdue. Nobody hears what comes of it."""
        self.deliver_late()
        with self._arriving:
            arrived, self._overdue = self._overdue, []
        for perform in arrived:
            perform()

    def deliver_late(self) -> None:
        """Do what is late, once, whichever request is the next."""
        with self._arriving:
            arrived, self._late = self._late, []
        for perform in arrived:
            perform()

    def count(self, method: str, path_end: str = "") -> int:
        """How many requests had this method and a path that ends so."""
        return sum(one.method == method and one.object.endswith(path_end) for one in self.requests)


def _perform(target: SplitResult, request: Request, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask the server. Gives its answer, and what that brings."""
    connection = http.client.HTTPConnection(str(target.hostname), target.port or 80, timeout=_MOST_SECONDS)
    with contextlib.closing(connection):
        connection.request(request.method, request.path, body, dict(request.headers))
        answer = connection.getresponse()
        return answer, answer.read()


@contextlib.contextmanager
def proxied(location: S3Location) -> Iterator[Proxy]:
    """The same place, through a proxy."""
    target = urlsplit(location.options["endpoint"])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is two small writes, and the second would wait for an ACK

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002, the name is the base's
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = proxy.arrive(self.command, self.path, headers)
            perform = functools.partial(_perform, target, request, body)
            proxy.deliver_late()
            spoiling = proxy.spoil(request)
            if spoiling == "late" or spoiling == "overdue":  # noqa: PLR1714, which mypy does not follow
                proxy.delay(perform, spoiling)
                spoiling = 503
            if isinstance(spoiling, int):
                self._answer(spoiling, {}, b"", 0)
                return
            answer, data = perform()
            if spoiling == "twice":
                answer, data = perform()
            if spoiling == "lost":
                self.close_connection = True
                return
            length = int(answer.getheader("Content-Length") or len(data)) if self.command == "HEAD" else len(data)
            self._answer(answer.status, dict(answer.getheaders()), data, length)

        def _answer(self, status: int, headers: Mapping[str, str], data: bytes, length: int) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(ConnectionError):  # the client has seen enough
                    self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815, the base's names

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # clients keep connections open

    with Server(("127.0.0.1", 0), Handler) as server:
        options = {**location.options, "endpoint": f"http://127.0.0.1:{server.server_port}"}
        proxy = Proxy(S3Location(location.url, options))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
