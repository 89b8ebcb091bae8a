"""An S3 server for tests: versitygw where it was built, else moto's, each in a process of its own; or a given one.

`python -m tests.support.versitygw` builds versitygw; with CI_REQUIRE_S3=1 the tests do, or fail.
Set OBJBUF_TEST_S3_ENDPOINT, OBJBUF_TEST_S3_BUCKET, OBJBUF_TEST_S3_ACCESS_KEY_ID and OBJBUF_TEST_S3_SECRET_ACCESS_KEY to
run the same tests against any other server, below a random prefix that is emptied afterwards (OBJBUF_TEST_S3_REGION is
`us-east-1` unless set).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from objbuf_dagster.store import CloudStore, RetryPolicy, Store, open_store
from tests.support import versitygw

_ENVIRONMENT = "OBJBUF_TEST_S3_"
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class S3Location:
    """A place in a bucket: what `open_store` takes. Without options it may be a directory's `file://` URL."""

    url: str
    options: Mapping[str, str]

    def below(self, name: str) -> S3Location:
        """The place `name` below this one."""
        return S3Location(f"{self.url}/{name}", self.options)

    def fresh(self) -> S3Location:
        """A place below this one where nothing is yet."""
        return self.below(uuid.uuid4().hex)

    def open(self, *, retry: RetryPolicy | None = None) -> Store:
        """The store that users get: retrying."""
        return open_store(self.url, options=self.options, retry=retry)

    def environment(self, prefix: str) -> dict[str, str]:
        """The options as variables: with `AWS_` for obstore and boto3, with `OBJBUF_S3_` for a deployment."""
        names = {"endpoint": "ENDPOINT_URL"}
        return {f"{prefix}{names.get(name, name.upper())}": value for name, value in self.options.items()}


@contextlib.contextmanager
def s3_server() -> Iterator[S3Location]:
    """A place in a bucket for as long as the context lasts; nothing of it is left afterwards."""
    with real_s3_server() if has_real_server() else moto_server() as location:
        yield location


@functools.cache  # one may be built in the meantime, and what was started before is still moto's
def has_real_server() -> bool:
    """Whether `s3_server` gives a real one."""
    wanted = f"{_ENVIRONMENT}ENDPOINT" in os.environ or os.environ.get("CI_REQUIRE_S3") == "1"
    return wanted or versitygw.found() is not None


@contextlib.contextmanager
def real_s3_server() -> Iterator[S3Location]:
    """The same, never moto's. Raises versitygw.Unavailable."""
    endpoint = os.environ.get(f"{_ENVIRONMENT}ENDPOINT")
    with _given_server(endpoint) if endpoint else _versitygw() as location:
        yield location


@contextlib.contextmanager
def _versitygw() -> Iterator[S3Location]:
    with versitygw.serving(versitygw.found() or versitygw.build()) as server:
        yield _of_ours(server.endpoint)


def _of_ours(endpoint: str) -> S3Location:
    options = {
        "endpoint": endpoint,
        "region": versitygw.REGION,
        "access_key_id": versitygw.ACCESS_KEY_ID,
        "secret_access_key": versitygw.SECRET_ACCESS_KEY,
    }
    return S3Location(f"s3://{versitygw.BUCKET}", options)


@contextlib.contextmanager
def _given_server(endpoint: str) -> Iterator[S3Location]:
    options = {
        "endpoint": endpoint,
        "region": os.environ.get(f"{_ENVIRONMENT}REGION", "us-east-1"),
        "access_key_id": os.environ[f"{_ENVIRONMENT}ACCESS_KEY_ID"],
        "secret_access_key": os.environ[f"{_ENVIRONMENT}SECRET_ACCESS_KEY"],
    }
    location = S3Location(f"s3://{os.environ[f'{_ENVIRONMENT}BUCKET']}/objbuf-test-{uuid.uuid4().hex}", options)
    try:
        yield location
    finally:
        store = CloudStore(location.url, options=options)
        failed = store.delete([info.path for info in store.list()])
        assert not failed, f"objects are left below {location.url}: {failed}"


@contextlib.contextmanager
def moto_server() -> Iterator[S3Location]:
    """The same, always moto's, which takes any credentials."""
    command = [sys.executable, "-m", "tests.support.s3"]
    with subprocess.Popen(command, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip().decode()
            assert port, "moto's server did not start, see its error above"
            endpoint = f"http://127.0.0.1:{port}"
            _make_bucket(endpoint)
            yield _of_ours(endpoint)
        finally:
            server.terminate()
            server.wait()


def _make_bucket(endpoint: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{versitygw.BUCKET}", method="PUT")):  # noqa: S310, loopback
        pass


def _serve() -> None:
    """Run moto's server until terminated, or until the parent is gone (its end of stdin closes)."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # One thread: moto looks at the condition of a put, then writes, and nothing keeps others out in between.
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    print(server.server_port, flush=True)

    def end_with_the_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    _serve()
