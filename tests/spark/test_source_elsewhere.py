"""The data source where the package is not installed: executors of their own, and a Spark Connect server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.spark.source import FORMAT
from objbuf_dagster.store import LocalStore
from tests.spark.landing import Filled, fill
from tests.spark.rows import Row, of_every_kind


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill(LocalStore(tmp_path / "buffer"), of_every_kind(), per_range=40)


def read(spark: SparkSession, directory: Path, condition: str = "true") -> list[Row]:
    """What the source gives, in several partitions."""
    options = {"buffer": directory.as_uri(), "since_frontier": "true", "partition_bytes": "1000000"}
    found = spark.read.format(FORMAT).options(**options).load().where(condition).toArrow()
    ordered = found.sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")])
    return list(zip(*(column.to_pylist() for column in ordered.columns), strict=True))


def test_executors_without_the_package_read_what_was_produced(
    cluster_spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    assert read(cluster_spark, tmp_path / "buffer") == filled.rows()
    assert read(cluster_spark, tmp_path / "buffer", "_odb_sequence >= 40") == filled.rows(1)


def test_a_connect_server_without_the_package_reads_what_was_produced(
    connect_spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    assert read(connect_spark, tmp_path / "buffer") == filled.rows()
    assert read(connect_spark, tmp_path / "buffer", "_odb_sequence >= 40") == filled.rows(1)
