"""Blocks written as Parquet pages read back equal, value by value, by every reader, whichever way they went in."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.sql import SparkSession

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import ENTRIES
from objbuf_dagster.protocol import BatchDescriptor, Block, Metadata, check_batch
from objbuf_dagster.protocol.blocks import encode_block
from objbuf_dagster.protocol.page import BYTE_ARRAY, INT64
from objbuf_dagster.spark.columns import COLUMNS
from objbuf_dagster.spark.pages import SIZES, EntriesFile, Sizes, goes_in_as_it_is
from tests.protocol.batches import footer, framings, skippable
from tests.spark.rows import MANIFEST_PATH, Batch, Row, batch, entries, of_every_kind, rows_of

Reader = Callable[[Path], list[Row]]


SMALL = Sizes(least=1 << 10, most=64 << 10, gathered=4 << 10, cut=16 << 10, row_group=48 << 10)
"""The rule for files a thousand times as small."""


def write(path: Path, batches: Iterable[Batch], sizes: Sizes = SIZES) -> EntriesFile:
    file = EntriesFile(MANIFEST_PATH, sizes)
    for one in batches:
        file.add(one.descriptor, check_batch(one.data))
    path.write_bytes(b"".join(file.finish()))
    assert path.stat().st_size == file.size
    return file


def by_pyarrow(path: Path) -> list[Row]:
    return _rows(pq.read_table(path))


def _rows(table: Any) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_duckdb(path: Path) -> list[Row]:
    return duckdb.sql("SELECT * FROM read_parquet($1) ORDER BY 1, 2", params=[str(path)]).fetchall()


def by_spark(spark: SparkSession, path: Path, *, vectorised: bool, split: int = 128 << 20) -> list[Row]:
    settings = {
        "spark.sql.parquet.enableVectorizedReader": str(vectorised).lower(),
        "spark.sql.files.maxPartitionBytes": str(split),
        "spark.sql.files.openCostInBytes": "0",
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    copy = path.with_name(uuid.uuid4().hex)
    try:
        spark.read.parquet(str(path)).write.parquet(str(copy))  # large rows are nothing for the driver's memory
    finally:
        for key in settings:
            spark.conf.unset(key)
    return _rows(pq.read_table(copy).sort_by([("_odb_sequence", "ascending"), ("_odb_entry_index", "ascending")]))


@pytest.fixture(params=["pyarrow", "duckdb", "Spark, vectorised", "Spark, plain", "Spark, in small splits"])
def reader(request: pytest.FixtureRequest, spark: SparkSession) -> Reader:
    readers: dict[str, Reader] = {
        "pyarrow": by_pyarrow,
        "duckdb": by_duckdb,
        "Spark, vectorised": lambda path: by_spark(spark, path, vectorised=True),
        "Spark, plain": lambda path: by_spark(spark, path, vectorised=False),
        "Spark, in small splits": lambda path: by_spark(spark, path, vectorised=True, split=1 << 20),
    }
    return readers[request.param]


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    batches = of_every_kind()
    path = tmp_path_factory.mktemp("pages") / "every-kind.parquet"
    write(path, batches)
    return path, rows_of(batches)


def test_batches_of_every_kind_read_back_equal(every_kind: tuple[Path, list[Row]], reader: Reader) -> None:
    path, expected = every_kind

    assert reader(path) == expected


def test_blocks_that_are_cut_read_back_equal(tmp_path: Path, reader: Reader) -> None:
    batches = [
        batch(4, [b"before"], [Metadata(0, 1, b"")]),
        batch(5, entries(1500, 100), [Metadata(0, 1, b"a"), Metadata(701, 2, b"b")]),
        batch(6, [b"x" * 50_000, b"", b"y" * 70_000, b"z"], compression="none"),
        batch(7, entries(300, 100, seed=2)),
    ]
    path = tmp_path / "cut.parquet"

    write(path, batches, SMALL)

    groups = pq.ParquetFile(path).metadata
    assert groups.num_row_groups > 3
    assert reader(path) == rows_of(batches)


def test_large_blocks_are_cut_into_row_groups_and_read_back_equal(tmp_path: Path, spark: SparkSession) -> None:
    records = [b"%07d" % i * 150 for i in range(140_000)]  # 140 MiB, more than a page may have
    large = batch(5, records, [Metadata(0, 1, b"a"), Metadata(70_001, 2, b"b")])
    path = tmp_path / "large.parquet"

    write(path, [batch(4, [b"before"]), large, batch(6, [b"after"])])

    groups = pq.ParquetFile(path).metadata
    assert groups.num_row_groups == 2
    assert max(groups.row_group(i).total_byte_size for i in range(2)) < 90 << 20
    expected = [*batch(4, [b"before"]).rows(), *large.rows(), *batch(6, [b"after"]).rows()]
    assert by_pyarrow(path) == expected
    assert by_spark(spark, path, vectorised=True) == expected


@pytest.mark.parametrize("framing", framings(b""))
def test_both_ways_give_the_same_rows(framing: str, tmp_path: Path) -> None:
    records = entries(3000, 100)
    block, _ = encode_block(records)
    as_it_is = batch(1, records, [Metadata(0, 5, b"m")])
    framed = batch(1, records, [Metadata(0, 5, b"m")], data=framings(block)[framing] + footer(3000, compression=1))
    plain = batch(1, records, [Metadata(0, 5, b"m")], compression="none")

    for name, one in (("a", as_it_is), ("b", framed), ("c", plain)):
        write(tmp_path / name, [one])

    assert goes_in_as_it_is(check_batch(as_it_is.data))
    assert goes_in_as_it_is(check_batch(framed.data)) == (framing == "one frame")
    assert not goes_in_as_it_is(check_batch(plain.data))
    assert by_pyarrow(tmp_path / "a") == by_pyarrow(tmp_path / "b") == by_pyarrow(tmp_path / "c") == as_it_is.rows()


def stored(size: int, *, compression: bool = True, window_log: int = 0) -> Block:
    block, count = encode_block([b"r" * 60] * (size // 64))
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    if window_log:  # as a stream of known size, whose header states the window
        stream = compressor.compressobj(size=len(block))
        frames = stream.compress(block[:100]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        frames += stream.compress(block[100:]) + stream.flush()
    else:
        frames = compressor.compress(block)
    return check_batch((frames if compression else block) + footer(count, compression=int(compression)))


def test_the_rule_is_the_one_that_is_stated() -> None:
    assert goes_in_as_it_is(stored(64 << 10))
    assert goes_in_as_it_is(stored(128 << 20))
    assert not goes_in_as_it_is(stored((64 << 10) - 64)), "too small"
    assert not goes_in_as_it_is(stored((128 << 20) + 64)), "too large"
    assert not goes_in_as_it_is(stored(1 << 20, compression=False)), "not compressed"


def test_a_frame_with_a_window_that_readers_refuse_is_encoded_again(tmp_path: Path, spark: SparkSession) -> None:
    header = bytes.fromhex("28b52ffd")
    block, count = encode_block([b"r" * 60] * 2000)
    frame = zstandard.ZstdCompressor(level=3).compress(block)
    parameters = zstandard.get_frame_parameters(frame)
    body = frame[zstandard.frame_header_size(frame) :]
    # A header that states its size in 8 bytes, has no checksum, and asks for a window of 2^30 bytes.
    wide = header + bytes([0xC0, (30 - 10) << 3]) + parameters.content_size.to_bytes(8, "little") + body
    one = batch(1, [b"r" * 60] * 2000, data=wide + footer(count, compression=1))
    checked = check_batch(one.data)

    assert checked.zstd
    assert not goes_in_as_it_is(checked)
    write(tmp_path / "wide.parquet", [one])
    assert by_spark(spark, tmp_path / "wide.parquet", vectorised=True) == one.rows()


@pytest.mark.parametrize("vectorised", [True, False])
def test_what_stands_behind_a_frame_does_not_get_into_the_file(
    vectorised: bool, tmp_path: Path, spark: SparkSession
) -> None:
    records = entries(3000, 100)
    block, count = encode_block(records)
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(block)
    padded = batch(1, records, data=frame + skippable(bytes(20 << 20)) + footer(count, compression=1))

    write(tmp_path / "padded.parquet", [padded])

    assert (tmp_path / "padded.parquet").stat().st_size < 1 << 20
    assert by_spark(spark, tmp_path / "padded.parquet", vectorised=vectorised) == padded.rows()
    assert goes_in_as_it_is(check_batch(frame + footer(count, compression=1))), "the frame alone would do"


def test_a_frame_of_blocks_that_hold_nothing_is_encoded_again() -> None:
    block, count = encode_block([b"r" * 60] * 2000)
    frame = zstandard.ZstdCompressor(level=3).compress(block)
    header = zstandard.frame_header_size(frame)
    nothing = bytes(3)  # a block, not the last, as it is, of no bytes

    few = check_batch(frame[:header] + nothing * 10 + frame[header:] + footer(count, compression=1))
    many = check_batch(frame[:header] + nothing * 100_000 + frame[header:] + footer(count, compression=1))

    assert goes_in_as_it_is(few)
    assert not many.zstd
    assert bytes(many.stored) == block


def test_an_entry_that_no_page_can_hold_is_refused_and_its_company_is_not() -> None:
    small = dataclasses.replace(SMALL, largest=100_000)
    entry = random.Random(1).randbytes(99_996)
    fits = batch(3, [entry, entry[:10], b"", entry[:99_990], b"more"], compression="none")
    beyond = batch(4, [b"first", entry + b"x"], compression="none")
    file = EntriesFile(MANIFEST_PATH, small)

    file.add(fits.descriptor, check_batch(fits.data))
    with pytest.raises(
        InvalidInput, match=rf"sequence 4, {beyond.descriptor.location}: entry 1 has 99997 bytes.*99996"
    ):
        file.add(beyond.descriptor, check_batch(beyond.data))


def test_the_largest_page_fits_its_header_also_if_it_does_not_compress() -> None:
    grown_by = len(zstandard.ZstdCompressor(level=1).compress(random.Random(1).randbytes(8 << 20))) - (8 << 20)

    assert SIZES.largest + 2 * grown_by * (SIZES.largest >> 23) < 2**31


def test_a_block_that_goes_in_as_it_is_is_in_the_file_byte_for_byte(tmp_path: Path) -> None:
    one = batch(1, entries(3000, 100))

    write(tmp_path / "a", [one])

    assert one.data[:-7] in (tmp_path / "a").read_bytes()


def test_tiny_batches_are_gathered_into_few_pages(tmp_path: Path) -> None:
    tiny = [batch(n, [b"entry %d" % n], [Metadata(0, n, b"")]) for n in range(5000)]

    file = write(tmp_path / "tiny.parquet", tiny)

    metadata = pq.ParquetFile(tmp_path / "tiny.parquet").metadata
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(6).total_compressed_size < 30_000, "one page: 12 bytes an entry, compressed"
    assert file.size < 5000 * 50
    assert by_pyarrow(tmp_path / "tiny.parquet") == rows_of(tiny)


def test_row_groups_are_of_sensible_size(tmp_path: Path) -> None:
    batches = [batch(n, [b"%d" % n * 100_000] * 100, compression="zstd") for n in range(30)]  # 10 to 20 MB each

    write(tmp_path / "many.parquet", batches)

    metadata = pq.ParquetFile(tmp_path / "many.parquet").metadata
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    assert all(60 << 20 < size < 90 << 20 for size in sizes[:-1])
    assert len(sizes) > 3


def test_metadata_counts_as_part_of_a_file_and_of_its_row_groups(tmp_path: Path) -> None:
    rng = random.Random(1)
    file = EntriesFile(MANIFEST_PATH)
    batches = [batch(n, [b"%d" % n], [Metadata(0, n, rng.randbytes(1 << 20))]) for n in range(150)]

    for number, one in enumerate(batches, 1):
        file.add(one.descriptor, check_batch(one.data))
        assert number << 20 <= file.size_so_far < (number + 1) << 20

    (tmp_path / "a").write_bytes(b"".join(file.finish()))
    metadata = pq.ParquetFile(tmp_path / "a").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [64, 64, 22]
    assert by_pyarrow(tmp_path / "a") == rows_of(batches)


def test_metadata_that_repeats_counts_once(tmp_path: Path) -> None:
    payload = bytes(1 << 20)
    batches = [batch(n, [b"%d" % n], [Metadata(0, n, payload)]) for n in range(150)]

    write(tmp_path / "a", batches)

    assert pq.ParquetFile(tmp_path / "a").metadata.num_row_groups == 1


def test_locations_count_as_part_of_a_file() -> None:
    file = EntriesFile(MANIFEST_PATH)
    for number in range(1000):
        file.add(BatchDescriptor(number, f"ingest/{number:01000d}"), check_batch(batch(0, [b"x"]).data))

    assert file.size_so_far > 1000 * 1000


def test_the_columns_of_a_file_are_those_of_the_table(tmp_path: Path) -> None:
    stated = {(BYTE_ARRAY, False): "binary", (BYTE_ARRAY, True): "string", (INT64, False): "long"}
    in_files = [(one.name, stated[one.type, one.text], one.optional) for one in COLUMNS]

    assert in_files == [(one.name, one.type, one.nullable) for one in ENTRIES.data]
    write(tmp_path / "a", [batch(1, [b"x"])])
    assert pq.read_schema(tmp_path / "a").equals(ENTRIES.to_arrow())


def test_statistics_tell_sequences_and_times(tmp_path: Path) -> None:
    batches = [
        batch(3, [b"a"] * 5, [Metadata(2, 50, b"")]),
        batch(4, [b"b"] * 2, [Metadata(0, -7, b"")]),
    ]

    file = write(tmp_path / "a", batches)

    group = pq.ParquetFile(tmp_path / "a").metadata.row_group(0)
    found = {group.column(i).path_in_schema: group.column(i).statistics for i in range(7)}
    assert (found["_odb_sequence"].min, found["_odb_sequence"].max, found["_odb_sequence"].null_count) == (3, 4, 0)
    assert (found["_odb_entry_index"].min, found["_odb_entry_index"].max) == (0, 4)
    times = found["_odb_ingestion_time_ms"]
    assert (times.min, times.max, times.null_count) == (-7, 50, 2)
    assert found["_odb_metadata"].null_count == 2
    stats = file.statistics()
    first, last = (one.descriptor.location for one in batches)
    numbers = {"_odb_sequence": 3, "_odb_entry_index": 0, "_odb_ingestion_time_ms": -7}
    assert stats["minValues"] == {**numbers, "_odb_data_path": first}
    numbers = {"_odb_sequence": 4, "_odb_entry_index": 4, "_odb_ingestion_time_ms": 50}
    assert stats["maxValues"] == {**numbers, "_odb_data_path": last}
    assert stats["nullCount"]["_odb_ingestion_time_ms"] == stats["nullCount"]["_odb_metadata"] == 2


@pytest.mark.parametrize("query", ["_odb_sequence = 1", "_odb_ingestion_time_ms < 1500"])
def test_filters_on_sequence_and_time_skip_row_groups(query: str, tmp_path: Path, spark: SparkSession) -> None:
    """The other row group is damaged, so whoever looks into it fails."""
    path = tmp_path / "two.parquet"
    batches = [batch(n, [b"%d" % n * 1000] * 70_000, [Metadata(0, n * 1000, b"")]) for n in (1, 2)]
    write(path, batches)
    data = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(1).column(6)
    start = column.data_page_offset
    data[start + 30 : start + 60] = bytes(30)
    path.write_bytes(data)

    assert spark.read.parquet(str(path)).where(query).selectExpr("max(entry)").collect()[0][0] == b"1" * 1000
    assert duckdb.sql(f"SELECT max(entry) FROM '{path}' WHERE {query}").fetchall() == [(b"1" * 1000,)]  # noqa: S608
    column_name, _, number = query.split()
    operator = "==" if "=" in query else "<"
    found = pq.read_table(path, filters=[(column_name, operator, int(number))])
    assert len(found) == 70_000
    with pytest.raises(OSError, match=r".+"):
        pq.read_table(path)


def test_a_sequence_that_no_column_can_hold_is_refused() -> None:
    beyond = BatchDescriptor(2**63, "ingest/a.batch")

    with pytest.raises(InvalidInput, match=r"sequence 9223372036854775808, ingest/a\.batch: "):
        EntriesFile(MANIFEST_PATH).add(beyond, Block(b"\0\0\0\0", False, 4, 1))


def test_no_rows_make_no_row_groups(tmp_path: Path) -> None:
    nothing: Sequence[Batch] = [batch(1, [])]

    assert write(tmp_path / "a", nothing).rows == 0
    assert by_pyarrow(tmp_path / "a") == []
