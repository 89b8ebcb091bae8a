"""What every store promises of listing and deleting: all depths, in order, past any page, only what is named."""

from __future__ import annotations

from objbuf_dagster.store import ObjectInfo, Store
from tests.contract.objects import fill, paths_of

_MANY = 1_050  # more than S3 gives, or deletes, at once


def test_an_empty_store_lists_nothing(any_store: Store) -> None:
    assert paths_of(any_store.list()) == []
    assert paths_of(any_store.list("nothing")) == []


def test_a_listing_has_all_depths_in_rising_order(any_store: Store) -> None:
    paths = sorted(["B", "a-b", "a./b", "a../b./c", "a/b/c/d", "a0", "b/a", "z/ü", "ä"])
    for path in reversed(paths):
        any_store.put(path, path.encode())

    assert list(any_store.list()) == [ObjectInfo(path, len(path.encode())) for path in paths]


def test_a_prefix_is_a_folder(any_store: Store) -> None:
    for path in ("ab/x", "ab/y/z", "abc/x", "ab-c", "aa/ab/x"):
        any_store.put(path, b"")

    assert paths_of(any_store.list("ab")) == ["ab/x", "ab/y/z"]
    assert paths_of(any_store.list("ab/y")) == ["ab/y/z"]
    assert paths_of(any_store.list("a")) == []


def test_an_object_is_no_folder_of_itself(any_store: Store) -> None:
    any_store.put("folder/object", b"")

    assert paths_of(any_store.list("folder/object")) == []
    assert paths_of(any_store.list("folder/object/deeper")) == []


def test_a_listing_goes_on_behind_a_path(any_store: Store) -> None:
    for path in ("other/0", "x/1", "x/2/a", "x/3", "y/0"):
        any_store.put(path, b"")

    assert paths_of(any_store.list("x", after="x/1")) == ["x/2/a", "x/3"]
    assert paths_of(any_store.list("x", after="x/2")) == ["x/2/a", "x/3"]  # need not be an object's
    assert paths_of(any_store.list("x", after="x/3")) == []
    assert paths_of(any_store.list("x", after="a")) == ["x/1", "x/2/a", "x/3"]
    assert paths_of(any_store.list("x", after="z")) == []
    assert paths_of(any_store.list(after="x/2/a")) == ["x/3", "y/0"]


def test_a_listing_and_a_delete_go_past_a_page(any_store: Store) -> None:
    paths = [f"many/{number:05d}" for number in range(_MANY)]
    fill(any_store, paths)
    any_store.put("other", b"")

    assert paths_of(any_store.list("many")) == paths
    assert paths_of(any_store.list("many", after=paths[10])) == paths[11:]
    assert paths_of(any_store.list("many", after=paths[1_020])) == paths[1_021:]

    assert any_store.delete(paths) == {}

    assert paths_of(any_store.list()) == ["other"]


# Deleting


def test_delete_takes_what_is_named_and_nothing_else(any_store: Store) -> None:
    for path in ("x/1", "x/2", "x/3/4"):
        any_store.put(path, b"")

    assert any_store.delete(path for path in ("x/1", "x/3/4")) == {}

    assert paths_of(any_store.list()) == ["x/2"]


def test_deleting_what_is_gone_is_no_failure(any_store: Store) -> None:
    any_store.put("x/1", b"")
    any_store.put("x/2", b"")

    assert any_store.delete(["x/nothing", "x/1", "nothing", "no/thing", "x/1/deeper", "x/1", "x/2"]) == {}
    assert any_store.delete(["x/1"]) == {}
    assert any_store.delete([]) == {}

    assert paths_of(any_store.list()) == []


def test_deleting_a_folder_leaves_what_is_in_it(any_store: Store) -> None:
    any_store.put("x/1", b"")

    assert any_store.delete(["x"]) == {}

    assert paths_of(any_store.list()) == ["x/1"]
