"""Run every benchmark; exit with 1 if a promise is missed at full size."""

from __future__ import annotations

import argparse
import sys

from bench import decoding, formats, landing, orchestration, producing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, looser bounds; a miss is told, not counted")
    quick: bool = parser.parse_args().quick
    kept = [module.main(quick) for module in (formats, producing, landing, decoding, orchestration)]
    print("\nevery promise is kept" if all(kept) else "\na promise is MISSED")
    return 0 if all(kept) or quick else 1


if __name__ == "__main__":
    sys.exit(main())
