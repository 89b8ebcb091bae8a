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

_LOOK_BACK = 20
_OLDEST = "oldest_range"


def numbers_of(state: BufferState, in_flight: int, waiting: int) -> dict[str, int | float]:
    """What is plotted: of the buffer, ranges that run, and ranges that wait for a person."""
    return {
        "epoch": state.epoch,
        "frontier": state.frontier,
        "next_sequence": state.next_sequence,
        "queue_length": state.queue_length,
        "lag_seconds": round(state.lag_seconds, 1),
        "in_flight": in_flight,
        "failed_ranges": waiting,
    }


def observation(
    source: BufferSource, buffer: str, numbers: Mapping[str, int | float], oldest: SequenceRange | None
) -> dg.AssetObservation:
    """These numbers, for this buffer; `oldest` is where hooks begin to list, so that they need not list all."""
    text = {"buffer": buffer, **({} if oldest is None else {_OLDEST: oldest.key})}
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
class Held:
    """What this deployment holds: the epoch, and a range that begins at or before the frontier, if one is known."""

    epoch: int
    oldest: SequenceRange | None


def held(instance: dg.DagsterInstance, source: BufferSource, buffer: str) -> Held:
    """What this deployment's sensor published last.

    Raises InvalidInput if that is nothing, or of another buffer.
    """
    for record in instance.fetch_observations(source.key, limit=_LOOK_BACK).records:
        event = record.asset_observation
        if event is None or "epoch" not in event.metadata:
            continue  # a person's, or that of a gap
        said = {name: value.value for name, value in event.metadata.items()}
        if said.get("buffer") != buffer or not isinstance(said["epoch"], int):
            raise InvalidInput(
                f"this deployment's sensor holds {str(said.get('buffer'))[:300]!r}, not {buffer!r}: the run and the "
                "sensor have different settings. Reload the code location, so that both have the same"
            )
        oldest = said.get(_OLDEST)
        return Held(said["epoch"], SequenceRange.from_key(oldest) if isinstance(oldest, str) else None)
    raise InvalidInput(
        f"this deployment has not taken the buffer {buffer!r} yet, or what it said of it was wiped: turn its sensor "
        "on, or reset the sensor's cursor. Its next tick acks what has materialised until then"
    )
