"""The Spark side: batches to Parquet pages, the data source, landing. Nothing here knows Dagster."""

from objbuf_dagster.spark.json_inferring import InferredJson, infer_json
from objbuf_dagster.spark.landing import Failed, Landed, land, land_all
from objbuf_dagster.spark.reading import read
from objbuf_dagster.spark.session import prepare, session, set_environment
from objbuf_dagster.spark.shipping import ExecutorNotReady, executor_errors, ship
from objbuf_dagster.spark.source import register

__all__ = [
    "ExecutorNotReady",
    "Failed",
    "InferredJson",
    "Landed",
    "executor_errors",
    "infer_json",
    "land",
    "land_all",
    "prepare",
    "read",
    "register",
    "session",
    "set_environment",
    "ship",
]
