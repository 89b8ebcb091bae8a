"""Imports point downwards only, heavy ones happen where they are used, and importing starts nothing."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "objbuf_dagster"

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "protocol": set(),
    "store": {"protocol"},
    "buffer": {"protocol", "store"},
    "ranges": {"protocol", "store", "buffer"},
    "lake": {"protocol", "store", "buffer", "ranges"},
    "decode": {"protocol", "store", "buffer", "ranges", "lake"},
    "spark": {"protocol", "store", "buffer", "ranges", "lake", "decode"},
    "orchestration": {"protocol", "store", "buffer", "ranges", "lake", "spark", "decode"},
    "cli": {"protocol", "store", "buffer", "ranges", "lake", "spark", "decode", "orchestration"},
}
"""What each part may import, besides itself and `errors`; the command is the top, and asks a deployment too."""

NO_DAGSTER = {"errors", "protocol", "store", "buffer", "ranges", "lake", "spark", "decode", "cli"}
"""Executors load these, or they must start quickly."""

HEAVY = {"pyarrow", "zstandard", "obstore", "pyspark", "deltalake", "pandas", "numpy", "boto3"}
"""These take long to import, so only the function that needs them does."""


def modules() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def imports(path: Path, *, at_import_time: bool = False) -> Iterator[str]:
    """The modules that a file imports: all, or those that importing it imports too."""
    tree = ast.parse(path.read_text())
    if at_import_time:
        nodes: list[ast.AST] = []
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not is_typing:
                nodes.append(node)
                waiting.extend(ast.iter_child_nodes(node))
    else:
        nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        assert not list(imports(path))
        return
    assert part in BELOW, f"{part} has no place in the layers yet: give it one"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == PACKAGE and len(parts) > 1 and parts[1] in BELOW:
            assert parts[1] in BELOW[part] | {part, "errors"}, f"{path} imports {name}, which is above it"
        assert not (part in NO_DAGSTER and parts[0].startswith("dagster")), f"{path} imports {name}"


@pytest.mark.parametrize(
    ("folder", "may"), [("assets", set()), ("resources", set()), ("definitions.py", {"assets", "resources"})]
)
def test_the_pipeline_is_built_on_the_library_alone(folder: str, may: set[str]) -> None:
    """`assets` and `resources` know nothing of each other: `definitions.py` joins them."""
    place = ROOT / folder
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        ours = {name.split(".")[0] for name in imports(path)} & {"assets", "resources", "definitions", "dev", "tests"}
        assert ours - {folder} <= may, f"{path} imports {ours}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_imports_happen_inside_what_uses_them(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path, at_import_time=True)} & HEAVY


@pytest.mark.parametrize(("dagster", "loaded"), [(False, []), (True, ["pyspark"])])
def test_importing_everything_starts_nothing_and_loads_nothing_heavy(dagster: bool, loaded: list[str]) -> None:
    """With Dagster there is pyspark, because dagster-pyspark imports it; it brings nothing else that is heavy."""
    paths = [path for path in modules() if dagster or part_of(path) != "orchestration"]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    names += ["assets", "resources"] if dagster else []
    code = f"""
import importlib, sys, threading
for name in {[name for name in names if not name.endswith("__main__")]!r}:
    importlib.import_module(name)
print(threading.active_count(), sorted({HEAVY!r} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert ran.stdout.strip() == f"1 {loaded}"


def test_nothing_generated_or_large_is_in_git() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert [str(file) for file in files if file.stat().st_size > 200_000] == []
    generated = re.compile(r"(^|/)(__pycache__|\.venv|dist|\.\w+_cache|\.hypothesis)/|\.pyc$")
    assert [str(file) for file in files if generated.search(file.relative_to(ROOT).as_posix())] == []
