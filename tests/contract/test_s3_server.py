"""The real S3 server that other tests use: it is for this machine alone, and nothing of it is left."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.spark.processes import is_alive, wait_until
from tests.support import versitygw
from tests.support.s3 import S3Location

pytestmark = pytest.mark.timeout(1800)  # it may have to be built

REPOSITORY = Path(__file__).parents[2]

OWNER = """
import sys, time
from pathlib import Path
from tests.support.versitygw import serving

with serving(Path(sys.argv[1])) as server:
    print(server.pid, server.directory, server.endpoint, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def binary(real_s3: S3Location) -> Path:
    return versitygw.found() or versitygw.build()


def accepts(host: str, endpoint: str) -> bool:
    try:
        socket.create_connection((host, urlsplit(endpoint).port or 0), timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def owner(binary: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path, str]]:
    """A process that has a server, and of that the process, the directory and the endpoint."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(binary)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            pid, directory, endpoint = process.stdout.readline().decode().split()
            assert is_alive(int(pid))
            assert Path(directory).is_dir()
            yield process, int(pid), Path(directory), endpoint
        finally:
            process.kill()


@pytest.mark.parametrize("ending", ["killed", "terminated", "done"])
def test_nothing_is_left_of_a_server_whose_owner_ended(binary: Path, ending: str) -> None:
    with owner(binary) as (process, pid, directory, endpoint):
        assert accepts("127.0.0.1", endpoint)
        if ending == "killed":
            process.kill()
        elif ending == "terminated":
            process.terminate()
        process.communicate(timeout=60)

        wait_until(lambda: not is_alive(pid) and not directory.exists())
        assert not accepts("127.0.0.1", endpoint)


def test_a_server_listens_on_one_address_of_the_loopback(binary: Path) -> None:
    with versitygw.serving(binary) as server:
        assert accepts("127.0.0.1", server.endpoint)
        assert not accepts("127.0.0.2", server.endpoint)  # which all addresses would include


def test_a_server_s_keys_are_in_no_command_line(binary: Path) -> None:
    with versitygw.serving(binary) as server:
        listing = ["ps", "-ww", "-o", "args=", "-p", str(server.pid)]
        shown = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert str(binary) in shown
    assert versitygw.SECRET_ACCESS_KEY not in shown


def test_a_machine_without_go_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(versitygw.Unavailable, match="built by Go"):
        versitygw.build(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_binary_that_was_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OBJBUF_TEST_S3_SERVER", raising=False)
    monkeypatch.setenv("OBJBUF_TEST_TOOLS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versitygw.found() is None
    (tmp_path / f"versitygw-{versitygw.VERSION}").touch()

    assert versitygw.found() == versitygw.build() == tmp_path / f"versitygw-{versitygw.VERSION}"
