"""Figure 20: a timeline of Azure-Code at 5 req/s, Bullet above SGLang-2048: prefill SMs, tokens and batch, who waits.

    python -m benchmarks.paper.fig20 [--out out/paper] [--seeds 3] [--jobs N]

Ratios are of means over seeds; the timeline is the first seed's.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.command import Options, Swept, describe, evaluated, finish, looks_of, options, sweep
from benchmarks.paper.numbers import Number
from benchmarks.paper.runs import mean
from benchmarks.paper.setting import SYSTEMS, WORKLOADS, config
from sim.plots.levels import Floats, held
from sim.plots.style import LANE_COLOURS, figure, styled
from sim.records import StepLog
from sim.simulate import simulate

WORKLOAD, RATE = "Azure-Code", 5.0
PAIR = ("Bullet", "SGLang-2048")
PAPER = {"queueing_s": (4.17, "queueing"), "ttft_s": (9.15, "mean TTFT"), "tpot_s": (1.33, "mean TPOT")}
SPAN_S = 60.0
BINS = 240


def steps_of(system: str, chosen: Options) -> StepLog:
    """The steps of the first seed's run."""
    workload = WORKLOADS[WORKLOAD]
    made = config(workload, SYSTEMS[system].of(workload), RATE, 0, chosen.out, requests=chosen.of(workload))
    return simulate(made).steps


def series(steps: StepLog, edges: Floats) -> dict[str, Floats]:
    """Means over bins: SMs of launches that prefill, their tokens, requests that decode, requests that wait."""
    order = np.argsort(steps.start_s, kind="stable")
    start, end = steps.start_s[order], steps.end_s[order]
    prefill, decode = steps.prefill_tokens[order], steps.decode_requests[order]
    found = {}
    for name, rows, values in (
        ("prefill_sms", prefill > 0, steps.sms[order]),
        ("prefill_tokens", prefill > 0, prefill),
        ("decode_batch", decode > 0, decode),
    ):
        found[name] = held(edges, start[rows], end[rows], values[rows].astype(np.float64))
    until = np.append(start[1:], end[-1])
    found["waiting"] = held(edges, start, until, steps.waiting[order].astype(np.float64))
    return found


def numbers(swept: Swept) -> list[Number]:
    """SGLang-2048 over Bullet."""
    bullet, other = (swept[WORKLOAD, name, RATE] for name in PAIR)
    return [
        Number(
            figure="20",
            key=f"fig20.{field}",
            what=f"{what} of {PAIR[1]} over Bullet's, {WORKLOAD} at {RATE:g} req/s",
            paper=told,
            ours=mean(other, field) / mean(bullet, field),
            unit="x",
        )
        for field, (told, what) in PAPER.items()
    ]


def draw(of_system: dict[str, dict[str, Floats]], edges: Floats) -> Figure:
    """A column a system."""
    middles, styles = (edges[:-1] + edges[1:]) / 2, looks_of(of_system)
    with styled():
        drawing = figure(7.2, 4.6)
        panels = drawing.subplots(4, len(of_system), sharex=True, sharey="row", squeeze=False)
        for column, (name, values) in enumerate(of_system.items()):
            colour = styles[name].colour
            panels[0][column].fill_between(middles, values["prefill_sms"], color=LANE_COLOURS["prefill"], step="mid")
            panels[1][column].plot(middles, values["prefill_tokens"], color=colour)
            panels[2][column].plot(middles, values["decode_batch"], color=colour)
            panels[3][column].plot(middles, values["waiting"], color=colour)
            panels[0][column].set_title(f"{name}, {WORKLOAD} at {RATE:g} req/s")
            panels[3][column].set_xlabel("time (s)")
        for row, label in zip(panels, ("prefill SMs", "prefill\ntokens", "decode\nbatch", "waiting"), strict=True):
            row[0].set_ylabel(label)
            row[0].set_ylim(bottom=0)
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=3)
    swept = sweep({WORKLOAD: (RATE,)}, evaluated(*PAIR), chosen)
    edges = np.linspace(0.0, SPAN_S, BINS + 1)
    of_system = {name: series(steps_of(name, chosen), edges) for name in PAIR}
    rows = [
        (name, float(edges[place]), *(float(values[field][place]) for field in values))
        for name, values in of_system.items()
        for place in range(BINS)
    ]
    header = ("system", "time_s", "prefill_sms", "prefill_tokens", "decode_batch", "waiting")
    finish("fig20", chosen, draw(of_system, edges), header, rows, numbers(swept))
    describe([WORKLOAD], chosen)


if __name__ == "__main__":
    main()
