"""Timing by comparison: A and B in turn, in one process, the best of many rounds of each, and their ratio.

A ratio within one run says more than a time: a slow or busy machine slows both sides. What still disturbs it, another
process at the wrong moment, only ever adds time, so the best round is the truest, and a miss is measured again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Run = Callable[[], object]

_ATTEMPTS = 3
_QUICK_SLACK = 2.0


@dataclass(frozen=True, slots=True)
class Bench:
    """How much is measured, and how strictly."""

    quick: bool
    rounds: int

    def heading(self, text: str) -> None:
        loose = " (quick: less data, bounds twice as loose, for a look only)" if self.quick else ""
        print(f"\n{text}{loose}")

    def promise(self, name: str, run: Run, against: Mapping[str, Run], most: float) -> bool:
        """Print how `run` compares with the fastest of `against`, and whether that is at most `most` times it."""
        return self.promise_ratio(name, lambda: self._compare(name, run, against), most)

    def promise_ratio(self, name: str, measure: Callable[[], tuple[float, str]], most: float) -> bool:
        """The same for a ratio that is made of more: `measure` gives it, and what to say of it."""
        bound = most * self._slack
        for attempt in range(1, _ATTEMPTS + 1):
            ratio, details = measure()
            kept = ratio <= bound
            verdict = "OK" if kept else "MISSED" if attempt == _ATTEMPTS else "measuring again"
            print(f"  {name:<46} {_times(ratio):>8} of at most {_times(bound)}  {verdict:<7} {details}", flush=True)
            if kept:
                return True
        return False

    def look(self, name: str, run: Run, against: Mapping[str, Run], wanted: float) -> None:
        """Print the same of what is not promised, beside what would be good."""
        ratio, details = self._compare(name, run, against)
        print(f"  {name:<46} {_times(ratio):>8} and {_times(wanted)} wanted  measured {details}", flush=True)

    def promise_all(
        self, runs: Mapping[str, Run], promises: Iterable[tuple[str, str, float]], before: Run | None = None
    ) -> bool:
        """The same for many runs that take long: all are measured together, and again only if a promise is missed.

        Each promise is `(name, against, most)`: the first takes at most so many times the time of the second. `before`
        is as for `best_of`.
        """
        best: dict[str, float] = {}
        for attempt in range(1, _ATTEMPTS + 1):
            for name, seconds in best_of(runs, self.rounds, before).items():
                best[name] = min(seconds, best.get(name, seconds))
            kept = all(best[name] <= most * self._slack * best[other] for name, other, most in promises)
            if kept or attempt == _ATTEMPTS or self.quick:
                break
            print("  a ratio is missed: measuring again", flush=True)
        for name, seconds in best.items():
            print(f"  {name:<46} {seconds:>8.2f} s, best of {attempt * self.rounds}")
        for name, other, most in promises:
            ratio, bound = best[name] / best[other], most * self._slack
            verdict = "OK" if ratio <= bound else "MISSED"
            print(f"  {name} takes {ratio:.3f} of at most {bound:.3f} times: {other}  {verdict}", flush=True)
        return kept

    @property
    def _slack(self) -> float:
        return _QUICK_SLACK if self.quick else 1

    def _compare(self, name: str, run: Run, against: Mapping[str, Run]) -> tuple[float, str]:
        best = best_of({name: run, **against}, self.rounds)
        fastest = min(against, key=best.__getitem__)
        others = ", ".join(f"{other} {_milliseconds(best[other])}" for other in against)
        return best[name] / best[fastest], f"[{_milliseconds(best[name])} against {others}]"


def best_of(runs: Mapping[str, Run], rounds: int, before: Run | None = None) -> dict[str, float]:
    """The least seconds that each run took; they take turns, after one round that does not count.

    before: done before each run, and not measured.
    """
    best = dict.fromkeys(runs, float("inf"))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for counted in range(-1, rounds):
            for name, run in runs.items():
                if before is not None:
                    before()
                gc.collect()
                started = time.perf_counter()
                result = run()
                elapsed = time.perf_counter() - started
                del result  # freeing it is not what is measured
                if counted >= 0:
                    best[name] = min(best[name], elapsed)
    finally:
        if collecting:
            gc.enable()
    return best


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.4f}x"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
