"""Sessions: what they are set to, which one one gets, and that nothing of them stays."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812, everybody's name for it

import objbuf_dagster
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.spark.session import is_secret, prepare, session
from objbuf_dagster.store import LocalStore
from tests.spark.landing import fill
from tests.spark.processes import descendants, is_alive, leftovers, python, wait_until
from tests.spark.rows import batch

if TYPE_CHECKING:
    import pyarrow as pa

_PACKAGE = Path(objbuf_dagster.__file__).parent


def worker_interpreters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys

    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [sys.executable]})


def test_session_is_local_quiet_and_in_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.master") == "local[2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    rows = spark.range(2).mapInArrow(worker_interpreters, "path string").collect()

    assert {row.path for row in rows} == {sys.executable}


def test_session_that_runs_is_used_and_left_alone(spark: SparkSession) -> None:
    with session() as again, session(master="local[2]", config={"spark.sql.session.timeZone": "UTC"}) as third:
        assert again is spark
        assert third is spark

    assert spark.range(3).count() == 3


def test_session_with_other_settings_than_the_one_that_runs_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"already runs in this process with spark\.master=local\[2\], not local"):
        session(master="local[4]").__enter__()
    with pytest.raises(InvalidInput, match=r"spark\.executor\.memory=None, not 2g"):
        session(config={"spark.executor.memory": "2g"}).__enter__()

    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"master": "local[1]", "remote": "sc://host"}, "not both"),
        ({"master": "local[1]", "config": {"spark.remote": "sc://host"}}, "not both"),
        ({"remote": "local[2]"}, "must be an address as sc://"),
        ({"master": "local[1]", "config": {"spark.master": "local[2]"}}, "spark.master is given twice"),
    ],
)
def test_session_refuses_what_contradicts_itself(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        session(**arguments).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "x"),
        ("spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "x"),
        ("spark.hadoop.fs.azure.sas.container.a", "x"),
        ("spark.jars.repositories", "https://host/a,https://me:word@host/b"),
        ("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:mysql://host/db?user=me&password=word"),
        ("spark.executor.extraJavaOptions", "-Xmx1g -Djavax.net.ssl.trustStorePassword=word"),
        ("spark.executor.extraJavaOptions", "-Daws.secretAccessKey=word"),
        ("spark.hadoop.somewhere", "https://a.blob.core.windows.net/c?sv=1&sig=word"),
    ],
)
def test_settings_that_hold_a_secret_are_known(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.executor.memory", "2g"),
        ("spark.jars.repositories", "https://host/a,https://host/b"),
        ("spark.executor.extraJavaOptions", "-Xmx1g -Dfile.encoding=UTF-8 -Dmonkey.business=no"),
        ("spark.eventLog.dir", "file:///tmp/x"),
        ("spark.redaction.regex", "(?i)secret|password|token"),
    ],
)
def test_other_settings_are_no_secrets(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_spark_hides_the_keys_that_it_does_not_know(spark: SparkSession) -> None:
    pattern = re.compile(str(spark.conf.get("spark.redaction.regex")))

    assert pattern.search("spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net")
    assert pattern.search("spark.hadoop.fs.azure.sas.container.a")
    assert pattern.search("https://me:word@host/b")
    assert not is_secret("spark.redaction.regex", pattern.pattern)  # else every session would be launched apart


def test_preparing_again_does_nothing(spark: SparkSession) -> None:
    before = sorted(Path(SparkFiles.getRootDirectory()).rglob("*"))

    assert prepare(spark) is spark

    assert sorted(Path(SparkFiles.getRootDirectory()).rglob("*")) == before
    assert not [entry for entry in sys.path if entry.endswith(".zip") and "userFiles" in entry]


def test_connect_session_is_prepared_and_leaves_the_process_as_it_was(connect_url: str) -> None:
    before = dict(os.environ)

    with session(config={"spark.remote": connect_url, "spark.sql.shuffle.partitions": "3"}) as spark:
        assert type(spark).__module__ == "pyspark.sql.connect.session"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
        assert prepare(spark) is spark
        assert spark.range(3).count() == 3

    assert dict(os.environ) == before


def test_connect_sessions_may_overlap_in_any_order(connect_url: str) -> None:
    before = dict(os.environ)
    first, second = session(remote=connect_url), session(remote=connect_url)

    first.__enter__()
    spark = second.__enter__()
    first.__exit__(None, None, None)

    assert spark.range(3).where(F.col("id") > 0).count() == 2
    second.__exit__(None, None, None)
    assert dict(os.environ) == before


def test_classic_session_can_follow_connect_sessions_that_overlapped(connect_url: str, tmp_path: Path) -> None:
    code = f"""
from objbuf_dagster.spark.session import session
first, second = session(remote={connect_url!r}), session(remote={connect_url!r})
first.__enter__(), second.__enter__()
first.__exit__(None, None, None), second.__exit__(None, None, None)
with session(master="local[1]") as spark:
    print(spark.range(3).count())
"""
    with python(code, tmp_path) as process:
        stdout, stderr = process.communicate()

    assert stdout == "3\n", stderr


def test_connect_session_that_could_not_start_leaves_the_process_as_it_was(connect_url: str) -> None:
    before = dict(os.environ)

    with session(remote=connect_url) as spark:
        with pytest.raises(PySparkException, match="INVALID_CONNECT_URL"):
            session(remote="sc://127.0.0.1/path").__enter__()
        assert spark.range(3).where(F.col("id") > 0).count() == 2

    assert dict(os.environ) == before


def test_second_session_of_an_application_says_that_it_has_no_source(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    second = spark.newSession()

    assert prepare(second) is second

    [record] = [record for record in caplog.records if record.name == "objbuf_dagster.spark.session"]
    assert record.levelname == "WARNING"
    assert "another session of this Spark application has registered 'objbuf'" in record.getMessage()


def test_importing_everything_starts_no_process(tmp_path: Path) -> None:
    code = """
