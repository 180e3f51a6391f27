"""Figure 18: normalised generation latency by rate, Llama-3.1-70B on 8 x H100 and Qwen3-235B-A22B-FP8 on 8 x H20.

    python -m benchmarks.paper.fig18 [--out out/paper] [--seeds 1] [--jobs N]

The text does not say whose lengths its are. Of 110 ms a token with a TTFT of 1.4 s and a TPOT of 45 ms, 65 ms are TTFT
over answer: answers have some 20 tokens, which is Azure-Code. Kernel times of the H20, and of mixtures of experts, are
a roofline's: nobody has measured them for us. 3P1D is four such servers, three of which prefill, at four times the rate
and with KV over 200 GB/s, so that GPUs are equal. ``pace``, which stands for PCIe boards of the A100, is 1 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from benchmarks.paper.runs import Outcome, mean
from benchmarks.paper.setting import System
from sim.plots.style import POLICY_LOOKS, PlainLog, figure, legend_above, styled

SYSTEMS = ("Bullet", "SGLang-2048", "vLLM-1024")
WORKLOAD = "Azure-Code"


def server(model: str, device: str, link_bytes_per_s: float) -> dict[str, Any]:
    """Settings of eight GPUs that are one instance."""
    latency = {"pace": 1.0, "link_bytes_per_s": link_bytes_per_s}
    return {"model": model, "device": device, "tensor_parallel": 8, "latency": latency}


SERVERS = {
    "8 x H100, Llama-3.1-70B": server("Llama-3.1-70B", "H100", 600e9),
    "8 x H20, Qwen3-235B-A22B-FP8": server("Qwen3-235B-A22B-FP8", "H20", 400e9),
}
RATES = {"8 x H100, Llama-3.1-70B": (2.0, 4.0, 6.0, 8.0), "8 x H20, Qwen3-235B-A22B-FP8": (1.0, 2.0, 4.0, 6.0)}
H20 = "8 x H20, Qwen3-235B-A22B-FP8"
PAPER = {"normalised_s": (110.0, "normalised latency"), "ttft_s": (1400.0, "TTFT"), "tpot_s": (45.0, "TPOT")}
"""Bullet at 4 req/s on the H20, in ms."""

INSTANCES = 4


def disaggregated(rate: float, chosen: Options) -> Sequence[Outcome]:
    """3P1D on the H20 at a rate a server."""
    settings = {
        **SERVERS[H20],
        "latency": {**SERVERS[H20]["latency"], "link_bytes_per_s": 200e9},
        "instances": INSTANCES,
    }
    system = System(policy="disaggregation", settings={"prefill_instances": 3, "decode_instances": 1})
    (separate,) = sweep({WORKLOAD: (INSTANCES * rate,)}, {"3P1D": system}, chosen, **settings).values()
    return separate


def numbers(of_server: dict[str, Swept], separate: Sequence[Outcome]) -> list[Number]:
    """Bullet on the H20, and how it stands to 3P1D."""
    bullet = of_server[H20][WORKLOAD, "Bullet", 4.0]
    found = [
        Number(
            figure="18",
            key=f"fig18.{field}",
            what=f"{what} of Bullet on {H20} at 4 req/s",
            paper=told,
            ours=1e3 * mean(bullet, field),
            unit=" ms",
        )
        for field, (told, what) in PAPER.items()
    ]
    ratio = mean(separate, "normalised_s") / mean(bullet, "normalised_s")
    what = "normalised latency of 3P1D over Bullet's on the H20, 4 req/s a server"
    return [*found, Number(figure="18", key="fig18.3p1d", what=what, paper=1.0, ours=ratio, unit="x")]


def draw(of_server: dict[str, Swept], separate: Sequence[Outcome]) -> Figure:
    """A panel a server."""
    with styled():
        drawing = figure(7.2, 2.8)
        panels = drawing.subplots(1, len(of_server))
        for panel, (place, swept) in zip(panels, of_server.items(), strict=True):
            for system, look in looks_of(SYSTEMS).items():
                values = [1e3 * mean(swept[WORKLOAD, system, rate], "normalised_s") for rate in RATES[place]]
                look.plot(panel, RATES[place], values, system)
            panel.set_title(place)
            panel.set_xlabel("requests/s a server")
        colour, marker = POLICY_LOOKS["disaggregation"]
        panels[1].plot(4, 1e3 * mean(separate, "normalised_s"), marker, color=colour, label="3P1D, 4 servers")
        panels[1].plot(4, PAPER["normalised_s"][0], "*", color="black", ms=10, label="paper, Bullet")
        panels[1].set_yscale("log")
        panels[1].yaxis.set_minor_formatter(PlainLog())
        panels[0].set_ylabel("normalised latency (ms/token)")
        legend_above(drawing, panels[1])
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    of_server = {
        place: sweep({WORKLOAD: RATES[place]}, evaluated(*SYSTEMS), chosen, **settings)
        for place, settings in SERVERS.items()
    }
    separate = disaggregated(4.0, chosen)
    rows = [(place, *row) for place, swept in of_server.items() for row in rows_of(swept)]
    drawing = draw(of_server, separate)
    finish("fig18", chosen, drawing, ("server", *KEY_HEADER), rows, numbers(of_server, separate))
    describe([WORKLOAD], chosen)


if __name__ == "__main__":
    main()
