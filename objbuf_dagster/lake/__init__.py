"""Delta tables that ranges land in: commit a range, see what is there, keep the table small."""

from __future__ import annotations

from objbuf_dagster.lake.files import DataFile, LandedRange, LiveFile, folder_of
from objbuf_dagster.lake.schema import ENTRIES, RANGE_COLUMN, Column, ColumnType, TableSchema
from objbuf_dagster.lake.table import Commit, LakeTable
from objbuf_dagster.lake.upkeep import LakeStat, Landing, MaintainReport, maintain, stat

__all__ = [
    "ENTRIES",
    "RANGE_COLUMN",
    "Column",
    "ColumnType",
    "Commit",
    "DataFile",
    "LakeStat",
    "LakeTable",
    "LandedRange",
    "Landing",
    "LiveFile",
    "MaintainReport",
    "TableSchema",
    "folder_of",
    "maintain",
    "stat",
]
