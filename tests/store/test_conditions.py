"""Servers that ignore the conditions of a put are found out before anything is trusted to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from objbuf_dagster.buffer import Consumer, Producer
from objbuf_dagster.errors import StorageError, StorageUnavailable
from objbuf_dagster.lake import DataFile, LakeTable
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch, RangeObject
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.store import MemoryStore, RetryPolicy, Store, check_conditions, open_store
from tests.support.bucket import Answer, FakeBucket, fake_bucket
from tests.support.counting import CountingStore
from tests.support.s3 import S3Location

_KEY = "000000000000-000000000009"


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    with fake_bucket() as found:
        yield found


def opened(bucket: FakeBucket, url: str = "s3://bucket/prefix") -> Store:
    return open_store(url, options=bucket.s3_options, retry=RetryPolicy(attempts=1))


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_bucket_that_ignores_a_condition_gets_no_consumer(header: str, bucket: FakeBucket) -> None:
    bucket.ignores = frozenset([header])

    with pytest.raises(StorageError, match=rf"ignores conditional puts \({header}\).*Use a server"):
        Consumer.open(opened(bucket), gc_interval=None)

    assert bucket.objects == {}, "no manifest, and nothing is left of the attempt"


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_bucket_that_ignores_a_condition_makes_nothing_durable(header: str, bucket: FakeBucket) -> None:
    bucket.ignores = frozenset([header])
    producer = Producer(opened(bucket))
    handle = producer.produce([b"x"])

    with pytest.raises(StorageError, match=rf"ignores conditional puts \({header}\)"):
        producer.close()

    outcome = handle.result()
    assert isinstance(outcome, StorageError)
    assert not outcome.in_doubt
    assert "prefix/ingest/manifest" not in bucket.objects


def test_a_bucket_that_ignores_conditions_gets_no_range(bucket: FakeBucket) -> None:
    bucket.ignores = frozenset(["If-None-Match"])
    planned = RangeObject(0, 0, 0, 0, (PlannedBatch(BatchDescriptor(0, "ingest/x.batch", ()), 1),))

    with pytest.raises(StorageError, match=r"ignores conditional puts \(If-None-Match\)"):
        RangeLedger(opened(bucket)).create(planned)

    assert bucket.objects == {}


def test_a_bucket_is_asked_once_by_all_that_write(bucket: FakeBucket) -> None:
    store = opened(bucket)
    for _ in range(2):
        with Producer(store) as producer:
            producer.produce([b"x"])
    Consumer.open(store, gc_interval=None)
    planned = RangeObject(0, 0, 0, 0, (PlannedBatch(BatchDescriptor(0, "ingest/x.batch", ()), 1),))
    RangeLedger(store).create(planned)

    assert bucket.requests.count("POST") == 1, "the probe was deleted once"


def test_a_bucket_that_ignores_conditions_gets_no_commit(bucket: FakeBucket) -> None:
    bucket.ignores = frozenset(["If-None-Match"])
    table = LakeTable("s3://bucket/lake/entries", options=bucket.s3_options, retry=RetryPolicy(attempts=1))
    path = table.new_path(_KEY)
    table.store.put(path, b"rows")

    with pytest.raises(StorageError, match=r"ignores conditional puts \(If-None-Match\)") as raised:
        table.commit(_KEY, [DataFile(path, 4, 1)], epoch=1)

    assert not raised.value.in_doubt
    assert list(bucket.objects) == [f"lake/entries/{path}"]


def test_a_bucket_that_keeps_to_them_is_asked_once(bucket: FakeBucket) -> None:
    check_conditions(opened(bucket), "ingest", versions=True)
    assert bucket.requests == ["PUT", "PUT", "GET", "PUT", "PUT", "POST"]
    assert bucket.objects == {}

    check_conditions(opened(bucket, "s3://bucket/elsewhere"), versions=True)
    assert len(bucket.requests) == 6

    check_conditions(opened(bucket, "s3://another"))
    assert bucket.requests[6:] == ["PUT", "PUT", "POST"]


def test_a_bucket_that_could_not_be_asked_is_asked_again(bucket: FakeBucket) -> None:
    bucket.fail(Answer(503))
    with pytest.raises(StorageUnavailable) as raised:
        check_conditions(opened(bucket))
    assert not raised.value.in_doubt, "nothing that matters was tried"

    bucket.fail(None)
    check_conditions(opened(bucket))
    assert bucket.requests


def test_a_real_server_keeps_to_them(s3: S3Location) -> None:
    store = CountingStore(s3.open())

    check_conditions(store, "a/folder", versions=True)

    assert list(s3.open().list()) == []


def test_stores_of_ours_are_not_asked() -> None:
    store = CountingStore(MemoryStore())

    check_conditions(store, versions=True)

    assert not store.calls
