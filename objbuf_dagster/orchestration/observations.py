"""What the sensor publishes about the buffer, on its external asset: numbers to plot, and the epoch for the hooks.

Hooks run in other processes and must not take the epoch themselves. They read it here, from the instance of their own
deployment, so another deployment's epoch can never be borrowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from objbuf_dagster.buffer import BufferState
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.ranges import SequenceRange

_FIRST_LOOK = 20
_LOOK_FURTHER = 500
_OLDEST = "oldest_range"
_KNOWN = "known_range"
_KNOWN_BATCH = "known_batch"


def numbers_of(
    state: BufferState, in_flight: int = 0, waiting: int = 0, in_flight_bytes: int = 0, *, held: bool = False
) -> dict[str, int | float]:
    """What is plotted: of the buffer, ranges that run, ranges that wait for a person, and whether new ones are held."""
    return {
        "epoch": state.epoch,
        "frontier": state.frontier,
        "next_sequence": state.next_sequence,
        "queue_length": state.queue_length,
        "lag_seconds": round(state.lag_seconds, 1),
        "in_flight": in_flight,
        "in_flight_bytes": in_flight_bytes,
        "failed_ranges": waiting,
        "held": int(held),
    }


def observation(
    source: BufferSource,
    buffer: str,
    numbers: Mapping[str, int | float],
    oldest: SequenceRange | None,
    known: SequenceRange | None = None,
    known_batch: str | None = None,
) -> dg.AssetObservation:
    """These numbers, for this buffer.

    oldest: where hooks begin to list, so that they need not list all.
    known, known_batch: a range and its last batch, by which they see that it is still the same buffer.
    """
    text = {"buffer": buffer, **({} if oldest is None else {_OLDEST: oldest.key})}
    if known is not None and known_batch is not None:
        text |= {_KNOWN: known.key, _KNOWN_BATCH: known_batch}
    return dg.AssetObservation(
        source.key, metadata={name: dg.MetadataValue.text(value) for name, value in text.items()} | dict(numbers)
    )


def gap(source: BufferSource, buffer: str, first: int, last: int) -> dg.AssetObservation:
    """Sequences that left the manifest unplanned, and were skipped because `on_gap` says so."""
    return dg.AssetObservation(
        source.key,
        description=f"skipped sequences {first} to {last}: they left the manifest before they were planned",
        metadata={
            "buffer": dg.MetadataValue.text(buffer),
            "skipped_first": first,
            "skipped_last": last,
            "skipped_sequences": last - first + 1,
        },
    )


@dataclass(frozen=True, slots=True)
class Published:
    """What the sensor said last: when, in seconds since 1970, of which buffer, and the rest by its names."""

    at: float
    buffer: str
    said: Mapping[str, object]


def published(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Published | None:
    """The last that a sensor said of the buffer with this asset; None if that is nothing.

    Others may observe the asset too, as often as they like.
    """
    page = instance.fetch_observations(asset, limit=_FIRST_LOOK)
    while True:
        for record in page.records:
            event = record.asset_observation
            if event is None or "epoch" not in event.metadata:
                continue  # a person's, or that of a gap
            said = {name: value.value for name, value in event.metadata.items()}
            return Published(record.timestamp, str(said.get("buffer")), said)
        if not page.has_more:
            return None
        page = instance.fetch_observations(asset, limit=_LOOK_FURTHER, cursor=page.cursor)


def published_here(asset: str) -> Published | None:
    """The same, of the deployment that DAGSTER_HOME names."""
    with dg.DagsterInstance.get() as instance:
        return published(instance, dg.AssetKey.from_user_string(asset))


@dataclass(frozen=True, slots=True)
class Held:
    """What this deployment holds.

    oldest: a range that begins at or before the frontier, if one is known.
    known, known_batch: a range of this buffer and its last batch, if one is known.
    """

    epoch: int
    oldest: SequenceRange | None = None
    known: SequenceRange | None = None
    known_batch: str | None = None

    @classmethod
    def of(cls, last: Published) -> Held | None:
        """None for what no sensor of ours says."""
        epoch, batch = last.said["epoch"], last.said.get(_KNOWN_BATCH)
        if not isinstance(epoch, int):
            return None
        oldest, known = (
            SequenceRange.from_key(key) if isinstance(key, str) else None
            for key in (last.said.get(_OLDEST), last.said.get(_KNOWN))
        )
        return cls(epoch, oldest, known, batch if isinstance(batch, str) else None)


def held(instance: dg.DagsterInstance, source: BufferSource, buffer: str) -> Held:
    """What this deployment's sensor published last.

    Raises InvalidInput if that is nothing, or of another buffer.
    """
    last = published(instance, source.key)
    if last is None:
        raise InvalidInput(
            f"this deployment has not taken the buffer {buffer!r} yet, or what it said of it was wiped: turn its "
            "sensor on, or reset the sensor's cursor. Its next tick acks what has materialised until then"
        )
    ours = Held.of(last)
    if last.buffer != buffer or ours is None:
        raise InvalidInput(
            f"this deployment's sensor holds {last.buffer[:300]!r}, not {buffer!r}: the run and the sensor have "
            "different settings. Reload the code location, so that both have the same"
        )
    return ours
