"""Decoders by name: those of this package, and a user's own as `module:attribute`."""

from __future__ import annotations

from collections.abc import Callable

from objbuf_dagster.decode.decoder import Decoder
from objbuf_dagster.decode.otlp_logs import OtlpLogs
from objbuf_dagster.decode.otlp_metrics import OtlpMetrics
from objbuf_dagster.decode.otlp_traces import OtlpTraces
from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.lake.named import find_named

_OURS: dict[str, Callable[[], Decoder]] = {
    "otlp_logs": OtlpLogs,
    "otlp_metrics": OtlpMetrics,
    "otlp_traces": OtlpTraces,
}

_TABLES = {"otlp_logs": "otel_logs", "otlp_metrics": "otel_metrics", "otlp_traces": "otel_traces"}


def find_decoder(name: str) -> Decoder:
    """The decoder of this name: `otlp_logs`, `otlp_metrics`, `otlp_traces`, or `module:attribute` for one's own.

    As `find_named` has it. Raises InvalidInput if there is no such decoder, with what is there.
    """
    if ":" not in name:
        if name not in _OURS:
            raise InvalidInput(
                f"no decoder is called '{shown(name)}': give one of {', '.join(_OURS)}, or one's own as "
                "module:attribute, for example my_decoders:Orders"
            )
        return _OURS[name]()
    return find_named(name, Decoder)  # type: ignore[type-abstract]


def table_of(decoder: str) -> str:
    """The table that rows of the decoder with this name land in, unless somebody says otherwise."""
    return _TABLES.get(decoder, decoder)
