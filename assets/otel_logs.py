"""The OpenTelemetry logs of the buffer, a row per record."""

from collections.abc import Iterable

from assets.entries import entries
from assets.source import source
from objbuf_dagster.decode import OtlpLogs
from objbuf_dagster.orchestration import LakeResource, Outcome, RangeContext, SparkResource, range_asset


@range_asset(source, deps=[entries], batches=False, kinds={"spark", "deltalake"})
def otel_logs(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterable[Outcome]:
    """The OpenTelemetry logs among the entries, a row per log record. What cannot be decoded is in `dead_letters`."""
    return context.decode(spark.session, lake, OtlpLogs())
