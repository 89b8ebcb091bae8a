"""Dead letters put where a test wants them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.lake.files import RowsWriter

Letter = tuple[int, int, str, bytes]
"""Sequence, entry index, reason, bytes."""


def put_letters(
    table: LakeTable,
    range_key: str,
    decoder: str,
    letters: Sequence[Letter],
    version: int = 1,
    batch: str = "ingest/{}.batch",
) -> None:
    """batch: the name of a letter's batch, by its sequence."""
    schema = DEAD_LETTERS.to_arrow()
    rows = [
        {
            "_odb_sequence": sequence,
            "_odb_entry_index": index,
            "_odb_ingestion_time_ms": 1_700_000_000_000,
            "_odb_manifest_path": "ingest/manifest",
            "_odb_data_path": batch.format(sequence),
            "_odb_metadata": b"\x01\x02",
            "entry": entry,
            "reason": reason,
            "decoder_version": version,
        }
        for sequence, index, reason, entry in letters
    ]
    writer = RowsWriter(table.store, schema, lambda: table.new_path(range_key, decoder))
    writer.add(pa.RecordBatch.from_pylist(rows, schema))
    table.commit(range_key, writer.finish(), epoch=1, part=decoder)
