"""Figure 22: a fixed number of SMs for prefill, decode on all of them, against Bullet, which moves them.

    python -m benchmarks.paper.fig22 [--out out/paper] [--seeds 1] [--jobs N]

Fixed shares run in Bullet's engine and scheduler (benchmarks/paper/fixedprefill.py): provisioning alone differs.
Launches on common SMs start their thread blocks in the order in which kernels come (``sharing: in-order``). The text
does not say of which workload its numbers are; ours are those of Azure-Code.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.paper import fixedprefill
from benchmarks.paper.command import (
    IN_ORDER,
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
from benchmarks.paper.setting import System
from sim.plots.style import PURPLE, PlainLog, figure, legend_above, styled

RATES = {"Azure-Code": (5.0,), "ShareGPT": (20.0,)}
SHARES = (60, 72, 84, 96, 108)
BASELINE = "SGLang-2048"
PANELS = {"ttft_s": ("mean TTFT (s)", 1.0), "tpot_s": ("mean TPOT (ms)", 1e3), "attainment": ("SLO attainment", 1.0)}


def fixed(sms: int) -> System:
    """Prefill on ``sms`` SMs."""
    path = Path(fixedprefill.__file__).resolve()
    return System(policy=f"{path}:FixedPrefill", settings={"prefill_sms": sms})


def simulate(chosen: Options) -> Swept:
    """Bullet, chunked prefill, and each share; fixed ones are named by their SMs."""
    systems = evaluated("Bullet", BASELINE) | {str(sms): fixed(sms) for sms in SHARES}
    return sweep(RATES, systems, chosen, latency=IN_ORDER)


def numbers(swept: Swept) -> list[Number]:
    """Ratios on Azure-Code, and whether some fixed share is better in everything."""
    name, rate = "Azure-Code", 5.0

    def ratio(one: str, other: str, field: str) -> float:
        return mean(swept[name, one, rate], field) / mean(swept[name, other, rate], field)

    stated = (
        ("ttft_108", "TTFT with 108 SMs over Bullet's", ratio("108", "Bullet", "ttft_s"), 1.20),
        ("p90_108", "P90 TTFT with 108 SMs over Bullet's", ratio("108", "Bullet", "ttft_p90_s"), 1.19),
        ("attainment_108", "attainment with 108 SMs over Bullet's", ratio("108", "Bullet", "attainment"), 0.87),
        ("ttft_84", f"TTFT with 84 SMs over {BASELINE}'s", ratio("84", BASELINE, "ttft_s"), 1.78),
        ("rate_84", f"throughput with 84 SMs over {BASELINE}'s", ratio("84", BASELINE, "throughput_rps"), 0.941),
    )
    found = [
        Number(figure="22", key=f"fig22.{key}", what=f"{what}, {name}", ours=ours, paper=paper, unit="x")
        for key, what, ours, paper in stated
    ]
    for name, (rate,) in RATES.items():
        what = f"no fixed share is better than Bullet in TTFT, TPOT and attainment, {name}"
        none = not any(beats(swept, name, rate, str(sms)) for sms in SHARES)
        found.append(Number(figure="22", key=f"fig22.none_{name}", what=what, holds=none))
    return found


def beats(swept: Swept, name: str, rate: float, share: str) -> bool:
    """Whether a fixed share is better than Bullet in all three."""
    ours, theirs = swept[name, share, rate], swept[name, "Bullet", rate]
    lower = all(mean(ours, field) < mean(theirs, field) for field in ("ttft_s", "tpot_s"))
    return lower and mean(ours, "attainment") > mean(theirs, "attainment")


def draw(swept: Swept) -> Figure:
    """A row a workload: metrics over prefill SMs, Bullet and chunked prefill as lines across."""
    styles = looks_of(("Bullet", BASELINE))
    with styled():
        drawing = figure(7.2, 4.2)
        panels = drawing.subplots(len(RATES), len(PANELS), squeeze=False, sharex=True)
        for row, (name, (rate,)) in zip(panels, RATES.items(), strict=True):
            for panel, (field, (label, scale)) in zip(row, PANELS.items(), strict=True):
                values = [scale * mean(swept[name, str(sms), rate], field) for sms in SHARES]
                panel.plot(SHARES, values, "D-", color=PURPLE, label="fixed prefill SMs")
                for system, look in styles.items():
                    level = scale * mean(swept[name, system, rate], field)
                    panel.axhline(level, color=look.colour, ls="--" if system == BASELINE else "-", label=system)
                panel.set_ylabel(label)
                if field == "ttft_s":
                    panel.set_yscale("log")
                    panel.yaxis.set_minor_formatter(PlainLog())
                    panel.set_title(f"{name}, {rate:g} req/s")
        for panel in panels[-1]:
            panel.set_xlabel("prefill SMs")
        legend_above(drawing, panels[0][0])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    swept = simulate(chosen)
    finish("fig22", chosen, draw(swept), KEY_HEADER, rows_of(swept), numbers(swept))
    describe(RATES, chosen)


if __name__ == "__main__":
    main()
