"""A store that lives as long as its test, and what a test leaves running."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from objbuf_dagster.store import MemoryStore

ThreadsLeft = Callable[[], list[str]]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def threads_left() -> ThreadsLeft:
    """Call it for the names of our threads that were started since the test began, and run."""
    before = set(threading.enumerate())

    def left() -> list[str]:
        return [one.name for one in threading.enumerate() if one not in before and one.name.startswith("objbuf-")]

    return left
