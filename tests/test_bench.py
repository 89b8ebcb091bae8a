"""Benchmarks measure what they say."""

from __future__ import annotations

import gc
import time

import pytest

from bench.harness import Bench, best_of


@pytest.fixture(autouse=True)
def _little_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have left much in this process, and it is collected before each run."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def test_what_is_done_before_a_run_is_not_measured() -> None:
    done: list[str] = []

    def clear() -> None:
        time.sleep(0.2)
        done.append("cleared")

    best = best_of({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, 1, clear)

    assert done == ["cleared", "a", "cleared", "b"] * 2
    assert max(best.values()) < 0.2


def test_a_ratio_of_several_measurements_is_measured_again_until_it_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    ratios = [2.0, 1.6, 1.5, 1.4]

    kept = Bench(quick=False, rounds=1).promise_ratio("growth", lambda: (ratios.pop(0), "[details]"), 1.5)

    assert (kept, ratios) == (True, [1.4])
    assert capsys.readouterr().out.count("measuring again") == 2
    assert not Bench(quick=False, rounds=1).promise_ratio("growth", lambda: (1.51, ""), 1.5)
    assert "MISSED" in capsys.readouterr().out


def test_a_ratio_that_is_measured_again_tells_of_how_many_rounds_its_times_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = {"a": lambda: time.sleep(0.02), "b": lambda: None}

    assert not Bench(quick=False, rounds=2).promise_all(runs, [("a", "b", 1.0)])
    assert capsys.readouterr().out.count("s, best of 6") == 2
    assert Bench(quick=False, rounds=2).promise_all(runs, [("b", "a", 1.0)])
    assert capsys.readouterr().out.count("s, best of 2") == 2
