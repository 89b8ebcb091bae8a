"""Compare-and-swap below the meaning of the manifest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from objbuf_dagster.buffer import DEFAULT_MANIFEST_PATH, manifest_store
from objbuf_dagster.errors import CorruptData, StorageUnavailable, UnsupportedVersion
from objbuf_dagster.protocol import Manifest
from objbuf_dagster.store import MemoryStore, RetryingStore, RetryPolicy, Store
from tests.support.buffers import append, fill, manifest_of, manifests
from tests.support.counting import CountingStore
from tests.support.faults import Call, FaultStore


def test_a_missing_manifest_is_an_empty_queue(any_store: Store) -> None:
    manifest = manifest_of(any_store)
    assert (manifest.entry_count, manifest.next_sequence, manifest.epoch) == (0, 0, 0)


def test_a_change_costs_one_get_and_one_put(any_store: Store) -> None:
    counting = CountingStore(any_store)
    append(counting, "ingest/a")
    assert counting.calls == {("get", DEFAULT_MANIFEST_PATH): 1, ("put", DEFAULT_MANIFEST_PATH): 1}


def test_a_change_that_changes_nothing_is_not_written(any_store: Store) -> None:
    counting = CountingStore(any_store)
    manifests(counting).update(lambda manifest, in_doubt: False)
    assert counting.count("put") == 0


def test_concurrent_changes_are_all_applied_once(any_store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        sequences = list(pool.map(lambda n: append(any_store, f"ingest/{n}"), range(40)))

    assert sorted(sequences) == list(range(40))
    entries = list(manifest_of(any_store).entries())
    assert sorted(entry.location for entry in entries) == sorted(f"ingest/{n}" for n in range(40))


def test_what_a_change_raises_ends_it_with_nothing_written() -> None:
    store = MemoryStore()

    def refuse(manifest: Manifest, in_doubt: bool) -> bool:
        manifest.append("ingest/a")
        raise StorageUnavailable("no")

    with pytest.raises(StorageUnavailable, match="no"):
        manifests(store).update(refuse)
    assert manifest_of(store).entry_count == 0


def test_doubt_stays_until_the_change_is_done() -> None:
    """A delayed write may still arrive as long as its base is current: one doubt makes all later attempts doubtful."""
    store = MemoryStore()
    races = iter([True, True, False])

    def script(call: Call) -> None:
        if call.method == "put" and next(races, False):
            append(store, "ingest/x")

    seen: list[bool] = []

    def change(manifest: Manifest, in_doubt: bool) -> bool:
        seen.append(in_doubt)
        manifest.append("ingest/a")
        return True

    faults = FaultStore(store, script)
    lost_first = RetryingStore(FaultStore(faults, {("put", 1): "fail"}), RetryPolicy(attempts=2, base_seconds=0))
    manifests(lost_first).update(change)

    assert seen == [False, True, True]


def test_losing_every_race_ends_with_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(manifest_store, "_CONFLICTS", RetryPolicy(attempts=5, base_seconds=0))

    def script(call: Call) -> None:
        if call.method == "put":
            append(store, "ingest/x")

    with pytest.raises(StorageUnavailable, match="5 times in a row"):
        append(FaultStore(store, script), "ingest/never")


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", CorruptData), (b"\0" * 22, UnsupportedVersion), (b"\xff" * 20 + b"\x01\x00", CorruptData)],
)
def test_a_damaged_manifest_is_never_written_over(data: bytes, error: type[Exception]) -> None:
    store = MemoryStore()
    store.put(DEFAULT_MANIFEST_PATH, data)
    with pytest.raises(error):
        append(store, "ingest/a")
    assert store.read(DEFAULT_MANIFEST_PATH) == data


def test_old_entries_keep_their_bytes() -> None:
    store = MemoryStore()
    fill(store, 3)
    before = store.read(DEFAULT_MANIFEST_PATH)[:-22]
    append(store, "ingest/a")
    assert store.read(DEFAULT_MANIFEST_PATH).startswith(before)


@pytest.mark.parametrize("damage", [lambda data: data[:10], lambda data: b"\xff" + data[1:]], ids=["footer", "entry"])
def test_a_damaged_manifest_is_named_with_what_to_do(store: MemoryStore, damage: Callable[[bytes], bytes]) -> None:
    """In its footer, which is read at once, or in an entry, which is read when somebody asks for it."""
    fill(store, 3)
    store.put(DEFAULT_MANIFEST_PATH, damage(store.read(DEFAULT_MANIFEST_PATH)))

    with pytest.raises(CorruptData, match="Restore the object ingest/manifest, or move it away") as caught:
        list(manifest_of(store).entries())

    assert caught.value.path == DEFAULT_MANIFEST_PATH
