"""From bytes to rows: what a decoder is, those of OpenTelemetry, and bounded blocks. No Spark, no Dagster."""

from __future__ import annotations

from objbuf_dagster.decode.blocks import (
    ENTRY_BYTES,
    RECORD_INDEX,
    decode_block,
    failures_schema,
    provenance_schema,
    rows_schema,
)
from objbuf_dagster.decode.decoder import Decoded, Decoder, EntryDecoder, Failure, Undecodable
from objbuf_dagster.decode.envelope import Envelope, Signal
from objbuf_dagster.decode.json import JsonDecoder
from objbuf_dagster.decode.otlp_logs import OtlpLogs
from objbuf_dagster.decode.otlp_metrics import OtlpMetrics
from objbuf_dagster.decode.otlp_traces import OtlpTraces

__all__ = [
    "ENTRY_BYTES",
    "RECORD_INDEX",
    "Decoded",
    "Decoder",
    "EntryDecoder",
    "Envelope",
    "Failure",
    "JsonDecoder",
    "OtlpLogs",
    "OtlpMetrics",
    "OtlpTraces",
    "Signal",
    "Undecodable",
    "decode_block",
    "failures_schema",
    "provenance_schema",
    "rows_schema",
]
