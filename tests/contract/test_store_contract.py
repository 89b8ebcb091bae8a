"""What every store promises: one suite over memory, a local directory and S3."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound
from objbuf_dagster.store import Blob, Conflict, ObjectInfo, Store
from tests.support.s3 import S3Location

_WRITERS = 8
_MANY = 1_050  # more than S3 gives, or deletes, at once


def _paths(infos: Iterable[ObjectInfo]) -> list[str]:
    return [info.path for info in infos]


def _fill(store: Store, paths: list[str]) -> None:
    with ThreadPoolExecutor(_WRITERS) as pool:
        assert not any(pool.map(lambda path: store.put(path, b"."), paths))


# One object


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


def test_a_conditional_put_takes_a_payload_in_parts(any_store: Store) -> None:
    assert any_store.put("object", [b"one", b"two"], if_absent=True) is None
    version = any_store.get("object").version

    assert any_store.put("object", [b"three", b"four"], if_version=version) is None

    assert any_store.read("object") == b"threefour"


def test_an_empty_object_is_an_object(any_store: Store) -> None:
    any_store.put("object", b"")

    assert any_store.get("object").data == b""
    assert any_store.head("object").size == 0
    assert any_store.put("object", b"other", if_absent=True) == Conflict()
    assert _paths(any_store.list()) == ["object"]


def test_put_overwrites(any_store: Store) -> None:
    any_store.put("object", b"a longer first one")

    any_store.put("object", b"second")

    assert any_store.read("object") == b"second"
    assert any_store.head("object").size == 6


@pytest.mark.parametrize(
    "name", ["a b", "ü/日本", "100%", "a%20b", "a+b", "a#b", "a?b=c&d", "a~b", "a*b", "a:b", 'a"b', "<&>", "...", "-x"]
)
def test_unusual_names_come_back_as_they_were_given(any_store: Store, name: str) -> None:
    any_store.put(f"folder/{name}", b"bytes")

    assert any_store.read(f"folder/{name}") == b"bytes"
    assert any_store.head(f"folder/{name}").path == f"folder/{name}"
    assert _paths(any_store.list("folder")) == [f"folder/{name}"]
    assert any_store.delete([f"folder/{name}"]) == {}
    assert _paths(any_store.list()) == []


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


# Conditional puts


def test_a_version_changes_with_the_bytes(any_store: Store) -> None:
    any_store.put("object", b"one")
    before = any_store.get("object")

    any_store.put("object", b"two")

    assert any_store.get("object").version != before.version
    assert any_store.get("object") == any_store.get("object")


def test_a_put_with_the_current_version_happens(any_store: Store) -> None:
    any_store.put("object", b"one")

    assert any_store.put("object", b"two", if_version=any_store.get("object").version) is None

    assert any_store.read("object") == b"two"


def test_a_put_with_an_old_version_changes_nothing(any_store: Store) -> None:
    any_store.put("object", b"one")
    old = any_store.get("object").version
    any_store.put("object", b"two")
    before = any_store.get("object")

    assert any_store.put("object", b"three", if_version=old) == Conflict()

    assert any_store.get("object") == before


def test_a_put_with_the_version_of_another_object_changes_nothing(any_store: Store) -> None:
    any_store.put("object", b"one")
    any_store.put("other", b"two")

    assert any_store.put("object", b"three", if_version=any_store.get("other").version) == Conflict()

    assert any_store.read("object") == b"one"


def test_a_put_with_a_version_of_what_is_gone_is_a_conflict(any_store: Store) -> None:
    any_store.put("object", b"one")
    version = any_store.get("object").version
    any_store.delete(["object"])

    assert any_store.put("object", b"two", if_version=version) == Conflict()

    with pytest.raises(NotFound):
        any_store.get("object")


def test_a_put_if_absent_leaves_what_is_there_alone(any_store: Store) -> None:
    assert any_store.put("folder/object", b"one", if_absent=True) is None
    before = any_store.get("folder/object")

    assert any_store.put("folder/object", b"two", if_absent=True) == Conflict()

    assert any_store.get("folder/object") == before


def test_a_deleted_object_is_absent_again(any_store: Store) -> None:
    any_store.put("object", b"one", if_absent=True)
    any_store.delete(["object"])

    assert any_store.put("object", b"two", if_absent=True) is None

    assert any_store.read("object") == b"two"


def test_conditions_that_make_no_sense_are_refused(any_store: Store) -> None:
    any_store.put("object", b"one")

    with pytest.raises(InvalidInput, match="not for both"):
        any_store.put("object", b"two", if_version="1", if_absent=True)
    with pytest.raises(InvalidInput, match="empty version"):
        any_store.put("object", b"two", if_version="")

    assert any_store.read("object") == b"one"


# Many writers


def _put_if_version(store: Store, path: str, data: bytes, version: str) -> bool:
    return store.put(path, data, if_version=version) is None


def _put_if_absent(store: Store, path: str, data: bytes) -> bool:
    return store.put(path, data, if_absent=True) is None


def _increment(store: Store, path: str, times: int) -> int:
    """Add `times` to the number in the object, one at a time, and return how often that took another look."""
    conflicts = 0
    for _ in range(times):
        while True:
            found = store.get(path)
            if store.put(path, str(int(found.data) + 1).encode(), if_version=found.version) is None:
                break
            conflicts += 1
    return conflicts


def _put_in_turn(pool: Executor, store: Store, rounds: int) -> None:
    for number in range(rounds):
        path = f"round/{number}"
        store.put(path, b"original")
        version = store.get(path).version
        payloads = [f"round {number} writer {writer}".encode() for writer in range(_WRITERS)]

        results = [pool.submit(_put_if_version, store, path, data, version) for data in payloads]

        winners = [data for data, result in zip(payloads, results, strict=True) if result.result()]
        assert winners == [store.read(path)]


def _create_in_turn(pool: Executor, store: Store, rounds: int) -> None:
    for number in range(rounds):
        path = f"absent/{number}"
        payloads = [f"writer {writer}".encode() for writer in range(_WRITERS)]

        results = [pool.submit(_put_if_absent, store, path, data) for data in payloads]

        winners = [data for data, result in zip(payloads, results, strict=True) if result.result()]
        assert winners == [store.read(path)]


def _count_up(pool: Executor, store: Store, times: int) -> None:
    store.put("number", b"0")

    results = [pool.submit(_increment, store, "number", times) for _ in range(_WRITERS)]

    for result in results:
        result.result()
    assert store.read("number") == str(_WRITERS * times).encode()


def test_one_of_many_threads_wins_a_conditional_put(any_store: Store) -> None:
    with ThreadPoolExecutor(_WRITERS) as pool:
        _put_in_turn(pool, any_store, rounds=15)


def test_one_of_many_threads_wins_a_put_if_absent(any_store: Store) -> None:
    with ThreadPoolExecutor(_WRITERS) as pool:
        _create_in_turn(pool, any_store, rounds=15)


def test_increments_by_many_threads_lose_no_update(any_store: Store) -> None:
    with ThreadPoolExecutor(_WRITERS) as pool:
        _count_up(pool, any_store, times=10)


def test_processes_that_compete_lose_no_update_and_never_win_twice(shared_store: Store) -> None:
    with ProcessPoolExecutor(_WRITERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        _put_in_turn(pool, shared_store, rounds=10)
        _create_in_turn(pool, shared_store, rounds=10)
        _count_up(pool, shared_store, times=10)


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


# Listing


def test_an_empty_store_lists_nothing(any_store: Store) -> None:
    assert _paths(any_store.list()) == []
    assert _paths(any_store.list("nothing")) == []


def test_a_listing_has_all_depths_in_rising_order(any_store: Store) -> None:
    paths = ["B", "a-b", "a/b/c/d", "a0", "b/a", "z/ü", "ä"]
    for path in reversed(paths):
        any_store.put(path, path.encode())

    assert list(any_store.list()) == [ObjectInfo(path, len(path.encode())) for path in paths]


def test_a_prefix_is_a_folder(any_store: Store) -> None:
    for path in ("ab/x", "ab/y/z", "abc/x", "ab-c", "aa/ab/x"):
        any_store.put(path, b"")

    assert _paths(any_store.list("ab")) == ["ab/x", "ab/y/z"]
    assert _paths(any_store.list("ab/y")) == ["ab/y/z"]
    assert _paths(any_store.list("a")) == []


def test_an_object_is_no_folder_of_itself(any_store: Store) -> None:
    any_store.put("folder/object", b"")

    assert _paths(any_store.list("folder/object")) == []
    assert _paths(any_store.list("folder/object/deeper")) == []


def test_a_listing_goes_on_behind_a_path(any_store: Store) -> None:
    for path in ("other/0", "x/1", "x/2/a", "x/3", "y/0"):
        any_store.put(path, b"")

    assert _paths(any_store.list("x", after="x/1")) == ["x/2/a", "x/3"]
    assert _paths(any_store.list("x", after="x/2")) == ["x/2/a", "x/3"]  # need not be an object's
    assert _paths(any_store.list("x", after="x/3")) == []
    assert _paths(any_store.list("x", after="a")) == ["x/1", "x/2/a", "x/3"]
    assert _paths(any_store.list("x", after="z")) == []
    assert _paths(any_store.list(after="x/2/a")) == ["x/3", "y/0"]


def test_a_listing_and_a_delete_go_past_a_page(any_store: Store) -> None:
    paths = [f"many/{number:05d}" for number in range(_MANY)]
    _fill(any_store, paths)
    any_store.put("other", b"")

    assert _paths(any_store.list("many")) == paths
    assert _paths(any_store.list("many", after=paths[10])) == paths[11:]
    assert _paths(any_store.list("many", after=paths[1_020])) == paths[1_021:]

    assert any_store.delete(paths) == {}

    assert _paths(any_store.list()) == ["other"]


# Deleting


def test_delete_takes_what_is_named_and_nothing_else(any_store: Store) -> None:
    for path in ("x/1", "x/2", "x/3/4"):
        any_store.put(path, b"")

    assert any_store.delete(path for path in ("x/1", "x/3/4")) == {}

    assert _paths(any_store.list()) == ["x/2"]


def test_deleting_what_is_gone_is_no_failure(any_store: Store) -> None:
    any_store.put("x/1", b"")
    any_store.put("x/2", b"")

    assert any_store.delete(["x/nothing", "x/1", "nothing", "no/thing", "x/1/deeper", "x/1", "x/2"]) == {}
    assert any_store.delete(["x/1"]) == {}
    assert any_store.delete([]) == {}

    assert _paths(any_store.list()) == []


def test_deleting_a_folder_leaves_what_is_in_it(any_store: Store) -> None:
    any_store.put("x/1", b"")

    assert any_store.delete(["x"]) == {}

    assert _paths(any_store.list()) == ["x/1"]


# Paths


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../x",
        "a/..",
        "a/../../b",
        "/x",
        "/",
        "a/",
        "a//b",
        ".",
        "./a",
        "a/.",
        "a\0b",
        "a\\b",
        "..\\a",
        "a\nb",
        "\x7f",
    ],
)
def test_a_path_that_no_store_should_see_is_refused_by_every_method(any_store: Store, path: str) -> None:
    any_store.put("a/good", b"kept")
    calls: list[Callable[[], object]] = [
        lambda: any_store.get(path),
        lambda: any_store.read(path),
        lambda: any_store.head(path),
        lambda: any_store.put(path, b"bad"),
        lambda: any_store.put(path, b"bad", if_absent=True),
        lambda: any_store.put(path, b"bad", if_version="1"),
        lambda: list(any_store.list(path)),
        lambda: any_store.delete(["a/good", path]),
    ]

    for call in calls:
        with pytest.raises(InvalidInput):
            call()

    assert _paths(any_store.list()) == ["a/good"]


def test_the_empty_path_is_the_root_and_no_object(any_store: Store) -> None:
    calls: list[Callable[[], object]] = [
        lambda: any_store.get(""),
        lambda: any_store.read(""),
        lambda: any_store.head(""),
        lambda: any_store.put("", b"bad"),
        lambda: any_store.delete([""]),
    ]

    for call in calls:
        with pytest.raises(InvalidInput):
            call()


def test_a_path_that_is_no_unicode_is_refused(any_store: Store) -> None:
    with pytest.raises(InvalidInput, match="Unicode"):
        any_store.put("a\udc80", b"bad")


# Pickling


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
