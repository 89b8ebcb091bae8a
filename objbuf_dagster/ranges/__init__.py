"""Contiguous ranges of sequences: their names, their objects, where to cut them and how large, how far to ack."""

from objbuf_dagster.ranges.frontier import frontier
from objbuf_dagster.ranges.gate import Gate
from objbuf_dagster.ranges.key import SequenceRange
from objbuf_dagster.ranges.ledger import RangeLedger, range_of
from objbuf_dagster.ranges.planner import Limits, check_against, cut, plan
from objbuf_dagster.ranges.regulator import Regulator

__all__ = [
    "Gate",
    "Limits",
    "RangeLedger",
    "Regulator",
    "SequenceRange",
    "check_against",
    "cut",
    "frontier",
    "plan",
    "range_of",
]
