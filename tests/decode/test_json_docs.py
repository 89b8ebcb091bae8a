"""What docs/json.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from objbuf_dagster.decode import JsonDecoder, Undecodable
from objbuf_dagster.decode.json import MAX_BYTES
from objbuf_dagster.decode.json_check import LONGEST_NUMBER, Checker
from objbuf_dagster.decode.json_reading import DEEPEST

TEXT = (Path(__file__).parents[2] / "docs/json.md").read_text()


def test_the_example_is_a_decoder_and_its_entries_become_what_is_said() -> None:
    found: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0], found)  # noqa: S102  our own page
    decoder = found["EVENTS"]
    assert isinstance(decoder, JsonDecoder)
    checker = Checker(decoder.columns, decoder.max_bytes)
    rows = re.findall(r"^\| `(\{.*?)` \| (.*?) \|$", TEXT.partition("## Columns")[0], re.MULTILINE)
    assert len(rows) == 4

    for entry, said in rows:
        if said.startswith("none"):
            with pytest.raises(Undecodable) as refused:
                checker.check(entry.encode())
            assert said == f"none: `{refused.value.reason}`"
        else:
            assert said.endswith("`_rest` {color: `" + dict(checker.check(entry.encode()).rest)["color"] + "`}")


def test_limits_are_those_that_are_told() -> None:
    assert f"nested deeper than {DEEPEST}" in TEXT
    assert f"more than {LONGEST_NUMBER} characters" in TEXT
    assert f"`max_bytes` ({MAX_BYTES >> 20} MiB)" in TEXT
