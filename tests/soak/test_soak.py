"""Half a minute of what `make soak` does in ten.

That is less than a few runs take, and other tests run beside it: what is shown here is that bursts lose nothing, that
no run fails, that memory stays below its limit, and that ranges are held back while others fill it. That ranges grow
under load, and that lag comes back, is shown by `make soak`, and in the small by
`tests/ranges/test_regulator_simulation.py`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest

from tests.prove.proof import Proof
from tests.soak.plot import draw
from tests.soak.report import LARGEST_RANGE, Planned, Report
from tests.soak.sample import Sample
from tests.soak.soak import begun_beside, soak


@pytest.fixture(scope="module")
def plot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("soak") / "plots" / "soak.png"


@pytest.fixture(scope="module")
def report(plot: Path) -> Report:
    return soak(30, plot, brief=True, unlimited=True)


def need_a_limit(report: Report) -> None:
    """Skips the test where nothing could limit memory, or fails it if CI_REQUIRE_CGROUP says so."""
    if report.is_enforced:
        return
    why = "no control group may be made here, so nothing limited memory and nobody could fill it: be root, with cgroups"
    if os.environ.get("CI_REQUIRE_CGROUP") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.mark.parametrize(("required", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_limit_that_is_required_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI_REQUIRE_CGROUP", required)
    with pytest.raises(outcome, match="no control group may be made here"):
        need_a_limit(Report(Proof("a soak", "entries")))
    need_a_limit(Report(Proof("a soak", "entries"), is_enforced=True))


@pytest.mark.timeout(3600)
def test_a_load_that_goes_up_and_down_is_landed_once(report: Report, plot: Path) -> None:
    assert list(report.misses) == [], "\n".join(report.lines())
    assert len(report.bursts) == 2
    assert report.proof.tried > 1_000
    assert report.burst_rate > 0
    assert report.largest.size > report.usual > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.stat().st_size < 200_000


@pytest.mark.timeout(3600)
def test_memory_stays_below_the_limit(report: Report) -> None:
    need_a_limit(report)
    assert 0 < report.peak < report.limit
    assert report.killed == 0


@pytest.mark.timeout(3600)
def test_memory_that_others_take_holds_new_ranges_back(report: Report) -> None:
    need_a_limit(report)
    assert report.held_back > 0
    assert report.beside == 0
    assert not report.samples[-1].held


def held(at: int) -> Sample:
    return Sample(at, 0.0, 0, 0, 1.0, 0.0, 0.9, 10 <= at < 60, 0, 0)


def test_what_is_not_held_back_is_a_miss() -> None:
    samples = [held(at) for at in range(100)]
    report = Report(Proof("a soak", "entries", tried=1), samples, is_brief=True, is_enforced=True, ballast=(5, 65))

    assert (report.held_back, list(report.misses)) == (50, [])
    assert list(dataclasses.replace(report, beside=1).misses) == [
        "1 runs began beside another one while ranges were held back"
    ]
    assert list(dataclasses.replace(report, samples=samples[60:]).misses) == [
        "others had the memory, and nothing was held back"
    ]
    assert list(dataclasses.replace(report, samples=samples[:50]).misses) == [
        "ranges were held back until the end, although memory was free again"
    ]


MIB = 1 << 20
SMALL = Planned(5.0, MIB // 10, 20)


@pytest.mark.parametrize(
    ("largest", "misses"),
    [
        (Planned(70.0, LARGEST_RANGE, 64), []),
        (Planned(70.0, LARGEST_RANGE // 4, 16), []),  # pressure lowers what may be
        (Planned(70.0, 9 * MIB, 9), ["the largest range that was planned has 9.0 MiB in 9 batches, and not 16 MiB"]),
        (Planned(70.0, 32 * MIB, 1), ["the largest range that was planned has 32.0 MiB in 1 batches, and not 16 MiB"]),
        (Planned(70.0, LARGEST_RANGE + 1, 64), [f"a range was planned with {LARGEST_RANGE + 1} bytes"]),
    ],
    ids=["the largest", "eased", "small", "one batch", "too large"],
)
def test_ranges_that_stay_small_or_have_one_batch_are_a_miss_whatever_the_budget_was(
    largest: Planned, misses: list[str]
) -> None:
    budgets = [dataclasses.replace(held(at), budget=MIB * (1.0 if at < 60 else 16.0)) for at in range(100)]
    report = Report(Proof("a soak", "entries", tried=1), budgets, {"burst": (60, 80)}, [SMALL, largest, SMALL])
    found = [miss for miss in report.misses if "range was planned" in miss or "range that was planned" in miss]

    assert report.growth == 16
    assert (report.usual, report.largest) == (SMALL.size, largest)
    assert len(found) == len(misses)
    assert all(miss.startswith(begin) for miss, begin in zip(found, misses, strict=True))


def test_bursts_and_memory_of_others_are_shaded_differently(tmp_path: Path) -> None:
    samples, planned = [held(at) for at in range(100)], [(5.0, MIB)]
    draw(samples, planned, [(10, 20)], None, 9 * MIB, tmp_path / "bursts.png")
    draw(samples, planned, [], (10, 20), 9 * MIB, tmp_path / "others.png")
    assert (tmp_path / "bursts.png").read_bytes() != (tmp_path / "others.png").read_bytes()


@pytest.mark.parametrize(
    ("runs", "beside"),
    [
        ([(8.0, 30.0), (31.0, 50.0), (51.0, 58.0)], 0),
        ([(8.0, 30.0), (25.5, 50.0)], 1),
        ([(70.0, 90.0), (75.0, 99.0)], 0),
        ([(20.0, math.inf), (20.1, 40.0), (45.0, 50.0)], 2),
    ],
    ids=["one after the other", "one too many", "while nothing is held back", "two at once, and one beside"],
)
def test_runs_that_begin_beside_others_while_ranges_are_held_back_are_counted(
    runs: list[tuple[float, float]], beside: int
) -> None:
    assert begun_beside(runs, [held(at) for at in range(100)]) == beside
