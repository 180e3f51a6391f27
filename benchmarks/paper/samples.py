"""How much of a TPOT the sample decides: ours at each of the paper's rates, over many samples and their arrivals.

    python -m benchmarks.paper.samples [--out out/paper] [--seeds 10] [--jobs N] [--requests N]

The paper serves one sample, which is not public. Below saturation in lock-step a longer iteration makes a larger batch
and a larger batch a longer iteration, so that small differences grow. Prints, for each TPOT of Bullet and SGLang in
figure 15, the paper's, ours in the mean, the least and the most of a sample, and how many samples are within 20 % of
the paper's. Needs the digitised points and the lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean

from benchmarks.data import FOLDER, NOTHING_CHECKED
from benchmarks.paper.arxiv import WITHIN
from benchmarks.paper.command import options
from benchmarks.paper.constants import COMPARED
from benchmarks.paper.points import Point, of, points
from benchmarks.paper.runs import Run, outcomes
from benchmarks.paper.setting import SYSTEMS, WORKLOADS, config
from benchmarks.paper_kernels import table

Key = tuple[str, str, float]
"""Workload, system and rate."""


def theirs(paper: Sequence[Point]) -> dict[Key, float]:
    """The paper's mean TPOTs of these systems, in seconds."""
    return {
        (name, system, point.rate): point.value * 1e-3
        for name in WORKLOADS
        for system in COMPARED
        for point in of(paper, name, system, "tpot_ms")
        if point.rate is not None
    }


def row(key: Key, paper_s: float, ours_s: Sequence[float]) -> tuple[str, ...]:
    """One TPOT of the paper's, and ours of each sample."""
    name, system, rate = key
    mean_s = fmean(ours_s)
    near = sum(abs(one / paper_s - 1) <= WITHIN for one in ours_s)
    printed = (f"{value * 1e3:.0f} ms" for value in (paper_s, mean_s, min(ours_s), max(ours_s)))
    return (name, system, f"{rate:g}/s", *printed, f"{mean_s / paper_s - 1:+.0%}", f"{near} of {len(ours_s)}")


def main() -> int:
    """See the module; 2 where something it needs is not there."""
    chosen, paper = options(__doc__, seeds=10), theirs(points())
    missing = [workload.file for workload in WORKLOADS.values() if not (FOLDER / workload.file).exists()]
    if not paper or missing:
        print(f"error: {missing[0] if missing else 'the digitised figure 15'} is not there", file=sys.stderr)
        return NOTHING_CHECKED
    runs = []
    for name, system, rate in paper:
        workload = WORKLOADS[name]
        policy, requests = SYSTEMS[system].of(workload), chosen.of(workload)
        for seed in range(chosen.seeds):
            made = config(workload, policy, rate, seed, chosen.out, requests=requests)
            runs.append(Run((name, system, rate, seed), name, made))
    done = outcomes(runs, chosen.jobs)
    rows = [
        row(key, paper_s, [done[(*key, seed)].tpot_s for seed in range(chosen.seeds)]) for key, paper_s in paper.items()
    ]
    header = ("workload", "system", "rate", "paper", "mean", "least", "most", "mean over paper", f"within {WITHIN:.0%}")
    table(f"### Mean TPOT of {chosen.seeds} samples", header, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
