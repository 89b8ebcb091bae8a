"""What a proof gives: how often something was tried, and what was lost or doubled. `make prove` prints a line for each.

A module of this package is a proof, or several: its `prove(size)` yields a `Proof` for each. The suite runs the same
functions with `SMALL`, `make prove` with `FULL`: what differs is how often something is tried, never what.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")

SEED = 20_260_101

HEADING = f"{'what was tried':<58} {'how often':>22} {'lost':>6} {'doubled':>8} {'wrong':>6} {'seconds':>9}"

Entry = tuple[int, int, str]
"""Sequence, index in its batch, text. Every text that is produced in a proof is produced once."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is tried. The same seed tries the same. `round` is the only one of the kills that is tried, if any."""

    name: Literal["small", "full"]
    seed: int = SEED
    round: int | None = None

    def pick(self, small: T, full: T) -> T:
        """The one for this size."""
        return small if self.name == "small" else full

    def chance(self, *purpose: object) -> random.Random:
        """A source of chance for this purpose alone: what one proof draws does not move another's."""
        return random.Random(f"{self.seed} {purpose}")


SMALL = Size("small")
FULL = Size("full")


@dataclass(slots=True)
class Proof:
    """One line of the table."""

    what: str
    unit: str
    """What is counted, in the plural: `kills`, `inputs`."""
    tried: int = 0
    lost: int = 0
    doubled: int = 0
    invented: int = 0
    """Rows that nobody produced, or that are not where their producer was told."""
    seconds: float = 0.0
    wanted: int = 1
    """How often it must be tried: fewer prove less than was promised."""
    parts: Counter[str] = field(default_factory=Counter)
    """How often each kind was tried, where there are several."""
    wanted_parts: Mapping[str, int] = field(default_factory=dict)
    """How often each of these kinds must be."""
    notes: list[str] = field(default_factory=list)
    """Numbers that belong beside the table: throughput, ratios, what was hit how often."""

    @property
    def holds(self) -> bool:
        """Enough was tried, of each kind, and nothing went wrong."""
        return self.tried >= self.wanted and not self.short and self.lost == self.doubled == self.invented == 0

    @property
    def short(self) -> list[str]:
        """The kinds that were tried less often than they must be."""
        return [kind for kind, times in self.wanted_parts.items() if self.parts[kind] < times]

    @property
    def line(self) -> str:
        """As it is printed, under `HEADING`."""
        tried = f"{self.tried:,} {self.unit}"
        return f"{self.what:<58} {tried:>22} {self.lost:>6} {self.doubled:>8} {self.invented:>6} {self.seconds:>9.1f}"

    def compare(self, told: Iterable[Entry], sent: Collection[str], landed: Iterable[Entry]) -> None:
        """Count what is wrong with the rows of a table, given what producers were told is durable and what they sent.

        What was sent and not yet told may be there or not, but once, and as it was sent.
        """
        rows = Counter(landed)
        promised = set(told)
        self.lost += len(promised - rows.keys())
        texts = Counter(text for _, _, text in rows.elements())
        places = Counter((sequence, index) for sequence, index, _ in rows.elements())
        self.doubled += max(_extra(texts), _extra(places))
        where = {text: (sequence, index) for sequence, index, text in promised}
        self.invented += sum(
            text not in sent or where.get(text, (sequence, index)) != (sequence, index)
            for sequence, index, text in rows
        )


def _extra(counted: Counter[T]) -> int:
    return counted.total() - len(counted)


def recorded(proofs: Iterable[Proof]) -> list[Proof]:
    """All of them; each line also goes into `proofs.txt` where the suite leaves its artefacts, if it does."""
    found = []
    place = os.environ.get("OBJBUF_TEST_ARTEFACTS")
    for proof in proofs:
        found.append(proof)
        if place:
            Path(place).mkdir(parents=True, exist_ok=True)
            with (Path(place) / "proofs.txt").open("a") as table:
                table.write("".join(f"{line}\n" for line in (proof.line, *(f"    {note}" for note in proof.notes))))
    return found


@contextmanager
def timed(proof: Proof) -> Iterator[Proof]:
    """Adds the seconds that the context lasts."""
    started = time.monotonic()
    try:
        yield proof
    finally:
        proof.seconds += time.monotonic() - started
