"""Secrets, given where they belong, show nowhere: output, errors, Dagster's storage, Spark's event log, commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.errors import InvalidInput, ObjbufError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.orchestration import BufferResource
from objbuf_dagster.spark.session import session
from objbuf_dagster.store import LocalStore, RetryPolicy, open_store
from objbuf_dagster.store.cloud import without_secrets
from tests.prove.secrets import (
    ACCOUNT_KEY,
    KEY,
    PASSWORD,
    PRIVATE_KEY,
    SECRETS,
    SIGNATURE,
    SPARK_KEY,
    SPARK_TOKEN,
    TOKEN,
    Commands,
    Form,
    leaks,
    telltale,
    written,
)
from tests.spark.processes import wait_until
from tests.support.buffers import append, fill
from tests.support.s3 import S3Location

pytestmark = pytest.mark.timeout(900)  # a whole deployment with Spark, which other tests may slow down

REPOSITORY = Path(__file__).parents[2]

_PIPELINE = """
import json, os, traceback
import dagster as dg
from dagster._core.instance.ref import InstanceRef
from assets import source
from definitions import defs
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.session import session
from tests.orchestration.deployments import Deployment, failure_of

spark = {**json.loads(os.environ["OBJBUF_SPARK_CONFIG"]), "spark.master": os.environ["OBJBUF_SPARK_MASTER"]}
instance = dg.DagsterInstance.from_ref(InstanceRef.from_dir(os.environ["DAGSTER_HOME"]))
with instance, session(config=spark):  # which all runs use: starting one takes long
    deployed = Deployment(instance, defs, source)
    deployed.tick()
    good, bad = deployed.tick().runs
    print("landed:", good.success, failure_of(good))
    print("not landed:", not bad.success, failure_of(bad))
    os.environ["OBJBUF_S3_ENDPOINT_URL"] = os.environ["TEST_TELLTALE"]
    refused = deployed.materialise(SequenceRange(0, 1).key)
    print("refused:", not refused.success, failure_of(refused))
    deployed.cursor = None
    try:
        deployed.tick()
    except Exception:
        traceback.print_exc()
        print("no tick")
"""


@pytest.fixture(scope="module")
def shown(trusting_s3_root: S3Location, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All that the repo's own pipeline lets others see, by where; its second range cannot land, and later nothing can.

    The secrets come in by the variables that the README names.
    """
    place, folder = trusting_s3_root.fresh(), tmp_path_factory.mktemp("pipeline")
    fill(place.open(), 2)
    append(place.open(), "ingest/missing.batch")
    for name in ("home", "events", "tmp"):
        (folder / name).mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    spark = {
        "spark.hadoop.fs.s3a.secret.key": SPARK_KEY,
        "spark.hadoop.fs.azure.account.key.nobody.dfs.core.windows.net": ACCOUNT_KEY,
        "spark.hadoop.fs.azure.sas.fixed.token.nobody.dfs.core.windows.net": f"sv=1&sig={SIGNATURE}",
        "spark.jars.repositories": f"https://me:{PASSWORD}@127.0.0.1:1/",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName=x;password={PASSWORD}",
        "spark.executor.extraJavaOptions": f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.log.level": "INFO",
    }
    with telltale() as server, Commands() as commands:
        variables = {
            "DAGSTER_HOME": str(folder / "home"),
            "OBJBUF_BUFFER_URL": place.url,
            "OBJBUF_LAKE_URL": place.below("lake").url,
            "OBJBUF_S3_ENDPOINT_URL": place.options["endpoint"],
            "OBJBUF_S3_REGION": place.options["region"],
            "OBJBUF_S3_ACCESS_KEY_ID": "AKIDOFNOBODY",
            "OBJBUF_S3_SECRET_ACCESS_KEY": KEY,
            "OBJBUF_S3_SESSION_TOKEN": TOKEN,
            "OBJBUF_SPARK_MASTER": "local[1]",
            "OBJBUF_SPARK_CONFIG": json.dumps(spark),
            "OBJBUF_MAX_BATCHES": "2",
            "OBJBUF_MAX_WAIT": "0",
            "OBJBUF_MAX_ATTEMPTS": "1",
            "TEST_TELLTALE": server,
            **commands.variables,
            "TMPDIR": str(folder / "tmp"),
        }
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PIPELINE],
            capture_output=True,
            cwd=REPOSITORY,
            env={**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)},
            timeout=850,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-5000:].decode()
    seen = "\n".join(commands.seen).encode()
    return {"output": ran.stdout, "log": ran.stderr, "commands": seen, **written(folder)}


