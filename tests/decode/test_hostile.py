"""Bytes that nobody should send: rows or failures with a reason come out, never an exception, and neighbours stay."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from objbuf_dagster.decode import OtlpLogs, OtlpMetrics, OtlpTraces
from objbuf_dagster.decode.otlp import OtlpDecoder
from objbuf_dagster.errors import InvalidInput
from tests.decode.messages import LOGS, decoded, entries_batch, field, log_entry, nested_value
from tests.decode.oracle import plain, value_from

ROOT = Path(__file__).resolve().parents[2]
GOOD = log_entry(field(5, field(1, b"fine")))
METRICS, TRACES = b"\x01\x01\x01\x00", b"\x01\x03\x01\x00"


def attribute(key: bytes, value: bytes) -> bytes:
    return field(6, field(1, key) + field(2, value))


def point(content: bytes) -> bytes:
    """A metrics request with a gauge of one data point."""
    return field(1, field(2, field(2, field(5, field(1, content)))))


def reason_of(entry: bytes) -> str:
    """Why an entry fails, between two that do not."""
    rows, failures = decoded(OtlpLogs(), entries_batch([GOOD, entry, GOOD]))
    assert [row["Body"] for row in rows] == ["fine", "fine"]
    assert [failure["_odb_sequence"] for failure in failures] == [101]
    return str(failures[0]["reason"])


def test_nothing_at_all_is_a_request_without_records() -> None:
    assert decoded(OtlpLogs(), entries_batch([b"", field(1, b""), log_entry()])) == ([], [])


def test_an_empty_record_is_a_row_of_nothing() -> None:
    ((row,), failures) = decoded(OtlpLogs(), entries_batch([log_entry(b"")]))

    assert failures == []
    assert {name for name, value in row.items() if value is None} == {
        "Timestamp",
        "TimestampUnixNano",
        "ObservedTimestamp",
        "ObservedTimestampUnixNano",
        "Body",
        "BodyKind",
    }
    assert row["ServiceName"] == row["TraceId"] == ""
    assert row["LogAttributes"] == row["ResourceAttributes"] == []


def test_a_request_cut_anywhere_is_a_failure_or_what_protobuf_makes_of_it() -> None:
    whole = log_entry(field(5, field(1, b"hello")) + attribute(b"key", field(1, b"value")))
    for length in range(len(whole)):
        rows, failures = decoded(OtlpLogs(), entries_batch([whole[:length]]))
        try:
            ExportLogsServiceRequest.FromString(whole[:length])
        except DecodeError:
            assert rows == []
            assert "cut short" in failures[0]["reason"], length
        else:
            assert failures == []


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            log_entry(field(3, b"ok"), field(3, b"a\xff")),
            (
                "ExportLogsServiceRequest.resource_logs[0].scope_logs[0].log_records[1].severity_text is not UTF-8: "
                "invalid start byte at its byte 1"
            ),
        ),
        (
            log_entry(attribute(b"a", b"") + attribute(b"k\x80", field(1, b"v"))),
            (
                "ExportLogsServiceRequest.resource_logs[0].scope_logs[0].log_records[0].attributes[1].key "
                "is not UTF-8: invalid start byte at its byte 1"
            ),
        ),
        (
            log_entry(attribute(b"k", field(1, b"\xed\xa0\x80"))),  # a surrogate, which UTF-8 does not have
            (
                "ExportLogsServiceRequest.resource_logs[0].scope_logs[0].log_records[0].attributes[0].value"
                ".string_value is not UTF-8: invalid continuation byte at its byte 0"
            ),
        ),
        (
            field(1, field(1, field(1, b"\x0a\x05abc"))),
            (
                "ExportLogsServiceRequest.resource_logs[0].resource.attributes[0].key is cut short: 5 bytes at byte 8, "
                "where 3 are left of ExportLogsServiceRequest.resource_logs[0].resource.attributes[0]"
            ),
        ),
        (b"\x07", "ExportLogsServiceRequest has no valid field at byte 0: number 0, wire type 7"),
        (b"\x0c", "ExportLogsServiceRequest has no valid field at byte 0: number 1, wire type 4"),
        (b"\xff" * 11, "ExportLogsServiceRequest has a number of more than 64 bits at byte 0"),
        (b"\x8b\x06\x08\x01", "ExportLogsServiceRequest.field 97 is cut short at byte 4: a group has no end"),
    ],
)
def test_a_failure_says_what_is_wrong_and_where(entry: bytes, reason: str) -> None:
    assert reason_of(entry) == reason


def test_fields_that_nobody_knows_yet_are_passed_over() -> None:
    unknown = field(77, b"\xff\xfe") + b"\xb8\x06\x07" + b"\x8b\x06\x08\x01\x8c\x06"
    known = field(5, field(1, b"body") + unknown) + attribute(b"k", field(1, b"v") + unknown) + unknown
    rows, failures = decoded(OtlpLogs(), entries_batch([log_entry(known) + unknown]))

    assert failures == []
    assert [(row["Body"], row["LogAttributes"]) for row in rows] == [("body", [("k", "v")])]


NEWER = field(77, b"of a newer release")


@pytest.mark.parametrize(
    ("decoder", "entry", "where"),
    [
        (OtlpLogs(), log_entry(field(5, NEWER)), "log_records[0].body is of no value"),
        (OtlpLogs(), log_entry(attribute(b"k", NEWER)), "log_records[0].attributes[0].value is of no value"),
        (
            OtlpLogs(),
            log_entry(attribute(b"k", b"\x18\x01") + attribute(b"k", field(5, field(1, NEWER)))),
            "log_records[0].attributes[1].value.array_value.values[0] is of no value",
        ),
        (OtlpLogs(), field(1, field(1, field(1, field(2, NEWER)))), "resource.attributes[0].value is of no value"),
        (OtlpMetrics(), field(1, field(2, field(2, field(1, b"m") + NEWER))), "metrics[0] is of no data"),
        (OtlpMetrics(), point(NEWER), "gauge.data_points[0] is of no value"),
        (OtlpMetrics(), point(field(5, NEWER)), "gauge.data_points[0].exemplars[0] is of no value"),
    ],
    ids=["body", "attribute", "in an array", "resource", "metric", "point", "exemplar"],
)
def test_a_value_of_a_kind_that_is_newer_is_a_failure_and_no_null(
    decoder: OtlpLogs | OtlpMetrics, entry: bytes, where: str
) -> None:
    payload = LOGS if decoder.name == "otlp_logs" else METRICS

    rows, failures = decoded(decoder, entries_batch([b"", entry, b""], payload))

    assert rows == []
    assert [failure["_odb_sequence"] for failure in failures] == [101]
    assert f"{where} that this release knows, and has field 77" in failures[0]["reason"]


INDEX = b"\x18\x07"


@pytest.mark.parametrize(
    ("attributes", "where"),
    [
        (field(6, INDEX + field(2, field(1, b"v"))), "attributes[0].key_strindex"),
        (
            attribute(b"k", b"\x18\x01") + attribute(b"m", field(6, field(1, INDEX + field(2, field(1, b"v"))))),
            "attributes[1].value.kvlist_value.values[0].key_strindex",
        ),
    ],
    ids=["attribute", "in a map"],
)
def test_an_attribute_whose_key_is_an_index_into_strings_elsewhere_is_a_failure(attributes: bytes, where: str) -> None:
    assert reason_of(log_entry(attributes)) == (
        f"ExportLogsServiceRequest.resource_logs[0].scope_logs[0].log_records[0].{where} is an index into a profile's "
        "strings, which are not there: no key is known"
    )


def test_an_attribute_without_a_key_and_with_something_newer_is_a_failure() -> None:
    reason = reason_of(log_entry(field(6, NEWER + field(2, field(1, b"v")))))

    assert "log_records[0].attributes[0] has no key that this release knows, and has field 77" in reason


@pytest.mark.parametrize(
    ("decoder", "entry"),
    [
        (OtlpLogs, field(1, b"") * 101),
        (OtlpLogs, field(1, field(2, b"") * 101)),
        (OtlpLogs, log_entry(field(6, b"") * 101)),
        (OtlpLogs, field(1, field(1, field(1, b"") * 101))),
        (OtlpMetrics, field(1, field(2, field(2, b"") * 101))),
        (OtlpMetrics, field(1, field(2, field(2, field(12, b"") * 101)))),
        (OtlpMetrics, field(1, field(2, field(2, field(11, field(1, field(6, b"") * 101)))))),
        (OtlpMetrics, field(1, field(2, field(2, field(5, field(1, field(5, b"") * 101)))))),
        (OtlpMetrics, field(1, field(2, field(2, field(10, field(1, field(8, field(2, b"\x01" * 1616)))))))),
        (OtlpTraces, field(1, field(2, field(2, field(11, b"") * 101)))),
        (OtlpTraces, field(1, field(2, field(2, field(13, b"") * 101)))),
        (OtlpTraces, field(1, field(2, field(2, field(11, field(3, b"") * 101))))),
    ],
    ids=[
        "resources",
        "scopes",
        "attributes",
        "resource attributes",
        "metrics",
        "metadata",
        "quantiles",
        "exemplars",
        "buckets",
        "events",
        "links",
        "event attributes",
    ],
)
def test_parts_of_records_are_limited_as_records_are(decoder: type[OtlpDecoder], entry: bytes) -> None:
    payload = {"otlp_logs": LOGS, "otlp_metrics": METRICS, "otlp_traces": TRACES}[decoder.name]

    _, failures = decoded(decoder(most_records=100), entries_batch([entry], payload))

    assert [failure["reason"] for failure in failures] == [
        "the entry has more than most_records, 100, attributes and other parts of records"
    ]
    assert decoded(decoder(most_records=200), entries_batch([entry], payload))[1] == []


def test_a_batch_of_a_collectors_default_size_is_within_the_limits() -> None:
    record = field(3, b"INFO") + field(5, field(1, b"x" * 1000)) + attribute(b"k", field(1, b"v")) * 20
    entry = log_entry(*[record] * 8192)
    assert len(entry) > 8 << 20

    decoded_at_once = OtlpLogs().decode(pa.array([entry], pa.binary()))

    assert (len(decoded_at_once.rows), decoded_at_once.failures) == (8192, ())


def test_a_large_text_is_within_the_limit_and_what_is_larger_is_not() -> None:
    large = log_entry(field(3, b"x" * ((64 << 20) - 30)))
    assert len(large) <= 64 << 20

    found = OtlpLogs().decode(pa.array([large, log_entry(field(3, b"x" * (64 << 20)))], pa.binary()))

    assert len(found.rows) == 1
    assert ["more than most_bytes, 67108864" in failure.reason for failure in found.failures] == [True]


@pytest.mark.parametrize(
    "short",
    [b"\x0a\x00", b"\x0a\x80\x00", b"\x8a\x00\x00", b"\x8a\x80\x00\x80\x80\x00", b"\x0a\x0f" + b"\x0a\x0d" + b"k" * 13],
    ids=["short", "length in two bytes", "tag in two bytes", "both in three", "not so short"],
)
def test_a_request_of_many_short_messages_is_not_even_parsed(short: bytes) -> None:
    """However their tags and lengths are written, and how deep they are: here in a map that is a body."""
    few, many = (log_entry(field(5, field(6, short * count))) for count in (150, 401))
    ((row,), failures) = decoded(OtlpLogs(most_records=100), entries_batch([few, many]))

    assert row["Body"].count(":null") == 150
    assert [re.sub(r"\d{3}", "n", failure["reason"], count=1) for failure in failures] == [
        "the entry may have n fields of less than 16 bytes, more than 4 times most_records, 100"
    ]


_MEMORY = """
import resource, pyarrow as pa
from objbuf_dagster.decode import OtlpTraces
from tests.decode.messages import field

