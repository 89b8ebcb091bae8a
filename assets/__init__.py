"""The assets of this pipeline."""

from assets.entries import entries
from assets.source import source

ALL = [entries]

__all__ = ["ALL", "entries", "source"]
