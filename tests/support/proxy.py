"""A reverse proxy on the loopback that writes down what passes: for requests that other processes make."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding"}


class CountingProxy:
    """Passes requests on to `target_url` while entered; `url` is its own address.

    with CountingProxy(endpoint) as proxy:
        ...
        assert proxy.count("GET", "ingest/manifest") == 1
    """

    def __init__(self, target_url: str) -> None:
        self.target = urlsplit(target_url).netloc
        self.url = ""
        self._requests: list[tuple[str, str]] = []
        self._mutex = threading.Lock()
        self._closing = contextlib.ExitStack()

    @property
    def requests(self) -> list[tuple[str, str]]:
        """(method, path) of each request so far, in the order they came; paths without queries, unquoted."""
        with self._mutex:
            return list(self._requests)

    def count(self, method: str, path_end: str = "") -> int:
        """How many requests had this method and a path that ends so."""
        return sum(1 for one, path in self.requests if one == method and path.endswith(path_end))

    def reset(self) -> None:
        """Count from zero again."""
        with self._mutex:
            self._requests.clear()

    def note(self, method: str, path: str) -> None:
        with self._mutex:
            self._requests.append((method, unquote(urlsplit(path).path)))

    def __enter__(self) -> CountingProxy:
        self._closing.enter_context(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @contextlib.contextmanager
    def _serve(self) -> Iterator[None]:
        class Handler(_Handler):
            proxy = self

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = False
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: CountingProxy

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002, the name is the base's
        pass

    def _pass_on(self) -> None:
        self.proxy.note(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
        with contextlib.closing(http.client.HTTPConnection(self.proxy.target, timeout=60)) as connection:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            data = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_ONE_HOP | {"content-length"}:
                self.send_header(name, value)
        # The answer to a HEAD has no body, and yet says how long one would be.
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815, the names are the base's
