"""How far Bullet is from the oracle, which decision loses most, and what our variant makes of it.

    python -m benchmarks.paper.ceiling [--out out/paper] [--seeds 1] [--jobs N] [--requests N]

The setting is figure 15's, at its higher rates. The oracle searches every split at every decision and knows how long
answers will be. With one of its decisions taken away (requests as they wait; no pause; lengths unknown; one share for
decode) what it loses is what that decision is worth; the same is done to Bullet, and bullet-eager with one of its four
changes undone says which of them counts.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.paper.command import KEY_HEADER, Swept, finish, options, rows_of, sweep
from benchmarks.paper.runs import mean
from benchmarks.paper.setting import WORKLOADS, System
from benchmarks.paper_kernels import table
from sim.plots.style import styled

RATES = {"ShareGPT": (18.0, 22.0, 25.0), "Azure-Code": (4.4, 5.0, 5.5), "arXiv-Summary": (0.7, 0.8, 0.9)}

SYSTEMS = {
    "oracle": System(policy="oracle", settings={}),
    "oracle, as they wait": System(policy="oracle", settings={"order": False}),
    "oracle, no pause": System(policy="oracle", settings={"pause": False}),
    "oracle, lengths unknown": System(policy="oracle", settings={"lengths": False}),
    "oracle, 24 SMs decode": System(policy="oracle", settings={"decode_sms": 24}),
    "Bullet": System(policy="bullet", settings={}),
    "Bullet, as they wait": System(policy="bullet", settings={"reorder": False}),
    "Bullet, no pause": System(policy="bullet", settings={"pause_decode": False}),
    "Bullet, most on time": System(policy="bullet", settings={"on_time": True}),
    "bullet-eager": System(policy="bullet-eager", settings={}),
    "bullet-eager, shortest first": System(policy="bullet-eager", settings={"on_time": False}),
    "bullet-eager, pause for queues": System(policy="bullet-eager", settings={"pause_on_queue": True}),
    "bullet-eager, no cap": System(policy="bullet-eager", settings={"cap_at_drain": False}),
    "bullet-eager, no hurry": System(policy="bullet-eager", settings={"hurry_for_kv": False}),
}


def draw(swept: Swept) -> Figure:
    """Attainment of each system, a panel a workload, a mark a rate."""
    with styled():
        drawing = Figure(figsize=(7.2, 3.6), layout="constrained")
        panels = drawing.subplots(1, len(RATES), sharey=True, squeeze=False)[0]
        for panel, (name, rates) in zip(panels, RATES.items(), strict=True):
            for rate, marker in zip(rates, "osD", strict=True):
                attained = [mean(swept[name, system, rate], "attainment") for system in SYSTEMS]
                panel.plot(attained, range(len(SYSTEMS)), marker, ls="none", label=f"{rate:g}/s")
            panel.set_title(name)
            panel.set_xlabel("SLO attainment")
            panel.set_yticks(range(len(SYSTEMS)), list(SYSTEMS))
            panel.invert_yaxis()
            panel.legend(loc="lower left")
    return drawing


def _latencies(swept: Swept, name: str, system: str, rate: float) -> str:
    seeds = swept[name, system, rate]
    return f"{mean(seeds, 'ttft_s'):.2f} s, {1e3 * mean(seeds, 'tpot_s'):.0f} ms"


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    swept = sweep(RATES, SYSTEMS, chosen)
    rows = [
        (
            system,
            *(f"{mean(swept[name, system, rate], 'attainment'):.3f}" for name in WORKLOADS for rate in RATES[name]),
        )
        for system in SYSTEMS
    ]
    header = [f"{name} {rate:g}/s" for name in WORKLOADS for rate in RATES[name]]
    finish("ceiling", chosen, draw(swept), KEY_HEADER, rows_of(swept), ())
    table("### SLO attainment", ("system", *header), rows)
    latencies = [
        (system, *(_latencies(swept, name, system, rate) for name in WORKLOADS for rate in RATES[name]))
        for system in SYSTEMS
    ]
    table("### Mean TTFT and TPOT", ("system", *header), latencies)


if __name__ == "__main__":
    main()
