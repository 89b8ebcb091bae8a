"""JSON decoding while its driver dies: each entry is a row or a letter, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deaths import steps_of


@pytest.mark.timeout(660)
def test_a_driver_that_is_killed_at_any_step_leaves_each_entry_as_a_row_or_as_one_letter(
    connect_url: str, tmp_path: Path
) -> None:
    """Kill -9 before and after the job, each file, each new table and each commit; then another driver decodes."""
    steps = steps_of("tests.spark.json_deaths", tmp_path, connect_url, seconds=600, quiet=False)

    job, letters, table, commit = 1, 1, 1, 1
    assert steps == {
        "first": 2 * (job + table + commit + table + commit),
        "mended": 2 * (job + letters + commit + commit + letters + commit),
        "narrowed": 2 * (job + commit + commit),
    }
