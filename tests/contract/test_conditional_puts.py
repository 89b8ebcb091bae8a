"""What every store promises of a conditional put: it happens or changes nothing, and among many writers one wins."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from objbuf_dagster.errors import InvalidInput, NotFound
from objbuf_dagster.store import Conflict, Store
from tests.contract.objects import WRITERS


def test_a_conditional_put_takes_a_payload_in_parts(any_store: Store) -> None:
    assert any_store.put("object", [b"one", b"two"], if_absent=True) is None
    version = any_store.get("object").version

    assert any_store.put("object", [b"three", b"four"], if_version=version) is None

    assert any_store.read("object") == b"threefour"


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
        payloads = [f"round {number} writer {writer}".encode() for writer in range(WRITERS)]

        results = [pool.submit(_put_if_version, store, path, data, version) for data in payloads]

        winners = [data for data, result in zip(payloads, results, strict=True) if result.result()]
        assert winners == [store.read(path)]


def _create_in_turn(pool: Executor, store: Store, rounds: int) -> None:
    for number in range(rounds):
        path = f"absent/{number}"
        payloads = [f"writer {writer}".encode() for writer in range(WRITERS)]

        results = [pool.submit(_put_if_absent, store, path, data) for data in payloads]

        winners = [data for data, result in zip(payloads, results, strict=True) if result.result()]
        assert winners == [store.read(path)]


def _count_up(pool: Executor, store: Store, times: int) -> None:
    store.put("number", b"0")

    results = [pool.submit(_increment, store, "number", times) for _ in range(WRITERS)]

    for result in results:
        result.result()
    assert store.read("number") == str(WRITERS * times).encode()


def test_one_of_many_threads_wins_a_conditional_put(any_store: Store) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        _put_in_turn(pool, any_store, rounds=15)


def test_one_of_many_threads_wins_a_put_if_absent(any_store: Store) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        _create_in_turn(pool, any_store, rounds=15)


def test_increments_by_many_threads_lose_no_update(any_store: Store) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        _count_up(pool, any_store, times=10)


def test_processes_that_compete_lose_no_update_and_never_win_twice(shared_store: Store) -> None:
    with ProcessPoolExecutor(WRITERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        _put_in_turn(pool, shared_store, rounds=10)
        _create_in_turn(pool, shared_store, rounds=10)
        _count_up(pool, shared_store, times=10)
