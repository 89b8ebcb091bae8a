"""A directory that is asked again and again whether a file changed: it reads nothing in vain, and misses nothing."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from objbuf_dagster.errors import CorruptData, NotFound, StorageError
from objbuf_dagster.store import Blob, LocalStore, RememberingStore, local
from tests.support.reading import bytes_read

BIG = 1 << 20


class Clock:
    """The steady clock, as the store reads it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(local, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    local._looks.clear()
    yield
    local._looks.clear()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def known(store: LocalStore, clock: Clock) -> str:
    """The version of an object that needs no reading any more."""
    store.put("object", b"1" * BIG)
    version = store.get("object").version
    for _ in range(2):
        assert store.get_if_changed("object", version) is None
        clock.now += 5
    assert read_by(lambda: store.get_if_changed("object", version)) == 0
    return version


def read_by(look: Callable[[], object], size: int = BIG) -> int:
    """How often this read an object of so many bytes."""
    before = bytes_read()
    look()
    return (bytes_read() - before) // size


def file_of(store: LocalStore) -> Path:
    return store.root / "object"


# What is not read


def test_a_file_is_read_until_its_times_can_tell_it_from_others(store: LocalStore, clock: Clock) -> None:
    store.put("object", b"1" * BIG)
    version = store.get("object").version

    def look() -> int:
        return read_by(lambda: store.get_if_changed("object", version))

    assert [look(), look()] == [1, 1]
    clock.now += 2.9
    assert [look(), look()] == [1, 1]
    clock.now += 0.2
    assert [look(), look(), look()] == [1, 0, 0]
    clock.now += 86_400
    assert look() == 0


def test_every_store_of_this_process_knows_it(store: LocalStore, known: str) -> None:
    """A sensor opens its store anew for each tick."""
    assert read_by(lambda: LocalStore(store.root).get_if_changed("object", known)) == 0


def test_what_is_remembered_is_not_read_again(store: LocalStore, clock: Clock) -> None:
    store.put("object", b"1" * BIG)
    memory: dict[str, Blob] = {}
    found = []

    def look() -> None:
        clock.now += 5
        found.append(RememberingStore(LocalStore(store.root), "object", "this one", memory).get("object"))

    assert [read_by(look) for _ in range(6)] == [1, 1, 1, 0, 0, 0]
    assert found == [store.get("object")] * 6


def test_a_file_with_times_to_come_is_not_read_again_either(store: LocalStore, clock: Clock) -> None:
    """Whatever the clocks say: the one of a file server may be ahead or behind."""
    store.put("object", b"1" * BIG)
    os.utime(file_of(store), (2**33, 2**33))
    version = store.get("object").version

    for expected in (1, 1, 0):
        assert read_by(lambda: store.get_if_changed("object", version)) == expected
        clock.now += 5


# What changes


def test_another_version_than_the_known_one_is_read(store: LocalStore, known: str) -> None:
    for version in ("", "another"):
        found = store.get_if_changed("object", version)
        assert found == store.get("object")
        assert found.version == known


def test_a_put_is_seen(store: LocalStore, known: str) -> None:
    store.put("object", b"2" * BIG, if_version=known)

    assert store.get_if_changed("object", known) == store.get("object")


def test_bytes_written_in_place_with_the_old_time_are_seen(store: LocalStore, known: str) -> None:
    file, before = file_of(store), os.stat(file_of(store))
    with open(file, "r+b") as inside:
        inside.write(b"2")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    after = os.stat(file)
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert store.get_if_changed("object", known) == Blob(b"2" + b"1" * (BIG - 1), store.get("object").version)


def test_another_file_of_the_same_times_is_seen_when_it_is_renamed(store: LocalStore, known: str) -> None:
    file, before = file_of(store), os.stat(file_of(store))
    other = store.root / "other"
    other.write_bytes(b"2" * BIG)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, file)

    found = store.get_if_changed("object", known)
    assert found is not None
    assert found.data == b"2" * BIG


def test_the_same_bytes_in_another_file_are_no_change_and_known_again_later(
    store: LocalStore, known: str, clock: Clock
) -> None:
    store.put("object", b"1" * BIG)

    for expected in (1, 1, 0):
        assert read_by(lambda: store.get_if_changed("object", known) and pytest.fail("changed")) == expected
        clock.now += 5


