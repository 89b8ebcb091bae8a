"""What the Go producer writes, we read and land: always as recorded, and freshly made where its module can be had."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Compression, Manifest
from objbuf_dagster.store import LocalStore, MemoryStore
from tests.interop import go_producer
from tests.interop.buffers import check_consumed, land_everything
from tests.interop.cases import LARGE, SMALL, rows_of
from tests.interop.conftest import built
from tests.interop.go_producer import HELD, MODULE, PRODUCED, Recording
from tests.spark.landing import rows_in

pytestmark = pytest.mark.timeout(900)  # the last ones may build the producer

every_recording = pytest.mark.parametrize("name", PRODUCED)


@every_recording
def test_what_go_wrote_is_consumed_exactly_and_in_order(name: str) -> None:
    store = MemoryStore()
    Recording.load(name).put(store)

    check_consumed(store, [*HELD[name], *PRODUCED[name]])


@every_recording
def test_what_go_wrote_is_landed_exactly(spark: SparkSession, tmp_path: Path, table: LakeTable, name: str) -> None:
    store = LocalStore(tmp_path / "buffer")
    Recording.load(name).put(store)

    descriptors = land_everything(spark, store, table)

    assert rows_in(spark, table) == rows_of(descriptors, [*HELD[name], *PRODUCED[name]])


@every_recording
def test_our_append_gives_the_bytes_that_go_wrote(name: str) -> None:
    recorded = Recording.load(name)
    manifest = recorded.before

    for written in recorded.wrote.manifests:
        (*_, last) = Manifest.from_bytes(written).entries()
        manifest.append(last.location, last.metadata)

        assert manifest.to_bytes() == written
        manifest = Manifest.from_bytes(written)


@every_recording
def test_go_keeps_what_was_in_the_manifest_byte_for_byte(name: str) -> None:
    recorded = Recording.load(name)
    footer = len(Manifest.empty().to_bytes())
    before = recorded.before.to_bytes()

    for after in recorded.wrote.manifests:
        assert after.startswith(before[:-footer])
        found = Manifest.from_bytes(after)
        assert found.to_bytes() == after
        assert found.epoch == Manifest.from_bytes(before).epoch
        assert found.next_sequence == Manifest.from_bytes(before).next_sequence + 1
        before = after


def test_go_went_on_from_manifests_with_an_epoch_and_acked_entries() -> None:
    ours, ours_and_rusts = Recording.load("after-us").before, Recording.load("after-us-and-rust").before

    assert (ours.epoch, ours.frontier, ours.entry_count) == (1, 1, 1)
    assert (ours_and_rusts.epoch, ours_and_rusts.frontier, ours_and_rusts.entry_count) == (2, 2, 2)


def test_garbage_collection_leaves_the_batches_of_go_alone() -> None:
    recorded = Recording.load("zstd")
    store = MemoryStore()
    recorded.put(store)
    with Consumer.open(store, gc_interval=None) as consumer:
        consumer.ack_through(len(recorded.wrote.batches) - 1)

    report = GarbageCollector(store, grace_seconds=0, retention_seconds=0, clock=lambda: 4e9).collect_once()

    assert (report.deleted, report.failed) == ((), {})
    assert {info.path for info in store.list()} > set(recorded.wrote.batches)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_go_writes_now_is_consumed_and_landed_exactly(
    go_program: Path, spark: SparkSession, tmp_path: Path, table: LakeTable, compression: Compression
) -> None:
    store = LocalStore(tmp_path / "buffer")
    batches = [*SMALL, *LARGE]

    go_producer.produce(go_program, batches, compression, None).put(store)

    descriptors = land_everything(spark, store, table)
    assert rows_in(spark, table) == rows_of(descriptors, batches)
    check_consumed(store, batches)


@every_recording
def test_go_writes_the_same_now_as_when_it_was_recorded(go_program: Path, name: str) -> None:
    recorded = Recording.load(name)

    fresh = go_producer.produce(go_program, PRODUCED[name], recorded.compression, recorded.start)

    assert list(fresh.batches.values()) == list(recorded.wrote.batches.values())
    assert [len(data) for data in fresh.manifests] == [len(data) for data in recorded.wrote.manifests]


# Only a module that is not to be had is a reason to skip the tests above.


def modules_from(proxy: str, place: Path, environment: dict[str, str]) -> dict[str, str]:
    """What go runs in if modules come from this proxy, without any that were fetched before."""
    own = {"GOMODCACHE": str(place / "modules"), "GOFLAGS": "-modcacherw", "GOSUMDB": "off", "GOTOOLCHAIN": "local"}
    return {**environment, **own, "GOPROXY": proxy, "NO_PROXY": "*", "no_proxy": "*"}


@contextmanager
def proxy_answering(status: int) -> Iterator[str]:
    """A proxy of Go modules that says this to everything."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002, the name is the base's
            pass

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def required(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in CI."""
    monkeypatch.setenv("CI_REQUIRE_INTEROP", "1")


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_module_that_the_proxy_has_not_is_a_skip(tmp_path: Path, go_environment: dict[str, str], status: int) -> None:
    with proxy_answering(status) as proxy, pytest.raises(pytest.skip.Exception, match=f"{MODULE}@.* {status} "):
        built(tmp_path, modules_from(proxy, tmp_path, go_environment))


def test_a_module_that_a_directory_has_not_is_unavailable(tmp_path: Path, go_environment: dict[str, str]) -> None:
    for empty in ("proxy", "build"):
        (tmp_path / empty).mkdir()

    with pytest.raises(go_producer.Unavailable, match=MODULE):
        go_producer.build(tmp_path / "build", modules_from((tmp_path / "proxy").as_uri(), tmp_path, go_environment))


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_proxy_that_fails_is_a_failure_where_the_tests_are_required(
    tmp_path: Path, go_environment: dict[str, str], status: int
) -> None:
    with proxy_answering(status) as proxy, pytest.raises(pytest.fail.Exception, match=f"{MODULE}@.* {status} "):
        built(tmp_path, modules_from(proxy, tmp_path, go_environment))


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize(
    ("proxy", "said"), [("http://127.0.0.1:1", "connection refused"), ("http://nowhere.invalid", "lookup")]
)
def test_a_network_that_fails_is_a_failure_where_the_tests_are_required(
    tmp_path: Path, go_environment: dict[str, str], proxy: str, said: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match=f"{MODULE}@.*{said}"):
        built(tmp_path, modules_from(proxy, tmp_path, go_environment))


def test_a_network_that_fails_is_a_skip_elsewhere(
    tmp_path: Path, go_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI_REQUIRE_INTEROP", raising=False)

    with pytest.raises(pytest.skip.Exception, match="could not be asked for"):
        built(tmp_path, modules_from("http://127.0.0.1:1", tmp_path, go_environment))


def test_a_program_that_does_not_fit_its_module_is_a_failure_and_no_skip(
    tmp_path: Path, go_environment: dict[str, str]
) -> None:
    # given: a module that can be fetched, and has nothing of what the program uses
    version = tmp_path / "proxy" / MODULE / "@v" / "v0.4.0"
    version.parent.mkdir(parents=True)
    described = f"module {MODULE}\n\ngo 1.26\n"
    version.with_name("v0.4.0.info").write_text('{"Version": "v0.4.0"}')
    version.with_name("v0.4.0.mod").write_text(described)
    with zipfile.ZipFile(version.with_name("v0.4.0.zip"), "w") as archive:
        archive.writestr(f"{MODULE}@v0.4.0/go.mod", described)
        for package in ("buffer", "objstore"):
            archive.writestr(f"{MODULE}@v0.4.0/{package}/empty.go", f"package {package}\n")
    (tmp_path / "build").mkdir()

    with pytest.raises(go_producer.BuildFailed, match=r"main\.go"):
        go_producer.build(tmp_path / "build", modules_from((tmp_path / "proxy").as_uri(), tmp_path, go_environment))
