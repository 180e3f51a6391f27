"""What "TTFT per prompt token" may mean, and which reading fits the paper's attainment at low rates.

    python -m benchmarks.paper.readings [--out out/paper] [--seeds 3] [--jobs N]

Taken request by request, a prompt of 12 tokens has 36 ms, less than one iteration, and yet the paper's attainment is
1.0 at low rates. For each reading: the root mean square of ours less the paper's attainment at the points of Bullet and
SGLang where the paper has 0.6 or more, by workload, and over workloads. The scheduler's own limits are those of the
reading that is used everywhere else.
"""

from __future__ import annotations

import math
from collections import defaultdict

from benchmarks.paper.command import options
from benchmarks.paper.points import of, points
from benchmarks.paper.runs import READINGS, SEEDS, Run, outcomes
from benchmarks.paper.setting import SYSTEMS, WORKLOADS, config
from benchmarks.paper_kernels import table

LOW = 0.6
COMPARED = ("Bullet", "SGLang-1024", "SGLang-2048")


def main() -> None:
    """See the module."""
    chosen = options(__doc__, seeds=len(SEEDS))
    paper, seeds = points(), range(chosen.seeds)
    low = [
        (name, system, one.rate, one.value)
        for name in WORKLOADS
        for system in COMPARED
        for one in of(paper, name, system, "slo_attainment")
        if one.value >= LOW and one.rate is not None
    ]
    runs = []
    for name, system, rate, _ in low:
        workload = WORKLOADS[name]
        policy = SYSTEMS[system].of(workload)
        runs += [
            Run((name, system, rate, seed), name, config(workload, policy, rate, seed, chosen.out)) for seed in seeds
        ]
    made = outcomes(runs, chosen.jobs)
    rows = []
    for reading in READINGS:
        errors = defaultdict(list)
        for name, system, rate, theirs in low:
            ours = sum(made[name, system, rate, seed].by_reading[reading] for seed in seeds) / len(seeds)
            errors[name].append(ours - theirs)
        by_workload = [_rms(errors[name]) for name in WORKLOADS]
        everywhere = math.sqrt(sum(value**2 for value in by_workload) / len(by_workload))
        rows.append((reading, *(f"{value:.3f}" for value in (*by_workload, everywhere))))
    counts = [f"{name} ({sum(one[0] == name for one in low)})" for name in WORKLOADS]
    table("### Attainment at low rates: RMS of ours less the paper's", ("reading", *counts, "all"), rows)


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values)) if values else math.nan


if __name__ == "__main__":
    main()
