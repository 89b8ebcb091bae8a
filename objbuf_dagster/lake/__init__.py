"""Delta tables that ranges land in: commit a range, see what is there, keep the table small."""

from __future__ import annotations

from objbuf_dagster.lake.checks import CHECKS, TABLE_CHECKS, RangeCheck, check_range, check_table
from objbuf_dagster.lake.files import DataFile, LandedRange, LiveFile, Snapshot, folder_of
from objbuf_dagster.lake.schema import ENTRIES, RANGE_COLUMN, Column, ColumnType, TableSchema
from objbuf_dagster.lake.table import Commit, LakeTable
from objbuf_dagster.lake.upkeep import LakeStat, Landing, MaintainReport, maintain, stat

__all__ = [
    "CHECKS",
    "ENTRIES",
    "RANGE_COLUMN",
    "TABLE_CHECKS",
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
    "RangeCheck",
    "Snapshot",
    "TableSchema",
    "check_range",
    "check_table",
    "folder_of",
    "maintain",
    "stat",
]
