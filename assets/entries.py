"""Every entry of the buffer, as it was produced."""

from collections.abc import Iterable

from assets.source import source
from objbuf_dagster.lake import CHECKS
from objbuf_dagster.orchestration import LakeResource, Outcome, RangeContext, SparkResource, range_asset


@range_asset(source, checks=CHECKS, kinds={"spark", "deltalake"})
def entries(context: RangeContext, spark: SparkResource, lake: LakeResource) -> Iterable[Outcome]:
    """Every entry of the buffer, as it was produced: a Delta table with one partition per range."""
    return context.land(spark.session, lake.table("entries"))
