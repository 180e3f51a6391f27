"""Figure 17: normalised generation latency by rate, Llama-3.1-70B on eight A100 whose links give 20 GB/s.

python -m benchmarks.paper.fig17 [--out out/paper] [--seeds 1] [--jobs N]
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from benchmarks.paper.command import KEY_HEADER, Swept, describe, evaluated, finish, looks_of, options, rows_of, sweep
from benchmarks.paper.numbers import Number
from benchmarks.paper.runs import mean
from sim.plots.style import figure, legend_above, styled

RATES = {"ShareGPT": (1.0, 2.0, 3.0, 4.0), "Azure-Code": (0.1, 0.2, 0.3, 0.4, 0.5)}
SYSTEMS = ("Bullet", "SGLang-2048", "vLLM-1024")
SERVER: dict[str, Any] = {
    "model": "Llama-3.1-70B",
    "device": "A100-80G",
    "tensor_parallel": 8,
    "latency": {"link_bytes_per_s": 20e9},
}
WHAT_IF = 12e9
"""A link that gives less than its rate, as a ring of eight GPUs over PCIe does; the runs that have a number here."""

PAPER = {
    ("ShareGPT", "Bullet", 3.0): 173.0,
    ("ShareGPT", "vLLM-1024", 3.0): 207.0,
    ("ShareGPT", "SGLang-2048", 3.0): 319.0,
    ("Azure-Code", "Bullet", 0.5): 203.0,
    ("Azure-Code", "vLLM-1024", 0.3): 213.0,
    ("Azure-Code", "SGLang-2048", 0.3): 291.0,
}
"""Mean ms a token. The text has chunks of 2048 on Azure-Code; of vLLM's we take its setting elsewhere."""

PAPER_P99 = 223.0
"""Of Bullet on ShareGPT at 3 req/s."""


def numbers(swept: Swept, slower: Swept) -> list[Number]:
    """Means, one P99, and Bullet's place; means over the slower link."""
    found = [
        Number(
            figure="17",
            key=f"fig17.{key[0]}.{key[1]}",
            what=f"normalised latency of {key[1]}, {key[0]} at {key[2]:g} req/s",
            paper=told,
            ours=1e3 * mean(swept[key], "normalised_s"),
            unit=" ms",
        )
        for key, told in PAPER.items()
    ]
    p99 = 1e3 * mean(swept["ShareGPT", "Bullet", 3.0], "normalised_p99_s")
    what = "P99 normalised latency of Bullet, ShareGPT at 3 req/s"
    found.append(Number(figure="17", key="fig17.p99", what=what, paper=PAPER_P99, ours=p99, unit=" ms"))
    for name, rates in RATES.items():
        least = all(
            mean(swept[name, "Bullet", rate], "normalised_s") <= mean(swept[name, other, rate], "normalised_s")
            for other in SYSTEMS
            for rate in rates
        )
        what = f"Bullet's normalised latency is the least at every rate, {name}"
        found.append(Number(figure="17", key=f"fig17.least_{name}", what=what, holds=least))
    for (name, system, rate), seeds in slower.items():
        if (name, system, rate) in PAPER:
            what = f"with links of 12 GB/s, normalised latency of {system}, {name} at {rate:g} req/s"
            ours = 1e3 * mean(seeds, "normalised_s")
            found.append(Number(figure="17", key=f"fig17.slower.{name}.{system}", what=what, ours=ours, unit=" ms"))
    return found


def draw(swept: Swept) -> Figure:
    """A panel a workload; the paper's numbers as stars."""
    workloads = list(dict.fromkeys(key[0] for key in swept))
    with styled():
        drawing = figure(7.2, 2.8)
        panels = drawing.subplots(1, len(workloads), squeeze=False)[0]
        for panel, name in zip(panels, workloads, strict=True):
            for system, look in looks_of(SYSTEMS).items():
                rates = [rate for workload, other, rate in swept if (workload, other) == (name, system)]
                values = [1e3 * mean(swept[name, system, rate], "normalised_s") for rate in rates]
                look.plot(panel, rates, values, system)
                stars = [(key[2], value) for key, value in PAPER.items() if key[:2] == (name, system)]
                for rate, value in stars:
                    panel.plot(rate, value, "*", color=look.colour, ms=10, mec="black")
            panel.set_title(name)
            panel.set_xlabel("requests/s")
            panel.set_ylim(bottom=0)
        panels[0].set_ylabel("normalised latency (ms/token)")
        legend_above(drawing, panels[0])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    swept = sweep(RATES, evaluated(*SYSTEMS), chosen, **SERVER)
    server = {**SERVER, "latency": {"link_bytes_per_s": WHAT_IF}}
    stated = {name: sorted({key[2] for key in PAPER if key[0] == name}) for name in RATES}
    slower = sweep(stated, evaluated(*SYSTEMS), chosen, **server)
    finish("fig17", chosen, draw(swept), KEY_HEADER, rows_of(swept), numbers(swept, slower))
    describe(RATES, chosen)


if __name__ == "__main__":
    main()
