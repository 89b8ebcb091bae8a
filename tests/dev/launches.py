"""`python -m dev` as a real process, for a clone and a workspace of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.spark.processes import descendants, is_alive, wait_until

CODE = Path(__file__).parent.parent.parent

DEFINITIONS = """
import os
from pathlib import Path

import dagster as dg

PROOF = Path(os.environ["PROOF"])


def note(name: str, text: str) -> None:
    with (PROOF / name).open("a") as file:
        file.write(text + "\\n")


@dg.asset
def noted(context: dg.AssetExecutionContext) -> None:
    note("run", os.environ["OBJBUF_BUFFER_URL"])


@dg.sensor(job_name="noting", minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def ticking(context: dg.SensorEvaluationContext):
    count = int(context.cursor or 0) + 1
    context.update_cursor(str(count))
    note("tick", f"{count} {os.environ['OBJBUF_BUFFER_URL']}")
    return dg.RunRequest(run_key=str(os.environ["PORT"]))


defs = dg.Definitions(
    assets=[noted], sensors=[ticking], jobs=[dg.define_asset_job("noting", [noted])], executor=dg.in_process_executor
)
"""


def environment(**more: str) -> dict[str, str]:
    """This process's, without what a person may have set for their own `make dev`."""
    ours = ("DAGSTER_", "OBJBUF_", "PORT", "DEMO", "PYTHONPATH")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(ours)}, **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_workspace(root: Path) -> Path:
    """A code location with one asset and one sensor, which write down what environment they see."""
    root.mkdir(exist_ok=True)
    (root / "noting_definitions.py").write_text(DEFINITIONS)
    file = root / "workspace.yaml"
    file.write_text("load_from:\n  - python_file: noting_definitions.py\n")
    return file


class Launch:
    """One `make dev` for the clone at `root`, started as a script in the background starts it: deaf to Ctrl-C."""

    def __init__(self, root: Path, **variables: str) -> None:
        self.root = root
        self.proof = root / "proof"
        self.proof.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._log = (root / "log").open("w+b")
        given = environment(**{"PROOF": str(self.proof), "PORT": str(self.port), **variables})
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dev", "--root", str(root)],
                cwd=CODE,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        """A test that failed leaves nothing either."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    @property
    def output(self) -> str:
        return (self.root / "log").read_text()

    def lines(self, name: str) -> list[str]:
        """What the code location wrote down."""
        file = self.proof / name
        return file.read_text().splitlines() if file.exists() else []

    def wait_until_up(self) -> None:
        def is_up() -> bool:
            assert self.process.poll() is None, self.output
            return f"http://127.0.0.1:{self.port}\n" in self.output

        wait_until(is_up, seconds=120)

    def processes(self) -> dict[int, str]:
        """All that it started and that is alive, with whole command lines."""
        pids = descendants(self.process.pid)
        wide = ["ps", "-ww", "-o", "args=", "-p"]
        return {pid: subprocess.run([*wide, str(pid)], capture_output=True, text=True).stdout for pid in pids}  # noqa: PLW1510, gone is gone

    def end(self, number: int) -> int:
        """Its exit code after the signal; no process that it had is left then."""
        before = self.processes()
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert {pid: command for pid, command in before.items() if is_alive(pid)} == {}
        return code
