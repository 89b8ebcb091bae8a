"""The four bytes that the OpenTelemetry Collector's exporter writes as the metadata payload of its entries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from objbuf_dagster.decode.decoder import Undecodable

VERSION = 1
OTLP_PROTOBUF = 1
_LENGTH = 4


class Signal(IntEnum):
    """What an export request carries."""

    METRICS = 1
    LOGS = 2
    TRACES = 3


@dataclass(frozen=True, slots=True)
class Envelope:
    """Version, signal, encoding, and a byte that is reserved.

    Writers put 0 into the reserved byte. Readers do not look at it: whoever gives it a meaning that matters to older
    readers has the version to tell them so.
    """

    signal: Signal
    reserved: int = 0

    @classmethod
    def parse(cls, payload: bytes | None) -> Envelope:
        """Raises Undecodable for a wrong length, or a version, a signal or an encoding that is not known."""
        if payload is None:
            raise Undecodable("no metadata payload: an OpenTelemetry entry has an envelope of 4 bytes")
        if len(payload) != _LENGTH:
            raise Undecodable(
                f"metadata payload has {len(payload)} bytes, an OpenTelemetry envelope {_LENGTH}: {payload[:8].hex()}"
            )
        version, signal, encoding, reserved = payload
        if version != VERSION:
            raise Undecodable(f"envelope has version {version}, this release reads {VERSION}")
        if signal not in Signal.__members__.values():
            raise Undecodable(f"envelope has signal {signal}, this release reads 1 (metrics), 2 (logs), 3 (traces)")
        if encoding != OTLP_PROTOBUF:
            raise Undecodable(f"envelope has encoding {encoding}, this release reads {OTLP_PROTOBUF} (OTLP protobuf)")
        return cls(Signal(signal), reserved)

    def to_bytes(self) -> bytes:
        """As the exporter writes it."""
        return bytes((VERSION, self.signal, OTLP_PROTOBUF, self.reserved))