def test_the_pipeline_ran_failed_and_was_looked_at_everywhere(shown: dict[str, bytes]) -> None:
    for line in (b"landed: True", b"not landed: True", b"refused: True", b"no tick"):
        assert line in shown["output"]
    assert b"SignatureDoesNotMatch" in shown["output"]
    assert b"INFO" in shown["log"]
    assert b"spark.jars.repositories may hold a secret" in shown["log"]
    assert b"spark.eventLog.enabled=true" in shown["commands"]
    assert any(b"SparkListenerJobStart" in data for data in shown.values())
    assert any(b"OBJBUF_S3_SECRET_ACCESS_KEY" in data for where, data in shown.items() if "unpacked" in where)
    assert any(b"max_batch_bytes" in data for where, data in shown.items() if "unpacked" in where)


def test_secrets_of_a_pipeline_show_nowhere(shown: dict[str, bytes]) -> None:
    found = {where: leaks(data) for where, data in shown.items()}

    assert {where: leaked for where, leaked in found.items() if leaked} == {}


_GOOGLE = {
    "client_email": "nobody@nowhere",
    "private_key_id": "x",
    "private_key": f"-----BEGIN PRIVATE KEY-----\n{PRIVATE_KEY}\n-----END PRIVATE KEY-----\n",
}
_COMMANDS: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "S3, refused": (["stat", "s3://b/p"], {}),
    "S3, refused while landing": (["land", "all", "--buffer", "s3://b/p", "--lake", "s3://b/l"], {}),
    "a lake in S3, refused": (["lake", "stat", "s3://b/p"], {}),
    "a password in the endpoint": (["stat", "s3://b/p", "--option", f"endpoint=http://me:{PASSWORD}@127.0.0.1:1"], {}),
    "a password in the URL": (["stat", f"s3://me:{PASSWORD}@b/p"], {}),
    "a signature in the URL": (["stat", f"https://a.blob.core.windows.net/c?sig={SIGNATURE}"], {}),
    "a token in the address of Spark": (
        [
            "land",
            "all",
            "--buffer",
            "BUFFER",
            "--lake",
            "BUFFER",
            "--remote",
            f"sc://127.0.0.1:1/;token={SPARK_TOKEN}",
        ],
        {},
    ),
    "Azure, with a key": (["stat", "az://c/p", "--option", f"access_key={ACCOUNT_KEY}"], {}),
    "Azure, with a key that is none": (["stat", "az://c/p"], {"AZURE_STORAGE_ACCOUNT_KEY": f"#{PASSWORD}"}),
    "Azure, with a signature": (["stat", "az://c/p"], {"AZURE_STORAGE_SAS_TOKEN": f"sv=1&sig={SIGNATURE}"}),
    "Azure, with a token": (["stat", "az://c/p"], {"AZURE_STORAGE_TOKEN": TOKEN}),
    "Google, with a key that is none": (["stat", "gs://b"], {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(_GOOGLE)}),
    "Google, with no JSON": (["stat", "gs://b"], {"GOOGLE_SERVICE_ACCOUNT_KEY": f"{{{PRIVATE_KEY}"}),
}


