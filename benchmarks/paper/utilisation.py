"""Utilisation of the GPU on ShareGPT at 20 req/s in the first 27 s, Bullet and SGLang-1024.

    python -m benchmarks.paper.utilisation [--out out/paper] [--seeds 3] [--jobs N]

The paper reads the GPU's counters; a simulation has none. What is alike, over the same seconds:

- SM active (an SM has a warp on it): SM-seconds of launches over all, less the host's time and the SMs that the waves
  of each kernel leave empty;
- tensor cores: FLOPs of the launches over the peak;
- bandwidth: their DRAM traffic over the peak.

A launch is known by its tokens and requests: its prompts are taken to be of equal length and to begin at the first
token, which leaves out the attention of later chunks to earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.command import Options, describe, finish, looks_of, options
from benchmarks.paper.numbers import Number
from benchmarks.paper.setting import SYSTEMS, WORKLOADS, config
from profiler import Work
from profiler.kernelsum import KernelSumModel
from profiler.tiles import idle_share
from sim.latencies import latency_model
from sim.metrics import e2e_s
from sim.plots.style import figure, legend_above, styled
from sim.records import StepLog
from sim.simulate import simulate

WORKLOAD, RATE, SPAN_S = "ShareGPT", 20.0, 27.0
PAIR = ("Bullet", "SGLang-1024")
SHOWN = {"active": "SM active", "tensor": "tensor cores", "bandwidth": "bandwidth"}
PAPER_ACTIVE = 86.2
PAPER_POINTS = {"active": 11.2, "tensor": 11.8, "bandwidth": 19.3}
PAPER_E2E_S = {"Bullet": 21.4, "SGLang-1024": 25.8}
ROUNDED = 16
"""Tokens that shapes are rounded to, so that like launches are counted once."""


@dataclass(frozen=True, slots=True)
class Use:
    """Percent of the span, and seconds end to end of the whole run."""

    active: float
    tensor: float
    bandwidth: float
    e2e_s: float


class Counter:
    """What launches do to a GPU, each shape once."""

    def __init__(self, model: KernelSumModel) -> None:
        self.model = model
        self.of = cache(self._of)

    def _of(self, work: Work, sms: int) -> tuple[float, float, float, float]:
        """(share of its SMs that a launch keeps busy, share of the time that is the host's, FLOPs, bytes)."""
        parts = self.model.breakdown(work, sms)
        total = sum(part.seconds for part in parts)
        busy = sum(part.seconds * (1 - idle_share(part.kernel.blocks or sms, sms)) for part in parts) / total
        host = self.model.host_seconds(work)
        return busy, host / (host + total), *self.model.cost(work)


def used(steps: StepLog, model: KernelSumModel, span_s: float) -> tuple[float, float, float]:
    """Percent of SM-seconds, FLOPs and bytes that the device could have given by then."""
    counter, device = Counter(model), model.device
    totals = np.zeros(3)
    for row in np.flatnonzero(steps.start_s < span_s):
        sms = int(steps.sms[row])
        if not sms:
            continue
        seconds = steps.end_s[row] - steps.start_s[row]
        inside = min(1.0, (span_s - steps.start_s[row]) / seconds)
        busy, host, flops, moved = counter.of(_work(steps, int(row), model.model.layers), sms)
        totals += inside * np.array((seconds * sms * busy * (1 - host), flops, moved))
    most = span_s * np.array((device.sms, device.peak_flops(model.model.dtype), device.dram_bytes_per_s))
    active, tensor, bandwidth = np.minimum(100.0, 100 * totals / most)
    return float(active), float(tensor), float(bandwidth)


def _work(steps: StepLog, row: int, layers: int) -> Work:
    prompts, tokens = int(steps.prefill_requests[row]), int(steps.prefill_tokens[row])
    each = max(1, round(tokens / max(1, prompts) / ROUNDED) * ROUNDED)
    requests, count = int(steps.decode_requests[row]), int(steps.layers[row])
    context = max(requests, round(int(steps.context_tokens[row]) / ROUNDED**2) * ROUNDED**2) if requests else 0
    whole = None if count == layers else count
    return Work(((each, 0),) * prompts, requests, context, whole, head=whole is None)


def measured(system: str, chosen: Options) -> Use:
    """Means over seeds."""
    workload, rows = WORKLOADS[WORKLOAD], []
    for seed in range(chosen.seeds):
        made = config(workload, SYSTEMS[system].of(workload), RATE, seed, chosen.out, requests=chosen.of(workload))
        result = simulate(made)
        rows.append((*used(result.steps, latency_model(made), SPAN_S), float(np.nanmean(e2e_s(result.records)))))
    return Use(*(float(value) for value in np.mean(rows, axis=0)))


def numbers(uses: dict[str, Use]) -> list[Number]:
    """SM active, gains in points, and end to end."""
    bullet, other = (uses[name] for name in PAIR)
    what = "SM active of Bullet, ShareGPT at 20 req/s"
    found = [Number(figure="use", key="use.active", what=what, paper=PAPER_ACTIVE, ours=bullet.active, unit=" %")]
    for field, points in PAPER_POINTS.items():
        what = f"{SHOWN[field]}, Bullet less {PAIR[1]}"
        gain = getattr(bullet, field) - getattr(other, field)
        found.append(Number(figure="use", key=f"use.{field}_gain", what=what, paper=points, ours=gain, unit=" points"))
    for name, told in PAPER_E2E_S.items():
        what = f"mean end to end of {name}, ShareGPT at 20 req/s"
        found.append(
            Number(figure="use", key=f"use.e2e_{name}", what=what, paper=told, ours=uses[name].e2e_s, unit=" s")
        )
    return found


def draw(uses: dict[str, Use]) -> Figure:
    """Bars by quantity; the paper's as black marks where its text has them: Bullet's SM active and the other's."""
    styles = looks_of(PAIR)
    with styled():
        drawing = figure(4.6, 2.8)
        axes = drawing.subplots()
        for place, name in enumerate(PAIR):
            at = [column + 0.35 * place for column in range(len(SHOWN))]
            axes.bar(
                at,
                [getattr(uses[name], field) for field in SHOWN],
                0.33,
                color=styles[name].colour,
                alpha=0.7,
                label=name,
            )
        axes.plot((0, 0.35), (PAPER_ACTIVE, PAPER_ACTIVE - PAPER_POINTS["active"]), "_k", ms=18, label="paper")
        axes.set_xticks([column + 0.175 for column in range(len(SHOWN))], list(SHOWN.values()))
        axes.set_ylabel("% of the first 27 s")
        legend_above(drawing, axes)
    return drawing


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=3)
    uses = {name: measured(name, chosen) for name in PAIR}
    rows = [(name, use.active, use.tensor, use.bandwidth, use.e2e_s) for name, use in uses.items()]
    header = ("system", "sm_active_percent", "tensor_percent", "bandwidth_percent", "e2e_s")
    finish("utilisation", chosen, draw(uses), header, rows, numbers(uses))
    describe([WORKLOAD], chosen)


if __name__ == "__main__":
    main()
