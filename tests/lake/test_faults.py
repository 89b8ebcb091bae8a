"""A table in a bucket that fails: what is tried again, what is found to have happened, what the errors say."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.lake import DataFile, LakeTable, stat
from objbuf_dagster.store import RetryPolicy
from tests.lake.landings import key, land, sequences, tags, write
from tests.support.proxy import Proxy, Request, Spoiling, proxied
from tests.support.s3 import S3Location

QUICK = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.01)


@pytest.fixture
def proxy(s3: S3Location) -> Iterator[Proxy]:
    with proxied(s3) as found:
        yield found


def open_table(proxy: Proxy) -> LakeTable:
    return LakeTable(proxy.location.url, options=proxy.location.options, retry=QUICK)


def is_commit(request: Request) -> bool:
    return request.method == "PUT" and "/_delta_log/0" in request.path and request.path.endswith(".json")


class Times:
    """Spoil the first `times` commits."""

    def __init__(self, times: int, spoiling: Spoiling) -> None:
        self.left = times
        self.spoiling = spoiling

    def __call__(self, request: Request) -> Spoiling:
        if not is_commit(request) or not self.left:
            return None
        self.left -= 1
        return self.spoiling


def test_commits_ask_that_nobody_came_first(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says of ways that are less safe."""
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    table = open_table(proxy)

    land(table, key(0))

    commits = [request for request in proxy.requests if is_commit(request)]
    assert [request.headers.get("if-none-match") for request in commits] == ["*", "*"]
    assert all("Credential=test/" in request.headers["authorization"] for request in commits)


@pytest.mark.parametrize("times", [1, 3], ids=["and repeated inside", "each time"])
def test_a_commit_whose_answer_was_lost_is_found(proxy: Proxy, times: int) -> None:
    table = open_table(proxy)
    land(table, key(0), b"old")
    proxy.spoil = Times(times, "lost")

    commit = table.commit(key(0), write(table, key(0), b"new"), epoch=1)

    assert (commit.version, commit.added) == (2, 2)
    assert tags(table, key(0)) == {b"new": 10}
    assert table.version() == 2, "the range landed twice"


def test_a_table_made_without_an_answer_is_used(proxy: Proxy) -> None:
    table = open_table(proxy)
    proxy.spoil = Times(1, "lost")

    land(table, key(0))

    assert (table.version(), sequences(table)) == (1, list(range(10)))


@pytest.mark.parametrize("status", [503, 409, 429])
def test_failures_that_pass_are_waited_for(proxy: Proxy, status: int) -> None:
    table = open_table(proxy)
    land(table, key(0))
    proxy.spoil = Times(3, status)

    commit = table.commit(key(1), write(table, key(1)), epoch=1)

    assert commit.attempts > 1
    assert sequences(table) == list(range(20))


def test_a_failure_that_does_not_pass_is_an_error_that_says_so(proxy: Proxy) -> None:
    table = open_table(proxy)
    land(table, key(0))
    files = write(table, key(1))
    proxy.spoil = lambda request: 503 if is_commit(request) else None

    with pytest.raises(StorageUnavailable, match="check that it is up") as raised:
        table.commit(key(1), files, epoch=1, give_up_after=0.3)

    assert raised.value.in_doubt
    assert pickle.loads(pickle.dumps(raised.value)).in_doubt
    proxy.spoil = lambda request: None
    assert list(table.ranges()) == [key(0)]
    table.commit(key(1), files, epoch=1)
    assert sequences(table) == list(range(20))


def test_who_may_not_commit_is_told_at_once(proxy: Proxy) -> None:
    table = open_table(proxy)
    land(table, key(0))
    files = write(table, key(1))
    proxy.requests.clear()
    proxy.spoil = lambda request: 403 if is_commit(request) else None

    with pytest.raises(StorageError, match="access denied") as raised:
        table.commit(key(1), files, epoch=1)

    assert not isinstance(raised.value, StorageUnavailable)
    assert sum(map(is_commit, proxy.requests)) == 1


