"""The local directory: what is left when a writer is killed, and what a file system can refuse."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound, StorageError
from objbuf_dagster.store import Conflict, LocalStore

_REPOSITORY = Path(__file__).parents[2]
_OLD = b"old" * 50_000
_NEW = b"new" * 60_000


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def _start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=_REPOSITORY, stdout=subprocess.PIPE)


def _files(store: LocalStore) -> set[str]:
    return {str(file.relative_to(store.root)) for file in store.root.rglob("*") if file.is_file()}


def _assert_usable(store: LocalStore, path: str) -> None:
    """Whatever a dead writer left, it hinders nobody and nobody sees it."""
    before = store.get(path)
    assert store.put(path, b"conditional", if_version=before.version) is None
    assert store.put(path, b"absent", if_absent=True) == Conflict()
    assert store.read(path) == b"conditional"
    assert [info.path for info in store.list()] == [path]
    assert store.put(path, before.data) is None


# Killed writers

_OVERWRITE_FOREVER = """
import sys
from objbuf_dagster.store import LocalStore
store, payloads = LocalStore(sys.argv[1]), [bytes([number]) * 300_000 for number in (1, 2)]
print("ready", flush=True)
while True:
    for data in payloads:
        if sys.argv[2] == "conditional":
            assert store.put("object", data, if_version=store.get("object").version) is None
        else:
            store.put("object", data)
"""


@pytest.mark.parametrize("kind", ["conditional", "unconditional"])
def test_a_writer_killed_at_any_moment_leaves_whole_bytes(store: LocalStore, kind: str) -> None:
    payloads = [bytes([number]) * 300_000 for number in (1, 2)]
    store.put("object", payloads[0])
    moments = random.Random(7)

    for _ in range(15):
        with _start(_OVERWRITE_FOREVER, str(store.root), kind) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0, 0.03))
            writer.kill()
            assert writer.wait() == -signal.SIGKILL

        assert store.read("object") in payloads
        _assert_usable(store, "object")


_DIE_AT_STEP = """
import fcntl, os, signal, sys
from objbuf_dagster.store import LocalStore

root, when, step, condition, data = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], b"new" * 60_000
steps = 0

write = os.write

