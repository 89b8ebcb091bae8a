"""The buffer that this pipeline lands."""

from objbuf_dagster.orchestration import BufferSource

source = BufferSource("buffer", ack_after=["entries", "otel_logs"])
