"""The Spark side: batches to Parquet pages, the data source, landing. Nothing here knows Dagster."""

from objbuf_dagster.spark.session import prepare, session, set_environment
from objbuf_dagster.spark.shipping import ExecutorNotReady, executor_errors, ship

__all__ = ["ExecutorNotReady", "executor_errors", "prepare", "session", "set_environment", "ship"]
