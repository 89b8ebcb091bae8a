"""OpenTelemetry logs of services, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest


def logs_of(service: str | None, instance: str | None, severities: Sequence[int], first_nano: int = 1_000) -> bytes:
    """A request with a record of each severity, a microsecond apart; time 0 is none, then it was just observed."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    for key, value in (("service.name", service), ("service.instance.id", instance)):
        if value is not None:
            resource.resource.attributes.add(key=key).value.string_value = value
    scope = resource.scope_logs.add()
    for at, severity in enumerate(severities):
        nano = first_nano + 1_000 * at if first_nano else 0
        scope.log_records.add(
            time_unix_nano=nano,
            observed_time_unix_nano=nano or 5_000,
            severity_number=severity,
            severity_text=f"S{severity}",
        )
    return bytes(request.SerializeToString())
