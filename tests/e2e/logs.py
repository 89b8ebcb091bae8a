"""What the producers here send: a text as a log record, as the OpenTelemetry Collector's exporter writes it."""

from __future__ import annotations

import os
from base64 import b64encode

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from objbuf_dagster.decode import Envelope, Signal

ENVELOPE = Envelope(Signal.LOGS).to_bytes()


def entry_of(text: str, service: str, padding: int = 0) -> bytes:
    """An entry with one record, whose body is the text, and an attribute of so many characters that hardly compress."""
    name = KeyValue(key="service.name", value=AnyValue(string_value=service))
    record = LogRecord(time_unix_nano=1, severity_text="INFO", body=AnyValue(string_value=text))
    if padding:
        noise = b64encode(os.urandom(padding * 3 // 4)).decode()
        record.attributes.append(KeyValue(key="padding", value=AnyValue(string_value=noise)))
    resource = ResourceLogs(resource=Resource(attributes=[name]), scope_logs=[ScopeLogs(log_records=[record])])
    return bytes(ExportLogsServiceRequest(resource_logs=[resource]).SerializeToString())


def text_of(entry: bytes) -> str:
    """The text of such an entry."""
    ((record,),) = (
        scope.log_records
        for resource in ExportLogsServiceRequest.FromString(entry).resource_logs
        for scope in resource.scope_logs
    )
    return str(record.body.string_value)
