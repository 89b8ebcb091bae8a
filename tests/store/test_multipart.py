"""Objects that are put in parts."""

from __future__ import annotations

from objbuf_dagster.store import CloudStore, RetryingStore
from tests.support.bucket import fake_bucket
from tests.support.proxy import Request, Spoiling, proxied
from tests.support.s3 import S3Location


def test_an_upload_in_parts_whose_last_answer_was_lost_is_put_again(s3: S3Location) -> None:
    """The repeated request finds no such upload, since it is done; that says nothing about the object."""
    lost = 0

    def lose(request: Request) -> Spoiling:
        nonlocal lost
        if request.method == "POST" and "uploadId" in request.path and not lost:
            lost += 1
            return "lost"
        return None

    with proxied(s3) as proxy:
        store = RetryingStore(CloudStore(proxy.location.url, options=proxy.location.options, part_bytes=5))
        proxy.spoil = lose
        assert store.put("data.parquet", [b"one", b"two"]) is None

        assert lost == 1
        assert store.read("data.parquet") == b"onetwo"


def test_what_is_no_larger_than_a_part_is_one_request() -> None:
    """Also if it comes in pieces, as every batch does: three requests would cost three times as much, and wait."""
    with fake_bucket() as bucket:
        store = CloudStore("s3://bucket", options=bucket.s3_options)
        store.put("a", [b"x", b"y"])
        store.put("b", [b"x" * (1 << 20)] * 32)
        store.put("c", b"z" * (32 << 20))

        assert bucket.requests == ["PUT"] * 3
        assert bucket.objects["a"][0] == b"xy"
        assert [len(bucket.objects[name][0]) for name in "bc"] == [32 << 20] * 2
