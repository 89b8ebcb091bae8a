"""A decoder of one's own: short to write, and held to the contract."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from objbuf_dagster.decode import Decoded, Decoder, EntryDecoder, Failure, OtlpLogs, decode_block, rows_schema
from objbuf_dagster.errors import InvalidInput
from tests.decode.messages import DECODERS, decoded, entries_batch
from tests.decode.own import Orders


def test_a_decoder_in_one_file_gives_rows_and_failures() -> None:
    payloads: list[bytes | None] = [*[b"orders/1"] * 5, b"orders/2", b"invoices/1", None]
    entries = [b"a;1\nb;", b"", b";7", b"c;x", b"d;4", b"e;5", b"f;6", b"g;7"]

    rows, failures = decoded(Orders(), entries_batch(entries, payloads))

    assert [(row["_odb_sequence"], row["_odb_record_index"], row["id"], row["amount"]) for row in rows] == [
        (100, 0, "a", 1),
        (100, 1, "b", None),
        (104, 0, "d", 4),
    ]
    assert [(each["_odb_sequence"], each["reason"]) for each in failures] == [
        (102, "an order without an id"),
        (103, "ValueError: invalid literal for int() with base 10: 'x'"),
        (105, "orders of another version: b'orders/2'"),
    ]
    assert {(each["decoder"], each["decoder_version"]) for each in failures} == {("orders", 1)}


class _Given(EntryDecoder):
    """Gives what it is told to."""

    name, version = "given", 3
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def takes(self, payload: bytes | None) -> bool:
        return payload is not None

    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        return self.rows if entry == b"given" else [{"a": 1}]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"a": 1}, {"a": 2, "c": 3}], "no column for c"),
        ([{"a": 1}, {"b": "x"}], "no value for a"),
        ([{"a": 1}, {"a": "x"}], "ArrowInvalid: "),
        ([{"a": 2**40}], "ArrowInvalid: "),
        ([{"a": 1, "b": 7}], "ArrowTypeError: "),
    ],
)
def test_rows_that_do_not_fit_the_schema_fail_their_entry_whole(rows: list[dict[str, Any]], reason: str) -> None:
    found, failures = decoded(_Given(rows), entries_batch([b"other", b"given", b"other"]))

    assert [row["_odb_sequence"] for row in found] == [100, 102]
    assert len(failures) == 1
    assert failures[0]["reason"].startswith(reason)


_TWO = pa.array([0, 1], pa.int64())


class _Breaking(Decoder):
    """Says whatever it is told to, right or wrong."""

    name, version = "breaking", 1
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])

    def __init__(self, index: list[int], failed: list[int], names: list[str], values: pa.Array = _TWO) -> None:
        self.index, self.failed, self.names, self.values = index, failed, names, values

    def takes(self, payload: bytes | None) -> bool:
        return payload is not None

    def decode(self, entries: pa.Array) -> Decoded:
        rows = pa.RecordBatch.from_arrays([self.values] * len(self.names), names=self.names)
        assert len(entries) == 3
        failures = tuple(Failure(entry, "so") for entry in self.failed)
        return Decoded(rows, pa.array(self.index, pa.int32()), failures)


@pytest.mark.parametrize(
    ("index", "failed", "names"),
    [
        ([0], [], ["a"]),
        ([1, 0], [], ["a"]),
        ([0, 3], [], ["a"]),
        ([-1, 0], [], ["a"]),
        ([0, 1], [1], ["a"]),
        ([0, 1], [3], ["a"]),
        ([0, 1], [2, 2], ["a"]),
        ([0, 1], [], ["b"]),
        ([0, 1], [], ["a", "b"]),
    ],
)
def test_rows_that_do_not_say_rightly_whose_they_are_never_come_out(
    index: list[int], failed: list[int], names: list[str]
) -> None:
    with pytest.raises(InvalidInput, match="breaking breaks its contract"):
        list(decode_block(_Breaking(index, failed, names), entries_batch([b""] * 3)))


@pytest.mark.parametrize("values", [pa.array([0, 1], pa.int32()), pa.array([0, None], pa.int64()), pa.array(["", ""])])
def test_rows_that_are_not_of_the_schema_never_come_out(values: pa.Array) -> None:
    with pytest.raises(InvalidInput, match="breaking breaks its contract"):
        list(decode_block(_Breaking([0, 1], [], ["a"], values), entries_batch([b""] * 3)))


def test_repeated_values_may_come_once() -> None:
    rows, _ = decoded(_Breaking([0, 2], [1], ["a"], pa.array([7, 7]).dictionary_encode()), entries_batch([b""] * 3))

    assert [(row["_odb_sequence"], row["a"]) for row in rows] == [(100, 7), (102, 7)]


class _Short(Orders):
    def takes(self, payload: bytes | None) -> bool:
        return payload is not None and payload[3] == 1


def test_a_payload_that_breaks_the_decoder_is_a_failure_of_its_entries() -> None:
    rows, failures = decoded(_Short(), entries_batch([b"a;1", b"b;2"], [b"\0\0\0\1", b"\0"]))

    assert [row["id"] for row in rows] == ["a"]
    assert [each["reason"] for each in failures] == ["IndexError: index out of range"]


class _Lacking(Orders):
    def takes(self, payload: bytes | None) -> bool:
        importlib.import_module("a_library_that_is_not_there")
        return super().takes(payload)


def test_a_library_that_is_not_there_is_no_failure_of_entries() -> None:
    with pytest.raises(ImportError, match="a_library_that_is_not_there"):
        list(decode_block(_Lacking(), entries_batch([b"a;1"])))


@pytest.mark.parametrize("names", [["_odb_sequence"], ["_ODB_mine"], ["a", "A"], [""], []])
def test_columns_that_would_hide_ours_are_refused(names: list[str]) -> None:
    decoder = Orders()
    decoder.schema = pa.schema([pa.field(name, pa.int64()) for name in names])

    with pytest.raises(InvalidInput, match="orders"):
        rows_schema(decoder)


@pytest.mark.parametrize("decoder", [*DECODERS, Orders()], ids=lambda decoder: decoder.name)
def test_decoders_travel_to_executors(decoder: Decoder) -> None:
    again = pickle.loads(pickle.dumps(decoder))

    assert (again.name, again.version, again.schema) == (decoder.name, decoder.version, decoder.schema)


def test_settings_travel_too() -> None:
    assert pickle.loads(pickle.dumps(OtlpLogs(most_records=7))) == OtlpLogs(most_records=7)


def test_decoding_needs_no_spark_and_no_dagster() -> None:
    code = """
import sys
import pyarrow as pa
from objbuf_dagster.decode import OtlpLogs
OtlpLogs().decode(pa.array([b""], pa.binary()))
print(sorted({"pyspark", "dagster", "deltalake"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "[]"
