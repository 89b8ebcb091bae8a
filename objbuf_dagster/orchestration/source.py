"""A buffer as Dagster sees it: an external asset, and partitions that are its ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_type_hints

import dagster as dg

from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., object])

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class BufferSource:
    """The names that the parts of one pipeline share, and what its ack waits for. Nothing is read or started.

    name: of the resource (a BufferResource) and of the external asset; one code location may have several.
    ack_after: the assets that must all have materialised a range before the frontier passes it.
    ack: `auto` moves the frontier after each materialisation and in every tick, `manual` leaves that to whoever calls
        `ack_materialised`.
    metrics: where the sensor sets the gauges of its regulator, and decoding counts rows, dead letters and dropped
        entries, for who exports them: of the process that it is in, the code server's or a run's.

    >>> BufferSource("orders", ack_after=["orders_raw"]).partitions.name
    'orders_ranges'
    """

    name: str = "buffer"
    ack_after: Sequence[str] = ("entries",)
    ack: Literal["auto", "manual"] = "auto"
    metrics: Metrics = field(default_factory=Metrics, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"a buffer's name is of a-z, 0-9 and _, and begins with a letter: {self.name!r}")
        if isinstance(self.ack_after, str) or not self.ack_after:
            raise InvalidInput("ack_after lists the assets that a range must be in before it is acked: ['entries']")
        if self.ack not in ("auto", "manual"):
            raise InvalidInput(f"ack is auto or manual, not {self.ack!r}")

    @property
    def key(self) -> dg.AssetKey:
        """Of the external asset that stands for the buffer."""
        return dg.AssetKey(self.name)

    @property
    def gates(self) -> tuple[dg.AssetKey, ...]:
        """Of the assets in `ack_after`; `a/b` is a key of two parts."""
        return tuple(dg.AssetKey.from_user_string(name) for name in self.ack_after)

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One key per range, added by the sensor in rising order."""
        return dg.DynamicPartitionsDefinition(name=f"{self.name}_ranges")

    @property
    def job_name(self) -> str:
        """Of the job that lands ranges."""
        return f"land_{self.name}"

    def asset(self) -> dg.AssetSpec:
        """The external asset: what is upstream of all range assets, and where the sensor's observations are."""
        return dg.AssetSpec(
            self.key,
            group_name=self.name,
            kinds={"objectstorage"},
            description=(
                "The object-storage buffer. Its observations show epoch, frontier, next sequence, queue length, lag, "
                "ranges and bytes in flight; and of the regulator its budget for a range, rho, pressure, whether new "
                "ranges are held back, and the seconds until it has caught up."
            ),
        )


def resolved(function: F) -> F:
    """The same function with its annotations as types: Dagster reads them as they stand, and here they are names."""
    function.__annotations__ = get_type_hints(function)
    return function
