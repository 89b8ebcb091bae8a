"""Decoders by name: those of this package, and a user's own as `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from objbuf_dagster.decode.decoder import Decoder
from objbuf_dagster.decode.otlp_logs import OtlpLogs
from objbuf_dagster.decode.otlp_metrics import OtlpMetrics
from objbuf_dagster.decode.otlp_traces import OtlpTraces
from objbuf_dagster.errors import InvalidInput, shown

_OURS: dict[str, Callable[[], Decoder]] = {
    "otlp_logs": OtlpLogs,
    "otlp_metrics": OtlpMetrics,
    "otlp_traces": OtlpTraces,
}

_TABLES = {"otlp_logs": "otel_logs", "otlp_metrics": "otel_metrics", "otlp_traces": "otel_traces"}


def find_decoder(name: str) -> Decoder:
    """The decoder of this name: `otlp_logs`, `otlp_metrics`, `otlp_traces`, or `module:attribute` for one's own.

    The attribute is a Decoder, or a class of them that needs no arguments. Modules are looked for where Python always
    does, and in the current directory first, as `python -m` does it. Importing runs the module.

    Raises InvalidInput if there is no such decoder, with what is there.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        if name not in _OURS:
            raise InvalidInput(
                f"no decoder is called '{shown(name)}': give one of {', '.join(_OURS)}, or one's own as "
                "module:attribute, for example my_decoders:Orders"
            )
        return _OURS[name]()
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidInput(
            f"module '{shown(module_name)}' of decoder '{shown(name)}' cannot be imported "
            f"({type(error).__name__}: {shown(str(error))}): run this in its directory, or set PYTHONPATH"
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, type) and issubclass(found, Decoder):
        try:
            found = found()
        except Exception as error:
            raise InvalidInput(
                f"class '{shown(name)}' cannot be made without arguments ({type(error).__name__}: "
                f"{shown(str(error))}): name an attribute that is one, made with its settings"
            ) from error
    if not isinstance(found, Decoder):
        what = f"is of type {type(found).__name__}" if hasattr(module, attribute) else "is not there"
        raise InvalidInput(f"'{shown(name)}' {what}: it must be a Decoder, or a class of them")
    return found


def table_of(decoder: str) -> str:
    """The table that rows of the decoder with this name land in, unless somebody says otherwise."""
    return _TABLES.get(decoder, decoder)
