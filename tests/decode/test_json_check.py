"""The check of JSON entries: what passes can be held by the columns, and everything else has a reason."""

from __future__ import annotations

import json
import pickle
import re
import time

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objbuf_dagster.decode import JsonDecoder, Undecodable, decode_block, rows_schema
from objbuf_dagster.decode.json import JsonCheck
from objbuf_dagster.decode.json_check import Checker
from objbuf_dagster.decode.json_types import parse_columns
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake import ENTRIES, TableSchema
from tests.decode.json_cases import DDL, HOSTILE, ODD
from tests.decode.json_oracle import Generated, generated

CHECKER = Checker(parse_columns(DDL), 1 << 30)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_the_columns_cannot_hold_is_refused_with_its_reason(name: str) -> None:
    entry, reason = HOSTILE[name]

    with pytest.raises(Undecodable) as refused:
        CHECKER.check(entry)

    assert re.search(reason, refused.value.reason), refused.value.reason
    assert len(refused.value.reason) < 700
    assert refused.value.reason.isprintable()


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_but_right_passes_and_the_rest_is_exact(name: str) -> None:
    entry, _, rest = ODD[name]

    checked = CHECKER.check(entry)

    assert dict(checked.rest) == rest
    assert checked.text.encode() == entry


@settings(derandomize=True, database=None, deadline=None, max_examples=250)
@given(generated())
def test_generated_entries_pass_or_fail_as_plain_python_says(entry: Generated) -> None:
    expected = entry.expected()

    try:
        rest = dict(CHECKER.check(entry.text.encode()).rest)
    except Undecodable:
        assert expected is None
    else:
        assert expected is not None
        assert rest == expected[1]


@settings(derandomize=True, database=None, deadline=None, max_examples=250)
@given(generated(), st.data())
def test_damaged_entries_are_never_anything_but_passed_or_refused(entry: Generated, data: st.DataObject) -> None:
    damaged = bytearray(entry.text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        damaged = damaged or bytearray(b" ")

    try:
        CHECKER.check(bytes(damaged))
    except Undecodable:
        return
    found = json.loads(bytes(damaged).decode())  # which refuses less
    assert isinstance(found, dict)


def test_an_entry_that_is_too_large_is_refused_before_it_is_read() -> None:
    checker = Checker(parse_columns("t STRING"), max_bytes=100)

    with pytest.raises(Undecodable, match="it has 101 bytes, more than the 100 of max_bytes"):
        checker.check(b"\xff" * 101)
    assert checker.check(b'{"t":"' + b"x" * 92 + b'"}').known == 1


def test_64_mebibytes_of_a_string_take_seconds() -> None:
    started = time.monotonic()

    checked = CHECKER.check(b'{"t":"' + b"x" * (64 << 20) + b'"}')

    assert checked.known == 1
    assert time.monotonic() - started < 60


def test_hostile_entries_take_no_time_that_grows_with_their_square() -> None:
    started = time.monotonic()

    for entry in (
        b'{"t":"' + b'\\"' * (8 << 20),
        b'{"zz":' + b"[" * (16 << 20),
        b'{"a":' * (2 << 20),
        b"{" * (8 << 20),
    ):
        with pytest.raises(Undecodable):
            CHECKER.check(entry)

    assert time.monotonic() - started < 120


def test_columns_that_must_have_a_value_have_one() -> None:
    checker = Checker(parse_columns("id BIGINT NOT NULL, t STRING NOT NULL"), 1000)

    assert checker.check(b'{"id":1,"t":""}').known == 2
    for entry in (b'{"id":1}', b'{"id":1,"t":null}'):
        with pytest.raises(Undecodable, match=r"^no value for t$"):
            checker.check(entry)


def block(entries: list[bytes], payloads: list[bytes | None]) -> pa.RecordBatch:
    rows = [
        {
            "_odb_sequence": 1,
            "_odb_entry_index": at,
            "_odb_manifest_path": "m",
            "_odb_data_path": "d",
            "_odb_metadata": payload,
            "entry": entry,
        }
        for at, (entry, payload) in enumerate(zip(entries, payloads, strict=True))
    ]
    return pa.RecordBatch.from_pylist(rows, ENTRIES.to_arrow())


@pytest.mark.parametrize(
    ("decoder", "taken"),
    [
        (JsonDecoder("id BIGINT"), [0, 1, 2, 3]),
        (JsonDecoder("id BIGINT", payload=b"orders/1"), [1]),
        (JsonDecoder("id BIGINT", prefix=b"orders/"), [1, 2]),
        (JsonDecoder("id BIGINT", payload=b""), [3]),
    ],
)
def test_entries_are_taken_by_their_payload(decoder: JsonDecoder, taken: list[int]) -> None:
    check = pickle.loads(pickle.dumps(JsonCheck(decoder)))

    given_block = block([b"{}"] * 4, [None, b"orders/1", b"orders/2", b""])
    found = [index for rows, _ in decode_block(check, given_block) for index in rows["_odb_entry_index"].to_pylist()]

    assert found == taken


def test_a_decoder_survives_pickling_and_says_what_it_was_made_with() -> None:
    made = JsonDecoder(DDL, name="events", version=3, prefix=b"e", max_bytes=5)

    found = pickle.loads(pickle.dumps(made))

    assert (found.name, found.version, found.prefix, found.max_bytes) == ("events", 3, b"e", 5)
    assert found.schema == made.schema
    assert JsonDecoder(made.ddl).columns == made.columns
    assert rows_schema(found).names[-1] == "_rest"
    TableSchema.from_arrow(rows_schema(found)).to_delta()


def test_only_spark_decodes() -> None:
    with pytest.raises(InvalidInput, match="give the decoder to land_decoded"):
        list(decode_block(JsonDecoder("id BIGINT"), block([b"{}"], [None])))
