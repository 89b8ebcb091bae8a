"""Bytes to values and back: batches, manifests, range objects. No I/O, no Dagster, no Spark."""

from objbuf_dagster.protocol.batch import (
    BLOCK_BYTES,
    DEFAULT_MAX_BYTES,
    Block,
    Compression,
    check_batch,
    decode_batch,
    decode_batch_arrow,
    encode_batch,
    iter_batch_arrow,
)
from objbuf_dagster.protocol.manifest import NO_EPOCH, Manifest
from objbuf_dagster.protocol.model import BatchDescriptor, ConsumedBatch, Metadata, metadata_runs
from objbuf_dagster.protocol.range_object import PlannedBatch, RangeObject

__all__ = [
    "BLOCK_BYTES",
    "DEFAULT_MAX_BYTES",
    "NO_EPOCH",
    "BatchDescriptor",
    "Block",
    "Compression",
    "ConsumedBatch",
    "Manifest",
    "Metadata",
    "PlannedBatch",
    "RangeObject",
    "check_batch",
    "decode_batch",
    "decode_batch_arrow",
    "encode_batch",
    "iter_batch_arrow",
    "metadata_runs",
]
