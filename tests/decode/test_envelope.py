"""Which entries are whose is told by their envelope, and never guessed."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.decode import Envelope, OtlpLogs, Signal, Undecodable
from tests.decode.messages import DECODERS, LOGS, decoded, entries_batch, log_entry


@pytest.mark.parametrize("signal", list(Signal))
def test_what_the_exporter_writes_is_read(signal: Signal) -> None:
    assert Envelope.parse(bytes((1, signal, 1, 0))) == Envelope(signal)
    assert Envelope(signal).to_bytes() == bytes((1, signal, 1, 0))


def test_the_reserved_byte_is_nobodys_business() -> None:
    assert Envelope.parse(b"\x01\x02\x01\xff") == Envelope(Signal.LOGS, reserved=255)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "no metadata payload: an OpenTelemetry entry has an envelope of 4 bytes"),
        (b"", "metadata payload has 0 bytes, an OpenTelemetry envelope 4: "),
        (b"\x01\x02\x01", "metadata payload has 3 bytes, an OpenTelemetry envelope 4: 010201"),
        (b"\x01\x02\x01\x00" * 9, "metadata payload has 36 bytes, an OpenTelemetry envelope 4: 0102010001020100"),
        (b"\x00\x02\x01\x00", "envelope has version 0, this release reads 1"),
        (b"\x02\x02\x01\x00", "envelope has version 2, this release reads 1"),
        (b"\x01\x00\x01\x00", "envelope has signal 0, this release reads 1 (metrics), 2 (logs), 3 (traces)"),
        (b"\x01\x04\x01\x00", "envelope has signal 4, this release reads 1 (metrics), 2 (logs), 3 (traces)"),
        (b"\x01\x02\x00\x00", "envelope has encoding 0, this release reads 1 (OTLP protobuf)"),
        (b"\x01\x02\x02\x00", "envelope has encoding 2, this release reads 1 (OTLP protobuf)"),
    ],
)
def test_a_wrong_envelope_is_refused_with_its_reason(payload: bytes | None, reason: str) -> None:
    with pytest.raises(Undecodable) as refused:
        Envelope.parse(payload)

    assert refused.value.reason == reason
    assert pickle.loads(pickle.dumps(refused.value)).reason == reason


@given(payload=st.one_of(st.none(), st.binary(max_size=6)))
def test_any_payload_is_an_envelope_or_refused(payload: bytes | None) -> None:
    try:
        envelope = Envelope.parse(payload)
    except Undecodable:
        return
    assert envelope.to_bytes() == payload


def test_mixed_signals_go_each_to_its_decoder_and_wrong_envelopes_are_failures_one_by_one() -> None:
    payloads: list[bytes | None] = [LOGS, b"\x01\x01\x01\x00", b"\x01\x03\x01\x00", None, b"\x01\x02\x09\x00", LOGS]
    batch = entries_batch([log_entry(b""), b"", b"", b"one", b"two", log_entry(b"", b"")], payloads)

    found = {decoder.name: decoded(decoder, batch) for decoder in DECODERS}

    logs, refused = found["otlp_logs"]
    assert [(row["_odb_sequence"], row["_odb_record_index"]) for row in logs] == [(100, 0), (105, 0), (105, 1)]
    assert [(each["_odb_sequence"], each["entry"], each["decoder"], each["decoder_version"]) for each in refused] == [
        (103, b"one", "otlp_logs", 1),
        (104, b"two", "otlp_logs", 1),
    ]
    assert [each["reason"] for each in refused] == [
        "no metadata payload: an OpenTelemetry entry has an envelope of 4 bytes",
        "envelope has encoding 9, this release reads 1 (OTLP protobuf)",
    ]
    for name in ("otlp_metrics", "otlp_traces"):
        rows, failures = found[name]
        assert rows == []
        assert [each["_odb_sequence"] for each in failures] == [103, 104]


def test_a_logs_request_in_a_metrics_envelope_is_not_guessed() -> None:
    assert decoded(OtlpLogs(), entries_batch([log_entry(b"")], b"\x01\x01\x01\x00")) == ([], [])
