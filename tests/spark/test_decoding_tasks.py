"""What decoding's tasks share out, hold in memory and leave to others; and lakes in buckets."""

from __future__ import annotations

import importlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.errors import JobFailed
from objbuf_dagster.lake import ENTRIES, DataFile, LakeTable, LiveFile
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS, letters_with_rows
from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import TASK_BYTES, DecodedRange, land_decoded, pieces, typed_schema
from objbuf_dagster.spark.landing import Failed, land
from tests.spark.decoding import (
    Lake,
    Words,
    expected_letters,
    expected_words,
    landed,
    letters_in,
    nothing_is_lost,
    words_in,
)
from tests.spark.landing import fill
from tests.spark.processes import python
from tests.spark.rows import batch
from tests.support.s3 import S3Location

ROOT = Path(__file__).parents[2]


def test_pieces_are_all_of_the_files_once_and_about_equal() -> None:
    sizes = [5, 300 << 20, 4 << 20, 17 << 20]
    files = [LiveFile("r", f"{at}.parquet", size, 10, {}) for at, size in enumerate(sizes)]
    nothing = LiveFile("r", "empty.parquet", 700, 0, {})

    shares = pieces([*files, nothing], 4)

    covered: dict[str, int] = {}
    for piece in (piece for share in shares for piece in share):
        assert covered.get(piece.path, 0) == piece.start
        covered[piece.path] = piece.stop
    assert covered == {file.path: file.size for file in files}
    amounts = [sum(piece.stop - piece.start for piece in share) for share in shares]
    assert len(shares) % 4 == 0
    assert max(amounts) <= TASK_BYTES
    assert len(pieces(files[:1], 4)) == 1, "too little for a second task"
    assert pieces([nothing], 4) == []


def many_groups(lake: LakeTable, key: SequenceRange, groups: int) -> DataFile:
    """A file with so many row groups of ten entries each, in no commit yet."""
    columns = ENTRIES.to_arrow()
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, columns, compression="none") as writer:
        for group in range(groups):
            rows = [
                {
                    "_odb_sequence": group,
                    "_odb_entry_index": index,
                    "_odb_manifest_path": "ingest/manifest",
                    "_odb_data_path": f"ingest/{group}.batch",
                    "_odb_metadata": b"words",
                    "entry": b"%d-%d " % (group, index) + b"x" * 100_000,
                }
                for index in range(10)
            ]
            writer.write_table(pa.Table.from_pylist(rows, columns))
    path = lake.new_path(key.key)
    lake.store.put(path, sink.getvalue())
    return DataFile(path, len(sink.getvalue()), groups * 10)


def test_row_groups_of_a_file_go_to_several_tasks_each_to_one(spark: SparkSession, tmp_path: Path) -> None:
    key = SequenceRange(0, 19)
    entries = LakeTable(tmp_path / "entries")
    table = LakeTable(tmp_path / "words", typed_schema(Words()))
    letters = LakeTable(tmp_path / "letters", DEAD_LETTERS)
    entries.commit(key.key, [many_groups(entries, key, 20)], epoch=1)
    assert len(pieces(entries.files(), 2)) > 1

    (outcome,) = land_decoded(spark, entries, [key], Words(), table, letters)

    assert isinstance(outcome, DecodedRange), outcome
    assert (outcome.rows, outcome.entries, outcome.others) == (400, 200, 0)
    assert outcome.files > 1
    assert sorted(row[:3] for row in words_in(table)) == [
        (a, b, c) for a in range(20) for b in range(10) for c in (0, 1)
    ]


def test_many_ranges_are_one_spark_job(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", f"word {n}") for n in range(48)])
    assert len(lake.filled.ranges) == 8
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))

    outcomes = lake.succeed(spark, Words())

    assert len(outcomes) == 8
    assert len(tracker.getJobIdsForGroup(None)) - before == 1


