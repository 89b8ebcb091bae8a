"""Files on hdfs, from a NameNode that answers, refuses, or does neither. A real one: tests/spark/test_hdfs.py."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound, StorageError, StorageUnavailable
from objbuf_dagster.store import Conflict, HdfsStore, RetryingStore, RetryPolicy, Store, TransientError
from objbuf_dagster.store import hdfs as module
from tests.support.namenode import NameNode, Spoiling, name_node

ROOT = Path(__file__).parents[2]
NOTHING = {"dfs.ha.namenodes.ns": "a,b"}


@pytest.fixture
def names() -> Iterator[NameNode]:
    with name_node() as found:
        yield found


@pytest.fixture
def store(names: NameNode) -> HdfsStore:
    return HdfsStore(f"{names.url}/lake")


def quick(names: NameNode, seconds: float = 0.3) -> HdfsStore:
    return HdfsStore(f"{names.url}/lake", timeout_seconds=seconds)


def two_nodes(*ports: int) -> dict[str, str]:
    """Settings of a nameservice `ns` of these NameNodes."""
    addresses = {f"dfs.namenode.rpc-address.ns.{port}": f"127.0.0.1:{port}" for port in ports}
    return {"dfs.ha.namenodes.ns": ",".join(map(str, ports)), **addresses}


def refusing(kind: str, said: str = "no") -> Callable[[str, str], Spoiling]:
    return lambda method, path: (kind, said)


def uses(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.put("x/one", b"1"),
        lambda: store.put("x/one", b"1", if_absent=True),
        lambda: store.read("x/one"),
        lambda: store.read_range("x/one", 0, 1),
        lambda: store.head("x/one"),
        lambda: list(store.list("x")),
        lambda: store.delete(["x/one"]),
        lambda: store.tidy("x"),
    ]


def test_a_file_is_read_back_whole_and_in_parts(store: HdfsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 1 << 20)
    parts = [b"a" * 10, b"b" * ((3 << 20) + 7), b"c", b""]
    whole = b"".join(parts)

    assert store.put("x/one", parts) is None

    assert store.read("x/one") == whole
    assert store.read_range("x/one", 5, (2 << 20) + 11) == whole[5 : 5 + (2 << 20) + 11]
    assert store.read_range("x/one", len(whole) - 2, 10) == whole[-2:]
    assert store.read_range("x/one", len(whole) + 2, 10) == b""
    assert [(info.path, info.size) for info in pickle.loads(pickle.dumps(store)).list()] == [("x/one", len(whole))]


def test_a_put_replaces_a_file_unless_told_not_to(store: HdfsStore, names: NameNode) -> None:
    assert store.put("x/one", b"first", if_absent=True) is None
    assert isinstance(store.put("x/one", b"other", if_absent=True), Conflict)
    assert store.read("x/one") == b"first"
    assert store.put("x/one", b"") is None
    assert (store.read("x/one"), store.head("x/one").size) == (b"", 0)
    assert list(names.files) == ["/lake/x/one"], "a temporary file was left"
    assert store.delete(["x/one", "x/none"]) == {}
    with pytest.raises(NotFound):
        store.get("x/one")
    assert list(store.list("nowhere")) == []


def test_a_file_larger_than_it_may_be_is_not_read(store: HdfsStore) -> None:
    store.put("x/one", b"12345")

    with pytest.raises(CorruptData, match="more than the 4 it may have"):
        store.get("x/one", max_bytes=4)


def test_a_silent_namenode_is_left_after_the_timeout(names: NameNode) -> None:
    HdfsStore(f"{names.url}/lake").put("x/one", b"1")
    store = quick(names)
    names.spoil = lambda method, path: "silent"

    for use in uses(store):
        began = time.monotonic()
        with pytest.raises(TransientError, match=r"no answer in 0\.3 s.*--timeout"):
            use()
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("method", ["create", "addBlock", "complete", "rename2"])
def test_each_step_of_a_put_has_its_deadline(names: NameNode, method: str) -> None:
    names.spoil = lambda called, path: "silent" if called == method else None

    with pytest.raises(TransientError, match="no answer"):
        quick(names).put("x/one", b"1" * 3_000_000)

    assert "/lake/x/one" not in names.files


def test_a_large_put_is_not_ended_by_the_deadline_of_a_call(names: NameNode) -> None:
    def parts() -> list[bytes]:
        return [b"x" * (1 << 20)] * 6

    class Slow(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            for part in parts():
                time.sleep(1.0)
                yield part

    store = quick(names, 5.0)

    store.put("x/one", Slow(parts()))

    assert store.head("x/one").size == 6 << 20


def test_after_a_silence_another_connection_is_tried(names: NameNode) -> None:
    silent = 1

    def once(method: str, path: str) -> Spoiling:
        nonlocal silent
        silent, now = 0, silent
        return "silent" if now else None

    names.spoil = once
    store = RetryingStore(quick(names, 5.0), RetryPolicy(attempts=2, base_seconds=0.001))

    store.put("x/one", b"1")

    assert store.read("x/one") == b"1"


def test_ctrl_c_is_heard_while_a_namenode_is_silent(names: NameNode) -> None:
    names.spoil = lambda method, path: "silent"
    code = "import sys\nfrom objbuf_dagster.store import HdfsStore\nHdfsStore(sys.argv[1]).head('one')\n"
    command = [sys.executable, "-c", code, f"{names.url}/lake"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not names.calls:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)

    assert b"KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT


def test_a_rename_whose_answer_was_lost_is_put_again(names: NameNode) -> None:
    lost = 1

    def once(method: str, path: str) -> Spoiling:
        nonlocal lost
        if method != "rename2":
            return None
        lost, now = 0, lost
        return "lost" if now else None

    names.spoil = once
    store = RetryingStore(HdfsStore(f"{names.url}/lake"), RetryPolicy(attempts=3, base_seconds=0.001))

    conflict = store.put("x/one", b"1", if_absent=True)

    assert conflict == Conflict(in_doubt=True), "it was this very put, or another"
    assert store.read("x/one") == b"1"


def test_a_standby_sends_to_the_active_namenode(names: NameNode) -> None:
    with name_node() as standby:
        standby.spoil = refusing("org.apache.hadoop.ipc.StandbyException", "not active")
        store = HdfsStore("hdfs://ns/lake", options=two_nodes(standby.port, names.port))

        store.put("x/one", b"1")

        assert names.read("/lake/x/one") == b"1"


def test_namenodes_that_all_refuse_are_told_in_seconds() -> None:
    store = HdfsStore("hdfs://ns/lake", options=two_nodes(1, 2))
    began = time.monotonic()

    with pytest.raises(TransientError, match="Connection refused"):
        store.head("one")

    assert time.monotonic() - began < 15


@pytest.mark.parametrize("options", [{}, NOTHING], ids=["no settings", "settings without addresses"])
def test_a_url_without_a_namenode_is_told_what_it_lacks(options: dict[str, str]) -> None:
    store = HdfsStore("hdfs://ns/lake", options=options)

    with pytest.raises(StorageError, match=r"give the URL a port, or the settings dfs\.ha\.namenodes") as caught:
        store.head("one")

    assert not isinstance(caught.value, StorageUnavailable)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        HdfsStore("hdfs://namenode:8020/lake", timeout_seconds=seconds)


def test_a_folder_that_goes_while_it_is_listed_does_not_hide_the_others(names: NameNode, store: HdfsStore) -> None:
    for number in range(3):
        store.put(f"x/{number}/one", b"1")

    def removing(method: str, path: str) -> Spoiling:
        if method == "getListing" and path.endswith("x/1"):
            names.files.pop("/lake/x/1/one", None)
        return None

    names.spoil = removing

    with pytest.raises(TransientError, match="went while they were listed"):
        list(store.list("x"))
    assert [info.path for info in RetryingStore(store).list("x")] == ["x/0/one", "x/2/one"]
    assert list(store.list("y")) == []


def test_what_writers_left_a_day_ago_is_deleted(store: HdfsStore, names: NameNode) -> None:
    left = [f"x/.tmp-{0:032x}", f"_delta_log/.{7:020d}.json.tmp.1", "_delta_log/._last_checkpoint.tmp.2"]
    left.append(f"_delta_log/.{7:020d}.checkpoint.parquet.tmp.3")
    kept = ["x/.tmp-of-others", "_delta_log/.hidden.tmp.1", f"_delta_log/{7:020d}.json", "x/part.parquet"]
    for path in [*left, *kept]:
        names.put(f"/lake/{path}", b"1", age_seconds=25 * 3600)
    names.put(f"/lake/x/.tmp-{1:032x}", b"1", age_seconds=3600)

    assert store.tidy("") == len(left)

    assert sorted(names.files) == sorted(f"/lake/{path}" for path in [*kept, f"x/.tmp-{1:032x}"])
