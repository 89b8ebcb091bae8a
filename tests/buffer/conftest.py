"""A store that lives as long as its test."""

from __future__ import annotations

import pytest

from objbuf_dagster.store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
