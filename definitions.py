"""The code location: this repo's assets, with the resources of its deployment."""

from assets import ALL, OTHER_TABLES, TABLES, source
from objbuf_dagster.orchestration import buffer_definitions
from resources import resources, settings

defs = buffer_definitions(
    source,
    ALL,
    resources(),
    settings.sensor(),
    tables=TABLES,
    upkeep=OTHER_TABLES,
    sensor_interval_seconds=settings.sensor_interval(),
)
