"""Delta tables that ranges land in, and states that are folded from them: commit, look, look after, move."""

from __future__ import annotations

from objbuf_dagster.lake.checks import CHECKS, TABLE_CHECKS, RangeCheck, check_range, check_table
from objbuf_dagster.lake.files import DataFile, LandedRange, LiveFile, Snapshot, folder_of
from objbuf_dagster.lake.fold import Changes, Fold, RowFold, Scope
from objbuf_dagster.lake.fold_latest import LastRow, ServiceLatest
from objbuf_dagster.lake.schema import ENTRIES, RANGE_COLUMN, Column, ColumnType, TableSchema
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.lake.state_cursor import RebuildNeeded, StateCursor
from objbuf_dagster.lake.state_run import Sources, StateReport, catch_up, rebuild
from objbuf_dagster.lake.table import Commit, LakeTable
from objbuf_dagster.lake.transfer import Transferred, export_table, import_table
from objbuf_dagster.lake.upkeep import LakeStat, Landing, MaintainReport, maintain, stat

__all__ = [
    "CHECKS",
    "ENTRIES",
    "RANGE_COLUMN",
    "TABLE_CHECKS",
    "Changes",
    "Column",
    "ColumnType",
    "Commit",
    "DataFile",
    "Fold",
    "LakeStat",
    "LakeTable",
    "LandedRange",
    "Landing",
    "LastRow",
    "LiveFile",
    "MaintainReport",
    "RangeCheck",
    "RebuildNeeded",
    "RowFold",
    "Scope",
    "ServiceLatest",
    "Snapshot",
    "Sources",
    "StateCursor",
    "StateReport",
    "StateTable",
    "TableSchema",
    "Transferred",
    "catch_up",
    "check_range",
    "check_table",
    "export_table",
    "folder_of",
    "import_table",
    "maintain",
    "rebuild",
    "stat",
]
