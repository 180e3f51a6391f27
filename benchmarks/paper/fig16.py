"""Figure 16: median and P90 of TTFT and TPOT by rate, five systems on ShareGPT, one A100.

python -m benchmarks.paper.fig16 [--out out/paper] [--seeds 1] [--jobs N]
"""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.paper.command import KEY_HEADER, Swept, describe, evaluated, finish, looks_of, options, rows_of, sweep
from benchmarks.paper.numbers import Number
from benchmarks.paper.runs import mean
from benchmarks.paper.setting import SYSTEMS
from sim.plots.style import figure, legend_above, styled

WORKLOAD = "ShareGPT"
RATES = (10.0, 14.0, 16.0, 18.0, 20.0, 22.0, 25.0)
PANELS = {
    "ttft_p50_s": ("median TTFT (s)", 1.0),
    "ttft_p90_s": ("P90 TTFT (s)", 1.0),
    "tpot_p50_s": ("median TPOT (ms)", 1e3),
    "tpot_p90_s": ("P90 TPOT (ms)", 1e3),
}
PAPER_AT_20 = {"ttft_s": 0.16, "ttft_p90_s": 0.31}


def numbers(swept: Swept) -> list[Number]:
    """Bullet's TTFT at 20 req/s; that of SGLang-1024 over it is with the headline."""
    bullet = swept[WORKLOAD, "Bullet", 20.0]
    names = {"ttft_s": "mean", "ttft_p90_s": "P90"}
    found = [
        Number(
            figure="16",
            key=f"fig16.{field}",
            what=f"Bullet's {names[field]} TTFT on ShareGPT at 20 req/s",
            paper=told,
            ours=mean(bullet, field),
            unit=" s",
        )
        for field, told in PAPER_AT_20.items()
    ]
    others = [mean(swept[WORKLOAD, name, 20.0], "ttft_p90_s") for name in SYSTEMS if name != "Bullet"]
    least = mean(bullet, "ttft_p90_s") < min(others)
    what = "P90 TTFT at 20 req/s: Bullet's is the least of the five"
    return [*found, Number(figure="16", key="fig16.least", what=what, holds=least)]


def draw(swept: Swept) -> Figure:
    """A panel a metric; the paper's two numbers as stars."""
    styles = looks_of(SYSTEMS)
    with styled():
        drawing = figure(7.2, 4.6)
        panels = drawing.subplots(2, 2, sharex=True)
        for panel, (field, (label, scale)) in zip(panels.flat, PANELS.items(), strict=True):
            for name, look in styles.items():
                rates = [rate for workload, system, rate in swept if system == name]
                look.plot(panel, rates, [scale * mean(swept[WORKLOAD, name, rate], field) for rate in rates], name)
            if field in PAPER_AT_20:
                panel.plot(
                    20, PAPER_AT_20[field], "*", color=styles["Bullet"].colour, ms=10, mec="black", label="paper"
                )
            panel.set_ylabel(label)
            if field.startswith("ttft"):
                panel.set_yscale("log")
        for panel in panels[1]:
            panel.set_xlabel("requests/s")
        legend_above(drawing, panels[0][1])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    swept = sweep({WORKLOAD: RATES}, evaluated(), chosen)
    finish("fig16", chosen, draw(swept), KEY_HEADER, rows_of(swept), numbers(swept))
    describe([WORKLOAD], chosen)


if __name__ == "__main__":
    main()
