"""One deployment for all tests here: it takes long to start, and each test leaves it settled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.deployment import SETTINGS, Deployment
from tests.e2e.running import running


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("e2e")
    with running(place, **SETTINGS) as dagster:
        yield Deployment(dagster, place)


@pytest.fixture
def deployed(shared: Deployment) -> Deployment:
    """Running, with at least a few ranges, all landed and acked."""
    if not shared.dagster.is_running:
        shared.dagster.start()
    if not shared.ledgers:
        shared.produce_a_few_ranges()
    shared.settle()
    return shared