def test_bytes_that_came_back_are_the_same(store: LocalStore, known: str) -> None:
    store.put("object", b"2" * BIG)
    assert store.get_if_changed("object", known) is not None
    store.put("object", b"1" * BIG)

    assert store.get_if_changed("object", known) is None


def test_a_file_that_is_gone_or_too_large_is_told_as_ever(store: LocalStore, known: str) -> None:
    with pytest.raises(CorruptData, match="1048576 bytes"):
        store.get_if_changed("object", known, max_bytes=BIG - 1)
    store.delete(["object"])
    with pytest.raises(NotFound):
        store.get_if_changed("object", known)


@pytest.mark.skipif(os.geteuid() == 0, reason="everything may be read by root")
def test_a_file_that_may_not_be_read_is_told_as_ever(store: LocalStore, known: str) -> None:
    file_of(store).chmod(0)

    with pytest.raises(StorageError, match="rights"):
        store.get_if_changed("object", known)


def test_what_was_written_while_it_was_read_is_seen(
    store: LocalStore, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = local._version

    def slow(data: bytes) -> str:
        file_of(store).write_bytes(b"2" * BIG)
        return digest(data)

    with monkeypatch.context() as patched:
        patched.setattr(local, "_version", slow)
        store.get_if_changed("object", "another")

    assert store.get_if_changed("object", known) == Blob(b"2" * BIG, digest(b"2" * BIG))


def test_what_is_known_of_many_files_is_bounded(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MOST_LOOKS", 3)
    for number in range(10):
        store.put(f"{number}", b"bytes")
        store.get_if_changed(f"{number}", "")

        assert len(local._looks) <= 3


# Never a step behind


@pytest.mark.parametrize("seed", range(20))
def test_no_change_is_missed_on_a_file_system_that_knows_little(
    store: LocalStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of a file it has its size and mtime, in steps of two seconds, and its clock is not ours: FAT on a file server."""
    monkeypatch.setattr(local, "_stamp", lambda status: (status.st_size, status.st_mtime_ns))
    chance = random.Random(seed)
    ahead = chance.uniform(-1e6, 1e6)
    file = file_of(store)
    store.put("object", b"0" * 4096)
    asked = RememberingStore(store, "object", "this one", {})
    reads: list[int] = []

    for _ in range(2_000):
        clock.now += chance.choice([0, 0, 0.001, 0.5, 1, 2, 3.01, 5]) * chance.uniform(0.9, 1)
        if chance.random() < 0.3:
            file.write_bytes(b"%d" % chance.randrange(5) * 4096)
            written = int((clock.now + ahead) // 2 * 2)
            os.utime(file, (written, written))
        else:
            reads.append(read_by(lambda: asked.get("object"), 4096))
            assert asked.get("object").data == file.read_bytes()
    assert reads.count(0) > 100, "some must be known without reading, or this shows nothing"


def test_no_change_is_missed_while_somebody_writes_all_the_time(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the times of this machine's file system, which are trusted after a fiftieth of a second."""
    monkeypatch.setattr(local, "_STAMPS_DIFFER", 0.02)
    chance, done, stop = random.Random(7), [0], threading.Event()
    store.put("object", b"00000000")

    def write() -> None:
        while not stop.is_set():
            (store.root / "other").write_bytes(b"%08d" % (done[0] + 1))
            os.replace(store.root / "other", file_of(store))
            done[0] += 1
            time.sleep(chance.choice([0, 0, 0, 0, 0.001, 0.08]))

    digest, looks, reads = local._version, 0, 0

    def counting(data: bytes) -> str:
        nonlocal reads
        reads += 1
        return digest(data)

    monkeypatch.setattr(local, "_version", counting)
    asked = RememberingStore(store, "object", "this one", {})
    writer = threading.Thread(target=write)
    writer.start()
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            least = done[0]
            assert int(asked.get("object").data) >= least
            looks += 1
    finally:
        stop.set()
        writer.join()
    assert int(asked.get("object").data) == done[0] > 20
    assert looks - reads > 20, "some must be known without reading, or this shows nothing"
