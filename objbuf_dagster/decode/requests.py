"""The export requests of the official `opentelemetry-proto`, and the same with attributes left as bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

from objbuf_dagster.decode.envelope import Signal

_KEY_VALUE = ".opentelemetry.proto.common.v1.KeyValue"


@cache
def official(signal: Signal) -> Any:
    """The class of this signal's export request."""
    if signal is Signal.LOGS:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        return ExportLogsServiceRequest
    if signal is Signal.METRICS:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        return ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return ExportTraceServiceRequest


@cache
def with_raw_attributes(signal: Signal) -> Any:
    """The class of the same message, in which every list of attributes is a list of bytes.

    A message inside a message and bytes look the same on the wire, so this reads what the official class reads; who
    reads an attribute does so with the official KeyValue. What for: see `attributes`.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    done: set[str] = set()

    def add(file: Any) -> None:
        if file.name in done:
            return
        done.add(file.name)
        for needed in file.dependencies:
            add(needed)
        changed = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(changed)
        for message in changed.message_type:
            _leave_raw(message)
        pool.AddSerializedFile(changed.SerializeToString())

    descriptor = official(signal).DESCRIPTOR
    add(descriptor.file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(descriptor.full_name))


def _leave_raw(message: Any) -> None:
    if message.name == "KeyValueList":
        return  # part of a value, not a list of attributes
    for field in message.field:
        if field.type_name == _KEY_VALUE and field.label == field.LABEL_REPEATED:
            field.type = field.TYPE_BYTES
            field.ClearField("type_name")
    for nested in message.nested_type:
        _leave_raw(nested)
