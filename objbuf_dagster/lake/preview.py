"""A look at the rows of a range."""

from __future__ import annotations

from typing import Any

from objbuf_dagster.lake.reading import parquet_errors
from objbuf_dagster.lake.table import LakeTable


def head(table: LakeTable, range_key: str, rows: int) -> list[dict[str, Any]]:
    """The first rows of a range, as the table has them, without the partition's column; none if it has not landed.

    Reads no more than the first pages of its first file.
    """
    import pyarrow.parquet as pq

    files = [file for file in table.files([range_key]) if file.rows != 0]
    if not files:
        return []
    first = files[0]
    with parquet_errors(first.path), table.filesystem({first.path: first.size}).open_input_file(first.path) as source:
        found: list[dict[str, Any]] = next(pq.ParquetFile(source).iter_batches(batch_size=rows)).to_pylist()
    return found
