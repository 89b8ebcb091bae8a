"""The example of docs/state.md is a fold that works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from objbuf_dagster.lake.fold import state_schema

TEXT = (Path(__file__).parents[2] / "docs" / "state.md").read_text()


def test_the_example_folds_and_deletes() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/state.md", "exec"), names)  # noqa: S102
    fold = names["OpenIncidents"]()
    rows = [("a", 17, "down"), ("b", 9, "fine"), ("a", 18, "still"), ("c", 17, "down"), ("c", 1, "up")]
    batch = pa.RecordBatch.from_pylist(
        [
            {"_odb_sequence": at, "ServiceName": service, "SeverityNumber": severity, "Body": body}
            for at, (service, severity, body) in enumerate(rows)
        ]
    )

    changes = fold.apply(pa.Table.from_batches([fold.keyed(batch)]), state_schema(fold).empty_table())

    assert changes.rows.to_pylist() == [{"service": "a", "since": 0, "last": "still"}]
    assert sorted(changes.deleted["service"].to_pylist()) == ["b", "c"]
    assert isinstance(names["open_incidents"], dg.AssetsDefinition)


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"tests/[\w/.]+\.py", TEXT))
    assert named
    assert [path for path in named if not (Path(__file__).parents[2] / path).exists()] == []
