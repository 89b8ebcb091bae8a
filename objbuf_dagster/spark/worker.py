"""What a landing's tasks do: fetch the batches of their share, check them, write them as Parquet files.

Runs on executors, which may have this package only as a shipped archive.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from objbuf_dagster.buffer import FetchHandle
from objbuf_dagster.errors import ObjbufError, shown
from objbuf_dagster.lake import DataFile, folder_of
from objbuf_dagster.protocol import PlannedBatch
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.pages import EntriesFile
from objbuf_dagster.spark.tasks import ReportingTask, unexpected
from objbuf_dagster.store import Store

if TYPE_CHECKING:
    pass

FILE_NAME = re.compile(r"/(\d+)-(\d+)-([0-9a-f]{32})-[0-9a-f]{8}\.parquet$")
"""A file's name tells its first and last sequence and the job that wrote it; the rest makes it unlike any other."""

REMEDY = "nothing was committed: land it again"

_FILE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """What one task does: some neighbouring batches of one range."""

    range: SequenceRange
    batches: tuple[PlannedBatch, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a task did: the files it wrote and the sequences of the batches in them, or why it could not.

    records: how many each of these batches has, as its footer says.
    """

    range: SequenceRange
    sequences: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    files: tuple[DataFile, ...] = ()
    bytes_read: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: ObjbufError | None = None


@dataclass(frozen=True, slots=True)
class Task(ReportingTask[Share, Report]):
    """Lands shares of ranges."""

    fetcher: FetchHandle
    manifest_path: str
    store: Store
    job: str

    def do(self, share: Share) -> Report:
        clock = _Clock()
        files: list[DataFile] = []
        done: list[int] = []
        records: list[int] = []
        bytes_read = 0
        try:
            file, first = EntriesFile(self.manifest_path), share.batches[0].descriptor.sequence
            for batch, data in clock.each("fetch", self.fetcher.fetch_ahead(share.batches)):
                bytes_read += len(data)
                with clock.on("check"):
                    block = self.fetcher.check(batch.descriptor, data)
                with clock.on("build"):
                    file.add(batch.descriptor, block)
                if file.size_so_far >= _FILE_BYTES or batch is share.batches[-1]:
                    with clock.on("write"):
                        files += self._written(file, share.range, first, batch.descriptor.sequence)
                    file, first = EntriesFile(self.manifest_path), batch.descriptor.sequence + 1
                done.append(batch.descriptor.sequence)
                records.append(block.count)
        except ObjbufError as error:
            return Report(share.range, error=error)
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001  memory, libraries, defects: the other ranges have no part in it
            at = share.batches[min(len(done), len(share.batches) - 1)].descriptor
            where = f"range {share.range}, at sequence {at.sequence}, {shown(at.location)}"
            return Report(share.range, error=unexpected(where, error, REMEDY))
        return Report(share.range, tuple(done), tuple(records), tuple(files), bytes_read, clock.spent)

    def _written(self, file: EntriesFile, key: SequenceRange, first: int, last: int) -> list[DataFile]:
        if not file.rows:
            return []
        parts = file.finish()
        path = f"{folder_of(key.key)}/{first:012d}-{last:012d}-{self.job}-{uuid.uuid4().hex[:8]}.parquet"
        self.store.put(path, parts)
        return [DataFile(path, file.size, file.rows, file.statistics())]


class _Clock:
    """Seconds spent, by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.spent[what] = self.spent.get(what, 0) + time.perf_counter() - started

    def each(self, what: str, items: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(items)
        while True:
            with self.on(what):
                item = next(iterator, None)
            if item is None:
                return
            yield item
