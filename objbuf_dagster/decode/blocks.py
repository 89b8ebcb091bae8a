"""Rows of `entries` to rows of a typed table and dead letters, in bounded blocks.

What is in memory is one block of entries (about 1 MiB), what its decoder made of it, where that which repeats itself
is kept once, and one block of rows (about 4 MiB). A batch that fans out 50 times is never there 50 times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from objbuf_dagster.decode.decoder import Decoded, Decoder, Failure, checked_schema, reason_of
from objbuf_dagster.decode.sizes import cuts, sizes
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake.schema import ENTRIES
from objbuf_dagster.protocol import BLOCK_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

ENTRY_BYTES = 1 << 20
"""How many bytes of entries are decoded at a time; an entry that is larger is decoded alone."""

RECORD_INDEX = "_odb_record_index"
"""Counts the rows of an entry from 0; with sequence and entry index it names a row for ever."""

_MOST_ROWS = 1 << 16


def provenance_schema() -> pa.Schema:
    """The columns that say where an entry came from: those of `entries` without the entry."""
    schema = ENTRIES.to_arrow()
    return schema.remove(schema.get_field_index("entry"))


def rows_schema(decoder: Decoder) -> pa.Schema:
    """The columns of a typed table: provenance, `_odb_record_index`, and the decoder's own.

    Raises InvalidInput if the decoder's names can't be columns beside ours.
    """
    import pyarrow as pa

    index = pa.field(RECORD_INDEX, pa.int64(), nullable=False)
    return pa.schema([*provenance_schema(), index, *checked_schema(decoder)])


def failures_schema() -> pa.Schema:
    """The columns of what could not be decoded: provenance, the bytes, why, and by whom."""
    import pyarrow as pa

    return pa.schema(
        [
            *ENTRIES.to_arrow(),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("decoder", pa.string(), nullable=False),
            pa.field("decoder_version", pa.int32(), nullable=False),
        ]
    )


def decode_block(
    decoder: Decoder, batch: pa.RecordBatch, *, entry_bytes: int = ENTRY_BYTES, row_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Rows (`rows_schema`) and failures (`failures_schema`) of the entries that this decoder takes, in their order.

    batch: the data columns of `entries`.
    entry_bytes: how much is decoded at a time.
    row_bytes: how much is handed out at a time; a row that is larger comes alone.

    Either part of a pair may be empty; a block of entries that gives neither rows nor failures gives no pair. The
    failures of a block come with its first rows. Raises InvalidInput if the decoder breaks its contract, which is its
    author's to mend: nothing handed out before counts then.
    """
    target = rows_schema(decoder)
    each = sizes(batch.column("entry"))
    for begin, end in cuts(each, entry_bytes, _MOST_ROWS):
        yield from _decode_part(decoder, batch.slice(begin, end - begin), target, row_bytes)


