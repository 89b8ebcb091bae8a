"""Bytes to values and back: batches, manifests, range objects. No I/O, no Dagster, no Spark."""

from objbuf_dagster.protocol.batch import (
    DEFAULT_MAX_BYTES,
    Compression,
    decode_batch,
    decode_batch_arrow,
    encode_batch,
)
from objbuf_dagster.protocol.manifest import NO_EPOCH, Manifest
from objbuf_dagster.protocol.model import BatchDescriptor, ConsumedBatch, Metadata
from objbuf_dagster.protocol.range_object import PlannedBatch, RangeObject

__all__ = [
    "DEFAULT_MAX_BYTES",
    "NO_EPOCH",
    "BatchDescriptor",
    "Compression",
    "ConsumedBatch",
    "Manifest",
    "Metadata",
    "PlannedBatch",
    "RangeObject",
    "decode_batch",
    "decode_batch_arrow",
    "encode_batch",
]
