"""Objects that are put in parts."""

from __future__ import annotations

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
        store = proxy.location.open()
        proxy.spoil = lose
        assert store.put("data.parquet", [b"one", b"two"]) is None

        assert lost == 1
        assert store.read("data.parquet") == b"onetwo"