def deadly(call):
    def wrapper(*arguments, **keywords):
        global steps
        steps += 1
        if steps == step and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if steps == step and when == "halfway":  # of a write: some of the bytes are in the file
            whole = b"".join(arguments[1]) if isinstance(arguments[1], list) else arguments[1]
            write(arguments[0], whole[: len(whole) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        mine = steps == step and when == "after"
        try:
            return call(*arguments, **keywords)
        finally:
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
    return wrapper

store = LocalStore(root)
condition = (
    {"if_version": store.get("folder/object").version} if condition == "version"
    else {"if_absent": True} if condition == "absent" else {}
)
names = ["write", "writev"]
if when != "halfway":
    names += ["open", "fsync", "replace", "mkdir", "unlink", "close"]
for name in names:
    setattr(os, name, deadly(getattr(os, name)))
if when != "halfway":
    fcntl.flock = deadly(fcntl.flock)
assert store.put("folder/object", [data[:90_000], data[90_000:]], **condition) is None
print("done", flush=True)
os._exit(0)
"""


def _puts_that_die(root: Path, when: str, condition: str, *, old: bytes | None) -> list[LocalStore]:
    """A store for each step of a put, left by a writer that was killed there; the last put was not killed."""
    stores = []
    for step in range(1, 100):
        store = LocalStore(root / str(step))
        if old is not None:
            store.put("folder/object", old)
        stores.append(store)
        with _start(_DIE_AT_STEP, str(store.root), when, str(step), condition) as writer:
            output, _ = writer.communicate()
        if output == b"done\n":
            assert writer.returncode == 0
            return stores
        assert writer.returncode == -signal.SIGKILL
    pytest.fail("the put never ended")


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
@pytest.mark.parametrize("condition", ["version", "none"])
def test_a_writer_killed_at_each_step_leaves_the_old_object_or_the_new(
    tmp_path: Path, when: str, condition: str
) -> None:
    stores = _puts_that_die(tmp_path, when, condition, old=_OLD)

    found = [store.read("folder/object") for store in stores]
    assert set(found) == {_OLD, _NEW}
    assert found == sorted(found, key=lambda data: data == _NEW)  # old before some step, new from there on
    assert len(stores) > (1 if when == "halfway" else 5)
    for store in stores:
        _assert_usable(store, "folder/object")


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
@pytest.mark.parametrize("condition", ["absent", "none"])
def test_a_writer_killed_at_each_step_leaves_no_object_or_a_whole_one(
    tmp_path: Path, when: str, condition: str
) -> None:
    stores = _puts_that_die(tmp_path, when, condition, old=None)

    whole = [[info.path for info in store.list()] == ["folder/object"] for store in stores]
    assert whole == sorted(whole)
    assert set(whole) == {False, True}
    for store, there in zip(stores, whole, strict=True):
        if there:
            assert store.read("folder/object") == _NEW
        else:
            with pytest.raises(NotFound):
                store.read("folder/object")
            assert store.put("folder/object", _NEW, if_absent=True) is None
        _assert_usable(store, "folder/object")


# What writers leave


def test_a_stale_lock_and_temporary_files_hinder_nobody_and_are_not_listed(store: LocalStore) -> None:
    store.put("object", b"bytes")
    (store.root / "object.lock").write_bytes(b"somebody else's")
    (store.root / ".tmp-left").write_bytes(b"half")
    (store.root / "other.lock").touch()

    _assert_usable(store, "object")
    assert store.put("other", b"bytes", if_absent=True) is None


def test_a_put_leaves_nothing_but_the_object_and_its_lock(store: LocalStore) -> None:
    store.put("folder/plain", b"one")
    store.put("folder/plain", b"two")
    store.put("folder/guarded", b"one", if_absent=True)
    store.put("folder/guarded", b"two", if_absent=True)
    store.put("folder/guarded", b"two", if_version="another")

    assert _files(store) == {"folder/plain", "folder/guarded", "folder/guarded.lock"}


def test_delete_takes_the_lock_file_too(store: LocalStore) -> None:
    store.put("object", b"one", if_absent=True)

    assert store.delete(["object", "never/there", "nothing"]) == {}

    assert _files(store) == set()


def test_a_delete_waits_for_the_writer_that_holds_the_lock(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a writer that found the object absent and is about to write it
    arrived, go_on = threading.Event(), threading.Event()
    replace = os.replace

    def slow_replace(source: str, target: str) -> None:
        arrived.set()
        assert go_on.wait(10)
        replace(source, target)

    with ThreadPoolExecutor(3) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", slow_replace)
            first = pool.submit(store.put, "object", b"first", if_absent=True)
            assert arrived.wait(10)
        # When the object is deleted and made anew meanwhile
        deleted = pool.submit(store.delete, ["object"])
        time.sleep(0.05)
        second = pool.submit(store.put, "object", b"second", if_absent=True)
        time.sleep(0.05)
        waiting = not deleted.done() and not second.done()
        go_on.set()

    # Then all happen one after another: the second put wins only if the delete came between the two
    assert waiting
    assert first.result() is None
    assert deleted.result() == {}
    assert [info.path for info in store.list()] == ([] if second.result() else ["object"])
    assert second.result() or store.read("object") == b"second"


def test_tidy_removes_old_temporary_files_only(store: LocalStore) -> None:
    store.put("folder/object", b"bytes", if_absent=True)
    yesterday = time.time() - 25 * 3600
    left, fresh = f".tmp-{uuid.uuid4().hex}", f".tmp-{uuid.uuid4().hex}"
    (store.root / "folder/sub").mkdir()
    old = {f"folder/{left}", f"folder/sub/{left}", left, "folder/.tmp-mine", f"folder/{left}.txt"}
    for name in (*old, f"folder/{fresh}"):
        (store.root / name).write_bytes(b"half")
    for name in (*old, "folder/object", "folder/object.lock"):
        os.utime(store.root / name, (yesterday, yesterday))

    assert store.tidy("folder") == 2

    others = {left, "folder/.tmp-mine", f"folder/{left}.txt"}
    assert _files(store) == {"folder/object", "folder/object.lock", f"folder/{fresh}", *others}
    assert store.tidy("folder", older_than=-1) == 1
    assert store.tidy("folder") == 0


def test_tidying_what_is_not_there_is_no_error(store: LocalStore) -> None:
    assert store.tidy("folder") == 0


@pytest.mark.parametrize(
    "path", ["object.lock", ".tmp-1", "folder/.tmp-x", "folder.lock/object", ".tmp-x/object", ".lock"]
)
def test_reserved_names_are_refused(store: LocalStore, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(path, b""),
        lambda: store.get(path),
        lambda: store.read(path),
        lambda: store.head(path),
        lambda: store.delete([path]),
    ]

    for call in calls:
        with pytest.raises(InvalidInput, match="reserved"):
            call()


# What a file system can refuse


def _write_with(patch: pytest.MonkeyPatch, write: Callable[[int, bytes], int]) -> None:
    """Let `write` do what the system's calls do."""
    patch.setattr(os, "write", write)
    patch.setattr(os, "writev", lambda descriptor, parts: write(descriptor, b"".join(parts)))


def test_a_large_file_is_refused_before_it_is_read(store: LocalStore) -> None:
    store.put("object", b"")
    os.truncate(store.root / "object", 1 << 40)

    with pytest.raises(CorruptData, match=str(1 << 40)):
        store.get("object", max_bytes=1 << 20)
    with pytest.raises(CorruptData, match=str(1 << 40)):
        store.read("object", max_bytes=1 << 20)
    assert store.head("object").size == 1 << 40


def test_a_file_where_a_folder_is_needed_is_a_clear_error(store: LocalStore) -> None:
    store.put("a", b"a file")

    for path in ("a/b", "a/b/c"):
        for if_absent in (False, True):
            with pytest.raises(StorageError, match=r"a file is where a folder is needed") as caught:
                store.put(path, b"bytes", if_absent=if_absent)
            assert path in str(caught.value)

    assert store.read("a") == b"a file"


def test_a_root_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "root").touch()

    with pytest.raises(StorageError, match="a file is where a folder is needed"):
        LocalStore(tmp_path / "root").put("object", b"bytes")


def test_a_folder_where_the_object_should_be_is_a_clear_error(store: LocalStore) -> None:
    store.put("a/b", b"bytes")

    with pytest.raises(StorageError, match="a folder is where the object should be"):
        store.put("a", b"bytes")
    with pytest.raises(StorageError, match="a folder is where the object should be"):
        store.put("a", b"bytes", if_version="1")

    assert _files(store) - {"a.lock"} == {"a/b"}


def test_a_name_that_the_file_system_cannot_hold_is_refused(store: LocalStore) -> None:
    store.put("object", b"")

    for call in (store.get, store.head, lambda path: store.put(path, b"")):
        with pytest.raises(InvalidInput, match="cannot hold the name"):
            call("x" * 300)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "check the rights"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_refuses_is_an_error_that_says_what_to_do(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    store.put("object", _OLD)

    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        _write_with(patch, refuse)
        with pytest.raises(StorageError, match=hint) as caught:
            store.put("object", _NEW)

    assert type(caught.value) is StorageError  # nobody should retry
    assert store.read("object") == _OLD
    assert _files(store) == {"object"}


def test_a_disk_that_fills_up_halfway_leaves_the_old_object(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("object", _OLD)
    parts = [bytes([number]) * size for number, size in enumerate((1, 6_999, 7_000, 0, 7_001, 20_000, 3, 30_000))]
    write = os.write

    def short_then_full(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_size > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:7_000])

    with monkeypatch.context() as patch:
        _write_with(patch, short_then_full)
        assert store.put("small", parts) is None  # short writes alone are no failure
        with pytest.raises(StorageError, match="free some space"):
            store.put("object", _NEW)

    assert store.read("small") == b"".join(parts)
    assert store.read("object") == _OLD
    assert _files(store) == {"object", "small"}


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_failure_after_the_rename_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conditional: bool, number: int
) -> None:
    """The new bytes are there already; who is told a plain failure would write them again."""
    store = LocalStore(tmp_path)

    def broken(directory: Path) -> None:
        raise OSError(number, "the disk says no")

    monkeypatch.setattr("objbuf_dagster.store.local._sync_folder", broken)
    with pytest.raises(StorageError) as caught:
        store.put("object", b"new", if_absent=conditional)

    assert caught.value.in_doubt
    assert store.read("object") == b"new"


def test_a_writer_that_waited_for_a_lock_file_which_is_gone_does_not_win_beside_another(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got the lock on a file that nobody sees any more; who comes next locks the new one."""
    store.put("object", b"0", if_absent=True)
    version = store.get("object").version
    lock = store.root / "object.lock"
    held = os.open(lock, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    waits, inside, go_on = threading.Event(), threading.Event(), threading.Event()
    flock, replace = fcntl.flock, os.replace

    def slow_replace(source: Path, target: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go_on.wait(10)
        replace(source, target)

    def told_flock(descriptor: int, operation: int) -> None:
        waits.set()
        flock(descriptor, operation)

    monkeypatch.setattr("objbuf_dagster.store.local.os.replace", slow_replace)
    monkeypatch.setattr("objbuf_dagster.store.local.fcntl.flock", told_flock)
    with ThreadPoolExecutor(2) as pool:
        # Given a writer that waits for the lock, whose file is deleted
        first = pool.submit(store.put, "object", b"1", if_version=version)
        assert waits.wait(10)
        time.sleep(0.05)
        lock.unlink()
        os.close(held)
        assert inside.wait(10)
        # When another one comes while the first is at work
        second = pool.submit(store.put, "object", b"2", if_version=version)
        time.sleep(0.05)
        go_on.set()

    # Then one of the two wins
    assert [first.result(), second.result()].count(None) == 1
