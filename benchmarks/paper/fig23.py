"""Figure 23: Bullet without its parts, by P90 TTFT and mean TPOT on Azure-Code and ShareGPT.

    python -m benchmarks.paper.fig23 [--out out/paper] [--seeds 1] [--jobs N]

Naive launches both phases on all SMs, in order of arrival. w/Partition gives each half of them, which nothing moves:
moving is the scheduler's. w/Scheduler orders the queue and delays decode. "moved" is the other reading of w/Partition,
shares that follow the state while requests go as they come. Launches on common SMs start their thread blocks in
the order in which kernels come (``sharing: in-order``).
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from benchmarks.paper.command import (
    IN_ORDER,
    KEY_HEADER,
    Options,
    Swept,
    describe,
    finish,
    options,
    rows_of,
    sweep,
)
from benchmarks.paper.numbers import Number
from benchmarks.paper.runs import mean
from benchmarks.paper.setting import SYSTEMS, System
from sim.plots.style import GREEN, ORANGE, PURPLE, SKY, VERMILION, PlainLog, figure, legend_above, styled

RATES = {"Azure-Code": (5.0,), "ShareGPT": (20.0,)}
AS_THEY_COME: dict[str, Any] = {"reorder": False, "pause_decode": False}
VARIANTS = {
    "Naive": System(policy="bullet", settings={"partition": False, **AS_THEY_COME}),
    "w/Partition": System(policy="bullet", settings={"move_sms": False, **AS_THEY_COME}),
    "moved": System(policy="bullet", settings=AS_THEY_COME),
    "w/Scheduler": System(policy="bullet", settings={"partition": False}),
    "Bullet": SYSTEMS["Bullet"],
}
COLOURS = {"Naive": SKY, "w/Partition": PURPLE, "moved": ORANGE, "w/Scheduler": GREEN, "Bullet": VERMILION}


def simulate(chosen: Options) -> Swept:
    """All variants on both workloads."""
    return sweep(RATES, VARIANTS, chosen, latency=IN_ORDER)


def numbers(swept: Swept) -> list[Number]:
    """The paper's text has an order, no numbers."""
    ttft = {name: mean(swept["Azure-Code", name, 5.0], "ttft_p90_s") for name in VARIANTS}
    tpot = {name: mean(swept["Azure-Code", name, 5.0], "tpot_s") for name in VARIANTS}
    both, least = ("Naive", "w/Partition"), min(ttft.values())
    stated = (
        (
            "naive_tpot",
            "TPOT: Naive above w/Partition and Bullet",
            tpot["Naive"] > max(tpot["w/Partition"], tpot["Bullet"]),
        ),
        ("partition_ttft", "P90 TTFT: w/Partition the worst", ttft["w/Partition"] == max(ttft.values())),
        ("scheduler_ttft", "P90 TTFT: w/Scheduler below these", ttft["w/Scheduler"] < min(ttft[name] for name in both)),
        ("bullet_ttft", "P90 TTFT: Bullet the least", ttft["Bullet"] == least),
        ("bullet_tpot", "TPOT: Bullet below w/Scheduler", tpot["Bullet"] < tpot["w/Scheduler"]),
    )
    of = {name: mean(swept["ShareGPT", name, 20.0], "ttft_p90_s") for name in ("Bullet", "w/Scheduler")}
    what = "P90 TTFT: Bullet no more than w/Scheduler, ShareGPT"
    chat = Number(figure="23", key="fig23.sharegpt", what=what, holds=of["Bullet"] <= of["w/Scheduler"])
    orders = [
        Number(figure="23", key=f"fig23.{key}", what=f"{what}, Azure-Code", holds=holds) for key, what, holds in stated
    ]
    return [*orders, chat]


def draw(swept: Swept) -> Figure:
    """A panel a workload: down and left is better."""
    with styled():
        drawing = figure(7.2, 2.8)
        panels = drawing.subplots(1, len(RATES))
        for panel, (name, (rate,)) in zip(panels, RATES.items(), strict=True):
            for variation, colour in COLOURS.items():
                of = swept[name, variation, rate]
                panel.plot(mean(of, "ttft_p90_s"), 1e3 * mean(of, "tpot_s"), "s", ms=7, color=colour, label=variation)
            panel.set_title(f"{name}, {rate:g} req/s")
            panel.set_xlabel("P90 TTFT (s)")
            panel.set_ylabel("mean TPOT (ms)")
            panel.set_xscale("log")
            panel.xaxis.set_minor_formatter(PlainLog())
            panel.set_ylim(bottom=0)
        legend_above(drawing, panels[0])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=2)
    swept = simulate(chosen)
    finish("fig23", chosen, draw(swept), KEY_HEADER, rows_of(swept), numbers(swept))
    describe(RATES, chosen)


if __name__ == "__main__":
    main()
