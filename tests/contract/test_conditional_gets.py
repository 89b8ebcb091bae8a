"""What every store promises of a get that is for changes only, and of a store that remembers."""

from __future__ import annotations

import pytest

from objbuf_dagster.errors import CorruptData, NotFound
from objbuf_dagster.store import Blob, Conflict, MemoryStore, RememberingStore, Store, remembering
from tests.support.counting import CountingStore


def test_an_unchanged_object_is_not_given_again(any_store: Store) -> None:
    any_store.put("folder/object", b"bytes")
    version = any_store.get("folder/object").version

    assert any_store.get_if_changed("folder/object", version) is None
    assert any_store.get_if_changed("folder/object", version, max_bytes=5) is None


def test_a_changed_object_is_given_with_its_new_version(any_store: Store) -> None:
    any_store.put("object", b"one")
    old = any_store.get("object")
    any_store.put("object", b"two", if_version=old.version)

    new = any_store.get_if_changed("object", old.version)

    assert new == any_store.get("object")
    assert new is not None
    assert (new.data, new.version != old.version) == (b"two", True)
    assert any_store.put("object", b"three", if_version=new.version) is None


@pytest.mark.parametrize("version", ["", "another", '"another"'])
def test_a_version_that_never_was_is_not_the_same(any_store: Store, version: str) -> None:
    any_store.put("object", b"bytes")

    assert any_store.get_if_changed("object", version) == any_store.get("object")


def test_a_deleted_object_is_not_found(any_store: Store) -> None:
    any_store.put("object", b"bytes")
    version = any_store.get("object").version
    any_store.delete(["object"])

    with pytest.raises(NotFound):
        any_store.get_if_changed("object", version)


def test_a_change_to_something_too_large_is_refused(any_store: Store) -> None:
    any_store.put("object", b"bytes")
    version = any_store.get("object").version
    any_store.put("object", b"x" * 1000)

    with pytest.raises(CorruptData, match="1000 bytes"):
        any_store.get_if_changed("object", version, max_bytes=999)


def test_what_is_remembered_is_what_is_there(any_store: Store) -> None:
    memory: dict[str, Blob] = {}
    any_store.put("object", b"one")

    def look() -> Blob:
        return RememberingStore(any_store, "object", "this one", memory).get("object")

    first = look()
    assert first == look() == any_store.get("object")
    any_store.put("object", b"two", if_version=first.version)
    assert look() == any_store.get("object")
    any_store.delete(["object"])
    with pytest.raises(NotFound):
        look()
    any_store.put("object", b"one")
    assert look() == any_store.get("object")


def test_a_remembered_object_can_be_swapped_by_its_version(any_store: Store) -> None:
    store = RememberingStore(any_store, "object", "this one", {})
    store.put("object", b"one", if_absent=True)
    store.get("object")
    version = store.get("object").version

    assert store.put("object", b"two", if_version=version) is None
    assert store.put("object", b"three", if_version=version) == Conflict()
    assert store.get("object").data == b"two"


def test_an_object_is_read_once_until_it_changes() -> None:
    counting = CountingStore(MemoryStore())
    counting.put("object", b"one")
    store = RememberingStore(counting, "object", "this one", {})
    counting.reset()

    assert {store.get("object").data for _ in range(5)} == {b"one"}
    assert counting.calls == {("get", "object"): 1, ("unchanged", "object"): 4}


def test_an_object_that_is_too_large_to_be_remembered_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "_MOST_BYTES", 3)
    counting, memory = CountingStore(MemoryStore()), dict[str, Blob]()
    counting.put("object", b"four")
    store = RememberingStore(counting, "object", "this one", memory)
    counting.reset()

    assert {store.get("object").data for _ in range(3)} == {b"four"}
    assert (counting.calls, memory) == ({("get", "object"): 3}, {})


def test_what_was_remembered_of_another_store_is_not_used() -> None:
    memory: dict[str, Blob] = {}
    one, other = MemoryStore(), MemoryStore()
    one.put("object", b"one")
    other.put("object", b"two")

    found = [RememberingStore(store, "object", f"{id(store)}", memory).get("object") for store in (one, other)]

    assert [blob.data for blob in found] == [b"one", b"two"]