size = 16 << 20
least, other = field(2, b""), field(2, field(5, b"x" * 14))
entry = field(1, field(2, least * 390_000 + other * ((size - (1 << 20)) // len(other))))
entries, decoder = pa.array([entry], pa.binary()), OtlpTraces(most_records=100_000)
decoder.decode(pa.array([b""], pa.binary()))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(decoder.decode(entries).failures) == 1
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(entry))
"""


def test_a_request_made_to_take_memory_takes_a_bounded_multiple_of_its_size() -> None:
    """As many short messages as are taken, and then the shortest that are not counted as such."""
    done = subprocess.run([sys.executable, "-c", _MEMORY], check=True, capture_output=True, text=True, cwd=ROOT)

    assert float(done.stdout) < 25


def test_the_search_for_what_is_wrong_ends() -> None:
    entry = log_entry(*[b""] * 60_000) + b"\xff"

    _, failures = decoded(OtlpLogs(), entries_batch([entry]))

    assert "not a valid ExportLogsServiceRequest: something is wrong behind its byte" in failures[0]["reason"]


def test_ten_thousand_attributes_are_all_there() -> None:
    record = b"".join(attribute(b"key %d" % number, field(1, b"value %d" % number)) for number in range(10_000))
    ((row,), failures) = decoded(OtlpLogs(), entries_batch([log_entry(record)]))

    assert failures == []
    assert row["LogAttributes"] == [(f"key {number}", f"value {number}") for number in range(10_000)]


def test_a_key_that_comes_twice_is_once_in_the_map_with_all_its_values() -> None:
    twice = attribute(b"k", field(1, b"1")) + attribute(b"other", field(1, b"o")) + attribute(b"k", b"\x18\x01")
    ((row, again), _) = decoded(OtlpLogs(), entries_batch([log_entry(twice + attribute(b"k", b""), twice)]))

    assert row["LogAttributes"] == [("k", '["1",1,null]'), ("other", "o")]
    assert again["LogAttributes"] == [("k", '["1",1]'), ("other", "o")]
    assert row["LogAttributeKinds"] == again["LogAttributeKinds"] == [("k", "repeated")]


def test_ten_thousand_times_the_same_key_is_one_attribute() -> None:
    record = b"".join(attribute(b"k", b"\x18" + bytes((number % 100,))) for number in range(10_000))
    ((row,), _) = decoded(OtlpLogs(), entries_batch([log_entry(record)]))

    ((key, text),) = row["LogAttributes"]
    assert (key, text.count(",")) == ("k", 9_999)


@pytest.mark.parametrize("levels", [10, 40, 100, 1_000, 10_000])
@pytest.mark.parametrize("place", ["body", "attribute"])
def test_deep_values_are_rows_as_deep_as_protobuf_goes_and_failures_below(levels: int, place: str) -> None:
    value = nested_value(levels)
    entry = log_entry(field(5, value) if place == "body" else attribute(b"k", value))
    if levels > 50:
        assert reason_of(entry) == "values are nested deeper than the 100 messages that protobuf takes"
        return
    ((row,), _) = decoded(OtlpLogs(), entries_batch([entry]))
    text, kind = (row["Body"], row["BodyKind"]) if place == "body" else (row["LogAttributes"][0][1], "array")
    assert text == "[" * levels + '"x"' + "]" * levels
    inner = plain(value_from(text, kind))
    for _ in range(levels):
        _, (inner,) = inner
    assert inner == ("string_value", "'x'")


def test_a_clock_beyond_what_a_timestamp_holds_is_exact_and_no_timestamp() -> None:
    stamps = [1, 999, 1_700_000_000_123_456_789, 2**63 - 1, 2**63, 2**64 - 6_795_364_578_871_345_152, 2**64 - 1]
    rows, failures = decoded(
        OtlpLogs(), entries_batch([log_entry(*[b"\x09" + stamp.to_bytes(8, "little") for stamp in stamps])])
    )

    assert failures == []
    assert [row["TimestampUnixNano"] % 2**64 for row in rows] == stamps
    assert [row["Timestamp"] is None for row in rows] == [False] * 4 + [True] * 3
    assert rows[2]["Timestamp"].isoformat() == "2023-11-14T22:13:20.123456+00:00"


def test_ids_of_any_length_are_kept_as_hex() -> None:
    ids = [b"", b"\xab", bytes(range(16)), b"\xff" * 40]
    rows, _ = decoded(OtlpLogs(), entries_batch([log_entry(*[field(9, each) + field(10, each) for each in ids])]))

    assert [row["TraceId"] for row in rows] == [row["SpanId"] for row in rows] == [each.hex() for each in ids]


@pytest.mark.parametrize("place", ["count", "bucket_counts"])
def test_a_count_that_no_column_holds_fails_its_entry_and_no_other(place: str) -> None:
    entries = []
    for number in (2**63 - 1, 2**63, 7):
        request = ExportMetricsServiceRequest()
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
        metric.histogram.data_points.add(count=1)
        if place == "count":
            metric.histogram.data_points.add(count=number)
        else:
            metric.histogram.data_points.add(bucket_counts=[1, number])
        entries.append(request.SerializeToString())

    rows, failures = decoded(OtlpMetrics(), entries_batch(entries, METRICS))

    name = "Count" if place == "count" else "BucketCounts"
    assert [row[name] for row in rows[1::2]] == [2**63 - 1, 7] if place == "count" else [[1, 2**63 - 1], [1, 7]]
    assert [row["_odb_sequence"] for row in rows] == [100, 100, 102, 102]
    assert [each["reason"] for each in failures] == [f"{name} has a number of 2^63 or more, which no column holds"]


def test_an_invalid_attribute_of_a_metric_without_points_is_a_failure_too() -> None:
    metric = field(1, b"name") + field(12, field(1, b"\xff"))
    entry = field(1, field(2, field(2, metric)))
    rows, failures = decoded(OtlpMetrics(), entries_batch([entry], METRICS))

    assert rows == []
    assert "metrics[0].metadata[0].key is not UTF-8" in failures[0]["reason"]


@pytest.mark.parametrize("most_bytes", [0, -1, 2**31])
def test_a_limit_that_no_column_can_keep_is_refused(most_bytes: int) -> None:
    with pytest.raises(InvalidInput, match="most_bytes"):
        OtlpLogs(most_bytes=most_bytes)


def test_an_entry_that_is_too_large_or_has_too_many_records_is_a_failure() -> None:
    decoder = OtlpLogs(most_bytes=2_000, most_records=100)
    entries = [log_entry(*[b""] * 100), log_entry(*[b""] * 101), log_entry(field(3, b"x" * 2_000))]
    rows, failures = decoded(decoder, entries_batch(entries))

    assert len(rows) == 100
    assert [each["reason"] for each in failures] == [
        "the entry has 101 records, more than most_records, 100",
        f"the entry has {len(entries[2])} bytes, more than most_bytes, 2000",
    ]