@pytest.mark.parametrize("case", _COMMANDS)
def test_a_command_that_fails_tells_no_secret_even_when_debugging(case: str, tmp_path: Path) -> None:
    args, more = _COMMANDS[case]
    fill(LocalStore(tmp_path), 1)
    with telltale() as server:
        variables = {
            "AWS_ACCESS_KEY_ID": "AKIDOFNOBODY",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_SESSION_TOKEN": TOKEN,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server,
            "AZURE_STORAGE_ACCOUNT_NAME": "nobody",
            "AZURE_STORAGE_ENDPOINT": server,
            "OBJBUF_DEBUG": "1",
            **more,
        }
        ran = subprocess.run(
            [sys.executable, "-m", "objbuf_dagster.cli", *(str(tmp_path) if arg == "BUFFER" else arg for arg in args)],
            capture_output=True,
            check=False,
            cwd=REPOSITORY,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    assert ran.returncode in (1, 2), ran.stderr
    assert b"Traceback" in ran.stderr
    assert leaks(ran.stdout + ran.stderr) == []


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("status", [403, 400, 404, 500])
def test_a_server_that_repeats_a_request_in_its_answer_does_not_put_it_into_errors(status: int, form: Form) -> None:
    options = {"access_key_id": "AKIDOFNOBODY", "secret_access_key": KEY, "token": TOKEN, "region": "us-east-1"}
    with telltale(status, form) as server:
        options["endpoint"] = server
        store = open_store("s3://b/p", options=options, retry=RetryPolicy(attempts=1))
        table = LakeTable("s3://b/l/entries", options=options, retry=RetryPolicy(attempts=1))
        for use in (lambda: store.get("x"), lambda: list(store.list()), lambda: store.put("x", b""), table.version):
            with pytest.raises(ObjbufError) as raised:
                use()

            assert leaks(str(raised.value)) == []
            assert "SignatureDoesNotMatch" in str(raised.value)


_TOLD = [
    'refused: {"headers": {"Authorization": "Bearer HIDDEN", "host": "kept"}}',
    '{"authorization":["Bearer HIDDEN"],"host":"x"}',
    '{"authorization": [\n  "Bearer HIDDEN"\n]}',
    r'"body: {\"authorization\": \"Digest name=\\\"x\\\", response=\\\"HIDDEN\\\"\"}"',
    "{'x-amz-security-token': 'HIDDEN', 'host': 'kept'}",
    "[('authorization', 'Basic HIDDEN'), ('host', 'kept')]",
    "Authorization: token HIDDEN",
    "Authorization: Negotiate HIDDEN",
    "Authorization:\n  Negotiate HIDDEN",
    "Proxy-Authorization: Basic HIDDEN",
    "authorization:AWS4-HMAC-SHA256 Credential=AKID/20260101/x/s3/aws4_request, SignedHeaders=host, Signature=HIDDEN",
    "Authorization: SharedKey name:HIDDEN",
    "Authorization SharedKey name:HIDDEN",
    "x-amz-security-token:HIDDEN host:x",
    "sent x-amz-security-token HIDDEN0123456789",
    "sent Bearer HIDDEN0123456789",
    "<Request><Authorization>Bearer HIDDEN</Authorization><Host>kept</Host></Request>",
    "<Request><authorization><![CDATA[Bearer HIDDEN]]></authorization><Host>kept</Host></Request>",
    "/container?sv=1&sig=HIDDEN&se=kept",
    "/container?sig=HIDDEN",
    "sv=1&amp;sig=HIDDEN&amp;se=kept",
    "jdbc:x://host/db;password=HIDDEN;user=kept",
    'account_key="HIDDEN" kept',
    "http://me:HIDDEN@kept/path",
    "http://me:HID@HIDDEN@kept/path",
    "<Error><Code>Denied</Code><Repeated>HIDDEN",
    "<Error><Code>Denied</Code><Repeated>HIDDEN</Repeated></Error> <x>HIDDEN</x>",
    "<?xml version='1.0'?><Refused><Repeated>HIDDEN</Repeated></Refused>",
    "<html><body><td>Authorization</td><td>Bearer HIDDEN</td></body></html>",
    "<html><body>Authorization&#58; Bearer HIDDEN</body></html>",
    "<html><script>token('HIDDEN')</script><body>kept</body></html>",
    "<html><body>" + "kept " * 30 + "HIDDEN",
]


@pytest.mark.parametrize("text", _TOLD)
def test_what_a_server_repeats_of_a_request_is_cut(text: str) -> None:
    cut = without_secrets(text)

    assert "HIDDEN" not in cut
    assert ("kept" in cut) == ("kept" in text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "407: <html><head><title>407</title></head><body>Proxy authentication required</body></html>",
            "407: 407 Proxy authentication required",
        ),
        ("407: <HTML>\n<body><h1>Proxy authentication</h1>\n required</body>", "407: Proxy authentication required"),
        ("502: <h1>Bad gateway</h1>", "502: Bad gateway"),
        (
            "403: <Error><Code>Denied</Code><Message>Go away</Message></Error> at s3://b",
            "403: Denied: Go away at s3://b",
        ),
        ("the value of Authorization header is wrong", "the value of Authorization header is wrong"),
        ("the authorization token has expired", "the authorization token has expired"),
        ("Basic authentication is off", "Basic authentication is off"),
    ],
)
def test_what_helps_is_left(text: str, left: str) -> None:
    assert without_secrets(text) == left


