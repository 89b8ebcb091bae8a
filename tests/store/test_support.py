"""The stores that other tests lean on count and fail as they say."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from objbuf_dagster.errors import StorageUnavailable
from objbuf_dagster.store import Conflict, MemoryStore, TransientError
from tests.support.counting import CountingStore
from tests.support.faults import Call, Delay, FaultStore


def test_calls_are_counted_by_method_and_path_from_many_threads() -> None:
    store = CountingStore(MemoryStore())
    store.put("a", b"")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: (store.get("a"), store.read("a"), store.head("a")), range(100)))
    list(store.list("folder"))
    store.delete(["a", "b"])

    assert store.calls["get", "a"] == 100
    assert store.count("get", "read", path="a") == 200
    assert store.count(path="a") == 302
    assert store.count("delete") == 2
    assert store.count("list", path="folder") == 1
    store.reset()
    assert store.count() == 0


def test_what_did_not_change_is_counted_apart() -> None:
    store = CountingStore(MemoryStore())
    store.put("a", b"1")
    version = store.get("a").version
    store.reset()

    assert store.get_if_changed("a", version) is None
    store.put("a", b"2")
    assert store.get_if_changed("a", version) is not None

    assert store.calls == {("unchanged", "a"): 1, ("put", "a"): 1, ("get", "a"): 1}


def test_faults_come_where_the_script_says() -> None:
    memory = MemoryStore()
    store = FaultStore(memory, {("put", 1): "fail", ("put", 2): "lost", ("put", 3): "unavailable"})

    with pytest.raises(TransientError):
        store.put("a", b"1")
    assert list(memory.list()) == []
    with pytest.raises(TransientError):
        store.put("a", b"2", if_absent=True)
    assert memory.read("a") == b"2"
    with pytest.raises(StorageUnavailable) as caught:
        store.put("a", b"3")
    assert not isinstance(caught.value, TransientError)
    assert store.put("a", b"4", if_absent=True) == Conflict()

    assert store.calls == [Call(number, number, "put", "a") for number in (1, 2, 3, 4)]


def test_what_is_done_twice_gives_the_second_answer() -> None:
    memory = MemoryStore()
    store = FaultStore(memory, lambda call: "twice")

    assert store.put("a", b"1") is None
    assert store.put("b", b"2", if_absent=True) == Conflict()
    assert memory.read("b") == b"2"
    assert [info.path for info in store.list()] == ["a", "b"]
    assert store.delete(["a"]) == {}
    assert [call.method for call in store.calls] == ["put", "put", "list", "delete"]


def test_a_script_can_decide_delay_and_be_replaced() -> None:
    store = FaultStore(MemoryStore(), lambda call: Delay(0.05) if call.method == "put" else "fail")
    began = time.monotonic()

    assert store.put("slow", b"") is None
    assert time.monotonic() - began >= 0.05
    with pytest.raises(TransientError):
        store.get("slow")
    store.script = {}

    assert store.read("slow") == b""
