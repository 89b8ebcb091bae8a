"""What a landing may replace: rows of its own buffer, whatever others have made of their files since."""

from __future__ import annotations

import deltalake
import pytest

from objbuf_dagster.errors import BufferReplaced
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.files import same_batches
from objbuf_dagster.ranges import SequenceRange
from tests.lake.landings import key, tags, write
from tests.lake.test_table import from_batches


def test_a_range_without_rows_of_another_buffer_replaces_nothing(table: LakeTable) -> None:
    ours, theirs = ("ingest/A", "ingest/B", "ingest/C"), ("ingest/X", "ingest/Y", "ingest/Z")
    table.commit(key(0), from_batches(write(table, key(0), b"ours"), "ingest/A", "ingest/B"), epoch=1, batches=ours)

    with pytest.raises(BufferReplaced, match="came from ingest/A to ingest/B, and would be replaced by ingest/X"):
        table.commit(key(0), [], epoch=1, batches=theirs)
    with pytest.raises(BufferReplaced):
        table.check(key(0), [], batches=theirs)

    assert set(tags(table, key(0))) == {b"ours"}
    table.commit(key(0), [], epoch=1, batches=ours)
    assert table.ranges()[key(0)].rows == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_range_whose_files_were_rewritten_can_land_again(local: LakeTable, named: bool) -> None:
    """Others keep the beginning of a long name only, and an upper bound that is not a name at all."""
    prefix = f"{'long/' * 11}four"
    names = tuple(f"{prefix}/{number}.batch" for number in range(100_000, 100_010))
    wide = SequenceRange(100_000, 100_009).key
    bounds = (names[0], names[-1])
    local.commit(wide, from_batches(write(local, wide, b"first", prefix=prefix), *bounds), epoch=1)
    deltalake.DeltaTable(str(local.root)).optimize.compact()
    (whole,) = local.files()
    assert all(len(whole.stats[bound]["_odb_data_path"]) < len(names[0]) for bound in ("minValues", "maxValues"))

    again = from_batches(write(local, wide, b"again", prefix=prefix), *bounds)
    local.commit(wide, again, epoch=1, batches=names if named else ())
    assert set(tags(local, wide)) == {b"again"}

    deltalake.DeltaTable(str(local.root)).optimize.compact()
    others = tuple(name.replace("/1", "/7") for name in names)
    theirs = from_batches(write(local, wide, prefix=prefix), others[0], others[-1])
    with pytest.raises(BufferReplaced):
        local.commit(wide, theirs, epoch=1, batches=others if named else ())


@pytest.mark.parametrize(
    ("there", "same"),
    [
        (("ingest/AAAA", "ingest/CCCC"), True),
        (("ingest/AA", "ingest/CC"), True),
        (("ingest/AA", "ingest/CD"), True),  # its last character raised
        (("ingest/AA", "ingest/CC\ufffd"), True),  # the highest one added
        (("ingest/AAAA", "ingest/CCCD"), False),
        (("ingest/BB", "ingest/CC"), False),
        (("ingest/AA", "ingest/DD"), False),
    ],
)
def test_names_of_batches_are_compared_as_far_as_they_go(there: tuple[str, str], same: bool) -> None:
    ours = ("ingest/AAAA", "ingest/CCCC")
    assert (same_batches(there, ours), same_batches(ours, there)) == (same, same)
