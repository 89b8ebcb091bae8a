"""Assets that hold the latest state of keys: what a fold makes of all ranges of a typed table.

Such an asset has no partitions. Put into the assets of `buffer_definitions` it is part of the landing job, behind the
table that it reads: each run, whichever range it was started for, ends with applying all that is due, in order. Of runs
that end at the same time one applies, and the others find that it is done. So a range that lands late, or a step that
failed, is made good by the next run; the sensor starts one for the state alone if no range is to run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from objbuf_dagster.errors import InvalidInput, ObjbufError
from objbuf_dagster.lake.state import BUCKETS, TRIES, StateTable
from objbuf_dagster.orchestration.catching_up import NEXT_SEQUENCE, STATE_TAG
from objbuf_dagster.orchestration.resources import BufferResource, LakeResource
from objbuf_dagster.orchestration.source import BufferSource, resolved

if TYPE_CHECKING:
    from objbuf_dagster.decode import Decoder
    from objbuf_dagster.lake.fold import Fold, Scope
    from objbuf_dagster.lake.state_run import StateReport

_GAPS_SHOWN = 10


class StateConfig(dg.Config):
    """What a run of a state asset can be told, in the launchpad or as run config."""

    rebuild: bool = Field(
        default=False,
        description=(
            "Make the state again from `entries`, in one transaction, instead of going on from its cursor. Keys that "
            "are gone are taken out. Of JSON, which only Spark decodes, it is made from the typed table."
        ),
    )
    over_gaps: bool = Field(
        default=False,
        description=(
            "With rebuild: pass over sequences that are not in `entries`, also those that are still to land. Gaps that "
            "the buffer is sure of are passed over anyway."
        ),
    )


def state_asset(
    source: BufferSource,
    fold: Fold,
    decoder: Decoder,
    *,
    of: str = "otel_logs",
    name: str | None = None,
    entries: str = "entries",
    scope: Scope | None = None,
    buckets: int = BUCKETS,
    tries: int = TRIES,
    lake: str = "lake",
    description: str | None = None,
    group_name: str | None = None,
    kinds: set[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.AssetsDefinition:
    """An asset whose table has one row per key.

        service_latest = state_asset(source, ServiceLatest(), OtlpLogs())

    decoder: that the typed table is made with: its columns, and what a rebuild decodes `entries` with. JSON, which only
        Spark decodes, a rebuild takes from the typed table instead.
    of: the asset whose rows are folded, and its table. entries: the table that this is decoded from.
    name: of the asset and its table, the fold's unless given.
    scope: which keys it has, all unless given. buckets: parts of the table, see `StateTable`.
    tries: how often each step is tried while storage fails.
    The rest is passed on to Dagster.
    """
    if tries < 1:
        raise InvalidInput(f"a state needs at least one try: {tries}")
    key = dg.AssetKey.from_user_string(name or fold.name)
    table = "_".join(key.path)

    def compute(context: dg.AssetExecutionContext, config: StateConfig) -> dg.MaterializeResult[Any]:
        from objbuf_dagster.decode import JsonDecoder, decode_block, rows_schema
        from objbuf_dagster.lake import TableSchema
        from objbuf_dagster.lake.location import check_apart
        from objbuf_dagster.lake.state_run import Sources, catch_up, rebuild

        started = time.perf_counter()
        buffer: BufferResource = getattr(context.resources, source.name)
        tables: LakeResource = getattr(context.resources, lake)
        state = StateTable.at(tables.table(table), fold, scope, buckets=buckets)
        sources = Sources(
            tables.table(_table_of(of), TableSchema.from_arrow(rows_schema(decoder))),
            tables.table(_table_of(entries)),
            buffer.ledger(),
            buffer.identity(),
        )
        rebuilt: StateReport | None = None
        try:
            check_apart(state.store, state.name, buffer.place())
            if config.rebuild:
                by_spark = isinstance(decoder, JsonDecoder)
                rebuilt = rebuild(
                    state,
                    sources,
                    None if by_spark else lambda block: (rows for rows, _ in decode_block(decoder, block)),
                    over_gaps=config.over_gaps,
                    run_id=context.run.run_id,
                    tries=tries,
                )
                context.log.info("rebuilt from %d ranges, %d rows", rebuilt.ranges, rebuilt.rows)
                if rebuilt.waiting:
                    context.log.warning("the rebuild ended there: %s", rebuilt.waiting)
            report = catch_up(state, sources, run_id=context.run.run_id, tries=tries)
        except ObjbufError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        for done in filter(None, [rebuilt, report]):
            if done.begins:
                context.log.warning(done.begins)
        if report.waiting:
            context.log.info("nothing more can be applied: %s", report.waiting)
        if report.stale:
            context.log.warning(report.stale)
        return dg.MaterializeResult(asset_key=key, metadata=numbers(report, rebuilt, time.perf_counter() - started))

    return dg.asset(
        key=key,
        description=description or type(fold).__doc__,
        required_resource_keys={source.name, lake},
        deps=[dg.AssetKey.from_user_string(of)],
        group_name=group_name or source.name,
        kinds=kinds,
        metadata=metadata,
        tags={**(tags or {}), STATE_TAG: source.name},
        code_version=str(fold.version),
    )(resolved(compute))


def numbers(report: StateReport, rebuilt: StateReport | None, seconds: float) -> dict[str, Any]:
    """What is worth a plot, and where the state is."""
    done = [report] if rebuilt is None else [rebuilt, report]
    found: dict[str, Any] = {
        "ranges_applied": sum(one.ranges for one in done),
        "rows_applied": sum(one.rows for one in done),
        "commits": sum(one.commits for one in done),
        "rebuilt": rebuilt is not None,
        "rows_changed_since": report.changed,
        "seconds": round(seconds, 3),
    }
    if report.cursor is not None:
        found |= {
            "keys": report.cursor.keys,
            "first_sequence": report.cursor.first_sequence,
            "last_range": report.cursor.last_range,
            NEXT_SEQUENCE: report.cursor.next_sequence,
            "ranges": report.cursor.ranges,
            "fold_version": report.cursor.fold_version,
            "table_version": report.version,
        }
        if report.cursor.gaps:
            found["gaps"] = ", ".join(f"{first}-{last}" for first, last in report.cursor.gaps[-_GAPS_SHOWN:])
    for one in done:
        if one.begins:
            found["begins"] = one.begins
    if report.waiting:
        found["waiting"] = report.waiting
    if report.stale:
        found["stale"] = report.stale
    return found


def _table_of(asset: str) -> str:
    return "_".join(dg.AssetKey.from_user_string(asset).path)
