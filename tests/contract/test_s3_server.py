"""The real S3 server that other tests use: it is for this machine alone, and nothing of it is left."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_another_s_server_on_the_port_is_not_taken_for_ours(binary: Path, tmp_path: Path) -> None:
    with versitygw.serving(binary) as another, subprocess.Popen(["sleep", "60"]) as starting:  # noqa: S607, sleep
        port = urlsplit(another.endpoint).port or 0
        theirs, ours = another.directory / "mark-bucket" / "mark", tmp_path / "mark-bucket-of-ours" / "mark"
        for mark in (theirs, ours):
            mark.parent.mkdir()
            mark.touch()
        try:
            assert versitygw.answers(starting, port, theirs)
            assert not versitygw.answers(starting, port, ours, seconds=1)
        finally:
            starting.kill()
        starting.wait()
        assert not versitygw.answers(starting, port, theirs)


def test_a_server_s_bucket_is_empty_and_its_only_one(binary: Path) -> None:
    with versitygw.serving(binary) as server:
        assert [path.name for path in server.directory.iterdir() if path.is_dir()] == [versitygw.BUCKET]
        assert list((server.directory / versitygw.BUCKET).iterdir()) == []


def test_a_file_system_without_attributes_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)

    with pytest.raises(versitygw.Unavailable, match="set TMPDIR to a directory on another file system"):
        versitygw.serving(tmp_path / "binary").__enter__()


def go(directory: Path, monkeypatch: pytest.MonkeyPatch, **behaviour: str) -> Path:
    """Something that is called as Go is, where `list` and `install` behave so. Gives the file of what it was told."""
    called = directory / "called"
    script = directory / "bin" / "go"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\necho "$1" >>"{called}"\ncase "$1" in\n'
        + "".join(f"{name}) {action};;\n" for name, action in behaviour.items())
        + "esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return called


def test_a_machine_without_a_network_is_told_so_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = go(tmp_path, monkeypatch, list="echo no such host >&2; exit 1")

    with pytest.raises(versitygw.Unavailable, match="no such host"):
        versitygw.build(tmp_path / "tools")

    assert called.read_text().split() == ["list"]


def test_a_network_that_does_not_answer_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versitygw, "_PROBE_SECONDS", 1)
    called = go(tmp_path, monkeypatch, list=f"sleep 600 & echo $! >{tmp_path}/child; wait")

    with pytest.raises(versitygw.Unavailable, match="no end after 1 s"):
        versitygw.build(tmp_path / "tools")

    assert called.read_text().split() == ["list"]
    child = tmp_path / "child"
    if child.exists():  # a busy machine may not have come so far
        wait_until(lambda: not is_alive(int(child.read_text())))


def test_two_that_build_at_a_time_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = go(tmp_path, monkeypatch, install='sleep 1; echo built >"$GOBIN/versitygw"')

    with ThreadPoolExecutor(2) as pool:
        built = set(pool.map(versitygw.build, [tmp_path / "tools"] * 2))

    assert [path.read_text() for path in built] == ["built\n"]
    assert called.read_text().split() == ["list", "install"]


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
