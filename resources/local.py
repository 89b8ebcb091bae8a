"""Directories, and clouds that find their credentials themselves."""

from __future__ import annotations

from typing import Any

from objbuf_dagster.orchestration import BufferResource, LakeResource, SparkResource
from resources import settings


def resources() -> dict[str, Any]:
    return {
        "buffer": BufferResource(**settings.buffer()),
        "lake": LakeResource(**settings.lake()),
        "spark": SparkResource(**settings.spark()),
    }