def test_an_endless_answer_is_read_in_no_time() -> None:
    began = time.monotonic()

    for part in ("authorization: '", "<error>", "performing HEAD x in x - status code: 404", "sig=", "&lt;", "//@"):
        without_secrets(part * 1_000_000)

    assert time.monotonic() - began < 30


def test_a_password_in_an_endpoint_is_no_part_of_what_a_cursor_stores() -> None:
    buffer = BufferResource(url="s3://b/p", options={"endpoint": f"http://me:{PASSWORD}@127.0.0.1:9000/?x={PASSWORD}"})

    assert leaks(buffer.identity()) == []
    assert "127.0.0.1:9000" in buffer.identity()


def test_settings_that_a_running_session_has_not_are_told_without_secrets(spark: SparkSession) -> None:
    for wrong in (
        {"config": {"spark.hadoop.fs.s3a.secret.key": SPARK_KEY}},
        {"config": {"spark.jars.repositories": f"https://me:{PASSWORD}@host/"}},
        {"config": {"spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net": ACCOUNT_KEY}},
        {"master": "local[2]", "remote": f"sc://host/;token={SPARK_TOKEN}"},
        {"remote": f"http://host/;token={SPARK_TOKEN}"},
        {"remote": "sc://other", "config": {"spark.remote": f"sc://host/;token={SPARK_TOKEN}"}},
    ):
        with pytest.raises(InvalidInput) as raised, session(**wrong):
            pass

        assert leaks(str(raised.value)) == []


@pytest.mark.parametrize("secret", SECRETS)
def test_the_search_finds_what_is_there(secret: str, tmp_path: Path) -> None:
    from urllib.parse import quote

    for text in (secret, f"x={quote(secret, safe='')}&", json.dumps({"a": secret}), f"\udcff{secret}"):
        assert len(leaks(text)) == 1
    (tmp_path / "file").write_bytes(b"\xff" + secret.encode())
    assert all(leaks(data) for data in written(tmp_path).values())
    assert leaks("nothing") == []


def test_commands_are_seen_of_a_process_and_its_orphans_and_of_nobody_else() -> None:
    sleeping = "import sys, time; print(flush=True); time.sleep(60)"
    start = "import subprocess as s, sys; print(s.Popen(sys.argv[1:], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
    with (
        Commands() as commands,
        subprocess.Popen([sys.executable, "-c", sleeping, "another"], stdout=subprocess.PIPE) as another,
    ):
        assert another.stdout is not None
        another.stdout.readline()
        ours = {**os.environ, **commands.variables}
        started = [sys.executable, "-c", start, sys.executable, "-c", sleeping, "orphan"]
        orphan = int(subprocess.run(started, env=ours, capture_output=True, check=True).stdout)
        try:
            wait_until(lambda: any("orphan" in command and start not in command for command in commands.seen))
        finally:
            os.kill(orphan, signal.SIGKILL)
            another.kill()

    assert not any("another" in command for command in commands.seen)
