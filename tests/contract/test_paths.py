"""What every store promises of paths: unusual names come back, and what could lead elsewhere is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store import Store
from tests.contract.objects import paths_of


@pytest.mark.parametrize(
    "name", ["a b", "ü/日本", "100%", "a%20b", "a+b", "a#b", "a?b=c&d", "a~b", "a*b", "a:b", 'a"b', "<&>", "...", "-x"]
)
def test_unusual_names_come_back_as_they_were_given(any_store: Store, name: str) -> None:
    any_store.put(f"folder/{name}", b"bytes")

    assert any_store.read(f"folder/{name}") == b"bytes"
    assert any_store.head(f"folder/{name}").path == f"folder/{name}"
    assert paths_of(any_store.list("folder")) == [f"folder/{name}"]
    assert any_store.delete([f"folder/{name}"]) == {}
    assert paths_of(any_store.list()) == []


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

    assert paths_of(any_store.list()) == ["a/good"]


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
