"""A buffer filled by hand: batches and entries exactly where a test wants them."""

from __future__ import annotations

from collections.abc import Sequence

from objbuf_dagster.buffer import ManifestStore
from objbuf_dagster.protocol import Compression, Manifest, Metadata, encode_batch
from objbuf_dagster.protocol.ulid import new_ulid
from objbuf_dagster.store import Store


def manifest_of(store: Store) -> Manifest:
    return manifests(store).read()


def manifests(store: Store) -> ManifestStore:
    return ManifestStore(store)


def batch_name(time_ms: int) -> str:
    return f"ingest/{new_ulid(time_ms)}.batch"


def put_batch(
    store: Store, location: str, entries: Sequence[bytes] = (b"x",), compression: Compression = "none"
) -> str:
    store.put(location, encode_batch(entries, compression))
    return location


def append(store: Store, location: str, metadata: Sequence[Metadata] = ()) -> int:
    """Append to the manifest as a producer would, and return the sequence."""
    sequences: list[int] = []

    def change(manifest: Manifest, _: bool) -> bool:
        sequences.append(manifest.append(location, metadata))
        return True

    manifests(store).update(change)
    return sequences[-1]


def fill(
    store: Store, batches: int, *, time_ms: int = 1_700_000_000_000, step_ms: int = 1000, size: int = 1
) -> list[str]:
    """Batches `b"<n>"` times `size`, each with one metadata item, a second apart; returns their locations."""
    locations = []
    for n in range(batches):
        at = time_ms + n * step_ms
        locations.append(put_batch(store, batch_name(at), [f"{n}".encode() * size]))
        append(store, locations[-1], [Metadata(0, at, b"")])
    return locations
