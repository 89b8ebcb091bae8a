"""Filters that Spark hands down, as far as they tell which batches to leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from objbuf_dagster.protocol.model import MAX_U64

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_COLUMN = ("_odb_sequence",)


@dataclass(frozen=True, slots=True)
class Sequences:
    """A set of sequences: from `first` to `last`, both included, and only those `among` if that is not None."""

    first: int = 0
    last: int = MAX_U64
    among: frozenset[int] | None = None

    def __contains__(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last and (self.among is None or sequence in self.among)

    def meets(self, first: int, last: int) -> bool:
        """Whether any of them is from `first` to `last`."""
        first, last = max(first, self.first), min(last, self.last)
        if self.among is None:
            return first <= last
        return any(first <= sequence <= last for sequence in self.among)

    def since(self, first: int) -> Sequences:
        return replace(self, first=max(self.first, first))

    def until(self, last: int) -> Sequences:
        return replace(self, last=min(self.last, last))

    def only(self, among: Iterable[int]) -> Sequences:
        some = frozenset(sequence for sequence in among if sequence in self)
        return Sequences(min(some, default=self.first), max(some, default=self.first), some)


def push(filters: Iterable[Filter]) -> tuple[Sequences, list[Filter]]:
    """What the filters, all of which hold, leave of the sequences; and those that Spark has to look at itself.

    Comparisons of `_odb_sequence` with whole numbers are used up: a batch has one sequence, so leaving batches out is
    all there is to do. Every other filter goes back to Spark.
    """
    wanted = Sequences()
    rest: list[Filter] = []
    for one in filters:
        narrowed = _narrowed(wanted, one)
        if narrowed is None:
            rest.append(one)
        else:
            wanted = narrowed
    return wanted, rest


def _narrowed(wanted: Sequences, one: Filter) -> Sequences | None:
    from pyspark.sql import datasource as spark

    value = getattr(one, "value", None)
    if getattr(one, "attribute", None) != _COLUMN:
        return None
    if isinstance(one, spark.In):
        known = [each for each in value or () if each is not None]  # a null in the list is equal to nothing
        return wanted.only(known) if all(type(each) is int for each in known) else None
    if type(value) is not int:
        return None
    ways: dict[type[Filter], Callable[[int], Sequences]] = {
        spark.EqualTo: lambda number: wanted.only([number]),
        spark.EqualNullSafe: lambda number: wanted.only([number]),
        spark.GreaterThan: lambda number: wanted.since(number + 1),
        spark.GreaterThanOrEqual: wanted.since,
        spark.LessThan: lambda number: wanted.until(number - 1),
        spark.LessThanOrEqual: wanted.until,
    }
    way = ways.get(type(one))
    return way(value) if way is not None else None
