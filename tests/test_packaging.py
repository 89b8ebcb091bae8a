"""What is built and installed: the library alone, at versions that are pinned."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_has_the_library_and_nothing_else(tmp_path: Path) -> None:
    builder = importlib.import_module("hatchling.builders.wheel").WheelBuilder(str(ROOT))

    (wheel,) = builder.build(directory=str(tmp_path), versions=["standard"])

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (listed,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        scripts = archive.read(listed).decode()
    assert "objbuf = objbuf_dagster.cli:main" in scripts
    inside = {name.partition("/")[0] for name in names}
    assert {name for name in inside if not name.endswith(".dist-info")} == {"objbuf_dagster"}
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "objbuf_dagster").rglob("*.py")}
    assert modules <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_constraints_pin_a_version_of_each_name_and_say_nothing_of_where_it_is_from() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()

    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)] == []
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    assert len(names) == len(set(names))
    assert set(_needed()) <= {*names, "objbuf-dagster"}


def _needed() -> set[str]:
    """What the project needs to run, to be built and to be tested, with all that those need here."""
    found: set[str] = set()
    left = ["objbuf-dagster[connect,dev,java]", "hatchling", "editables", "setuptools", "wheel"]
    seen: set[str] = set()
    while left:
        text = left.pop()
        if text in seen:
            continue
        seen.add(text)
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        try:
            requires = importlib.metadata.requires(wanted.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # not for this machine
        found.add(name)
        for line in requires:
            one = Requirement(line)
            extras = wanted.extras or {""}
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(f"{one.name}[{','.join(sorted(one.extras))}]" if one.extras else one.name)
    return found
