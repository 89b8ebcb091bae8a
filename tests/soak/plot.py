"""What happened in a soak, over time, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.soak.sample import Sample

_MIB = 1 << 20


Times = tuple[float, float]


def draw(
    samples: Sequence[Sample],
    planned: Sequence[tuple[float, int]],
    bursts: Sequence[Times],
    others: Times | None,
    limit: int,
    file: Path,
) -> None:
    """Lag, budget, pressure and memory, one below the other. Writes a PNG.

    planned: when ranges were, and their bytes. Bursts are shaded, and in another colour the time in which others had
    the memory.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    at = [one.at for one in samples]
    figure = Figure(figsize=(10, 10), layout="constrained")
    FigureCanvasAgg(figure)
    lag, budget, pressure, memory = figure.subplots(4, 1, sharex=True)
    lag.plot(at, [one.lag for one in samples], label="lag")
    lag.set_ylabel("seconds")
    budget.step(at, [one.budget / _MIB for one in samples], where="post", label="budget of a range")
    budget.step(at, [one.in_flight_bytes / _MIB for one in samples], where="post", label="in flight")
    budget.plot(at, [one.queued_bytes / _MIB for one in samples], label="not acked")
    budget.plot(
        [when for when, _ in planned],
        [size / _MIB for _, size in planned],
        label="planned ranges",
        linestyle="",
        marker=".",
    )
    budget.set_ylabel("MiB")
    budget.set_yscale("symlog", linthresh=1)
    pressure.step(at, [one.pressure for one in samples], where="post", label="pressure, as the sensor saw it")
    pressure.step(at, [one.rho for one in samples], where="post", label="rho")
    pressure.step(at, [float(one.held) for one in samples], where="post", label="held", linestyle=":")
    pressure.axhline(0.8, color="grey", linewidth=0.5)
    memory.plot(at, [one.memory / _MIB for one in samples], label="memory of the deployment")
    memory.axhline(limit / _MIB, color="red", linewidth=0.8, label="its limit")
    memory.set_ylabel("MiB")
    memory.set_ylim(bottom=0)
    memory.set_xlabel("seconds")
    for plot in (lag, budget, pressure, memory):
        for start, end in bursts:
            plot.axvspan(start, end, color="orange", alpha=0.2)
        if others:
            plot.axvspan(*others, color="steelblue", alpha=0.3)
        plot.legend(loc="upper right", fontsize="small")
        plot.grid(alpha=0.3)
    lag.set_title(
        "a trickle, and bursts (orange) of three times what one run at a time can take; others fill memory (blue)"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90)
