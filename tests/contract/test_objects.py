"""What every store promises of one object: the bytes come back, whole, and also from a pickled store."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from objbuf_dagster.errors import CorruptData, NotFound
from objbuf_dagster.store import Blob, Conflict, ObjectInfo, Store
from tests.contract.objects import paths_of
from tests.support.s3 import S3Location


def test_get_gives_back_the_bytes_that_were_put(any_store: Store) -> None:
    assert any_store.put("folder/object", b"bytes") is None

    assert any_store.get("folder/object").data == b"bytes"
    assert any_store.read("folder/object") == b"bytes"
    assert any_store.head("folder/object") == ObjectInfo("folder/object", 5)


@pytest.mark.parametrize(
    "parts", [[], [b""], [b"one"], [b"one", b"", b"two", b"three"], (b"a" * 70_000, b"b" * 70_000)]
)
def test_a_payload_in_parts_is_one_object(any_store: Store, parts: list[bytes]) -> None:
    assert any_store.put("object", parts) is None

    assert any_store.read("object") == b"".join(parts)


def test_an_empty_object_is_an_object(any_store: Store) -> None:
    any_store.put("object", b"")

    assert any_store.get("object").data == b""
    assert any_store.head("object").size == 0
    assert any_store.put("object", b"other", if_absent=True) == Conflict()
    assert paths_of(any_store.list()) == ["object"]


def test_put_overwrites(any_store: Store) -> None:
    any_store.put("object", b"a longer first one")

    any_store.put("object", b"second")

    assert any_store.read("object") == b"second"
    assert any_store.head("object").size == 6


def test_what_is_not_there_is_not_found(any_store: Store) -> None:
    any_store.put("folder/object", b"")
    calls: list[Callable[[str], object]] = [any_store.get, any_store.read, any_store.head]

    for call in calls:
        for path in ("nothing", "folder", "folder/nothing", "folder/object/nothing"):
            with pytest.raises(NotFound) as caught:
                call(path)
            assert caught.value.path == path


def test_an_object_that_is_too_large_is_refused(any_store: Store) -> None:
    any_store.put("object", b"x" * 1000)

    assert len(any_store.get("object", max_bytes=1000).data) == 1000
    assert len(any_store.read("object", max_bytes=1000)) == 1000
    with pytest.raises(CorruptData, match="1000 bytes"):
        any_store.get("object", max_bytes=999)
    with pytest.raises(CorruptData, match="1000 bytes"):
        any_store.read("object", max_bytes=999)


def test_a_reader_never_sees_half_a_write(any_store: Store) -> None:
    payloads = {letter * 600_000 for letter in (b"a", b"b")}
    any_store.put("object", next(iter(payloads)))
    done = threading.Event()

    def watch() -> list[Blob]:
        seen = []
        while not done.is_set():
            blob = any_store.get("object")
            if blob.data not in payloads or any_store.read("object") not in payloads:
                seen.append(blob)
        return seen

    with ThreadPoolExecutor(2) as pool:
        torn = [pool.submit(watch) for _ in range(2)]
        try:
            for _ in range(10):
                for payload in sorted(payloads):
                    any_store.put("object", payload)
        finally:
            done.set()

    assert [blob for result in torn for blob in result.result()] == []


def test_a_store_survives_pickling(any_store: Store) -> None:
    any_store.put("object", b"one")

    again: Store = pickle.loads(pickle.dumps(any_store))

    assert again.put("object", b"two", if_version=any_store.get("object").version) is None
    assert any_store.read("object") == b"two"


def test_a_bucket_shows_no_secret(s3: S3Location) -> None:
    store = s3.open()

    for text in (repr(store), str(store), repr(pickle.loads(pickle.dumps(store)))):
        assert s3.options["secret_access_key"] not in text
        assert s3.url in text
