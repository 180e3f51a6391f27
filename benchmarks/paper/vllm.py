"""The paper's vLLM by kernel times of SGLang's, as in all figures, and by those of vLLM itself.

    python -m benchmarks.paper.vllm [--out out/paper] [--seeds 3] [--jobs N] [--requests N]

The built-in A100 is fitted to kernels that were timed with SGLang. Of vLLM there is a table of the same GPU, to which
``a100_vllm.json`` is fitted (``make models``): its decode attention divides long sequences over the SMs, where the
other does not, and its products are a little faster. Prints a decode step by both, and by workload the rate at 90 %
attainment beside the paper's, of SGLang too, and mean TPOT over the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.paper.command import Options, options
from benchmarks.paper.fig15 import RATES
from benchmarks.paper.points import KNEE, Point, of, points
from benchmarks.paper.runs import Outcome, Run, mean, outcomes
from benchmarks.paper.setting import DEVICE, LATENCY, MODEL, SYSTEMS, WORKLOADS, config
from benchmarks.paper_kernels import table
from profiler import Work, fitted
from profiler.devicecalibration import load_calibration
from sim.metrics import knee

VLLM = "vLLM-1024"
SGLANG = ("SGLang-1024", "SGLang-2048")
OWN = Path(__file__).parent / "a100_vllm.json"
LONG = (16, 8192)
"""Sequences and tokens of each."""

VARIANTS: dict[tuple[str, str], dict[str, Any]] = {
    **{("the same", system): {} for system in (*SGLANG, VLLM)},
    ("its own", VLLM): {"model": str(OWN)},
}
"""Whose kernels, and which system: what differs in its latency settings."""


def runs(chosen: Options) -> Iterator[Run]:
    """All of them; the key is kernels, system, workload, rate, seed."""
    for (kernels, system), changes in VARIANTS.items():
        for name, workload in WORKLOADS.items():
            for rate in RATES[name]:
                for seed in range(chosen.seeds):
                    settings = {"latency": LATENCY | changes, "requests": chosen.of(workload)}
                    made = config(workload, SYSTEMS[system].of(workload), rate, seed, chosen.out, **settings)
                    yield Run((kernels, system, name, rate, seed), name, made)


def row(
    name: str, system: str, kernels: str, curve: Mapping[float, Sequence[Outcome]], paper: Sequence[Point]
) -> tuple[str, ...]:
    """A system on a workload: its knee and the paper's, and its TPOT over the paper's, in the mean of the points."""
    found = knee(list(curve), [mean(one, "attainment") for one in curve.values()])
    theirs = [point.value for point in of(paper, name, system, KNEE)]
    ratios = [
        1e3 * mean(curve[one.rate], "tpot_s") / one.value
        for one in of(paper, name, system, "tpot_ms")
        if one.rate in curve
    ]
    return (
        name,
        system,
        kernels,
        "" if found.rate is None else f"{found.rate:.3g}/s",
        f"{theirs[0]:.3g}/s" if theirs else "",
        f"{fmean(ratios):.2f}" if ratios else "",
    )


def decode_steps() -> str:
    """A decode step of long sequences by both."""
    work = Work((), LONG[0], LONG[0] * LONG[1])
    models = (fitted(MODEL, DEVICE), fitted(MODEL, load_calibration(OWN)))
    same_s, own_s = (model.estimate(work, model.device.sms).seconds for model in models)
    shape = f"{LONG[0]} sequences of {LONG[1]:,} tokens"
    return f"A decode step of {shape}: {1e3 * same_s:.1f} ms by the same kernels, {1e3 * own_s:.1f} ms by its own."


def main() -> None:
    """See the module."""
    chosen, paper = options(__doc__, seeds=3), points()
    print(decode_steps())
    made = outcomes(list(runs(chosen)), chosen.jobs)
    rows = [
        row(
            name,
            system,
            kernels,
            {rate: [made[kernels, system, name, rate, seed] for seed in range(chosen.seeds)] for rate in RATES[name]},
            paper,
        )
        for name in WORKLOADS
        for kernels, system in VARIANTS
    ]
    header = ("workload", "system", "kernels", "rate at 90 %", "paper", "TPOT over paper's")
    table("### Whose kernels vLLM runs", header, rows)


if __name__ == "__main__":
    main()
