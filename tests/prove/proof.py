"""What a proof gives: how often something was tried, and what was lost or doubled. `make prove` prints a line for each.

A module of this package is a proof, or several: its `prove(size)` yields a `Proof` for each. The suite runs the same
functions with `SMALL`, `make prove` with `FULL`: what differs is how often something is tried, never what.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")

SEED = 20_260_101

Entry = tuple[int, int, str]
"""Sequence, index in its batch, text. Every text that is produced in a proof is produced once."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is tried. The same seed tries the same."""

    name: Literal["small", "full"]
    seed: int = SEED

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
    notes: list[str] = field(default_factory=list)
    """Numbers that belong beside the table: throughput, ratios, what was hit how often."""

    @property
    def holds(self) -> bool:
        """Something was tried, and nothing went wrong."""
        return self.tried > 0 and self.lost == self.doubled == self.invented == 0

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


@contextmanager
def timed(proof: Proof) -> Iterator[Proof]:
    """Adds the seconds that the context lasts."""
    started = time.monotonic()
    try:
        yield proof
    finally:
        proof.seconds += time.monotonic() - started
