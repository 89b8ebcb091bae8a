"""What a deployment does besides landing: garbage collection, upkeep of the lake, and a look over whole tables.

Each is a job with a schedule. Collecting garbage is off until somebody turns it on: it deletes batches, which exist
nowhere else once their range has expired. Upkeep and the check are on: they delete only files that no table names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from pydantic import Field

from objbuf_dagster.buffer import GarbageCollector
from objbuf_dagster.buffer.gc import DEFAULT_GRACE_SECONDS
from objbuf_dagster.errors import StorageError
from objbuf_dagster.orchestration.chain import still_there
from objbuf_dagster.orchestration.observations import held
from objbuf_dagster.orchestration.resources import BufferResource, LakeResource
from objbuf_dagster.orchestration.source import BufferSource, resolved
from objbuf_dagster.ranges import range_of

_SHOWN = 20

Job = dg.JobDefinition | UnresolvedAssetJobDefinition


class CollectConfig(dg.Config):
    """One pass of garbage collection."""

    dry_run: bool = Field(default=False, description="Delete nothing, and say what would be deleted.")
    grace_seconds: float = Field(
        default=DEFAULT_GRACE_SECONDS, ge=0, description="Batches younger than this many seconds are never deleted."
    )
    retention_seconds: float | None = Field(
        default=None,
        ge=0,
        description="How many seconds acked ranges can be replayed. What the last pass used, 7 days at first.",
    )


class UpkeepConfig(dg.Config):
    """Upkeep of the lake's tables."""

    dry_run: bool = Field(default=False, description="Delete nothing, and say how much would be deleted.")
    retention_hours: float = Field(
        default=168.0, ge=1, description="Hours for which older versions of a table can be read, and landings may take."
    )


def collect_job(source: BufferSource) -> dg.JobDefinition:
    """Deletes the batches that no manifest entry and no retained range names; only while this deployment owns them."""

    def collect(context: dg.OpExecutionContext, config: CollectConfig) -> None:
        buffer: BufferResource = getattr(context.resources, source.name)
        ours = held(context.instance, source, buffer.identity())
        still_there(buffer.ledger(), ours.known, ours.known_batch)
        collector = GarbageCollector(
            buffer.store(),
            buffer.manifest_path,
            buffer.data_prefix,
            epoch=ours.epoch,
            grace_seconds=config.grace_seconds,
            retention_seconds=config.retention_seconds,
        )
        report = collector.collect_once(dry_run=config.dry_run)
        for path in report.deleted[:_SHOWN]:
            context.log.info("%s %s", "would delete" if config.dry_run else "deleted", path)
        context.log.info(
            "%s %d batches, %d bytes; %d ranges expired",
            "would delete" if config.dry_run else "deleted",
            len(report.deleted),
            report.bytes,
            report.expired_ranges,
        )
        context.add_output_metadata(
            {
                "batches": len(report.deleted),
                "bytes": report.bytes,
                "expired_ranges": report.expired_ranges,
                "dry_run": config.dry_run,
            }
        )
        if report.failed:
            path, error = next(iter(report.failed.items()))
            raise StorageError(
                f"{len(report.failed)} objects could not be deleted, the next pass tries again; the first is {path}: "
                f"{error}"
            )

    return _job(f"collect_{source.name}", collect, {source.name}, str(collect_job.__doc__))


def upkeep_job(tables: Sequence[str], lake: str = "lake", name: str = "lake_upkeep") -> dg.JobDefinition:
    """Writes checkpoints, and deletes what no version of the tables within the retention has."""

    def maintain_tables(context: dg.OpExecutionContext, config: UpkeepConfig) -> None:
        from objbuf_dagster.lake import maintain

        resource: LakeResource = getattr(context.resources, lake)
        done: dict[str, int] = {}
        for table in tables:
            report = maintain(
                resource.any_table(table), retention=config.retention_hours * 3600, dry_run=config.dry_run
            )
            context.log.info(
                "%s: %s %d files, %d bytes, and %d files of its log",
                table,
                "would delete" if config.dry_run else "deleted",
                report.files_deleted,
                report.bytes_freed,
                report.log_files_deleted,
            )
            if report.foreign_files:
                context.log.warning(
                    "%s: left %d old files alone that no landing in this table wrote, the first is %s",
                    table,
                    report.foreign_files,
                    report.first_foreign,
                )
            done |= {f"{table}_files": report.files_deleted, f"{table}_bytes": report.bytes_freed}
        context.add_output_metadata({**done, "dry_run": config.dry_run})

    return _job(name, maintain_tables, {lake}, str(upkeep_job.__doc__))


def _job(name: str, function: Callable[..., None], resources: set[str], description: str) -> dg.JobDefinition:
    op = dg.op(name=name, required_resource_keys=resources, out=dg.Out(dg.Nothing))(resolved(function))
    return dg.GraphDefinition(name=f"{name}_job", node_defs=[op], description=description).to_job(
        executor_def=dg.in_process_executor
    )


def table_checks(
    source: BufferSource, asset: dg.AssetKey | str, table: str, lake: str = "lake", *, decoded_from: str | None = None
) -> dg.AssetChecksDefinition:
    """Over a whole table, from its metadata: what was acked is there, no hole is between ranges, nothing is twice.

    decoded_from: the table of entries that this one is decoded from: then also that it was, as that is now.
    """
    from objbuf_dagster.lake.checks import TABLE_CHECKS
    from objbuf_dagster.lake.decoded_from import UP_TO_DATE

    key = dg.AssetKey.from_user_string(asset) if isinstance(asset, str) else asset

    def check(context: dg.AssetCheckExecutionContext) -> Any:
        from objbuf_dagster.lake.checks import check_table
        from objbuf_dagster.lake.decoded_from import check_decoded_from

        buffer: BufferResource = getattr(context.resources, source.name)
        resource: LakeResource = getattr(context.resources, lake)
        frontier = buffer.peek().frontier  # first: what is acked by then must be in the table that is read after
        planned = [range_of(one) for one in buffer.ledger().list()]
        snapshot = resource.any_table(table).snapshot()
        results = check_table(snapshot, planned, frontier)
        if decoded_from is not None:
            results += (check_decoded_from(snapshot, resource.any_table(decoded_from).snapshot()),)
        for found in results:
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name=found.name,
                passed=found.passed,
                description=found.description,
                metadata=dict(found.metadata),
            )

    names = TABLE_CHECKS if decoded_from is None else (*TABLE_CHECKS, UP_TO_DATE)
    return dg.multi_asset_check(
        name=f"{'__'.join(key.path)}_table_checks",
        specs=[dg.AssetCheckSpec(name, asset=key) for name in names],
        required_resource_keys={source.name, lake},
    )(resolved(check))


def schedules(collect: dg.JobDefinition, *nightly: Job) -> list[dg.ScheduleDefinition]:
    """Garbage each hour (off), the others each night, one after the other (on)."""
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(job=collect, cron_schedule="17 * * * *", default_status=stopped),
        *(
            dg.ScheduleDefinition(job=job, cron_schedule=f"{23 + 20 * number} 3 * * *", default_status=running)
            for number, job in enumerate(nightly)
        ),
    ]
