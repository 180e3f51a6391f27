"""Many systems at a few rates of each workload: attainment as marks, and the tables of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.paper.command import Swept
from benchmarks.paper.runs import mean
from benchmarks.paper_kernels import table
from sim.plots.style import styled

Rates = Mapping[str, Sequence[float]]
"""By workload."""


def attained_by_system(swept: Swept, rates: Rates, systems: Sequence[str]) -> Figure:
    """SLO attainment of each system, a panel a workload, a mark a rate."""
    with styled():
        drawing = Figure(figsize=(7.2, 0.8 + 0.2 * len(systems)), layout="constrained")
        panels = drawing.subplots(1, len(rates), sharey=True, squeeze=False)[0]
        for panel, (name, own) in zip(panels, rates.items(), strict=True):
            for rate, marker in zip(own, "osD", strict=True):
                attained = [mean(swept[name, system, rate], "attainment") for system in systems]
                panel.plot(attained, range(len(systems)), marker, ls="none", label=f"{rate:g}/s")
            panel.set_title(name)
            panel.set_xlabel("SLO attainment")
            panel.set_yticks(range(len(systems)), list(systems))
            panel.invert_yaxis()
            panel.legend(
                loc="upper center",
                bbox_to_anchor=(0.5, -0.5 / drawing.get_figheight()),
                ncols=len(own),
                columnspacing=1,
                handletextpad=0,
            )
            panel.set_xlim(-0.03, 1.03)
    return drawing


def print_levels(swept: Swept, rates: Rates, systems: Sequence[str]) -> None:
    """Two tables with a row a system and a column a rate: attainment, then mean TTFT and mean TPOT."""
    cells = [(name, rate) for name in rates for rate in rates[name]]
    header = ("system", *(f"{name} {rate:g}/s" for name, rate in cells))
    attained = [
        (system, *(f"{mean(swept[name, system, rate], 'attainment'):.3f}" for name, rate in cells))
        for system in systems
    ]
    table("### SLO attainment", header, attained)
    rows = [(system, *(_latencies(swept, name, system, rate) for name, rate in cells)) for system in systems]
    table("### Mean TTFT and TPOT", header, rows)


def _latencies(swept: Swept, name: str, system: str, rate: float) -> str:
    seeds = swept[name, system, rate]
    return f"{mean(seeds, 'ttft_s'):.2f} s, {1e3 * mean(seeds, 'tpot_s'):.0f} ms"