import importlib, os, pkgutil, subprocess
import objbuf_dagster
for module in pkgutil.walk_packages(objbuf_dagster.__path__, "objbuf_dagster."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import pyspark.sql
print(subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True).stdout.split())
"""
    with python(code, tmp_path) as process:
        assert process.communicate() == ("['ps']\n", "")


def test_closing_leaves_nothing_behind_and_another_session_can_follow(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from objbuf_dagster.spark.session import session
before = dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT)
for master, table in [("local[1]", "t"), ("local[2]", "nowhere")]:
    try:
        with session(master=master) as spark:
            spark.sql("create table t as select 1 as i")
            said = spark.conf.get("spark.master"), spark.table(table).count()
    except Exception as error:
        said = type(error).__name__, "`nowhere` cannot be found" in str(error)
    assert (dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT)) == before
    print(*said, flush=True)
    input()
"""
    with python(code, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        for line in ("local[1] 1\n", "AnalysisException True\n"):
            assert process.stdout.readline() == line
            assert descendants(process.pid) == {}
            assert leftovers(tmp_path) == []
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.communicate() == ("", "")


def test_failed_start_leaves_no_jvm_and_an_error_that_can_be_read(tmp_path: Path) -> None:
    code = """
from objbuf_dagster.spark.session import session
try:
    session(master="local[1]", config={"spark.scheduler.mode": "nonsense"}).__enter__()
except Exception as error:
    print("nonsense" in str(error), flush=True)
input()
"""
    with python(code, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert descendants(process.pid) == {}
        process.communicate("\n")

    assert leftovers(tmp_path) == []


def test_killed_process_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
from objbuf_dagster.spark.session import session
def same(batches):
    yield from batches
with session() as spark:
    print(spark.conf.get("spark.master"), spark.range(3).mapInArrow(same, "id long").count(), flush=True)
    input()
"""
    with python(code, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "local[*] 3\n", "all cores of this machine, unless told otherwise"
        children = descendants(process.pid)
        assert any("java" in command for command in children.values())
        assert any("pyspark.daemon" in command for command in children.values())

        process.send_signal(signal.SIGKILL)
        process.wait()

        wait_until(lambda: not any(is_alive(pid) for pid in children))
    wait_until(lambda: leftovers(tmp_path) == [])


def test_dagster_pysparks_resource_works(tmp_path: Path) -> None:
    filled = fill(LocalStore(tmp_path / "buffer"), [batch(n, [b"%d" % n] * 3) for n in range(4)], per_range=4)
    code = """
import os
import dagster
from dagster_pyspark import PySparkResource
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.spark.landing import land
from objbuf_dagster.spark.reading import read
from objbuf_dagster.spark.session import prepare, set_environment
from objbuf_dagster.store import open_store

buffer, lake = os.environ["BUFFER"], os.environ["LAKE"]

def where(batches):
    import objbuf_dagster, pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [objbuf_dagster.__file__]})

@dagster.asset
def landed(pyspark: PySparkResource) -> None:
    spark = prepare(pyspark.spark_session)
    [row] = spark.range(1).mapInArrow(where, "path string").collect()
    print(spark.conf.get("spark.sql.shuffle.partitions"), row.path)
    store, table = open_store(buffer), LakeTable(lake)
    [planned] = RangeLedger(store).list()
    land(spark, BufferPlace(store), planned, table)
    source = spark.read.format("objbuf").option("buffer", buffer).option("since_frontier", "true").load()
    for frame in (read(spark, table), source):
        rows = frame.select("_odb_sequence", "_odb_entry_index", "entry").orderBy("_odb_sequence", "_odb_entry_index")
        print([(row[0], row[1], bytes(row[2])) for row in rows.collect()])

set_environment()
resource = PySparkResource(spark_config={"spark.master": "local[1]", "spark.sql.shuffle.partitions": "7"})
assert dagster.materialize([landed], resources={"pyspark": resource}).success
"""
    places = {name.upper(): (tmp_path / name).as_uri() for name in ("buffer", "lake")}
    with python(code, tmp_path, DAGSTER_DISABLE_TELEMETRY="yes", **places) as process:
        stdout, stderr = process.communicate()

    said, *rows = stdout.splitlines()
    assert re.fullmatch(r"7 \S+/objbuf_dagster-[0-9a-f]{16}\.zip/objbuf_dagster/__init__\.py", said), stderr
    assert rows == [str([(row[0], row[1], row[-1]) for row in filled.rows()])] * 2, stderr


def test_only_the_dataframe_api_is_used() -> None:
    forbidden = re.compile(r"sparkContext|\.(rdd|_sc|_jsc|_jvm|_jdf|_jsparkSession|_gateway)\b", re.IGNORECASE)
    private = _PACKAGE / "spark" / "jvm.py"  # ends a JVM, for which there is no other way; it runs no job

    found = [
        f"{path}: {line.strip()}"
        for path in _PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if forbidden.search(line) and path != private
    ]

    assert found == []
    assert not re.search(r"\.(sparkContext|rdd)\b", private.read_text()), "it does not reach the context of a session"
