"""The assets of this pipeline, and the tables that they are."""

import dagster as dg

from assets.dead_letters import dead_letters
from assets.entries import entries
from assets.otel_logs import otel_logs
from assets.service_latest import service_latest
from assets.source import source

ALL: list[dg.AssetsDefinition | dg.AssetSpec] = [entries, otel_logs, dead_letters, service_latest]

TABLES = {"entries": "entries", "otel_logs": "otel_logs"}
"""With a partition per range, so that what is missing or there twice can be told; by asset."""

OTHER_TABLES = ["dead_letters", "service_latest"]

__all__ = ["ALL", "OTHER_TABLES", "TABLES", "dead_letters", "entries", "otel_logs", "service_latest", "source"]