def test_what_fails_after_a_commit_does_not_unmake_it(proxy: Proxy) -> None:
    """deltalake reads the log again when it has committed, and may write a checkpoint."""
    table = open_table(proxy)
    land(table, key(0))
    committed = False

    def spoil(request: Request) -> Spoiling:
        nonlocal committed
        if committed and request.method == "GET" and request.path.endswith(f"{2:020d}.json"):
            committed = False
            return 403
        committed = committed or is_commit(request)
        return None

    proxy.spoil = spoil
    commit = table.commit(key(1), write(table, key(1)), epoch=1)

    assert commit.version == 2
    proxy.spoil = lambda request: None
    assert (table.version(), sequences(table)) == (2, list(range(20)))


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [(500, StorageUnavailable, "try again"), (403, StorageError, "access denied"), (404, StorageError, "bucket")],
)
def test_reads_fail_with_what_to_do(proxy: Proxy, status: int, kind: type[ObjbufError], says: str) -> None:
    table = open_table(proxy)
    proxy.spoil = lambda request: status

    for read in (table.version, table.files, table.ranges, lambda: stat(table)):
        with pytest.raises(kind, match=says) as raised:
            read()
        assert "\x1b" not in str(raised.value)
        assert "\n" not in str(raised.value)
        assert "test-secret-key" not in str(raised.value)


def test_a_bucket_or_a_server_that_is_not_there_is_named(s3: S3Location) -> None:
    with pytest.raises(StorageError, match="create it or correct the URL"):
        LakeTable("s3://no-such-bucket/x", options=s3.options, retry=QUICK).version()
    nowhere = {**s3.options, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(StorageUnavailable, match=r"reachable.*Connection refused"):
        LakeTable(s3.url, options=nowhere, retry=QUICK).version()


def test_a_damaged_log_is_an_error_of_ours(local: LakeTable) -> None:
    land(local, key(0))
    assert local.root is not None
    (local.root / "_delta_log" / f"{5:020d}.json").write_text("garbage")

    with pytest.raises(StorageError, match="_delta_log"):
        local.version()


def test_landings_that_always_lose_give_up_in_time(proxy: Proxy) -> None:
    table = open_table(proxy)
    land(table, key(0))
    proxy.spoil = lambda request: 412 if is_commit(request) else None

    with pytest.raises(StorageUnavailable, match=r"came first \d+ times.*fewer landings"):
        table.commit(key(1), write(table, key(1)), epoch=1, give_up_after=0.3)


def test_a_provider_s_credentials_reach_the_commit(trusting_s3: S3Location) -> None:
    with proxied(trusting_s3) as proxy:
        options = {name: proxy.location.options[name] for name in ("endpoint", "region")}
        table = LakeTable(proxy.location.url, options=options, credentials=Provider(), retry=QUICK)

        land(table, key(0))

    commits = [request for request in proxy.requests if is_commit(request)]
    assert {request.headers["x-amz-security-token"] for request in commits} == {"provided-token"}
    assert all("Credential=provided/" in request.headers["authorization"] for request in commits)
    assert "provided" not in repr(table)


class Provider:
    """An obstore credential provider."""

    def __call__(self) -> dict[str, object]:
        return {
            "access_key_id": "provided",
            "secret_access_key": "provided-secret",
            "token": "provided-token",
            "expires_at": None,
        }


def test_a_disk_that_refuses_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=r"a part of its path is a file.*/file/lake"):
        LakeTable(tmp_path / "file" / "lake").commit(key(0), [], epoch=1)


def test_files_that_executors_wrote_elsewhere_are_told_of_as_such(tmp_path: Path, proxy: Proxy) -> None:
    for table in (LakeTable(tmp_path / "lake"), open_table(proxy)):
        file = DataFile(table.new_path(key(0)), 100, 1)
        with pytest.raises(NotFound, match="it was deleted before its commit") as raised:
            table.commit(key(0), [file], epoch=1)
        assert ("not shared with the executors" in str(raised.value)) == (table.root is not None)


def test_asynchronous_providers_are_refused(s3: S3Location) -> None:
    async def provide() -> dict[str, object]:
        return {}

    table = LakeTable(s3.url, options=s3.options, credentials=provide)
    with pytest.raises(InvalidInput, match="asynchronous"):
        table.version()


def test_a_race_that_is_lost_to_an_overlapping_range_puts_nothing_there_twice(proxy: Proxy, s3: S3Location) -> None:
    table = open_table(proxy)
    land(table, key(5))
    files = write(table, key(0))
    others = LakeTable(s3.url, options=s3.options)
    lost = False

    def lose(request: Request) -> Spoiling:
        nonlocal lost
        if is_commit(request) and not lost:
            lost = True
            land(others, "000000000005-000000000014")
        return None

    proxy.spoil = lose
    with pytest.raises(InvalidInput, match="shares sequences with 000000000005-000000000014"):
        table.commit(key(0), files, epoch=1)

    assert lost
    assert key(0) not in others.ranges()
