"""Start the local deployment and stay with it: Dagster, and a producer to watch it by.

`make dev` is `python -m dev`. Both end with it, whatever ends it: Ctrl-C, SIGTERM, a closed terminal, or SIGKILL.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType

from dev import home, processes
from dev.processes import Child
from dev.settings import CODE, Settings, SetupError, load
from objbuf_dagster.cli.text import plural, redact

HOST = "127.0.0.1"
_TICK_SECONDS = 0.1


class Signals:
    """Signals that ask to end. Handlers of our own, because a process started in the background ignores Ctrl-C."""

    def __init__(self) -> None:
        self._asked = 0
        self._heeded = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked += 1

    def take(self) -> bool:
        """Whether somebody asked since the last time."""
        asked = self._asked > self._heeded
        self._heeded = self._asked
        return asked


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal may be closed, and everything must end nevertheless
        print(text, flush=True)


def check_port(port: int) -> None:
    """Raises SetupError if nobody could listen there."""
    other = port + 1 if port < 65535 else 3000
    taken = f"port {port} is taken: end what listens there, or choose another: PORT={other} make dev"
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        raise SetupError(taken)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: an old connection is no listener
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise SetupError(f"port {port} is not for this user: choose one above 1023: PORT=3000 make dev") from None
        except OSError:
            raise SetupError(taken) from None


def answers(port: int) -> bool:
    """Whether the web server is up."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{HOST}:{port}/server_info", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def banner(settings: Settings) -> str:
    demo = "the demo producer writes about 200 events per second" if settings.demo else "no demo producer"
    return f"""
  Dagster   http://{HOST}:{settings.port}
  buffer    {redact(settings.buffer)} ({demo})
  lake      {redact(settings.lake)}
  home      {settings.home}

  Open the address: under Lineage, the buffer and what is made of it; the sensor fills partitions by itself.
  Ctrl-C ends everything; the next make dev goes on where this one was.
"""


def start_dagster(settings: Settings, workspace: Path) -> Child:
    # A few lines for every tick would push the address out of sight.
    level = settings.environment.get("OBJBUF_LOG_LEVEL", "warning")
    where = ["--host", HOST, "--port", str(settings.port), "--workspace", str(workspace)]
    arguments = ["dagster", "dev", *where, "--log-level", level, "--code-server-log-level", level]
    return Child("dagster", arguments, settings.environment, settings.work, ask=signal.SIGINT)


def start_demo(settings: Settings) -> Child:
    # The embedded buffer needs no settings but its URL, and reading the deployment's would take seconds.
    named = any(settings.environment.get(name) for name in ("OBJBUF_MANIFEST_PATH", "OBJBUF_DATA_PREFIX"))
    url = [settings.buffer] if settings.is_embedded and not named else []
    return Child("demo", ["dev.demo", *url], settings.environment, settings.work, ask=signal.SIGTERM)


def run(settings: Settings, workspace: Path, signals: Signals) -> int:
    """Run until somebody asks to end (0) or Dagster ends (1). No process is left."""
    children: list[Child] = []
    try:
        dagster = start_dagster(settings, workspace)
        children.append(dagster)
        demo = start_demo(settings) if settings.demo else None
        children.extend(filter(None, [demo]))
        return _watch(settings, dagster, demo, signals)
    finally:
        processes.end(children, hurried=signals.take, say=say)
        say("everything has ended")


def _watch(settings: Settings, dagster: Child, demo: Child | None, signals: Signals) -> int:
    is_up = False
    while not signals.take():
        if dagster.code is not None:
            say(f"dagster ended with code {dagster.code}, so everything ends; what it said is above")
            return 1
        if demo is not None and demo.code is not None:
            say(
                f"the demo producer ended with code {demo.code}, what it said is above; the pipeline goes on without it"
            )
            demo = None
        if not is_up and answers(settings.port):
            is_up = True
            say(banner(settings))
        time.sleep(_TICK_SECONDS)
    say("\nending")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dev", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=CODE, help="where .env, .dagster and .data are; default: the clone"
    )
    parser.add_argument("--workspace", type=Path, help="default: workspace.yaml there")
    arguments = parser.parse_args(argv)
    root: Path = arguments.root.resolve()
    workspace: Path = (arguments.workspace or root / "workspace.yaml").absolute()
    signals = Signals()
    try:
        if not workspace.is_file():
            raise SetupError(f"there is no {workspace}")
        settings = load(root, os.environ)
        settings.work.mkdir(parents=True, exist_ok=True)
        home.prepare(settings.home)
        with home.held(settings.home):
            check_port(settings.port)
            for note in settings.notes:
                say(note)
            say("starting Dagster: this takes some ten seconds, and longer the first time")
            if settings.owns_home and (lost := home.fail_lost_runs(settings.home)):
                say(f"marked as failed, to be tried again: {plural(lost, 'run')} killed with an earlier make dev")
            return run(settings, workspace, signals)
    except SetupError as error:
        print(f"make dev: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
