"""Memory that others take: fills a control group up to a part of its limit, whatever else is in it, for a while.

`python -m tests.soak.ballast PATH LIMIT VERSION SECONDS`, started in that group. What runs beside it grows and shrinks;
so it takes more or gives back, many times a second, and nothing is killed for it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.soak.memory import Group

LEAST, MOST = 0.85, 0.90
"""Of the limit, that are in use in all: above what the gate closes at."""

_STEP = 32 << 20
_LOOK_SECONDS = 0.02


def main(path: str, limit: str, version: str, seconds: str) -> None:
    group = Group(Path(path), int(limit), version == "2")
    held: list[bytes] = []
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        part = group.used / group.limit
        if part < LEAST:
            held.append(b"\1" * _STEP)
        elif part > MOST and held:
            held.pop()
        else:
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