def _decode_part(
    decoder: Decoder, part: pa.RecordBatch, target: pa.Schema, row_bytes: int
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    mine, failures = _sort_out(decoder, part.column("_odb_metadata"))
    decoded = None
    if len(mine):
        entries = part.column("entry")
        decoded = decoder.decode(entries if len(mine) == len(entries) else entries.take(_indices(mine)))
        _check(decoder, decoded, len(mine))
        failures += [Failure(int(mine[failure.entry]), failure.reason) for failure in decoded.failures]
    failed = _failures(decoder, part, sorted(failures, key=lambda failure: failure.entry))
    if decoded is not None and len(decoded.rows):
        index = decoded.entry_index.to_numpy()
        for rows in _write_out(_with_provenance(decoded.rows, part, mine[index], index, target), target, row_bytes):
            yield rows, failed
            failed = failed.slice(0, 0)
    elif len(failed):
        yield _empty(target), failed


def _sort_out(decoder: Decoder, payloads: pa.Array) -> tuple[npt.NDArray[np.int64], list[Failure]]:
    """The positions of the entries that are the decoder's, and those that it refuses."""
    import numpy as np

    encoded = payloads.dictionary_encode(null_encoding="encode")
    taken: list[bool] = []
    refused: dict[int, str] = {}
    for code, payload in enumerate(encoded.dictionary.to_pylist()):
        try:
            taken.append(bool(decoder.takes(payload)))
        except (MemoryError, ImportError):  # the process lacks something, for all entries alike
            raise
        except Exception as error:  # noqa: BLE001  whatever a payload from outside does to a decoder is about that payload
            taken.append(False)
            refused[code] = reason_of(error)
    codes = encoded.indices.to_numpy()
    failures = [Failure(at, refused[code]) for at, code in enumerate(codes.tolist()) if code in refused]
    return np.flatnonzero(np.array(taken, bool)[codes]), failures


def _check(decoder: Decoder, decoded: Decoded, entries: int) -> None:
    """Rows that do not say rightly whose they are must not land."""
    import numpy as np

    index = decoded.entry_index.to_numpy()
    failed = [failure.entry for failure in decoded.failures]
    wrong = _wrong_columns(decoded.rows, decoder.schema)
    if len(index) != len(decoded.rows):
        wrong = f"it gave {len(decoded.rows)} rows and {len(index)} positions of entries"
    elif len(index) and (index[0] < 0 or index[-1] >= entries or bool(np.any(np.diff(index) < 0))):
        wrong = "positions of entries must be among those given, and rise"
    elif len(set(failed)) != len(failed) or any(not 0 <= at < entries for at in failed):
        wrong = "failures must be of entries given, each once"
    elif failed and bool(np.any(np.isin(index, failed))):
        wrong = "an entry gave rows and is a failure"
    if wrong is not None:
        raise InvalidInput(f"decoder {decoder.name} breaks its contract: {wrong}")


def _wrong_columns(rows: pa.RecordBatch, schema: pa.Schema) -> str | None:
    import pyarrow as pa

    types = [each.type.value_type if pa.types.is_dictionary(each.type) else each.type for each in rows.columns]
    if rows.schema.names != schema.names or types != schema.types:
        return f"it gave columns {dict(zip(rows.schema.names, map(str, types), strict=True))}, not those of its schema"
    nulls = [
        each.name for each, column in zip(schema, rows.columns, strict=True) if column.null_count and not each.nullable
    ]
    return f"it gave nulls for {', '.join(nulls)}" if nulls else None


def _with_provenance(
    rows: pa.RecordBatch,
    part: pa.RecordBatch,
    origin: npt.NDArray[np.int64],
    index: npt.NDArray[np.int32],
    target: pa.Schema,
) -> pa.RecordBatch:
    """All columns, of which those that repeat are dictionary-encoded still."""
    import numpy as np
    import pyarrow as pa

    codes = _indices(origin)
    columns = [pa.DictionaryArray.from_arrays(codes, part.column(field.name)) for field in provenance_schema()]
    columns.append(pa.array(np.arange(len(index)) - np.searchsorted(index, index, side="left"), pa.int64()))
    return pa.RecordBatch.from_arrays([*columns, *rows.columns], names=target.names)


def _write_out(rows: pa.RecordBatch, target: pa.Schema, row_bytes: int) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    each = sum((sizes(column) for column in rows.columns), np.zeros(len(rows), np.int64))
    for begin, end in cuts(each, row_bytes, _MOST_ROWS):
        columns = [
            column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column
            for column in rows.slice(begin, end - begin).columns
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _failures(decoder: Decoder, part: pa.RecordBatch, failures: list[Failure]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = failures_schema()
    if not failures:
        return _empty(schema)
    positions = pa.array([failure.entry for failure in failures], pa.int64())
    columns = [part.column(field.name).take(positions) for field in ENTRIES.to_arrow()]
    columns += [
        pa.array([failure.reason for failure in failures], pa.string()),
        pa.repeat(pa.scalar(decoder.name, pa.string()), len(failures)),
        pa.repeat(pa.scalar(decoder.version, pa.int32()), len(failures)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _indices(positions: npt.NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return pa.array(positions, pa.int32())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], schema)
