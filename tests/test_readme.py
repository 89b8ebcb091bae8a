"""The examples that people copy: those of the README, of `docs/`, and in docstrings."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef
from pyspark.sql import SparkSession

import objbuf_dagster
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.spark.decoding import typed_schema
from tests.orchestration.deployments import Deployment

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CLIENT = (ROOT / "docs" / "client.md").read_text()
MODULES = [
    module.name
    for module in pkgutil.walk_packages(objbuf_dagster.__path__, "objbuf_dagster.")
    if not module.name.endswith("__main__")
]


def blocks(language: str, text: str = CLIENT) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_promise_names_what_shows_it() -> None:
    table = README.partition("| promise | shown by |")[2].partition("\n\n")[0]
    promises = table.splitlines()[2:]
    assert len(promises) > 10
    assert [promise for promise in promises if not re.search(r"\]\((tests|bench)/", promise)] == []


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = blocks("python")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert "Durable(sequence=0" in printed
    assert "0 [b'one', b'two']" in printed


def test_the_spark_example_runs(tmp_path: Path) -> None:
    _, code = blocks("python")
    code = code.replace("/tmp/example", str(tmp_path))  # noqa: S108, the README's
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Landed(range=SequenceRange(start=0, end=0), batches=1, rows=2" in ran.stdout
    assert "2 rows" in ran.stdout


def test_the_assets_of_the_readme_land_and_are_acked(tmp_path: Path, spark: SparkSession) -> None:
    assets, decoder = blocks("python", README)
    assert decoder.startswith((ROOT / "tests" / "decode" / "own.py").read_text()), "what tests/decode tries is another"
    head, _, definitions = assets.partition("defs = ")
    code = head + decoder + "defs = " + definitions.replace("[entries, greetings]", "[entries, greetings, orders]")
    (tmp_path / "example.py").write_text(code.replace("/tmp/example", str(tmp_path)))  # noqa: S108, the README's
    spec = importlib.util.spec_from_file_location("example", tmp_path / "example.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(tmp_path / "home"))) as instance:
        deployed = Deployment(instance, example.defs, example.source)
        with deployed.buffer.producer() as producer:
            producer.produce([b"hello world", b"goodbye"])
            producer.produce([b"first;7\nsecond;", b";8"], b"orders/1")
        waited = time.time() + 60
        while deployed.frontier == 0 and time.time() < waited:  # a range is due when its batch has waited ten seconds
            deployed.tick()
            time.sleep(1)
        assert deployed.frontier == 1
        assert deployed.materialised("entries") == deployed.materialised("greetings") == deployed.partitions
        assert deployed.materialised("orders") == deployed.partitions
    (row,) = spark.read.parquet(f"{tmp_path}/lake/greetings").collect()
    assert bytes(row["entry"]) == b"hello world"
    rows = LakeTable(f"{tmp_path}/lake/orders", typed_schema(example.Orders())).delta().to_pyarrow_table()
    assert rows.select(["id", "amount"]).to_pylist() == [{"id": "first", "amount": 7}, {"id": "second", "amount": None}]
    (letter,) = LakeTable(f"{tmp_path}/lake/dead_letters", DEAD_LETTERS).delta().to_pyarrow_table().to_pylist()
    assert (letter["entry"], letter["reason"], letter["decoder"]) == (b";8", "an order without an id", "orders")


def test_every_variable_that_the_pipeline_reads_is_in_the_table_of_settings() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]*)`", row.split(" | ")[0])}
    code = [
        ROOT / "definitions.py",
        *(path for name in ("resources", "assets", "dev") for path in ROOT.glob(f"{name}/*.py")),
    ]
    read = {name for path in code for name in re.findall(r"\bOBJBUF_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())}
    assert len(read) > 20
    assert read - told == set()
    assert {name for name in told if name.startswith("OBJBUF_")} - read == set()
    assert {"PORT", "DEMO", "DAGSTER_HOME"} <= told


def test_make_dev_starts_the_launcher_with_the_clones_own_python() -> None:
    # Below `make test`, make would say which directory it enters and leaves.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    asked = ["/usr/bin/env", "make", "-n", "dev"]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True, env=outside)
    assert ran.stdout.splitlines()[-1] == ".venv/bin/python -m dev"


def test_the_commands_print_what_the_readme_says(tmp_path: Path) -> None:
    (session,) = blocks("console")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for step in session.split("$ ")[1:]:
        command, _, expected = step.partition("\n")
        ran = subprocess.run(
            ["/bin/sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        if expected:
            assert _without_times(ran.stdout) == _without_times(expected)
    for made in ("buffer", "lake"):
        shutil.rmtree(tmp_path / made)


def _without_times(text: str) -> str:
    """Without what every run has its own of: times, how fast it was, and the machine's memory."""
    text = re.sub(r"\d+% in use", "<some> in use", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "<time>", text)
    text = re.sub(r" +[\d.]+ +[\d.]+ \S+/s$", " <seconds> <speed>", text, flags=re.MULTILINE)
    return re.sub(r"in [\d.]+ s \([\d.]+ \S+/s\)", "in <seconds> (<speed>)", text)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_path_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"\b((?:tests|bench|objbuf_dagster|assets|resources|dev|docs)/[\w/.]*)", README + CLIENT))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
