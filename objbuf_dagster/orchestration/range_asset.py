"""Assets whose partitions are ranges of a buffer.

A step may be about one range or, in a backfill, about many. Whatever it is about, each range succeeds or fails on its
own: those that succeeded are materialised, then the step fails for the others. All checks of a range are done before
its result is; a range whose check fails is not materialised.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import (
    CheckFailed,
    InvalidInput,
    JobFailed,
    ObjbufError,
    RangeExpired,
    StorageUnavailable,
    TimedOut,
)
from objbuf_dagster.orchestration.acking import ack_hook, would_ack
from objbuf_dagster.orchestration.materialised import LAST_BATCH, last_batch
from objbuf_dagster.orchestration.resources import BufferResource, LakeResource
from objbuf_dagster.orchestration.source import BufferSource, resolved
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objbuf_dagster.decode import Decoder
    from objbuf_dagster.lake import LakeTable, RangeCheck
    from objbuf_dagster.spark.decoding_worker import OnError

_TRANSIENT = (StorageUnavailable, JobFailed, TimedOut)
_LONGEST_PAUSE = 300.0
_NAMED = 5
_READERS = 16


class RangeConfig(dg.Config):
    """What a run of a range asset can be told, in the launchpad or as run config."""

    dry_run: bool = Field(
        default=False,
        description=(
            "Do everything but the commit, the materialisation and the ack, and say what they would have done. Assets "
            "downstream in the same run are skipped: what they would read is not there."
        ),
    )


@dataclass(frozen=True, slots=True)
class RangeResult:
    """A range that is where it belongs. `metadata` is shown with its materialisation, `checks` with the asset."""

    range: SequenceRange
    metadata: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[RangeCheck] = ()


@dataclass(frozen=True, slots=True)
class RangeFailure:
    """A range that is not, and why."""

    range: SequenceRange
    error: BaseException


Outcome = RangeResult | RangeFailure


@dataclass(frozen=True, slots=True)
class RangeContext:
    """What the function of a range asset works with.

    planned: the ranges of this step, in rising order, each with its batches.
    expired: those whose batches may be gone, of an asset that does not need them.
    place: the buffer; picklable, for tasks.
    dry_run: commit nothing.
    metrics: the source's.
    """

    dagster: dg.AssetExecutionContext
    planned: tuple[RangeObject, ...]
    place: BufferPlace
    dry_run: bool
    expired: tuple[SequenceRange, ...] = ()
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def run_id(self) -> str:
        return self.dagster.run.run_id

    @property
    def log(self) -> dg.DagsterLogManager:
        return self.dagster.log

    def land(self, spark: SparkSession, table: LakeTable, dead_letters: LakeTable | None = None) -> Iterator[Outcome]:
        """Put the ranges into a table as they are: one Spark job, one commit each. Checked before it is committed.

        dead_letters: where quarantined batches are told, which ranges land without; `dead_letters` beside the table
            unless given.
        """
        from objbuf_dagster.orchestration.landing import land

        return land(self, spark, table, dead_letters)

    def decode(
        self,
        spark: SparkSession,
        lake: LakeResource,
        decoder: Decoder,
        *,
        on_error: OnError = "dead_letter",
        table: str | None = None,
        entries: str = "entries",
        dead_letters: str = "dead_letters",
        metrics: Metrics | None = None,
    ) -> Iterator[Outcome]:
        """Put what the decoder makes of the ranges, as they are in `entries`, into a typed table and dead letters.

        on_error: `dead_letter` keeps an entry that cannot be decoded aside, `fail` fails its range, `skip` drops it.
        table: of the rows, the asset's name unless given.
        dead_letters: the table, and the asset that is materialised with it. Another asset with a decoder of the same
            name needs another one: a range with letters that were kept for another table fails, whatever `on_error`
            says, unless the decoder's version was counted up since.
        metrics: counts rows, dead letters, and entries that were dropped; the source's unless given.

        An asset that does nothing else has `batches=False`: its ranges can be decoded while `entries` has them.
        """
        from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
        from objbuf_dagster.orchestration.decoding import decode
        from objbuf_dagster.spark.decoding import typed_schema

        name = table or "_".join(self.dagster.asset_key.path)
        return decode(
            self,
            spark,
            lake.table(entries),
            decoder,
            lake.table(name, typed_schema(decoder)),
            lake.table(dead_letters, DEAD_LETTERS),
            on_error=on_error,
            letters_asset=dg.AssetKey(dead_letters),
            metrics=metrics,
        )


RangeFunction = Callable[..., Iterable[Outcome]]


def range_asset(
    source: BufferSource,
    *,
    name: str | None = None,
    checks: Sequence[str] = (),
    deps: Sequence[Any] | None = None,
    batches: bool = True,
    pool: str | None = "objbuf",
    retries: int = 3,
    retry_seconds: float = 5.0,
    backfill_policy: dg.BackfillPolicy | None = None,
    group_name: str | None = None,
    kinds: set[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    code_version: str | None = None,
) -> Callable[[RangeFunction], dg.AssetsDefinition]:
    """An asset that has a partition for each range of the buffer.

        @range_asset(source)
        def entries(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterable[Outcome]:
            return context.land(spark.session, lake.table("entries"))

    The function gets a RangeContext, and the resources that its other parameters name. It gives one RangeResult or
    RangeFailure for each planned range; one that it says nothing about has failed, and so have all that are left when
    it raises. It must put exactly the rows of a range in place of those that are there of it already, since any range
    may come again.

    checks: names of the checks that each result brings.
    deps: what is upstream, the buffer unless given.
    batches: whether the function reads the batches of its ranges. If not, ranges whose batches have expired are no
        failures, but in the context's `expired`.
    pool: limits how many such steps run at a time, as the instance says; None for no limit.
    retries, retry_seconds: within the run, for what may pass by itself; the pause doubles each time.
    backfill_policy: a single run for many ranges unless given.
    The rest is passed on to Dagster.
    """
    if retries < 0 or retry_seconds < 0:
        raise InvalidInput(f"retries and their pause must not be negative: {retries}, {retry_seconds}")

    def decorate(function: RangeFunction) -> dg.AssetsDefinition:
        key = dg.AssetKey.from_user_string(name or function.__name__)
        resources = list(inspect.signature(function).parameters)[1:]

        def compute(context: dg.AssetExecutionContext, config: RangeConfig) -> Generator[Any, None, None]:
            chosen = {one: getattr(context.resources, one) for one in resources}
            step = _Step(context, key, source, tuple(checks), batches, config.dry_run, retries, retry_seconds)
            yield from step.run(functools.partial(function, **chosen))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)  # backfill policies are called that
            return dg.asset(
                key=key,
                description=inspect.getdoc(function),
                partitions_def=source.partitions,
                required_resource_keys={source.name, *resources},
                deps=list(deps) if deps is not None else [source.key],
                hooks={ack_hook(source)} if source.ack == "auto" and key in source.gates else None,
                check_specs=[dg.AssetCheckSpec(check, asset=key) for check in checks],
                backfill_policy=backfill_policy or dg.BackfillPolicy.single_run(),
                output_required=False,  # a dry run materialises nothing
                pool=pool,
                group_name=group_name or source.name,
                kinds=kinds,
                metadata=metadata,
                tags=tags,
                code_version=code_version,
            )(resolved(compute))

    return decorate


@dataclass(frozen=True, slots=True)
class _Step:
    context: dg.AssetExecutionContext
    key: dg.AssetKey
    source: BufferSource
    checks: tuple[str, ...]
    batches: bool
    dry_run: bool
    retries: int
    retry_seconds: float

    def run(self, function: Callable[[RangeContext], Iterable[Outcome]]) -> Generator[Any, None, None]:
        buffer: BufferResource = getattr(self.context.resources, self.source.name)
        planned, outcomes = self._read(buffer)
        expired = tuple(one for one, found in outcomes.items() if not self.batches and _has_expired(found))
        if planned or expired:
            context = RangeContext(self.context, planned, buffer.place(), self.dry_run, expired, self.source.metrics)
            outcomes.update(self._called(function, context))
        failures = {one.range: one.error for one in outcomes.values() if isinstance(one, RangeFailure)}
        results = {one.range: one for one in outcomes.values() if isinstance(one, RangeResult)}
        said = _said(results, planned)
        if failures:
            self._retry_if_it_may_pass(failures)
        if self.dry_run and not failures:
            self._say_what_it_would_have_done(buffer, results)
        yield from self._check_results(results, failures)
        if failures:
            self._materialise(said)
            raise _failure(failures, len(outcomes))
        if not self.dry_run:
            for one, metadata in said.items():
                self.context.add_asset_metadata(metadata, asset_key=self.key, partition_key=one.key)
            yield dg.MaterializeResult(asset_key=self.key)

    def _materialise(self, said: Mapping[SequenceRange, Mapping[str, Any]]) -> None:
        """At once, for a step that does not end well. One that does leaves it to Dagster, which knows the versions."""
        if not self.dry_run:
            for one, metadata in sorted(said.items()):
                self.context.log_event(dg.AssetMaterialization(self.key, partition=one.key, metadata=dict(metadata)))

    def _read(self, buffer: BufferResource) -> tuple[tuple[RangeObject, ...], dict[SequenceRange, Outcome]]:
        """The range objects of the partitions, and those that have none: expired, or of another buffer."""
        ledger = buffer.ledger()

        def read(wanted: SequenceRange) -> RangeObject | RangeFailure:
            try:
                return ledger.read(wanted)
            except ObjbufError as error:
                return RangeFailure(wanted, error)

        with ThreadPoolExecutor(_READERS) as pool:
            found = list(pool.map(read, sorted(map(SequenceRange.from_key, self.context.partition_keys))))
        planned = tuple(one for one in found if isinstance(one, RangeObject))
        return planned, {one.range: one for one in found if isinstance(one, RangeFailure)}

    def _called(
        self, function: Callable[[RangeContext], Iterable[Outcome]], context: RangeContext
    ) -> dict[SequenceRange, Outcome]:
        """What the function says of each range."""
        outcomes: dict[SequenceRange, Outcome] = {}
        wanted = {*map(range_of, context.planned), *context.expired}
        reason: BaseException = InvalidInput(f"the function of {self.key.to_user_string()} gave no result for it")
        try:
            for outcome in function(context):
                if outcome.range not in wanted:
                    raise InvalidInput(f"the function gave a result for range {outcome.range}, which was not asked for")
                if not isinstance(outcomes.get(outcome.range), RangeFailure):  # which no later word makes good
                    outcomes[outcome.range] = self._checked(outcome)
        except dg.RetryRequested:
            raise
        except Exception as error:  # noqa: BLE001  what has succeeded until then is materialised, then the step fails
            reason = error
        except BaseException:  # cancelled, or told to end: what has landed need not land again
            results = {one: found for one, found in outcomes.items() if isinstance(found, RangeResult)}
            self._materialise(_said(results, context.planned))
            raise
        return {one: outcomes.get(one) or RangeFailure(one, reason) for one in wanted}

    def _checked(self, outcome: Outcome) -> Outcome:
        """Fails a result with a failed or a missing check."""
        if isinstance(outcome, RangeFailure):
            return outcome
        brought = sorted(check.name for check in outcome.checks)
        if brought != sorted(self.checks):
            error = InvalidInput(f"a result needs the checks {sorted(self.checks)}, and brought {brought}")
            return RangeFailure(outcome.range, error)
        if any(not check.passed for check in outcome.checks):
            return RangeFailure(outcome.range, CheckFailed(outcome.range.key, tuple(outcome.checks)))
        return outcome

    def _retry_if_it_may_pass(self, failures: Mapping[SequenceRange, BaseException]) -> None:
        """All ranges come again then, those that succeeded too: they are replaced by the same rows."""
        tried = self.context.retry_number
        if tried < self.retries and all(isinstance(error, _TRANSIENT) for error in failures.values()):
            pause = min(self.retry_seconds * 2**tried, _LONGEST_PAUSE)
            self.context.log.warning("tried again in %g s: %s", pause, _told(failures))
            first = next(iter(failures.values()))
            raise dg.RetryRequested(max_retries=self.retries, seconds_to_wait=pause) from first

    def _check_results(
        self, results: Mapping[SequenceRange, RangeResult], failures: Mapping[SequenceRange, BaseException]
    ) -> Iterator[dg.AssetCheckResult]:
        """One per check, of all ranges that got as far as being checked."""
        by_range = {one: result.checks for one, result in results.items()}
        by_range |= {one: error.checks for one, error in failures.items() if isinstance(error, CheckFailed)}
        for name in self.checks:
            done = {one: check for one, found in by_range.items() for check in found if check.name == name}
            if not done:
                continue
            failed = {one: check for one, check in done.items() if not check.passed}
            shown = failed or done
            yield dg.AssetCheckResult(
                asset_key=self.key,
                check_name=name,
                passed=not failed,
                description="; ".join(f"{one}: {shown[one].description}" for one in sorted(shown)[:_NAMED]),
                metadata={
                    "ranges": len(done),
                    "failed_ranges": ", ".join(one.key for one in sorted(failed)),
                    "dry_run": self.dry_run,
                    **(next(iter(done.values())).metadata if len(done) == 1 else {}),
                },
            )

    def _say_what_it_would_have_done(
        self, buffer: BufferResource, results: Mapping[SequenceRange, RangeResult]
    ) -> None:
        for one, result in sorted(results.items()):
            plain = {name: value for name, value in result.metadata.items() if isinstance(value, int | float | str)}
            self.context.log.info("dry run: range %s would have been committed and materialised: %s", one, plain)
        of_this_run = self.context.job_def.asset_layer.selected_asset_keys  # those downstream are skipped in a dry one
        would = would_ack(self.context.instance, self.source, buffer, results, of_this_run)
        self.context.log.info("dry run: nothing was committed, materialised or acked; else %s", would)


def _has_expired(outcome: Outcome) -> bool:
    return isinstance(outcome, RangeFailure) and isinstance(outcome.error, RangeExpired)


def _said(
    results: Mapping[SequenceRange, RangeResult], planned: Sequence[RangeObject]
) -> dict[SequenceRange, dict[str, Any]]:
    """The metadata of each result's materialisation. Of what has expired nobody knows the last batch, nor needs to."""
    last = {range_of(one): {LAST_BATCH: last_batch(one)} for one in planned}
    return {one: {**result.metadata, **last.get(one, {})} for one, result in results.items()}


def _failure(failures: Mapping[SequenceRange, BaseException], total: int) -> dg.Failure:
    failure = dg.Failure(
        f"{len(failures)} of {total} ranges failed: {_told(failures)}" if total > 1 else _told(failures),
        metadata={one.key: _words(error)[:1000] for one, error in sorted(failures.items())[:100]},
        allow_retries=False,
    )
    failure.__cause__ = next(iter(failures.values()))
    return failure


def _told(failures: Mapping[SequenceRange, BaseException]) -> str:
    shown = sorted(failures.items())[:_NAMED]
    more = f"; and {len(failures) - len(shown)} more" if len(failures) > len(shown) else ""
    return "; ".join(f"range {one}: {_words(error)}" for one, error in shown) + more


def _words(error: BaseException) -> str:
    """Ours are sentences; others may be a word or nothing without their name."""
    return str(error) if isinstance(error, ObjbufError) else f"{type(error).__name__}: {error}".removesuffix(": ")
