"""Run the benchmarks, all of them or the parts that are named; exit with 1 if a promise is missed at full size."""

from __future__ import annotations

import argparse
import sys

from bench import decoding, formats, landing, orchestration, producing

PARTS = {
    "formats": formats,
    "producing": producing,
    "landing": landing,
    "decoding": decoding,
    "orchestration": orchestration,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, looser bounds; a miss is told, not counted")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, if none is named")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    quick: bool = chosen.quick
    kept = [module.main(quick) for name, module in PARTS.items() if name in chosen.parts or not chosen.parts]
    print("\nevery promise is kept" if all(kept) else "\na promise is MISSED")
    return 0 if all(kept) or quick else 1


if __name__ == "__main__":
    sys.exit(main())
