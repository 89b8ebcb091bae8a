"""A lake in a bucket as Spark itself reads it, with Hadoop's own jar for s3a.

Spark fetches that jar by its name from Maven Central, and 670 MB with it, so this runs if OBJBUF_TEST_S3A=1 only;
they are kept in OBJBUF_TEST_S3A_IVY, if that is set.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.lake import LakeTable
from objbuf_dagster.spark.landing import land
from objbuf_dagster.store import LocalStore
from tests.spark.landing import fill, rows_in
from tests.spark.processes import python
from tests.spark.rows import batch, entries
from tests.support.hdfs import hadoop, jdk_named
from tests.support.s3 import S3Location

pytestmark = pytest.mark.skipif(
    os.environ.get("OBJBUF_TEST_S3A") != "1", reason="fetches 670 MB: OBJBUF_TEST_S3A=1 wants it"
)

ROOT = Path(__file__).parents[2]

_READ = """
import json, os
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.spark.reading import read
from objbuf_dagster.spark.session import session
from tests.spark.landing import rows_in

url, options, config, keys = json.loads(os.environ["GIVEN"])
table = LakeTable(url, options=options)
with session(master="local[2]", config=config) as spark:
    native = read(spark, table)
    assert native.inputFiles() and all(name.startswith("s3a://") for name in native.inputFiles()), native.inputFiles()
    assert rows_in(spark, table) == rows_in(spark, table, native=False)
    one = read(spark, table, keys[:1])
    print(native.count(), one.count(), one.filter("_odb_sequence < 0").count())
"""


@pytest.mark.timeout(1800)
def test_spark_reads_a_lake_in_a_bucket_through_s3a(spark: SparkSession, s3: S3Location, tmp_path: Path) -> None:
    filled = fill(LocalStore(tmp_path / "buffer"), [batch(n, entries(500, 200, seed=n)) for n in range(4)], per_range=2)
    place = s3.below("lake/a b")  # names that need escaping somewhere
    table = LakeTable(place.url, options=place.options)
    for planned in filled.ranges:
        land(spark, filled.place, planned, table)
    assert rows_in(spark, table, native=False) == filled.rows()
    settings = {
        "access.key": s3.options["access_key_id"],
        "secret.key": s3.options["secret_access_key"],
        "endpoint": s3.options["endpoint"],
        "endpoint.region": s3.options["region"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    config = {
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()},
        "spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{hadoop()}",
        "spark.jars.ivy": os.environ.get("OBJBUF_TEST_S3A_IVY", str(tmp_path / "ivy")),
    }
    given = json.dumps([place.url, dict(place.options), config, list(table.ranges())])
    (tmp_path / "reader").mkdir()

    reader = python(_READ, tmp_path / "reader", GIVEN=given, PYTHONPATH=str(ROOT), **jdk_named())
    output, errors = reader.communicate(timeout=1500)

    assert reader.returncode == 0, errors[-5000:]
    assert output.splitlines()[-1].split() == ["2000", "1000", "0"], output  # a JVM may have warned before
