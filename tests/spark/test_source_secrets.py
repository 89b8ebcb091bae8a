"""Credentials show nowhere: not in plans, logs, errors, Spark's pages, nor its event log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import NotFound
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.spark.landing import land
from objbuf_dagster.spark.reading import read
from objbuf_dagster.store import open_store
from tests.support.buffers import append, fill
from tests.support.s3 import S3Location

REPOSITORY = Path(__file__).parents[2]
MARK = "m4rk0f4s3cret"
HIDDEN_HOST = "hidden-by-redaction"

_JOB = """
import json, sys, urllib.request
from pyspark.errors import PySparkException
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import Limits, RangeLedger, plan
from objbuf_dagster.spark.landing import land
from objbuf_dagster.spark.reading import read as read_table
from objbuf_dagster.spark.session import session
from objbuf_dagster.spark.source import register
from objbuf_dagster.store import open_store

url, broken, endpoint, region, events, mark, hidden = sys.argv[1:]
config = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": events,
    "spark.log.level": "INFO",
}

def use(frame):
    frame.explain(extended=True)
    frame.explain("formatted")
    print(frame._jdf.queryExecution().toString(), frame._jdf.queryExecution().logical().treeString())
    print("rows:", frame.where("_odb_sequence >= 0").count())

def fails(action):
    try:
        action()
    except (PySparkException, ObjbufError) as error:
        print("failed:", error)
    else:
        raise AssertionError("that should have failed")

def view(name, **options):
    listed = ", ".join(f"'{key}' '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING objbuf OPTIONS ({listed})")

with session(master="local[1]", config=config) as spark:
    plain = {"buffer": url, "since_frontier": "true", "storage.endpoint": endpoint, "storage.region": region}
    read = lambda **more: spark.read.format("objbuf").options(**{**plain, **more}).load()

    use(read())  # with what the environment has
    keys = {"access_key_id": mark, "secret_access_key": mark, "token": mark}
    register(spark, storage=keys)
    use(read())
    view("of_entries", **plain)
    use(spark.table("of_entries"))
    fails(lambda: read(buffer=broken).collect())
    keys_as_options = {"storage.aws_secret_access_key": mark, "storage.account_key": mark}
    fails(lambda: read(**keys_as_options))
    fails(lambda: view("refused", **plain, **keys_as_options))
    fails(lambda: read(**{"storage.endpoint": f"http://user:{mark}@{hidden}"}))
    fails(lambda: view("hidden", **{**plain, "storage.endpoint": f"no-address-{hidden}"}))

    def landed(url):
        settings = {"endpoint": endpoint, "region": region, **keys}
        place, table = BufferPlace(open_store(url, options=settings)), LakeTable(f"{url}/lake", options=settings)
        print(place, table)
        [planned] = plan(place.manifests(), RangeLedger(place.store), Limits(max_wait=0))
        print(land(spark, place, planned, table, verify=True))
        return read_table(spark, table)
    use(landed(url))
    fails(lambda: landed(broken))

    base, app = spark.sparkContext.uiWebUrl, f"/api/v1/applications/{spark.sparkContext.applicationId}"
    def page(path):
        with urllib.request.urlopen(base + path) as answer:
            text = answer.read().decode()
        print("page:", path, text)
        return text
    executions = json.loads(page(f"{app}/sql?details=true&planDescription=true&length=1000"))
    assert any("objbuf" in execution["planDescription"] for execution in executions)
    for path in ("environment", "jobs", "stages?details=true", "allexecutors"):
        page(f"{app}/{path}")
    for path in ("jobs", "stages", "SQL", "environment", "executors"):
        page(f"/{path}/")
    for execution in executions:
        page(f"/SQL/execution/?id={execution['id']}")
"""


@pytest.fixture(scope="module")
def shown(trusting_s3_root: S3Location, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All that a job with credentials says anywhere, by where."""
    good, broken = trusting_s3_root.fresh(), trusting_s3_root.fresh()
    fill(good.open(), 2)
    append(broken.open(), "ingest/missing.batch")
    events = tmp_path_factory.mktemp("events")
    environment = {"AWS_ACCESS_KEY_ID": MARK, "AWS_SECRET_ACCESS_KEY": MARK, "AWS_SESSION_TOKEN": MARK}
    arguments = [good.url, broken.url, good.options["endpoint"], good.options["region"], events.as_uri()]
    ran = subprocess.run(
        [sys.executable, "-c", _JOB, *arguments, MARK, HIDDEN_HOST],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    logged = "".join(file.read_text() for file in sorted(events.rglob("events_*")))
    return {"output": ran.stdout, "log": ran.stderr, "event log": logged}


def test_the_job_did_read_and_was_looked_at_everywhere(shown: dict[str, str]) -> None:
    assert shown["output"].count("rows: 2") == 4
    assert "BatchScan objbuf" in shown["output"]
    assert "INFO" in shown["log"]
    assert "BatchScan objbuf" in shown["event log"]
    assert "Landed(range=" in shown["output"]
    assert "MapInArrow" in shown["event log"]


@pytest.mark.parametrize("place", ["output", "log", "event log"])
def test_credentials_show_nowhere(shown: dict[str, str], place: str) -> None:
    lines = [line for line in shown[place].splitlines() if MARK in line]

    assert lines == []


@pytest.mark.parametrize("place", ["output", "event log"])
def test_other_settings_of_the_store_are_not_in_plans_either(shown: dict[str, str], place: str) -> None:
    assert HIDDEN_HOST not in shown[place]


def test_a_refused_credential_is_told_where_it_belongs(shown: dict[str, str]) -> None:
    assert "the option 'storage.aws_secret_access_key' may be a credential" in shown["output"]
    assert "register(spark, storage={...})" in shown["output"]


def test_a_request_to_a_server_is_logged_without_settings_of_the_store(spark: SparkSession) -> None:
    """A Spark Connect server writes requests down as this text before anything of ours could refuse them."""
    proto = pytest.importorskip("pyspark.sql.connect.proto")
    request = proto.Read()
    request.data_source.format = "objbuf"
    request.data_source.options["buffer"] = "s3://bucket"
    request.data_source.options["storage.account_key"] = f'"{MARK}\\" \n{MARK}'

    hidden = re.sub(spark.conf.get("spark.sql.redaction.string.regex") or "", "...", str(request))

    assert MARK in str(request)
    assert MARK not in hidden
    assert "s3://bucket" in hidden


def test_a_server_that_lands_and_reads_does_not_log_credentials(
    connect_spark: SparkSession, connect_directory: Path, trusting_s3: S3Location
) -> None:
    options = {**trusting_s3.options, "access_key_id": MARK, "secret_access_key": MARK, "token": MARK}
    place = BufferPlace(open_store(trusting_s3.url, options=options))
    table = LakeTable(f"{trusting_s3.url}/lake", options=options)
    fill(place.store, 2)
    append(place.store, "ingest/missing.batch")
    good, broken = plan(place.manifests(), RangeLedger(place.store), Limits(max_batches=2, max_wait=0))

    assert land(connect_spark, place, good, table).rows == 2
    with pytest.raises(NotFound):
        land(connect_spark, place, broken, table)
    assert read(connect_spark, table).count() == 2

    log = (connect_directory / "log").read_text()
    assert "Spark Connect server started" in log
    assert MARK not in log
