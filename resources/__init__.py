"""Which resources a deployment uses: `local` for directories, `s3` for buckets. The URLs decide."""

from __future__ import annotations

from typing import Any

from resources import local, settings


def resources() -> dict[str, Any]:
    """The resources of this deployment, from its environment."""
    if settings.is_s3():
        from resources import s3  # importing dagster-aws takes a second, which every run would wait for

        return s3.resources()
    return local.resources()


__all__ = ["resources", "settings"]
