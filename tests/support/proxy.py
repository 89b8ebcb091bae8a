"""A proxy in front of an S3 server: sees every request, and spoils those that a test names."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

from tests.support.s3 import S3Location

Spoiling = int | Literal["lost"] | None
"""A status: nothing is done, this is the answer. `lost`: it is done, and the connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def object(self) -> str:
        """The path without its query, unquoted."""
        return unquote(urlsplit(self.path).path)


@dataclass
class Proxy:
    location: S3Location
    requests: list[Request] = field(default_factory=list)
    spoil: Callable[[Request], Spoiling] = lambda request: None

    def count(self, method: str, path_end: str = "") -> int:
        """How many requests had this method and a path that ends so."""
        return sum(one.method == method and one.object.endswith(path_end) for one in self.requests)


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
            request = Request(self.command, self.path, headers)
            proxy.requests.append(request)
            spoiling = proxy.spoil(request)
            if isinstance(spoiling, int):
                self._answer(spoiling, {}, b"", 0)
                return
            connection = http.client.HTTPConnection(str(target.hostname), target.port or 80)
            try:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
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
