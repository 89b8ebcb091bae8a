"""Which store a URL means, and what is said of one that means none."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store import CloudStore, LocalStore, MemoryStore, RetryingStore, RetryPolicy, open_store

_SECRET = "VERYsecret"  # noqa: S105, opens nothing
_ACCOUNT = {"service_account_key": '{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}'}


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")

    assert isinstance(store, LocalStore)
    assert store.root == tmp_path / "store"
    assert not store.root.exists()  # nothing is written yet


def test_a_file_url_may_name_this_host_and_quote(tmp_path: Path) -> None:
    store = open_store(f"file://localhost{tmp_path}/a%20b%3Fc%23d")

    assert isinstance(store, LocalStore)
    assert store.root == tmp_path / "a b?c#d"


@pytest.mark.parametrize("as_path", [False, True])
def test_a_plain_path_is_a_directory(tmp_path: Path, as_path: bool) -> None:
    path = tmp_path / "a b#c"

    store = open_store(path if as_path else str(path))

    assert isinstance(store, LocalStore)
    assert store.root == path


def test_a_relative_path_stays_where_it_was_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("data")
    monkeypatch.chdir("/")

    store.put("object", b"bytes")

    assert (tmp_path / "data" / "object").read_bytes() == b"bytes"


@pytest.mark.parametrize("url", ["memory://", "memory:///"])
def test_a_memory_url_without_a_name_is_a_new_store_each_time(url: str) -> None:
    first, second = open_store(url), open_store(url)

    first.put("object", b"bytes")

    assert list(second.list()) == []


def test_a_memory_url_with_a_name_is_one_store() -> None:
    first, second = open_store("memory://test-open-store/one"), open_store("memory://test-open-store/one/")
    other = open_store("memory://test-open-store/two")

    first.put("object", b"bytes")

    assert second.read("object") == b"bytes"
    assert list(other.list()) == []
    second.delete(["object"])


def test_a_memory_store_from_another_process_is_refused_with_a_hint() -> None:
    store = MemoryStore()
    pickled = pickle.dumps(store)
    del store

    with pytest.raises(InvalidInput, match="lives in one process only: use a file"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/prefix", {"region": "eu-west-1"}),
        ("s3://bucket", {}),
        ("s3a://bucket/prefix", {}),
        ("gs://bucket/prefix", _ACCOUNT),
        ("az://container/prefix", {"account_name": "account"}),
        ("azure://container/prefix", {"account_name": "account"}),
        ("abfs://container@account.dfs.core.windows.net/prefix", {}),
        ("abfss://container@account.dfs.core.windows.net/prefix", {}),
    ],
)
def test_a_bucket_url_is_a_store_that_retries_and_contacts_nobody_yet(url: str, options: dict[str, str]) -> None:
    policy = RetryPolicy(attempts=3)

    store = open_store(url, options=options, retry=policy)

    assert isinstance(store, RetryingStore)
    assert store.policy == policy
    assert isinstance(store.inner, CloudStore)
    assert isinstance(pickle.loads(pickle.dumps(store)), RetryingStore)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "give file:///dir, s3://bucket/prefix or a directory"),
        ("ftp://host/dir", "unknown kind of store 'ftp': use file, s3, gs, az or memory"),
        ("gcs://bucket", "unknown kind of store 'gcs'"),
        ("http://host/bucket", "unknown kind of store 'http'"),
        ("://bucket", "unknown kind of store ''"),
        ("file://dir/below", "three slashes and an absolute path: file:///dir/below"),
        ("file://", "three slashes and an absolute path: file:///dir"),
        ("s3://", "s3:// needs a bucket: s3://bucket/prefix"),
        ("s3:///prefix", "s3:// needs a bucket: s3://bucket/prefix"),
        ("gs://", "gs:// needs a bucket"),
        ("az:///prefix", "az:// needs a bucket"),
        ("s3://bucket:9000/prefix", "no credentials or port: give them as options"),
        ("s3://bucket/prefix?region=x", "no '?' or '#' part"),
        ("file:///dir#1", "no '?' or '#' part"),
        ("s3://bucket//prefix", "cannot use s3://bucket//prefix as a store"),
        ("s3://[", "not a URL"),
        ("hdfs://namenode:8020/buffer", "hdfs:// is for lakes: it compares no versions"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_what_to_write(url: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)

    assert text in str(caught.value)


def test_an_option_that_does_not_exist_is_refused_without_its_value() -> None:
    with pytest.raises(InvalidInput, match="nonsense") as caught:
        open_store("s3://bucket", options={"nonsense": _SECRET, "secret_access_key": _SECRET})

    assert _SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://KEY:{_SECRET}@bucket/prefix",
        f"s3://KEY:{_SECRET}/with/slashes@bucket/prefix",
        f"s3://KEY:{_SECRET}@/prefix",
        f"s3://[KEY:{_SECRET}@bucket",
        f"s3://bucket/prefix?secret_access_key={_SECRET}",
        f"s3://bucket/prefix#{_SECRET}",
        f"gs://KEY:{_SECRET}@bucket",
        f"file://KEY:{_SECRET}@host/dir",
        f"http://KEY:{_SECRET}@host/dir",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)

    assert _SECRET not in str(caught.value)
    assert _SECRET not in repr(caught.value)


@pytest.mark.parametrize("url", [f"s3://KEY:{_SECRET}@bucket/prefix", f"s3://bucket/prefix?key={_SECRET}"])
def test_a_bucket_opened_directly_does_not_show_a_secret_in_its_url(url: str) -> None:
    store = CloudStore(url, options={"secret_access_key": _SECRET, "access_key_id": "KEY"})

    for text in (repr(store), str(store), repr(RetryingStore(store))):
        assert _SECRET not in text
        assert "bucket/prefix" in text


@pytest.mark.parametrize("url", ["/tmp/x", "file:///tmp/x", "memory://", "memory://x"])  # noqa: S108
def test_settings_that_would_be_left_aside_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="only buckets"):
        open_store(url, options={"region": "us-east-1"})


@pytest.mark.parametrize("name", ["timeout", "aws_timeout", "allow_http", "AWS_ALLOW_HTTP", "proxy_url", "user_agent"])
def test_settings_of_the_http_client_are_refused_before_they_do_harm(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        open_store("s3://bucket", options={name: "1"})


@pytest.mark.parametrize("endpoint", ["localhost:9000", "minio", "", "http://", "http://host:99999", "ftp://host"])
def test_an_endpoint_that_is_no_url_is_refused_before_anything_panics(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="endpoint must be a URL"):
        open_store("s3://bucket", options={"endpoint": endpoint})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        open_store("s3://bucket", timeout_seconds=seconds)


@pytest.mark.parametrize("url", ["file:///a%00b", "a\0b", "a\ud800b"])
def test_a_directory_that_no_file_system_has_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/x", "s3://bucket/x"),
        ("s3:bucket", "s3://bucket"),
        ("GS:bucket", "gs://bucket"),
        ("file:./x", "file:///dir or just ./x"),
        ("file:/tmp/x", "file:///dir or just /tmp/x"),
        ("memory:", "memory://"),
        ("hdfs:/namenode/x", "hdfs://namenode/x"),
    ],
)
def test_a_url_without_its_slashes_is_no_directory(url: str, meant: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert f"give {meant} (a directory of that name is ./{url})" in str(caught.value)
    assert isinstance(open_store(f"./{url}"), LocalStore)
