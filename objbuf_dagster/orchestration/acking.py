"""Moving the frontier behind what has materialised: one function, for the hook, the sensor and people's own code."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import dagster as dg

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.errors import Fenced, InvalidInput
from objbuf_dagster.orchestration.chain import still_there
from objbuf_dagster.orchestration.materialised import materialised
from objbuf_dagster.orchestration.observations import Held, held
from objbuf_dagster.orchestration.resources import BufferResource
from objbuf_dagster.orchestration.source import BufferSource
from objbuf_dagster.protocol import BatchDescriptor, Manifest, RangeObject
from objbuf_dagster.ranges import RangeLedger, SequenceRange, check_against, frontier, range_of


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies past the frontier: the planned ranges in order, which of them are materialised, how far to ack.

    known: the range by which the buffer was found to be the same, unless it has expired.
    """

    frontier: int
    next_sequence: int
    planned: tuple[RangeObject, ...]
    done: frozenset[SequenceRange]
    known: RangeObject | None = None

    @property
    def reached(self) -> int:
        """Where the frontier may go."""
        return self.reached_with(self.done)

    def reached_with(self, done: Collection[SequenceRange]) -> int:
        """The same, if these were materialised.

        Others may have produced, planned and landed since the manifest was read: it cannot be acked for that.
        """
        known = (range_of(one) for one in self.planned if one.end < self.next_sequence)
        return frontier(self.frontier, known, done)

    def grown(self, manifest: Manifest) -> Survey | None:
        """The same of a manifest that was only appended to since, and None of any other. Reads nothing.

        Range objects never change, and nobody takes a materialisation back. Raises BufferReplaced as `survey` does.
        """
        if manifest.frontier != self.frontier or manifest.next_sequence < self.next_sequence:
            return None
        for one in self.planned:
            check_against(manifest, one)
        return replace(self, next_sequence=manifest.next_sequence)

    @property
    def open(self) -> list[RangeObject]:
        """Those that are not materialised."""
        return [one for one in self.planned if range_of(one) not in self.done]

    @property
    def last_to_ack(self) -> BatchDescriptor | None:
        """The batch to ack through, or None if the frontier stays."""
        if self.reached == self.frontier:
            return None
        return next(one for one in self.planned if one.end == self.reached - 1).batches[-1].descriptor


@dataclass(frozen=True, slots=True)
class Acked:
    """Where the frontier was and is, and the range that it waits for, if one is planned."""

    before: int
    after: int
    waits_for: SequenceRange | None

    def __str__(self) -> str:
        waits = "" if self.waits_for is None else f", which waits for range {self.waits_for}"
        if self.after == self.before:
            return f"the frontier stays at {self.after}{waits}"
        return f"acked sequences {self.before} to {self.after - 1}: the frontier is {self.after}{waits}"

    @property
    def as_if(self) -> str:
        """The same, of what was not done."""
        waits = "" if self.waits_for is None else f", and wait for range {self.waits_for}"
        return f"the frontier would {'stay at' if self.after == self.before else 'be'} {self.after}{waits}"


def survey(
    instance: dg.DagsterInstance,
    source: BufferSource,
    ledger: RangeLedger,
    manifest: Manifest,
    ours: Held | None = None,
) -> Survey:
    """Look at range objects and materialisations past the frontier. Changes nothing.

    Raises BufferReplaced where ranges and manifest name other batches for the same sequence, or where the range that
    this deployment knows is another one.
    """
    current = manifest.frontier
    planned = tuple(ledger.list(current, ours.oldest if ours else None))
    known = still_there(ledger, ours.known, ours.known_batch, planned) if ours else None
    for one in planned:
        check_against(manifest, one)
    done = frozenset(materialised(instance, source.gates, planned))
    return Survey(current, manifest.next_sequence, planned, done, known)


def ack_surveyed(
    consumer: Consumer, look: Callable[[Manifest], Survey], *, move: bool = True
) -> tuple[Manifest, Survey]:
    """Ack as far as a look at the manifest allows: one read, and one write if the frontier moves.

    A look takes several requests. On a distant bucket producers append more often than that, and if each append began
    it anew, no ack would ever get through: after a conflict, what was seen is held against the longer manifest instead.
    """
    seen: list[Survey] = []

    def decide(manifest: Manifest) -> BatchDescriptor | None:
        seen.append((seen[-1].grown(manifest) if seen else None) or look(manifest))
        return seen[-1].last_to_ack if move else None

    manifest = consumer.ack_as(decide)
    return manifest, seen[-1]


def ack_materialised(instance: dg.DagsterInstance, source: BufferSource, buffer: BufferResource) -> Acked:
    """Move the frontier through the longest unbroken run of ranges that all of `ack_after` have materialised.

    What the hook does, and what your own code calls with `ack="manual"`, from a run, a sensor or anywhere else with the
    deployment's instance. One manifest read, and one write if it moves; repeating it is safe, in parallel too.

    Raises Fenced if another deployment took the buffer over, InvalidInput if this one never did, and BufferReplaced if
    it was made anew; nothing is changed then.
    """
    ours = held(instance, source, buffer.identity())
    ledger = buffer.ledger()
    _, seen = ack_surveyed(buffer.attach(ours.epoch), lambda manifest: survey(instance, source, ledger, manifest, ours))
    waits_for = next((range_of(one) for one in seen.open), None)
    return Acked(seen.frontier, seen.reached, waits_for)


def would_ack(
    instance: dg.DagsterInstance,
    source: BufferSource,
    buffer: BufferResource,
    ranges: Collection[SequenceRange],
    assets: Collection[dg.AssetKey],
) -> str:
    """What would come of it if these assets, those of a run, had materialised these ranges, in words.

    Changes nothing, owns nothing.
    """
    if source.ack == "manual":
        return "nothing would be acked: with ack='manual', your own code does"
    try:
        ours = held(instance, source, buffer.identity())
    except InvalidInput as error:
        return f"nothing would be acked: {error}"
    manifest = buffer.place().manifests().read()
    if manifest.epoch != ours.epoch:
        return f"nothing would be acked: {Fenced(ours.epoch, manifest.epoch, 'Reset the cursor to take it back')}"
    seen = survey(instance, source, buffer.ledger(), manifest, ours)
    others = [gate for gate in source.gates if gate not in assets]
    landed = materialised(instance, others, seen.planned) if len(others) < len(source.gates) else set()
    done = seen.done | {one for one in ranges if one in landed}
    waits_for = next((range_of(one) for one in seen.planned if range_of(one) not in done), None)
    return Acked(seen.frontier, seen.reached_with(done), waits_for).as_if


def ack_hook(source: BufferSource) -> dg.HookDefinition:
    """Moves the frontier after a step that materialised ranges.

    Dagster tells a hook no partition, and swallows its errors. So it looks at everything past the frontier, and every
    tick of the sensor does the same once more: a hook that failed or never ran is made good within seconds. After a dry
    run it does nothing, although other ranges may wait for an ack.
    """

    @dg.success_hook(name=f"ack_{source.name}", required_resource_keys={source.name})
    def ack(context: dg.HookContext) -> None:
        if (context.op_config or {}).get("dry_run"):
            return
        buffer: BufferResource = getattr(context.resources, source.name)
        context.log.info("%s: %s", source.name, ack_materialised(context.instance, source, buffer))

    return ack
