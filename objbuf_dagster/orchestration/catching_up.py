"""States that stayed behind what has landed.

A run of the landing job ends with bringing states up to date. One that was killed before that, or whose storage failed
then, leaves them behind until the next range lands, and nobody knows when that will be. So a tick that starts nothing,
while nothing runs, looks at them once for each frontier, and starts a run for them alone if they are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import RUN_KEY_TAG

from objbuf_dagster.orchestration.runs import attempt_of, is_about, is_due
from objbuf_dagster.orchestration.settings import SensorSettings
from objbuf_dagster.orchestration.source import BufferSource

STATE_TAG = "objbuf/state_of"
"""The tag of an asset that holds a state, with the name of the buffer."""

CATCH_UP_TAG = "objbuf/catch_up"

NEXT_SEQUENCE = "next_sequence"
"""The name under which a materialisation says how far a state is."""

_MOST_ACTIVE = 1_000


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A run for these states, which are behind this frontier."""

    source: str
    states: tuple[dg.AssetKey, ...]
    frontier: int
    attempt: int

    @property
    def run_key(self) -> str:
        """Dagster never runs a key again, so each attempt needs its own."""
        return f"{self.tags[CATCH_UP_TAG]}:{self.attempt}"

    @property
    def tags(self) -> dict[str, str]:
        return {CATCH_UP_TAG: f"{self.source}:{self.frontier}"}

    def __str__(self) -> str:
        names = ", ".join(one.to_user_string() for one in self.states)
        return f"{names} stayed behind the frontier: started a run (attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class Found:
    """A run to start, if any; whether that was all there is to do for this frontier; and what is worth a warning."""

    start: CatchUp | None = None
    settled: bool = False
    note: str = ""


def states_behind(
    instance: dg.DagsterInstance,
    source: BufferSource,
    states: Sequence[dg.AssetKey],
    frontier: int,
    settings: SensorSettings,
    now: float,
) -> Found:
    """What to do about states that are behind this frontier, in a tick that starts nothing else.

    A run of theirs that went well has said what they wait for, and another one would say the same.
    """
    unfinished = dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES))
    if any(is_about(record, source, states) for record in instance.get_run_records(unfinished, limit=_MOST_ACTIVE)):
        return Found()
    behind = tuple(one for one in states if _next_sequence(instance, one) < frontier)
    if not behind:
        return Found(settled=True)
    start = CatchUp(source.name, behind, frontier, 1)
    tried = instance.get_run_records(dg.RunsFilter(tags=start.tags))
    if any(record.dagster_run.is_success for record in tried):
        return Found(settled=True)
    numbers = (attempt_of(record.dagster_run.tags.get(RUN_KEY_TAG, "")) for record in tried)
    attempts = max(len(tried), *numbers, 0)
    if attempts >= settings.max_attempts:
        names = ", ".join(one.to_user_string() for one in behind)
        waits = f"{names} stayed behind the frontier, which is {frontier}, and {attempts} runs for that failed"
        return Found(settled=True, note=f"{waits}: look at the last one, mend the cause, then materialise the asset")
    ended = max((record.end_time or 0.0 for record in tried), default=0.0)
    if not is_due(attempts, ended, settings.retry_seconds, now):
        return Found()
    return Found(CatchUp(source.name, behind, frontier, attempts + 1))


def _next_sequence(instance: dg.DagsterInstance, state: dg.AssetKey) -> int:
    """The first sequence that is not in the state, as its last materialisation says."""
    event = instance.get_latest_materialization_event(state)
    made = None if event is None else event.asset_materialization
    said = None if made is None else made.metadata.get(NEXT_SEQUENCE)
    return said.value if said is not None and isinstance(said.value, int) else 0
