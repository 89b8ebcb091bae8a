"""A buffer, a lake and a deployment, all real and all in a directory of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from objbuf_dagster.orchestration import BufferResource, BufferSource, SensorSettings
from tests.orchestration.deployments import Deployment, deployment, entries_asset
from tests.orchestration.gates import SMALL, Machine
from tests.orchestration.sensing import Sensing, key, keys, sensing
from tests.orchestration.sensing import produce as produce_into

Produce = Callable[..., None]


@pytest.fixture
def buffer(tmp_path: Path) -> BufferResource:
    return BufferResource(url=(tmp_path / "buffer").as_uri())


@pytest.fixture
def produce(buffer: BufferResource) -> Produce:
    """Produce so many batches of three entries each."""

    def produce(batches: int = 1) -> None:
        for _ in range(batches):
            with buffer.producer() as producer:
                producer.produce([b"a", b"b", b"c"], b"meta")

    return produce


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def deployed(tmp_path: Path, buffer: BufferResource, lake: Path) -> Iterator[Deployment]:
    """With an asset that needs no Spark."""
    with deployment(tmp_path / "home", buffer, lake) as made:
        yield made


@pytest.fixture
def deployed_on_spark(tmp_path: Path, buffer: BufferResource, lake: Path, spark: SparkSession) -> Iterator[Deployment]:
    """With the asset `entries`, as the pipeline of this repo has it."""
    with deployment(tmp_path / "home", buffer, lake, assets=[entries_asset(BufferSource())]) as made:
        yield made


@pytest.fixture
def sensor() -> Iterator[Sensing]:
    """The sensor alone, on a buffer in memory: no run of it does anything."""
    with sensing() as made:
        yield made


@pytest.fixture
def gated() -> Iterator[Sensing]:
    """Two ranges of two batches are in flight, and four more batches wait."""
    with sensing(settings=SensorSettings(regulator=SMALL, retry_seconds=0, max_in_flight=2)) as made:
        made.host = Machine()
        produce_into(made.store, 4, size=989)
        made.tick()
        assert keys(made.tick()) == [key(0, 1), key(2, 3)]
        produce_into(made.store, 4, size=989)
        made.later = 120
        yield made
