"""`make prove`: everything that is promised is tried at full size, and one table says what was lost and doubled: 0.

`python -m tests.prove [--small] [--seed N] [--round N] [NAME ...]` picks proofs by the names of their modules.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator

from tests.prove.proof import HEADING, SEED, Proof, Size
from tests.support import jvm

NAMES = ("store_calls", "clocks", "hostile", "load", "kills")
"""The proofs, the quick ones first."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; all of them if none")
    parser.add_argument("--small", action="store_true", help="as little as the test suite tries")
    parser.add_argument("--seed", type=int, default=SEED, help="what is left to chance (default: %(default)s)")
    parser.add_argument("--round", type=int, help="of the kills, this one alone")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(NAMES):
        parser.error(f"no such proof: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    place = tempfile.mkdtemp(prefix="objbuf-prove-")
    os.environ |= {"TMPDIR": place}
    tempfile.tempdir = None  # it had looked before
    os.environ |= jvm.variables()
    size = Size("small" if chosen.small else "full", chosen.seed, chosen.round)
    proofs: list[Proof] = []
    broken: list[str] = []
    for name in chosen.names or NAMES:
        print(f"{name}: trying (seed {size.seed})", flush=True)
        try:
            for proof in _proofs(name, size):
                print(f"  {proof.line}", flush=True)
                proofs.append(proof)
        except Exception:  # noqa: BLE001, the other proofs are worth their time
            traceback.print_exc()
            broken.append(name)
    print(f"\n{HEADING}")
    for proof in proofs:
        print(proof.line)
        for note in proof.notes:
            print(f"    {note}")
    for name in broken:
        print(f"{name:<58} BROKEN OFF, its error is above")
    kept = not broken and all(proof.holds for proof in proofs)
    print("\nnothing was lost, nothing came twice" if kept else f"\na promise is BROKEN; {place} is left as it was")
    if kept:
        shutil.rmtree(place, ignore_errors=True)
    return 0 if kept else 1


def _proofs(name: str, size: Size) -> Iterator[Proof]:
    found: Iterator[Proof] = importlib.import_module(f"tests.prove.{name}").prove(size)
    return found


if __name__ == "__main__":
    sys.exit(main())
