"""Batches as rows of `entries`, in Arrow blocks of about 4 MiB, one at a time.

All columns but `entry` repeat or count, yet Spark wants them written out. A block is therefore measured with all its
columns: a million empty entries with a large metadata payload are many blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from objbuf_dagster.buffer import BufferPlace
from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.lake.schema import ENTRIES
from objbuf_dagster.protocol import BLOCK_BYTES, BatchDescriptor, PlannedBatch, metadata_runs
from objbuf_dagster.protocol.model import MAX_U32

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

MOST_ROWS = 1 << 16
_MOST_LONG = 2**63 - 1
_MOST_ENTRY = 2**31 - 2


def read_rows(
    place: BufferPlace, batches: Sequence[PlannedBatch], *, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches`, in order, with the data columns of `ENTRIES`.

    Raises what FetchHandle.fetch raises, perhaps after some rows of the batch in question: they do not count then.
    """
    fetcher = place.fetcher()
    for batch, data in fetcher.fetch_ahead(batches):
        records = fetcher.iter_arrow(batch.descriptor, data, block_bytes)
        yield from rows_of(records, batch.descriptor, place.manifest_path, block_bytes)


def rows_of(
    records: Iterable[pa.Array], descriptor: BatchDescriptor, manifest_path: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """The records of one batch with the columns that say where they come from."""
    import numpy as np
    import pyarrow as pa

    if descriptor.sequence > _MOST_LONG:
        raise InvalidInput(f"sequence {descriptor.sequence} is larger than Spark's largest number, {_MOST_LONG}")
    schema = ENTRIES.to_arrow()
    origin = (descriptor.sequence, manifest_path, descriptor.location)
    sequence, manifest, location = (
        pa.scalar(value, schema.field(name).type)
        for value, name in zip(origin, ("_odb_sequence", "_odb_manifest_path", "_odb_data_path"), strict=True)
    )
    metadata = _RunTable.of(descriptor)
    each = 3 * 8 + 4 * 4 + len(manifest_path.encode()) + len(descriptor.location.encode())
    first = 0
    for some in records:
        for start in range(0, len(some), MOST_ROWS):
            entries = _narrow(some.slice(start, MOST_ROWS), descriptor, first)
            runs = metadata.at(first, len(entries))
            sizes = np.diff(_offsets(entries)).astype(np.int64) + each + metadata.sizes[runs]
            for begin, end in pairwise(cuts(sizes, block_bytes)):
                count = end - begin
                index = pa.array(np.arange(first + begin, first + end))
                of_runs = pa.array(runs[begin:end])
                columns = [
                    pa.repeat(sequence, count),
                    index,
                    metadata.times.take(of_runs),
                    pa.repeat(manifest, count),
                    pa.repeat(location, count),
                    metadata.payloads.take(of_runs),
                    entries.slice(begin, count),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            first += len(entries)


@dataclass(frozen=True, slots=True)
class _RunTable:
    """A batch's metadata by run of records: where each run ends, and what holds in it."""

    ends: npt.NDArray[np.int64]
    times: pa.Array
    payloads: pa.Array
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, descriptor: BatchDescriptor) -> _RunTable:
        import numpy as np
        import pyarrow as pa

        runs = metadata_runs(descriptor.metadata, MAX_U32)  # the last one goes on for as long as there are records
        return cls(
            np.cumsum([count for _, count in runs], dtype=np.int64),
            pa.array([None if item is None else item.ingestion_time_ms for item, _ in runs], pa.int64()),
            pa.array([None if item is None else item.payload for item, _ in runs], pa.binary()),
            np.array([0 if item is None else len(item.payload) for item, _ in runs], dtype=np.int64),
        )

    def at(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The runs that `count` records from `first` on are in."""
        import numpy as np

        return np.searchsorted(self.ends, np.arange(first, first + count), side="right")


def _narrow(records: pa.Array, descriptor: BatchDescriptor, first: int) -> pa.Array:
    """The records, of which the first has this index, as Spark's `binary`, which ends at 2 GiB."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_large_binary(records.type):
        return records
    for index, size in enumerate(pc.binary_length(records).to_pylist(), start=first):
        if size > _MOST_ENTRY:
            raise InvalidInput(
                f"sequence {descriptor.sequence}, {shown(descriptor.location)}: entry {index} has {size} bytes, "
                "but a row holds at most 2 GiB"
            )
    return records.cast(pa.binary())


def _offsets(records: pa.Array) -> npt.NDArray[np.int32]:
    import numpy as np

    return np.frombuffer(records.buffers()[1], np.int32)[records.offset : records.offset + len(records) + 1]


def cuts(sizes: npt.NDArray[np.int64], block_bytes: int) -> list[int]:
    """Where to cut rows of these sizes into equal blocks: of `block_bytes`, or up to half as much again, and a row."""
    import numpy as np

    until = np.cumsum(sizes)
    blocks = max(1, round(int(until[-1]) / block_bytes))
    ends = np.searchsorted(until, np.arange(1, blocks) * (float(until[-1]) / blocks)) + 1
    inner = np.unique(ends[ends < len(sizes)])
    return [0, *inner.tolist(), len(sizes)]
