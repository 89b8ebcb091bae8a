"""OpenTelemetry logs from `entries` into their typed table, against the same decoding in one plain process."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from bench.harness import Bench, best_of
from bench.landing import fill
from objbuf_dagster.decode import OtlpLogs, decode_block
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.spark.decoding import DecodedRange, land_decoded, typed_schema
from objbuf_dagster.spark.landing import land
from objbuf_dagster.spark.session import session

_CORES = 2
_OF_PLAIN = 0.7
"""Rows per second are at least so much of a plain process' times the cores."""

_RECORDS = 50
_ATTRIBUTES = 6
_MANY = (0, 6, 24, 96)
_GROWTH = (24, 96)
_MOST_GROWTH = 1.5
"""How much longer an attribute takes at the most where a record has the greater number of them."""


def main(quick: bool) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="objbuf-bench-"))
    try:
        with session(master=f"local[{_CORES}]", config={"spark.driver.memory": "3g"}) as spark:
            return _against_plain(Bench(quick, rounds=1 if quick else 3), spark, folder)
    finally:
        shutil.rmtree(folder)


def _against_plain(bench: Bench, spark: Any, folder: Path) -> bool:
    entries, planned = _landed(spark, folder / "main", 1 if bench.quick else 24, _ATTRIBUTES)
    rows = _plain(entries)
    amount = sum(file.size for file in entries.files())
    bench.heading(
        f"decoding {rows / 1e6:.2f} M log records with {_ATTRIBUTES} attributes each, {_RECORDS} to an entry "
        f"({amount / 1e6:.0f} MB stored), local[{_CORES}]"
    )
    done: list[DecodedRange] = []
    names = ("otlp_logs on Spark, into its table", "the same decoding in one plain process")
    runs: dict[str, Callable[[], object]] = {
        names[0]: lambda: done.append(_decode(spark, entries, planned, folder / "target", rows)),
        names[1]: lambda: _plain(entries),
    }
    kept = bench.promise_all(runs, [(*names, 1 / (_OF_PLAIN * _CORES))])
    best = min(one.seconds for one in done)
    print(f"  {rows / best:,.0f} rows/s")
    return _attributes(bench) and kept


def _attributes(bench: Bench) -> bool:
    """How the cost of a record grows with its attributes, in one plain process; protobuf's own parser measures it.

    Returns whether it grows with them and not faster.
    """
    rng = random.Random(31)
    count = 20 if bench.quick else 400
    blocks = {number: _block([_entry(number, rng) for _ in range(count)]) for number in _MANY}
    runs: dict[str, Callable[[], object]] = {
        str(number): partial(_decode_all, block) for number, block in blocks.items()
    }
    runs |= {f"{number} parsed": partial(_parse_all, block) for number, block in blocks.items()}
    best: dict[str, float] = {}

    def an_attribute(number: int) -> float:
        """In microseconds."""
        return (best[str(number)] - best[str(_MANY[0])]) / (count * _RECORDS * number) * 1e6

    def growth() -> tuple[float, str]:
        for name, seconds in best_of(runs, bench.rounds).items():
            best[name] = min(seconds, best.get(name, seconds))
        few, many = (an_attribute(number) for number in _GROWTH)
        return many / few, f"[{many:.2f} us against {few:.2f} us]"

    name = f"time for an attribute, {_GROWTH[1]} to a record against {_GROWTH[0]}"
    kept = bench.promise_ratio(name, growth, _MOST_GROWTH)
    for number in _MANY:
        each = best[str(number)] / (count * _RECORDS)
        more = f", {an_attribute(number):.2f} us an attribute" if number else ""
        times = best[str(number)] / best[f"{number} parsed"]
        print(
            f"  {number:>3} attributes: {each * 1e6:>6.2f} us a record, {times:.2f} times as long as protobuf takes to "
            f"parse it{more}",
            flush=True,
        )
    return kept


def _entry(attributes: int, rng: random.Random) -> bytes:
    """One export request as a collector sends it: some records of one service."""
    records = [
        LogRecord(
            time_unix_nano=1_712_345_678_000_000_000 + rng.randrange(1 << 40),
            severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
            severity_text="INFO",
            body=AnyValue(string_value=f"GET /cart/{rng.randrange(1 << 20)} 200 in {rng.randrange(1000)} ms"),
            attributes=[KeyValue(key=f"attribute.{number}", value=_value(number, rng)) for number in range(attributes)],
            trace_id=rng.randbytes(16),
            span_id=rng.randbytes(8),
        )
        for _ in range(_RECORDS)
    ]
    names = {"service.name": "checkout", "service.instance.id": f"checkout-{rng.randrange(8)}", "host.name": "node-7"}
    resource = Resource(attributes=[KeyValue(key=k, value=AnyValue(string_value=v)) for k, v in names.items()])
    logs = ResourceLogs(resource=resource, scope_logs=[ScopeLogs(log_records=records)])
    return bytes(ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString())


def _value(number: int, rng: random.Random) -> AnyValue:
    """Two in three are text, as they are in practice."""
    if number % 3 == 1:
        return AnyValue(int_value=rng.randrange(1 << 30))
    return AnyValue(string_value=f"value-{rng.randrange(10_000)}")


def _landed(spark: Any, folder: Path, batches: int, attributes: int) -> tuple[LakeTable, RangeObject]:
    data = fill(folder, batches, partial(_entry, attributes), "zstd")
    table = LakeTable(folder / "lake")
    land(spark, data.place, data.planned, table)
    return table, data.planned


def _decode(spark: Any, entries: LakeTable, planned: RangeObject, target: Path, rows: int) -> DecodedRange:
    shutil.rmtree(target, ignore_errors=True)
    decoder = OtlpLogs()
    typed = LakeTable(target / "typed", typed_schema(decoder))
    letters = LakeTable(target / "dead_letters", DEAD_LETTERS)
    (found,) = land_decoded(spark, entries, [planned], decoder, typed, letters)
    assert isinstance(found, DecodedRange), found
    assert found.rows == rows
    return found


def _plain(entries: LakeTable) -> int:
    """Read, decode, and throw the rows away."""
    import pyarrow.parquet as pq

    rows = 0
    for file in entries.files():
        for block in pq.ParquetFile(f"{entries.root}/{file.path}").iter_batches(256, use_threads=False):
            rows += _decode_all(block)
    return rows


def _decode_all(block: pa.RecordBatch) -> int:
    return sum(len(rows) for rows, _ in decode_block(OtlpLogs(), block))


def _parse_all(block: pa.RecordBatch) -> int:
    """To messages that nobody looks into."""
    return sum(len(ExportLogsServiceRequest.FromString(entry).resource_logs) for entry in block["entry"].to_pylist())


def _block(entries: list[bytes]) -> pa.RecordBatch:
    from objbuf_dagster.lake import ENTRIES

    rows = [
        {
            "_odb_sequence": 0,
            "_odb_entry_index": index,
            "_odb_manifest_path": "ingest/manifest",
            "_odb_data_path": "ingest/a.batch",
            "_odb_metadata": b"\1\2\1\0",
            "entry": entry,
        }
        for index, entry in enumerate(entries)
    ]
    return pa.RecordBatch.from_pylist(rows, ENTRIES.to_arrow())
