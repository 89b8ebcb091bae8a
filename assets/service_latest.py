"""The last log record of each service's instance."""

from assets.source import source
from objbuf_dagster.decode import OtlpLogs
from objbuf_dagster.lake import ServiceLatest
from objbuf_dagster.orchestration import state_asset

service_latest = state_asset(source, ServiceLatest(), OtlpLogs(), kinds={"deltalake"})
