"""One manifest in the hands of all three: after every turn it is valid, and nobody touched what was not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.buffer import Consumer
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.protocol import Compression, Manifest
from objbuf_dagster.store import Store
from tests.interop import go_producer
from tests.interop.buffers import check_consumed, land_everything, produce
from tests.interop.cases import SMALL, Call, Calls, entries_of, rows_of
from tests.interop.go_producer import HELD, PRODUCED, Recording
from tests.interop.rust_client import RustClient
from tests.spark.landing import rows_in
from tests.support.s3 import S3Location

pytestmark = pytest.mark.timeout(1800)  # the first one builds the client

FOOTER = len(Manifest.empty().to_bytes())


class Turns:
    """The manifest as it was after the last turn, and what must be in it."""

    def __init__(self, store: Store, rust: RustClient, expected: Sequence[Calls] = ()) -> None:
        self.store = store
        self.rust = rust
        self.expected = list(expected)
        self.data = self.read() if expected else Manifest.empty().to_bytes()

    def read(self) -> bytes:
        return self.store.read("ingest/manifest")

    def appended(self, calls: Calls) -> None:
        """A producer of any kind had its turn: there is one entry more, and not a byte of the others is different."""
        before, self.data = self.data, self.read()
        self.expected.append(calls)
        old = Manifest.from_bytes(before)
        (*_, last) = Manifest.from_bytes(self.data).entries()
        assert self.data[: len(before) - FOOTER] == before[:-FOOTER]
        assert old.append(last.location, last.metadata) == last.sequence
        assert old.to_bytes() == self.data, "we would have written other bytes"
        self.check()

    def acked(self, batches: int) -> None:
        """A consumer of any kind took the epoch and acked so many: what is left is, byte for byte, what it was."""
        before, self.data = self.data, self.read()
        self.expected = self.expected[batches:]
        old = Manifest.from_bytes(before)
        old.take_epoch()
        old.dequeue(old.frontier + batches - 1)
        assert before[:-FOOTER].endswith(self.data[:-FOOTER])
        assert old.to_bytes() == self.data, "we would have written other bytes"
        self.check()

    def check(self) -> None:
        """The Rust client and we read the same in it; and what we read is what is there."""
        manifest = Manifest.from_bytes(self.data)
        entries = list(manifest.entries())
        assert len(entries) == len(self.expected)
        assert manifest.to_bytes() == self.data
        assert self.rust.parse(self.data) == (manifest.epoch, manifest.next_sequence, entries)

        again = Manifest.empty()
        again.next_sequence, again.epoch = manifest.frontier, manifest.epoch
        for entry in entries:
            again.append(entry.location, entry.metadata)
        assert again.to_bytes() == self.data


def by_us(turns: Turns, calls: Calls, compression: Compression = "zstd") -> None:
    produce(turns.store, calls, compression)
    turns.appended(calls)


def by_rust(turns: Turns, calls: Calls, compression: Compression = "zstd") -> None:
    turns.rust.produce([calls], compression)
    turns.appended(calls)


def acked_by_us(turns: Turns, batches: int) -> None:
    with Consumer.open(turns.store, gc_interval=None) as consumer:
        consumer.ack_through(Manifest.from_bytes(turns.data).frontier + batches - 1)
    turns.acked(batches)


def acked_by_rust(turns: Turns, batches: int) -> None:
    turns.rust.open()
    turns.rust.ack_through(Manifest.from_bytes(turns.data).frontier + batches - 1)
    turns.acked(batches)


def consumed_by_rust(turns: Turns) -> None:
    turns.rust.open()
    for calls in turns.expected:
        batch = turns.rust.next_batch()
        assert batch is not None
        assert batch.entries == entries_of(calls)
    assert turns.rust.next_batch() is None


def take_turns(turns: Turns) -> None:
    """Rust and we append and ack, one after the other, from wherever the manifest is."""
    by_rust(turns, SMALL[1])
    by_us(turns, SMALL[2], "none")
    acked_by_rust(turns, 1)
    by_us(turns, SMALL[4])
    acked_by_us(turns, 1)
    by_rust(turns, SMALL[5], "none")
    by_us(turns, SMALL[3])


def test_rust_and_we_take_turns_and_every_byte_is_as_either_would_write_it(
    rust_client: RustClient, s3: S3Location
) -> None:
    turns = Turns(s3.open(), rust_client)

    take_turns(turns)

    consumed_by_rust(turns)
    check_consumed(turns.store, turns.expected)


@pytest.mark.parametrize("name", ["none", "zstd", "after-us", "after-us-and-rust"])
def test_rust_and_we_go_on_from_what_go_wrote(
    spark: SparkSession, rust_client: RustClient, s3: S3Location, table: LakeTable, name: str
) -> None:
    recorded = Recording.load(name)
    recorded.put(s3.open())
    turns = Turns(s3.open(), rust_client, [*HELD[name], *PRODUCED[name]])
    turns.check()

    take_turns(turns)

    consumed_by_rust(turns)
    descriptors = land_everything(spark, turns.store, table)
    assert rows_in(spark, table) == rows_of(descriptors, turns.expected)
    check_consumed(turns.store, turns.expected)


def test_all_three_take_turns(rust_client: RustClient, go_program: Path, s3: S3Location) -> None:
    turns = Turns(s3.open(), rust_client)

    for number in range(3):
        take_turns(turns)
        calls = [Call([b"go", b"%d" % number, b""], b"gopher")]
        go_producer.produce(go_program, [calls], "zstd", turns.data).put(turns.store)
        turns.appended(calls)

    consumed_by_rust(turns)
    check_consumed(turns.store, turns.expected)
