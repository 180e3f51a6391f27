"""Figure 15: TTFT, TPOT, throughput and SLO attainment by rate, five systems on three workloads, one A100.

    python -m benchmarks.paper.fig15 [--out out/paper] [--seeds 3] [--jobs N]

Draws ours (lines) over the paper's points (marks, where the digitised file is at hand), writes both to fig15.csv, and
prints as Markdown how far apart they are: the rate at 90 % attainment, and mean TPOT at each of the paper's rates.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.paper.command import options
from benchmarks.paper.points import KNEE, METRICS, Point, of, points
from benchmarks.paper.runs import SEEDS, Outcome, Run, mean, outcomes
from benchmarks.paper.setting import SYSTEMS, WORKLOADS, config
from benchmarks.paper_kernels import table
from sim.metrics import Knee, knee
from sim.plots.style import looks, save, styled

RATES = {
    "ShareGPT": (10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 25),
    "Azure-Code": (3.6, 4.0, 4.2, 4.4, 4.6, 4.8, 5.0, 5.2, 5.3, 5.4, 5.5),
    "arXiv-Summary": (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
}
"""The paper's, and lower ones where a system of ours meets its knee before them."""

OURS = {"ttft_s": ("ttft_s", 1.0), "tpot_ms": ("tpot_s", 1e3), "throughput_rps": ("throughput_rps", 1.0)}
"""Of an outcome: the field that a metric is, and how many of its units the field's are."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Ours of one workload and system: values by metric, one a rate, means over seeds."""

    rates: Sequence[float]
    values: Mapping[str, Sequence[float]]

    @property
    def knee(self) -> Knee:
        """The rate at 90 % attainment."""
        return knee(self.rates, self.values["slo_attainment"])

    def at(self, metric: str, rate: float) -> float:
        """The value at one of the rates."""
        return self.values[metric][list(self.rates).index(rate)]


Curves = Mapping[tuple[str, str], Curve]
"""By workload and system."""


def simulate(folder: Path, seeds: Sequence[int] = SEEDS, jobs: int | None = None) -> Curves:
    """All curves of ours."""
    runs = [
        Run((name, system, rate, seed), name, config(workload, SYSTEMS[system].of(workload), rate, seed, folder))
        for name, workload in WORKLOADS.items()
        for system in SYSTEMS
        for rate in RATES[name]
        for seed in seeds
    ]
    made = outcomes(runs, jobs)
    return {
        (name, system): _curve(name, [[made[name, system, rate, seed] for seed in seeds] for rate in RATES[name]])
        for name in WORKLOADS
        for system in SYSTEMS
    }


def _curve(workload: str, by_rate: Sequence[Sequence[Outcome]]) -> Curve:
    values = {metric: [scale * mean(seeds, field) for seeds in by_rate] for metric, (field, scale) in OURS.items()}
    attained = [mean(seeds, "attainment") for seeds in by_rate]
    return Curve(RATES[workload], {**values, "slo_attainment": attained})


def draw(curves: Curves, paper: Sequence[Point]) -> Figure:
    """A row a metric, a column a workload."""
    colours = looks((name, system.policy) for name, system in SYSTEMS.items())
    with styled():
        drawing = Figure(figsize=(7.2, 8.0), layout="constrained")
        axes = drawing.subplots(len(METRICS), len(WORKLOADS), squeeze=False, sharex="col")
        for row, (metric, label) in enumerate(METRICS.items()):
            for column, name in enumerate(WORKLOADS):
                panel = axes[row][column]
                for system in SYSTEMS:
                    curve, look = curves[name, system], colours[system]
                    panel.plot(curve.rates, curve.values[metric], look.line, color=look.colour, label=system)
                    theirs = [(one.rate, one.value) for one in of(paper, name, system, metric) if one.rate is not None]
                    if theirs:
                        panel.plot(*zip(*theirs, strict=True), look.marker, color=look.colour, alpha=0.6, ls="none")
                if metric == "ttft_s":
                    panel.set_yscale("log")
                    panel.set_title(name)
                if row == len(METRICS) - 1:
                    panel.set_xlabel("requests/s")
                if column == 0:
                    panel.set_ylabel(label)
        handles, labels = axes[0][0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside upper center", ncols=len(SYSTEMS))
    return drawing


def write(path: Path, curves: Curves, paper: Sequence[Point]) -> None:
    """Ours and the paper's values as rows."""
    theirs = {(one.workload, one.metric, one.system, one.rate): one.value for one in paper}
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("workload", "metric", "system", "request_rate_rps", "ours", "paper"))
        for (name, system), curve in curves.items():
            for metric, values in curve.values.items():
                for rate, value in zip(curve.rates, values, strict=True):
                    known = theirs.get((name, metric, system, float(rate)), "")
                    out.writerow((name, metric, system, rate, f"{value:.4f}", known))


def report(curves: Curves, paper: Sequence[Point]) -> None:
    """Prints knees, attainment where there is no knee, and TPOT: the paper's, ours, and the difference."""
    rows = []
    for (name, system), curve in curves.items():
        told = of(paper, name, system, KNEE)
        ours = curve.knee
        theirs = f"{told[0].value:.3g}" if told else ""
        off = f"{ours.rate / told[0].value - 1:+.0%}" if told and ours.kind == "crossing" and ours.rate else ""
        rows.append((name, system, theirs, str(ours), off))
    table("Rate at 90 % attainment, req/s", ("workload", "system", "paper", "ours", "difference"), rows)
    compared = [
        (name, system, f"{one.rate:g}", f"{one.value:.3f}", f"{curve.at('slo_attainment', one.rate):.3f}")
        for (name, system), curve in curves.items()
        for one in of(paper, name, system, "slo_attainment")
        if one.rate in curve.rates
    ]
    table("Attainment", ("workload", "system", "req/s", "paper", "ours"), compared)
    tpot = []
    for (name, system), curve in curves.items():
        for one in of(paper, name, system, "tpot_ms"):
            if one.rate in curve.rates:
                ours_ms = curve.at("tpot_ms", one.rate)
                shown = (f"{one.rate:g}", f"{one.value:.0f}", f"{ours_ms:.0f}", f"{ours_ms / one.value - 1:+.0%}")
                tpot.append((name, system, *shown))
    table("Mean TPOT, ms", ("workload", "system", "req/s", "paper", "ours", "difference"), tpot)


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=len(SEEDS))
    curves, paper = simulate(chosen.out, range(chosen.seeds), chosen.jobs), points()
    write(chosen.out / "fig15.csv", curves, paper)
    save(draw(curves, paper), chosen.out / "fig15.png")
    report(curves, paper)


if __name__ == "__main__":
    main()
