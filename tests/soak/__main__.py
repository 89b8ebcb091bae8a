"""`make soak`: a load that goes up and down, on the real thing, in a memory limit; prints what happened, and draws it.

`python -m tests.soak [--minutes N] [--plot FILE] [--unlimited]`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.soak.soak import soak

_MOST_MINUTES = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: %(default)g, at least 1)")
    parser.add_argument("--plot", type=Path, default=Path("artefacts/soak.png"), help="default: %(default)s")
    parser.add_argument("--unlimited", action="store_true", help="go without a memory limit where none can be set")
    chosen = parser.parse_args()
    if not 1 <= chosen.minutes <= _MOST_MINUTES:
        parser.error(f"--minutes is 1 to {_MOST_MINUTES:g}")
    print(f"soaking for {chosen.minutes:g} minutes, and until lag is back", flush=True)
    report = soak(60 * chosen.minutes, chosen.plot, unlimited=chosen.unlimited)
    for line in report.lines():
        print(line)
    print(f"the picture is {chosen.plot}")
    return 1 if any(report.misses) else 0


if __name__ == "__main__":
    sys.exit(main())
