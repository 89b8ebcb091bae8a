"""Which ranges are materialised, as Dagster's event log has it.

A partition key says only which sequences; a buffer that was deleted and made anew has the same ones, and acking its
ranges for what the old one had would lose data. So a materialisation says which batch its range ends with, and counts
for the range with that batch only. One without it, such as a person's mark in the UI, must be younger than the range.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from objbuf_dagster.protocol import RangeObject
from objbuf_dagster.ranges import SequenceRange, range_of

LAST_BATCH = "last_batch"
"""The name under which a materialisation says where its range's last batch is."""

_AT_ONCE = 500


def last_batch(planned: RangeObject) -> str:
    """Its location, as text that any browser can bear: what can be fetched has no backslash, so no two are alike."""
    location = planned.batches[-1].descriptor.location
    return location if location.isprintable() else ascii(location)[1:-1]


def materialised(
    instance: dg.DagsterInstance, gates: Sequence[dg.AssetKey], planned: Sequence[RangeObject]
) -> set[SequenceRange]:
    """Those of the ranges that all these assets have materialised. Costs a few queries, however much Dagster knows."""
    left = list(planned)
    for gate in gates:
        done: set[SequenceRange] = set()
        for start in range(0, len(left), _AT_ONCE):
            done |= _in_one(instance, gate, left[start : start + _AT_ONCE])
        left = [one for one in left if range_of(one) in done]
    return set(map(range_of, left))


def _in_one(instance: dg.DagsterInstance, asset: dg.AssetKey, planned: Sequence[RangeObject]) -> set[SequenceRange]:
    by_key = {range_of(one).key: one for one in planned}
    latest = instance.event_log_storage.get_latest_storage_id_by_partition(
        asset, dg.DagsterEventType.ASSET_MATERIALIZATION, set(by_key)
    )
    if not latest:
        return set()
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset, storage_ids=list(latest.values())), limit=len(latest)
    )
    return {
        range_of(by_key[record.partition_key])
        for record in found.records
        if record.partition_key is not None and _counts(record, by_key[record.partition_key])
    }


def _counts(record: dg.EventLogRecord, planned: RangeObject) -> bool:
    event = record.asset_materialization
    said = None if event is None else event.metadata.get(LAST_BATCH)
    if said is None:
        return record.timestamp * 1000 >= planned.planned_at_ms
    return said.value == last_batch(planned)
