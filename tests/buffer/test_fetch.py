"""Fetching planned batches: what a range says of their sizes holds, or they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from objbuf_dagster.buffer import FetchHandle
from objbuf_dagster.errors import CorruptData, NotFound
from objbuf_dagster.protocol import BatchDescriptor, PlannedBatch
from objbuf_dagster.store import LocalStore, MemoryStore, Store


class Watched(MemoryStore):
    """Remembers the most bytes that a read would have taken."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[int | None] = []

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        self.most.append(max_bytes)
        return super().read(path, max_bytes=max_bytes)


def planned(store: Store, sizes: list[int | None], data: bytes = b"0123456789") -> list[PlannedBatch]:
    """Batches of ten bytes each that are said to have these sizes."""
    batches = []
    for sequence, size in enumerate(sizes, 7):
        location = f"ingest/{sequence}.batch"
        store.put(location, data)
        batches.append(PlannedBatch(BatchDescriptor(sequence, location), size))
    return batches


def test_a_batch_of_the_size_that_was_planned_is_fetched() -> None:
    store = Watched()
    batches = planned(store, [10, None, 10])

    assert [data for _, data in FetchHandle(store, max_bytes=100).fetch_ahead(batches)] == [b"0123456789"] * 3
    assert sorted(store.most, key=str) == [10, 10, 100]


@pytest.mark.parametrize(("size", "found"), [(0, "more"), (9, "more"), (11, "10")])
def test_a_batch_of_any_other_size_is_refused(size: int, found: str) -> None:
    """Sizes decide how many are held at a time, so one that is too small must not let more of them in."""
    store = Watched()
    batches = planned(store, [size])

    with pytest.raises(CorruptData, match=rf"sequence 7, ingest/7\.batch: .* has {found} bytes .* says {size}: "):
        list(FetchHandle(store).fetch_ahead(batches))

    assert store.most == [size]


def test_a_batch_beyond_the_limit_is_refused_for_that() -> None:
    store = MemoryStore()
    batches = planned(store, [10])

    with pytest.raises(CorruptData, match=r"sequence 7, .* more than the 5 it may have"):
        list(FetchHandle(store, max_bytes=5).fetch_ahead(batches))


def test_a_missing_batch_of_a_directory_may_be_on_another_machine(tmp_path: Path) -> None:
    missing = BatchDescriptor(3, "ingest/3.batch")

    with pytest.raises(NotFound, match=r"sequence 3.*or its directory is not shared"):
        FetchHandle(LocalStore(tmp_path)).fetch_bytes(missing)
    with pytest.raises(NotFound, match="sequence 3") as raised:
        FetchHandle(MemoryStore()).fetch_bytes(missing)
    assert "directory" not in str(raised.value)