def test_a_lake_in_a_bucket_is_read_and_written(spark: SparkSession, s3: S3Location) -> None:
    made = [batch(n, [b"one two", b"bad", b""], [Metadata(0, n, b"words")]) for n in range(4)]
    filled = fill(s3.below("buffer").open(), made, per_range=2)
    places = [s3.below(f"lake/{name}") for name in ("entries", "words", "dead_letters")]
    schemas = [ENTRIES, typed_schema(Words()), DEAD_LETTERS]
    tables = [LakeTable(at.url, schema, options=at.options) for at, schema in zip(places, schemas, strict=True)]
    lake = Lake(filled, *tables)
    for planned in filled.ranges:
        land(spark, filled.place, planned, lake.entries)

    lake.succeed(spark, Words())
    lake.succeed(spark, Words())

    assert words_in(lake.table) == expected_words(Words(), filled.rows())
    assert letters_in(lake.dead_letters) == expected_letters(Words(), filled.rows())
    lake.succeed(spark, Words(version=2, bad=()))
    assert letters_in(lake.dead_letters) == []


class Deadly(Words):
    """Kills the worker that decodes one word."""

    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        if b"four" in entry:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().records(entry)


def test_a_range_that_kills_its_worker_fails_alone(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one bad")] * 6 + [("words", "four")] * 6)

    first, failed = lake.decode(spark, Deadly())

    assert isinstance(first, DecodedRange)
    assert first.dead_letters == 6
    assert isinstance(failed, Failed)
    with pytest.raises(JobFailed, match="nothing was committed: decode it again"):
        raise failed.error
    assert list(lake.table.ranges()) == [first.range.key]


class Indexing(Words):
    """Its author did not think of a payload without bytes."""

    def takes(self, payload: bytes | None) -> bool:
        return payload is not None and payload[0] == ord("w")


def test_a_payload_that_breaks_a_decoder_is_a_letter_and_stops_no_range(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one"), ("", "two"), ("other", "three")])

    (done,) = lake.succeed(spark, Indexing())

    assert (done.entries, done.others, done.dead_letters) == (2, 1, 1)
    assert [row[3] for row in words_in(lake.table)] == ["one"]
    ((_, _, _, _, reason, entry),) = letters_in(lake.dead_letters)
    assert (reason, entry) == ("IndexError: index out of range", b"two")


class Lacking(Words):
    """Needs what executors do not have, before it can tell whose an entry is."""

    def takes(self, payload: bytes | None) -> bool:
        importlib.import_module("a_library_that_is_not_there")
        return super().takes(payload)


def test_a_library_that_executors_lack_fails_the_range_and_makes_no_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = landed(spark, tmp_path, [("words", "one")] * 3)

    (outcome,) = lake.decode(spark, Lacking())

    assert isinstance(outcome, Failed)
    with pytest.raises(JobFailed, match="a_library_that_is_not_there"):
        raise outcome.error
    assert not lake.table.exists()
    assert not lake.dead_letters.exists()


def test_reports_that_are_not_all_of_the_range_commit_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one")] * 3)
    (file,) = lake.entries.files()
    lied = LakeTable(tmp_path / "lake/lied")
    lied.store.put(file.path, lake.entries.store.read(file.path))
    lied.commit(file.range, [DataFile(file.path, file.size, 4)], epoch=1)  # and it has 3

    (outcome,) = land_decoded(spark, lied, lake.filled.ranges, Words(), lake.table, lake.dead_letters)

    assert isinstance(outcome, Failed)
    with pytest.raises(JobFailed, match="tasks read 3 entries"):
        raise outcome.error
    assert not lake.table.exists()


def test_two_decodings_at_once_leave_what_one_would(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one two"), ("words", "bad"), ("words", "three")] * 4)
    lake.succeed(spark, Words(version=1, bad=("three",)))

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: lake.decode(spark, Words(version=2)), range(2)))

    for outcomes in zip(*both, strict=True):
        done = [one for one in outcomes if isinstance(one, DecodedRange)]
        overtaken = [one for one in outcomes if isinstance(one, Failed) and isinstance(one.error, JobFailed)]
        assert done
        assert len(done) + len(overtaken) == 2
    assert words_in(lake.table) == expected_words(Words(), lake.filled.rows())
    assert letters_in(lake.dead_letters) == expected_letters(Words(version=2), lake.filled.rows())


_KILLED = """
import os, signal
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import land_decoded, typed_schema
from objbuf_dagster.spark.session import session
from pyspark import cloudpickle
import tests
from tests.spark.decoding import Words

folder, number = os.environ["LAKE"], int(os.environ["NUMBER"])
cloudpickle.register_pickle_by_value(tests)

class Killed(LakeTable):
    def commit(self, *args, **words):
        done = super().commit(*args, **words)
        left.append(self)
        if len(left) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

left = []
decoder = Words(version=2, bad=("three",))
tables = Killed(folder + "/words", typed_schema(decoder)), Killed(folder + "/dead_letters", DEAD_LETTERS)
entries = LakeTable(folder + "/entries")
with session(master="local[1]") as spark:
    list(land_decoded(spark, entries, [SequenceRange.from_key(key) for key in entries.ranges()], decoder, *tables))
"""


def test_a_driver_killed_between_rows_and_letters_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = landed(spark, tmp_path, [("words", "one two"), ("words", "bad apple"), ("words", "three")])
    lake.succeed(spark, Words())
    mended = Words(version=2, bad=("three",))
    (tmp_path / "driver").mkdir()
    variables = {"LAKE": str(tmp_path / "lake"), "NUMBER": "2", "PYTHONPATH": str(ROOT)}
    driver = python(_KILLED, tmp_path / "driver", **variables)

    output, errors = driver.communicate(timeout=240)  # returns once its JVM is gone, too

    assert driver.returncode == -signal.SIGKILL, (output, errors)
    nothing_is_lost(mended, lake)
    assert {letter[1] for letter in letters_in(lake.dead_letters)} == {1, 2}, "the old one and the new one"
    (key,) = lake.entries.ranges()
    assert letters_with_rows(lake.dead_letters, lake.table, key, "words") == {(0, 1)}, "whose rows count"
    lake.succeed(spark, mended)
    assert words_in(lake.table) == expected_words(mended, lake.filled.rows())
    assert letters_in(lake.dead_letters) == expected_letters(mended, lake.filled.rows())


_DECODE = """
import os, sys
import numpy as np
import pyarrow as pa
from objbuf_dagster.decode import Decoded, Decoder
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.lake.files import RowsWriter
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.decoding import pieces, typed_schema
from objbuf_dagster.spark.decoding_worker import DecodeTask, Share

class Fifty(Decoder):
    name, version = "fifty", 1
    schema = pa.schema([pa.field("text", pa.binary())])

    def takes(self, payload):
        return True

    def decode(self, entries):
        index = pa.array(np.repeat(np.arange(len(entries)), 50), pa.int32())
        rows = pa.RecordBatch.from_arrays([pa.DictionaryArray.from_arrays(index, entries)], names=["text"])
        return Decoded(rows, index)

folder, mebibytes = sys.argv[1], int(sys.argv[2])
key = SequenceRange(0, 9)
entries = LakeTable(folder + "/entries")
writer = RowsWriter(entries.store, entries.schema.to_arrow(), lambda: entries.new_path(key.key), file_bytes=1 << 40)
for number in range(mebibytes):
    origin = {"_odb_sequence": 0, "_odb_manifest_path": "m", "_odb_data_path": "d", "_odb_metadata": b"p" * 100}
    rows = [{**origin, "_odb_entry_index": number * 256 + at, "entry": os.urandom(4096)} for at in range(256)]
    writer.add(pa.RecordBatch.from_pylist(rows, entries.schema.to_arrow()))
entries.commit(key.key, writer.finish(), epoch=1)
parts = pieces(entries.files(), 1)
share = tuple(piece for part in parts for piece in part)
task = DecodeTask(entries, Fifty(), LakeTable(folder + "/rows", typed_schema(Fifty())),
                  LakeTable(folder + "/letters", DEAD_LETTERS), "dead_letter", "0" * 32)
report = task.do(Share(0, key, share))
assert report.error is None, report.error
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1]
print(sum(file.rows for file in report.rows), report.entries, int(peak) // 1024)
"""


def decode_in_a_process(folder: Path, mebibytes: int) -> int:
    """The peak in MiB of a process that decodes so many MiB of entries, which cannot be compressed, to fifty times."""
    command = [sys.executable, "-c", _DECODE, str(folder), str(mebibytes)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=250)
    rows, entries, peak = map(int, ran.stdout.split())
    assert (rows, entries) == (mebibytes * 256 * 50, mebibytes * 256)
    return peak


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell a process's peak")
def test_what_fans_out_fifty_times_needs_no_more_memory_the_longer_it_is(tmp_path: Path) -> None:
    short = decode_in_a_process(tmp_path / "short", 8)
    long = decode_in_a_process(tmp_path / "long", 32)

    assert long < short + 128, f"{short} MiB for 400 MiB of rows, {long} MiB for 1600 MiB"
    assert long < 700
