"""The Go producer: what it wrote when it was recorded, and the program itself where its module can be had."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objbuf_dagster.protocol import Compression, Manifest
from objbuf_dagster.store import Store
from tests.interop.cases import COMPRESSIBLE, SMALL, Call, Calls, text

_SOURCE = Path(__file__).parent / "go"
_RECORDED = Path(__file__).parent / "recorded"
_SECONDS = 240

MODULE = "github.com/opendata-oss/opendata-go"

_NOT_TO_BE_HAD = re.compile(
    rf"{re.escape(MODULE)}@\S+ reading \S+: (403 Forbidden|404 Not Found|410 Gone|no such file or directory)\b"
)
"""A proxy's answer about this module, or that of a directory which is one: asking again gives the same."""

BY_US: list[Calls] = [[Call([b"ours 0", b""], b"us")], [Call([b"ours 1"]), Call([b"ours 2"], b"\0")]]
BY_RUST: list[Calls] = [[Call([b"rust 0"], b"crab")], [Call([b"", b"rust 1"])]]
IN_TURN: list[Calls] = [[Call([b"go 0", b""], b"gopher"), Call([b"go 1"])], [Call([b"go 2"], b"\xff")]]

PRODUCED: dict[str, list[Calls]] = {
    "none": SMALL,
    "zstd": [*SMALL, *COMPRESSIBLE],
    "after-us": IN_TURN,
    "after-us-and-rust": IN_TURN,
}
"""What was produced in each recording."""

HELD: dict[str, list[Calls]] = {
    "none": [],
    "zstd": [],
    "after-us": [BY_US[1]],
    "after-us-and-rust": [BY_US[1], BY_RUST[1]],
}
"""What was in the manifest before: what the batches of its entries hold, in order."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What the Go producer wrote: batches by their location, and the manifest after each of them."""

    batches: dict[str, bytes]
    manifests: list[bytes]

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Objects:
        batches = {one["location"]: base64.b64decode(one["data"]) for one in answer["batches"]}
        return cls(batches, [base64.b64decode(data) for data in answer["manifests"]])

    def put(self, store: Store) -> None:
        """Put it where others can read it: the batches, then the last manifest."""
        for location, data in self.batches.items():
            store.put(location, data)
        store.put("ingest/manifest", self.manifests[-1])


@dataclass(frozen=True, slots=True)
class Recording:
    """One run of the Go producer: the manifest and batches that it found (none: no manifest), and what it wrote."""

    compression: Compression
    start: bytes | None
    found: dict[str, bytes]
    wrote: Objects

    @classmethod
    def load(cls, name: str) -> Recording:
        recorded = json.loads((_RECORDED / f"{name}.json").read_text())
        found = {one["location"]: base64.b64decode(one["data"]) for one in recorded["found"]}
        start = None if recorded["start"] is None else base64.b64decode(recorded["start"])
        return cls(recorded["compression"], start, found, Objects.from_json(recorded))

    def save(self, name: str) -> None:
        recorded = {
            "compression": self.compression,
            "start": None if self.start is None else text(self.start),
            "found": _listed(self.found),
            "batches": _listed(self.wrote.batches),
            "manifests": [text(data) for data in self.wrote.manifests],
        }
        (_RECORDED / f"{name}.json").write_text(json.dumps(recorded, indent=1) + "\n")

    @property
    def before(self) -> Manifest:
        return Manifest.empty() if self.start is None else Manifest.from_bytes(self.start)

    def put(self, store: Store) -> None:
        """Put everything where others can read it."""
        for location, data in self.found.items():
            store.put(location, data)
        self.wrote.put(store)


def _listed(objects: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [{"location": location, "data": text(data)} for location, data in objects.items()]


class Unavailable(Exception):
    """Where modules come from says that the module is not to be had. Carries what Go said."""


class Unreachable(Exception):
    """Nobody could say whether the module is to be had: the network, or the proxy, fails. Carries what Go said."""


class BuildFailed(Exception):
    """The module is there, and the program cannot be built with it: a mistake of ours. Carries what Go said."""


def build(folder: Path, environment: Mapping[str, str]) -> Path:
    """The program, built in this folder, from a copy: go.sum and go.mod change as modules are fetched.

    Raises Unavailable if the module that it is about is not to be had, Unreachable if that could not be asked, and
    BuildFailed whatever else goes wrong.
    """
    for name in ("go.mod", "main.go"):
        shutil.copy(_SOURCE / name, folder)
    try:
        _go(folder, environment, "mod", "download", MODULE)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{MODULE}: {error}") from None
    except BuildFailed as error:
        if f"{MODULE}@" not in str(error):
            raise
        raise (Unavailable if _NOT_TO_BE_HAD.search(str(error)) else Unreachable)(str(error)) from None
    program = folder / "producer"
    for arguments in (["mod", "tidy"], ["build", "-o", str(program), "."]):
        _go(folder, environment, *arguments)
    return program


def _go(folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        ["go", *arguments],  # noqa: S607
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(f"go {' '.join(arguments[:2])}: {done.stderr.strip()}")


def produce(program: Path, batches: Sequence[Calls], compression: Compression, start: bytes | None) -> Objects:
    """Run the program: each list of calls becomes a batch, behind what is in the manifest `start`."""
    request = {
        "compression": compression,
        "start": None if start is None else text(start),
        "batches": [[call.to_json() for call in calls] for calls in batches],
    }
    done = subprocess.run(
        [program], input=json.dumps(request), capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return Objects.from_json(json.loads(done.stdout))
