"""What this deployment is made of: the process environment wins over `.env`, and `.env` over the defaults.

`dagster` reads a `.env` in its working directory too, but lets it win over the environment, in every process that it
starts. So `.env` is read here, and `dagster` works in a directory that has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from objbuf_dagster.spark.archive import IN_HASTE

CODE = Path(__file__).resolve().parent.parent

HOME, BUFFER, LAKE = "DAGSTER_HOME", "OBJBUF_BUFFER_URL", "OBJBUF_LAKE_URL"
_PLACES = {HOME: ".dagster", BUFFER: ".data/buffer", LAKE: ".data/lake"}
_WORK = ".data/work"


class SetupError(Exception):
    """Something that the person has to change; the message says what. Nothing was started."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`environment` is that of the processes to start. `work` is an empty directory for what they drop where they are.

    `is_embedded` says that the buffer is the clone's own. `notes` are for the person, one line each.
    """

    root: Path
    home: Path
    buffer: str
    lake: str
    is_embedded: bool
    port: int
    demo: bool
    environment: Mapping[str, str] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def work(self) -> Path:
        return self.root / _WORK

    @property
    def owns_home(self) -> bool:
        """Whether the home is the clone's own, which nobody else's Dagster uses."""
        return self.home == self.root / _PLACES[HOME]


def load(root: Path, given: Mapping[str, str]) -> Settings:
    """The settings of the clone at `root`, with what is missing added to its `.env`.

    Raises SetupError for a value that cannot be meant; `.env` may have been written then.
    """
    file = root / ".env"
    defaults = {name: _default(name, root) for name in _PLACES}
    written = read_env_file(file, defaults)
    named = {name: value for name, value in written.items() if value}
    _refuse_moved(root, {name: value for name, value in named.items() if not given.get(name)})
    known = {**defaults, **named, **{name: value for name, value in given.items() if value}}

    home = Path(known[HOME]).expanduser()
    if not home.is_absolute():
        raise SetupError(f"{HOME} must be an absolute path, not {known[HOME]!r}: Dagster takes no other")
    buffer, lake = _absolute(known[BUFFER]), _absolute(known[LAKE])
    is_embedded = _directory(buffer) == root / _PLACES[BUFFER]
    demo, note = _demo(known.get("DEMO", ""), is_embedded=is_embedded)
    notes = [note, *(_elsewhere(root, name, value) for name, value in named.items() if not given.get(name))]
    path = os.pathsep.join(filter(None, [str(CODE), known.get("PYTHONPATH", "")]))
    return Settings(
        root=root,
        home=home,
        buffer=buffer,
        lake=lake,
        is_embedded=is_embedded,
        port=_port(known.get("PORT", "3000")),
        demo=demo,
        # Definitions are this clone's, wherever dagster works and whatever else is installed. Each run has a JVM.
        environment={
            "SPARK_SUBMIT_OPTS": IN_HASTE,
            **known,
            HOME: str(home),
            BUFFER: buffer,
            LAKE: lake,
            "PYTHONPATH": path,
        },
        notes=tuple(filter(None, notes)),
    )


def read_env_file(file: Path, defaults: Mapping[str, str]) -> dict[str, str]:
    """What `.env` says, after the defaults that it does not name were added. No line that is there is changed."""
    from dotenv import dotenv_values

    try:
        before = file.read_text() if file.exists() else ""
        found = dotenv_values(file)
        missing = [f"{name}={_quoted(value)}\n" for name, value in defaults.items() if name not in found]
        if missing:
            opener = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)  # people keep secrets there
            with os.fdopen(opener, "w") as out:
                out.write(("" if not before or before.endswith("\n") else "\n") + "".join(missing))
            found = dotenv_values(file)
    except OSError as error:
        raise SetupError(f"cannot write {file}: {error.strerror}") from error
    for name in defaults:
        if name not in found:
            raise SetupError(f"{name} was added to {file} and cannot be read there: mend the line before it")
    return {name: value for name, value in found.items() if value is not None}


def _default(name: str, root: Path) -> str:
    place = root / _PLACES[name]
    return str(place) if name == HOME else place.as_uri()


def _quoted(value: str) -> str:
    if value.replace("/", "").replace(".", "").replace("-", "").replace("_", "").replace(":", "").isalnum():
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _directory(value: str) -> Path | None:
    """The directory that a path or URL names, None for a bucket."""
    if "://" not in value:
        return Path(value)
    parts = urlsplit(value)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _absolute(value: str) -> str:
    """A relative path is meant from where `make dev` was called, and dagster works elsewhere."""
    return value if "://" in value else Path(value).expanduser().absolute().as_uri()


def _other_clone(root: Path, name: str, value: str) -> Path | None:
    """The clone that this line of `.env` was written for, if it is one of ours and not for this clone."""
    place = _directory(value) if name in _PLACES else None
    if place is None or not place.is_absolute() or place == root / _PLACES[name]:
        return None
    depth = len(Path(_PLACES[name]).parts)
    is_ours = place.parts[-depth:] == Path(_PLACES[name]).parts
    return place.parents[depth - 1] if is_ours else None


def _refuse_moved(root: Path, named: Mapping[str, str]) -> None:
    gone = [name for name, value in named.items() if (old := _other_clone(root, name, value)) and not old.exists()]
    if gone:
        lines = "\n".join(f"    {name}={named[name]}" for name in gone)
        raise SetupError(
            f"{root / '.env'} names places in a directory that is gone:\n{lines}\n"
            f"If this clone was moved, its data came along: delete these lines and call make dev again, it writes them "
            f"anew."
        )


def _elsewhere(root: Path, name: str, value: str) -> str:
    other = _other_clone(root, name, value)
    return f"{name} is in {other}, as .env says; delete the line to use this clone's own" if other else ""


def _demo(wish: str, *, is_embedded: bool) -> tuple[bool, str]:
    if wish not in ("", "0", "1"):
        raise SetupError(f"DEMO is 0 or 1, not {wish!r}")
    if wish or is_embedded:
        return wish != "0", "" if is_embedded or wish == "0" else "DEMO=1: demo events go into a buffer of yours"
    return False, f"no demo producer: {BUFFER} is not the embedded buffer; DEMO=1 writes demo events into it"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise SetupError(f"PORT is a number from 1 to 65535, not {text!r}")
    return int(text)
