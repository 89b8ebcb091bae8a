"""Settings and credentials, as deltalake gets them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import InvalidInput, StorageError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.location import check_apart, storage_options
from objbuf_dagster.store import LocalStore, RetryPolicy, open_store
from objbuf_dagster.store.cloud import Credentials
from tests.support.bucket import Answer, fake_bucket

POLICY = RetryPolicy(attempts=4, base_seconds=0.25, cap_seconds=5)


def options(url: str, given: dict[str, str], credentials: Credentials | None = None) -> dict[str, str]:
    return storage_options(url, given, credentials, retry=POLICY, timeout_seconds=1.5)


def test_retries_and_timeouts_reach_deltalake() -> None:
    assert options("gs://bucket/x", {}) == {
        "allow_http": "true",
        "timeout": "1500ms",
        "max_retries": "3",
        "retry_timeout": "26000ms",
        "backoff_config.init_backoff": "250ms",
        "backoff_config.max_backoff": "5000ms",
    }


def test_what_protects_a_commit_cannot_be_switched_off() -> None:
    found = options(
        "s3://bucket/x",
        {
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
            "conditional_put": "disabled",
            "aws_s3_locking_provider": "dynamodb",
            "REGION": "here",
        },
    )

    assert found["aws_conditional_put"] == "etag"
    assert found["aws_s3_allow_unsafe_rename"] == "false"
    assert found["region"] == "here"
    assert not {"conditional_put", "aws_s3_locking_provider"} & set(found)


class FromAccount:
    def __init__(self) -> None:
        self.config = {"region": "of the provider", "endpoint": "http://127.0.0.1:1"}

    def __call__(self) -> dict[str, object]:
        return {"access_key_id": "id", "secret_access_key": "secret", "token": None, "expires_at": None}


def test_a_provider_s_own_settings_count_unless_options_say_otherwise() -> None:
    found = options("s3://bucket/x", {"region": "ours"}, FromAccount())

    assert (found["region"], found["endpoint"]) == ("ours", "http://127.0.0.1:1")
    assert (found["aws_access_key_id"], found["aws_secret_access_key"]) == ("id", "secret")
    assert "aws_session_token" not in found


@pytest.mark.parametrize(
    ("given", "setting", "value"),
    [
        ({"access_key": "k"}, "azure_storage_account_key", "k"),
        ({"token": "t", "expires_at": None}, "azure_storage_token", "t"),
        ({"sas_token": [("sig", "a b"), ("se", "1")]}, "azure_storage_sas_token", "sig=a+b&se=1"),
    ],
)
def test_azure_s_credentials_have_their_settings(given: dict[str, object], setting: str, value: str) -> None:
    assert options("az://container/x", {}, lambda: given)[setting] == value


def test_google_s_tokens_are_refused_with_what_works() -> None:
    with pytest.raises(InvalidInput, match="service_account_key"):
        options("gs://bucket/x", {}, lambda: {"token": "t", "expires_at": None})


def test_settings_of_hadoop_reach_deltalake_as_they_are() -> None:
    assert options("hdfs://ns/lake", {"dfs.ha.namenodes.ns": "a,b"}) == {"dfs.ha.namenodes.ns": "a,b"}


@pytest.mark.parametrize(
    "url",
    [
        "hdfs:///lake",
        "hdfs://n:8020",
        "hdfs://n/a b",
        "hdfs://n/a/../b",
        "hdfs://me@n/lake",
        "hdfs://n/lake?a=b",
        "hdfs://n/lake?",
        "hdfs://n/lake#a",
        "hdfs://[::1/lake",
        "hdfs://n:abc/lake",
        "hdfs://n:99999/lake",
        "hdfs://n:0/lake",
        "hdfs://:8020/lake",
    ],
)
def test_an_hdfs_url_that_names_no_place_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidInput, match="hdfs://namenode:8020/lake"):
        LakeTable(url)


@pytest.mark.parametrize(("said", "refused"), [("true", True), ("TRUE", True), ("false", False)])
def test_a_setting_of_hadoop_that_commits_leave_aside_is_refused(said: str, refused: bool) -> None:
    with pytest.raises(InvalidInput, match="make the DataNodes' addresses") if refused else contextlib.nullcontext():
        LakeTable("hdfs://n:8020/lake", options={"dfs.client.use.datanode.hostname": said})


def test_a_lake_on_hdfs_takes_no_credentials() -> None:
    with pytest.raises(InvalidInput, match="HADOOP_USER_NAME"):
        LakeTable("hdfs://namenode:8020/lake", credentials=FromAccount())


def test_google_and_azure_are_asked_at_the_right_place() -> None:
    with fake_bucket() as bucket:
        bucket.fail(Answer(403))
        azure = {"account_name": "account", "account_key": "a2V5", "endpoint": bucket.endpoint}
        for url, settings in (("gs://bucket/lake", bucket.google_options), ("az://container/lake", azure)):
            with pytest.raises(StorageError, match=f"access denied.*{url}.*{bucket.endpoint}"):
                LakeTable(url, options=settings).version()


S3 = {"region": "here", "endpoint": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("table", "buffer", "apart"),
    [
        ("/d/entries", "/d/entries", False),  # above the data
        ("/d/buffer/ingest", "/d/buffer", False),
        ("/d/buffer/ingest/entries", "file:///d/buffer/", False),
        ("/d/buffer/x/../ingest/manifest", "/d/buffer", False),
        ("/d/lake/entries", "/d/buffer", True),
        ("/d/lake/entries", "/d", True),
        ("/d/buffer-lake/entries", "/d/buffer", True),
        ("/d/buffer/entries", "/d/buffer", True),  # beside the data
        ("s3://b/events", "s3://b/events", False),
        ("s3://b/a b", "s3a://b/a%20b/", False),
        ("s3://b", "s3://b/events", False),
        ("s3://b/ingest/entries", "s3://b", False),
        ("s3://b/lake/entries", "s3://b", True),
        ("s3://b/lake/entries", "s3://b/events", True),
        ("s3://c/events", "s3://b/events", True),
        ("/b/events", "s3://b/events", True),
        ("/d/entries", "memory://", True),
    ],
)
def test_a_table_must_not_lie_in_a_buffer_nor_around_it(table: str, buffer: str, apart: bool) -> None:
    place = BufferPlace(open_store(buffer, options=S3 if buffer.startswith("s3") else None))
    found = LakeTable(table, options=S3 if table.startswith("s3") else None)

    with contextlib.nullcontext() if apart else pytest.raises(InvalidInput, match="give the table a place of its own"):
        check_apart(found.store, found.name, place)


def test_a_bucket_of_the_same_name_elsewhere_is_another_place() -> None:
    place = BufferPlace(open_store("s3://b/events", options={**S3, "endpoint": "http://127.0.0.1:2"}))
    table = LakeTable("s3://b/events", options=S3)

    check_apart(table.store, table.name, place)


def test_a_link_into_a_buffer_is_followed(tmp_path: Path) -> None:
    (tmp_path / "buffer/ingest").mkdir(parents=True)
    (tmp_path / "lake").symlink_to(tmp_path / "buffer/ingest")
    table = LakeTable(tmp_path / "lake/entries")

    with pytest.raises(InvalidInput, match="the buffer's ingest would lie one inside the other"):
        check_apart(table.store, table.name, BufferPlace(LocalStore(tmp_path / "buffer")))
