"""The Rust client: building it, and talking to it.

`python -m tests.interop.rust_client` builds it, for who wants to have that done before the tests.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal
from urllib.parse import urlsplit

from objbuf_dagster.protocol import BatchDescriptor, Compression, ConsumedBatch, Metadata
from tests.interop.cases import Calls, text
from tests.support.s3 import S3Location

_SOURCE = Path(__file__).parent / "rust"
_BUILD_SECONDS = 1700
_END_SECONDS = 30

Kind = Literal["fenced", "storage", "serialization", "invalid_input"]


class Refused(Exception):
    """The Rust client's own error."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def build_folder() -> Path:
    """OBJBUF_INTEROP_TARGET, or a folder of the user's cache: nobody wants to build it for every run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("OBJBUF_INTEROP_TARGET") or cache / "objbuf-dagster" / "interop")


def build(environment: Mapping[str, str] = os.environ) -> Path:
    """The program, built if it is not yet. Raises FileNotFoundError where there is no cargo.

    It is built from a copy: Cargo.lock, which names where packages came from, stays out of the repository.
    """
    folder = build_folder()
    for name in ("Cargo.toml", "src/main.rs"):
        _copy(_SOURCE / name, folder / "source" / name)
    command = ["cargo", "build", "--quiet", "--target-dir", str(folder / "target")]
    built = subprocess.run(
        command,
        cwd=folder / "source",
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "target" / "debug" / "interop"


def _copy(source: Path, target: Path) -> None:
    """Only if it is another: what is as old as before is not built again. At once: others may be building."""
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        shutil.copy(source, place)
        (Path(place) / source.name).replace(target)


class RustClient:
    """A process that holds a producer and a consumer of the crate. Calls raise Refused with what the crate said."""

    def __init__(self, program: Path, store: Mapping[str, str], prefix: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [program, json.dumps(store), prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @classmethod
    def at_s3(cls, program: Path, place: S3Location) -> RustClient:
        where = urlsplit(place.url)
        options = place.options
        environment = {
            "AWS_ENDPOINT": options["endpoint"],
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": options["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        }
        store = {"type": "Aws", "region": options["region"], "bucket": where.netloc}
        return cls(program, store, where.path.strip("/"), environment)

    @classmethod
    def at_folder(cls, program: Path, folder: Path) -> RustClient:
        return cls(program, {"type": "Local", "path": str(folder)}, "", {})

    def produce(self, batches: Sequence[Calls], compression: Compression) -> list[list[int]]:
        """Write each list of calls as one batch, durably; returns the ingestion times of each."""
        asked = [[call.to_json() for call in calls] for calls in batches]
        times: list[list[int]] = self._ask("produce", compression=compression, batches=asked)
        return times

    def open(self, last_acked: int | None = None) -> None:
        """Take the epoch."""
        self._ask("open", last_acked=last_acked)

    def next_batch(self) -> ConsumedBatch | None:
        found = self._ask("next_batch")
        if found is None:
            return None
        entries = [base64.b64decode(entry) for entry in found["entries"]]
        descriptor = _descriptor(found)
        return ConsumedBatch(entries, descriptor.sequence, descriptor.location, descriptor.metadata)

    def next_descriptors(self, most: int) -> list[BatchDescriptor]:
        return [_descriptor(found) for found in self._ask("next_descriptors", max=most)]

    def ack(self, sequence: int) -> None:
        self._ask("ack", sequence=sequence)

    def ack_through(self, sequence: int) -> None:
        self._ask("ack_through", sequence=sequence)

    def flush(self) -> None:
        self._ask("flush")

    def close_consumer(self) -> None:
        self._ask("close")

    def parse(self, manifest: bytes) -> tuple[int, int, list[BatchDescriptor]]:
        """Epoch, next sequence and entries, as the crate reads them."""
        found = self._ask("parse", manifest=text(manifest))
        return found["epoch"], found["next_sequence"], [_descriptor(entry) for entry in found["entries"]]

    def __enter__(self) -> RustClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process as process:  # closes the pipes, which ends it, and waits
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def _ask(self, op: str, **request: object) -> Any:
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        return _exchange(requests, answers, {"op": op, **request})


def _exchange(requests: IO[str], answers: IO[str], request: dict[str, object]) -> Any:
    requests.write(json.dumps(request) + "\n")
    requests.flush()
    line = answers.readline()
    assert line, "the Rust program ended, see its error above"
    answer = json.loads(line)
    if "error" in answer:
        raise Refused(answer["error"], answer["message"])
    return answer["ok"]


def _descriptor(found: dict[str, Any]) -> BatchDescriptor:
    items = (Metadata(start, time_ms, base64.b64decode(payload)) for start, time_ms, payload in found["metadata"])
    return BatchDescriptor(found["sequence"], found["location"], tuple(items))


if __name__ == "__main__":
    print(build())
