"""`make dev` from start to end."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from objbuf_dagster.buffer import peek
from objbuf_dagster.store import LocalStore
from tests.dev.launches import Launch, make_workspace
from tests.spark.processes import wait_until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone whose workspace writes down what it sees."""
    make_workspace(tmp_path / "clone")
    return tmp_path / "clone"


def test_everything_starts_ends_and_goes_on(root: Path) -> None:
    elsewhere = "file:///somewhere/else"
    with Launch(root, OBJBUF_BUFFER_URL=elsewhere) as launch:
        launch.wait_until_up()
        wait_until(lambda: bool(launch.lines("tick") and launch.lines("run")))
        assert not [command for command in launch.processes().values() if "dev.demo" in command]
        assert "no demo producer: OBJBUF_BUFFER_URL is not the embedded buffer" in launch.output
        assert launch.end(signal.SIGINT) == 0
        ticks = launch.lines("tick")
        # The environment won in the sensor and in the run, although .env names another buffer.
        assert {line.split()[1] for line in ticks} == {elsewhere} == set(launch.lines("run"))
        assert f"OBJBUF_BUFFER_URL=file://{root}/.data/buffer" in (root / ".env").read_text()
        assert "Traceback" not in launch.output

    with Launch(root) as launch:
        launch.wait_until_up()
        store = LocalStore(root / ".data/buffer")
        wait_until(lambda: len(launch.lines("tick")) > len(ticks) and peek(store).queue_length > 0)
        assert [command for command in launch.processes().values() if "dev.demo" in command]
        assert launch.end(signal.SIGTERM) == 0
        # The same home: the cursor went on, and the buffer is now what .env says.
        assert launch.lines("tick")[len(ticks)] == f"{len(ticks) + 1} file://{root}/.data/buffer"
        assert "everything has ended" in launch.output


def test_dagster_that_cannot_start_ends_everything_with_an_error(root: Path) -> None:
    (root / "workspace.yaml").write_text("load_from: nothing that Dagster knows\n")
    with Launch(root, DEMO="0") as launch:
        assert launch.process.wait(60) == 1
        assert "dagster ended with code 1, so everything ends" in launch.output
        assert launch.processes() == {}
        assert not (root / ".data/buffer").exists()  # nobody produced, as DEMO=0 says


def test_a_taken_port_is_told_before_anything_is_started(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Launch(root, PORT=str(port)) as launch:
            assert launch.process.wait(60) == 1
            assert f"make dev: port {port} is taken" in launch.output
            assert "PORT=" in launch.output
            assert "starting" not in launch.output


def test_without_a_workspace_it_says_so(tmp_path: Path) -> None:
    with Launch(tmp_path) as launch:
        assert launch.process.wait(60) == 1
        assert launch.output == f"make dev: there is no {tmp_path}/workspace.yaml\n"
