"""The paper's headline ratios, one A100, in the same simulated runs as figure 15 at the paper's rates.

    python -m benchmarks.paper.headline [--out out/paper] [--seeds 1] [--jobs N]

Means over rates and workloads are arithmetic means of ratios: the paper does not say which mean it takes.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.command import (
    KEY_HEADER,
    Options,
    Swept,
    describe,
    evaluated,
    finish,
    looks_of,
    options,
    rows_of,
    sweep,
)
from benchmarks.paper.numbers import Number
from benchmarks.paper.runs import mean
from sim.plots.style import PlainLog, figure, legend_above, styled

RATES = {
    "ShareGPT": (10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 25.0),
    "Azure-Code": (4.0, 4.4, 4.8, 5.2, 5.5),
    "arXiv-Summary": (0.5, 0.6, 0.7, 0.8, 0.9),
}
BASELINE = "SGLang-1024"
OTHERS = ("SGLang-2048", "NanoFlow-1024", "vLLM-1024")
FIELDS = {
    "throughput_rps": "throughput, Bullet over",
    "ttft_s": "mean TTFT, over Bullet's, of",
    "tpot_s": "mean TPOT, over Bullet's, of",
    "e2e_s": "mean end to end, over Bullet's, of",
}
"""What is compared; in latency, how many times as long the other takes."""

MEANS = {"throughput_rps": 1.09, "ttft_s": 13.5, "tpot_s": 0.94, "e2e_s": 1.86}
MOST_THROUGHPUT = 1.20

AT_20 = (
    ("SGLang-1024", "ttft_s", 54.9),
    ("SGLang-1024", "ttft_p90_s", 78.5),
    ("SGLang-2048", "ttft_s", 4.2),
    ("SGLang-2048", "tpot_s", 1.20),
    ("NanoFlow-1024", "ttft_s", 2.37),
    ("NanoFlow-1024", "tpot_s", 0.86),
)
"""ShareGPT at 20 req/s: how many times as long another takes as Bullet. The text gives those against SGLang-2048 and
NanoFlow without a rate."""

SECONDS_AT_20 = {"NanoFlow-1024": 1.8, "vLLM-1024": 14.9}
"""Mean TTFT there."""

COMPLIANCE_AT_20 = {"SGLang-1024": 1.49, "NanoFlow-1024": 1 / (1 - 0.052)}
"""Bullet's attainment over another's; of NanoFlow's, 5.2 % less compliance."""

NANOFLOW_THROUGHPUT = 0.80
NAMES = {"ttft_s": "mean TTFT", "ttft_p90_s": "P90 TTFT", "tpot_s": "mean TPOT"}


def simulate(chosen: Options) -> Swept:
    """Bullet and SGLang-1024 everywhere, the others on ShareGPT at 20 req/s."""
    everywhere = sweep(RATES, evaluated("Bullet", BASELINE), chosen)
    return {**everywhere, **sweep({"ShareGPT": (20.0,)}, evaluated(*OTHERS), chosen)}


def gains(swept: Swept, field: str) -> list[float]:
    """Bullet against SGLang-1024 at each workload and rate, above 1 where Bullet is better."""
    found = []
    for name, rates in RATES.items():
        for rate in rates:
            bullet, other = (mean(swept[name, system, rate], field) for system in ("Bullet", BASELINE))
            found.append(bullet / other if field == "throughput_rps" else other / bullet)
    return found


def at_20(swept: Swept, system: str, field: str) -> float:
    """A number of a system on ShareGPT at 20 req/s."""
    return mean(swept["ShareGPT", system, 20.0], field)


def numbers(swept: Swept) -> list[Number]:
    """All that the text states."""

    def stated(key: str, what: str, paper: float, ours: float, unit: str = "x") -> Number:
        return Number(figure="headline", key=f"headline.{key}", what=what, paper=paper, ours=ours, unit=unit)

    found = [
        stated(f"mean_{field}", f"{FIELDS[field]} {BASELINE}, mean of all", told, float(np.mean(gains(swept, field))))
        for field, told in MEANS.items()
    ]
    most = max(gains(swept, "throughput_rps"))
    found.append(stated("most_throughput", f"throughput, Bullet over {BASELINE}, at most", MOST_THROUGHPUT, most))
    for system, field, told in AT_20:
        what = f"{NAMES[field]}, over Bullet's, of {system}, ShareGPT at 20 req/s"
        found.append(
            stated(f"{system}_{field}", what, told, at_20(swept, system, field) / at_20(swept, "Bullet", field))
        )
    for system, told in SECONDS_AT_20.items():
        what = f"mean TTFT of {system}, ShareGPT at 20 req/s"
        found.append(stated(f"{system}_seconds", what, told, at_20(swept, system, "ttft_s"), " s"))
    for system, told in COMPLIANCE_AT_20.items():
        what = f"attainment, Bullet's over {system}'s, ShareGPT at 20 req/s"
        ours = at_20(swept, "Bullet", "attainment") / at_20(swept, system, "attainment")
        found.append(stated(f"{system}_attainment", what, told, ours))
    what = "throughput, NanoFlow's over Bullet's, ShareGPT at 20 req/s"
    ours = at_20(swept, "NanoFlow-1024", "throughput_rps") / at_20(swept, "Bullet", "throughput_rps")
    return [*found, stated("nanoflow_throughput", what, NANOFLOW_THROUGHPUT, ours)]


def draw(swept: Swept) -> Figure:
    """The gain at each rate, a panel a metric; the paper's mean as a dashed line."""
    looks = looks_of(("Bullet",))
    with styled():
        drawing = figure(7.2, 3.6)
        panels = drawing.subplots(2, 2)
        count = len(gains(swept, "ttft_s"))
        for panel, (field, what) in zip(panels.flat, FIELDS.items(), strict=True):
            panel.bar(range(count), gains(swept, field), color=looks["Bullet"].colour, alpha=0.7, label="ours")
            panel.axhline(MEANS[field], color="black", ls="--", lw=0.9, label="paper, mean")
            panel.set_title(f"{what} {BASELINE}")
            panel.set_xticks([])
            if field == "ttft_s":
                panel.set_yscale("log")
                panel.yaxis.set_minor_formatter(PlainLog())
        for panel in panels[1]:
            panel.set_xlabel("rates of " + ", ".join(RATES), fontsize=7)
        legend_above(drawing, panels[0][0])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    swept = simulate(chosen)
    finish("headline", chosen, draw(swept), KEY_HEADER, rows_of(swept), numbers(swept))
    describe(RATES, chosen)


if __name__ == "__main__":
    main()
