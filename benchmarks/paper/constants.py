"""What each constant of the testbed does to figure 15: knees and TPOT of Bullet and SGLang without it.

    python -m benchmarks.paper.constants [--out out/paper] [--seeds 1] [--jobs N]

For all of them, for each left out, and for none: by workload the root mean square of ln(ours / paper) over the systems'
rates at 90 % attainment and over their mean TPOTs, so 0.10 is about 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.paper.command import Options, options
from benchmarks.paper.fig15 import RATES
from benchmarks.paper.points import KNEE, Point, of, points
from benchmarks.paper.runs import Outcome, Run, mean, outcomes
from benchmarks.paper.setting import LATENCY, SYSTEMS, WORKLOADS, config
from benchmarks.paper_kernels import table
from sim.metrics import knee

COMPARED = ("Bullet", "SGLang-1024", "SGLang-2048")

WITHOUT: dict[str, dict[str, float]] = {
    "pace": {"pace": 1.0},
    "host time of a pass that prefills": {"prefill_pass_overhead_s": 0.0},
    "host time of its sequences": {"prefill_sequence_overhead_s": 0.0},
    "re-partition and hand-over": {"repartition_s": 0.0, "handover_s": 0.0},
}
CHUNKS = "chunk handling"
VARIANTS = ("all of them", *(f"no {name}" for name in WITHOUT), f"no {CHUNKS}", "none")


def changed(variant: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the latency model and of SGLang's policy under a variant."""
    gone = [name for name in (*WITHOUT, CHUNKS) if variant in ("none", f"no {name}")]
    latency = dict(LATENCY)
    for name in gone:
        latency |= WITHOUT.get(name, {})
    return latency, {"prompt_share": 1.0} if CHUNKS in gone else {}


def runs(chosen: Options) -> Iterator[Run]:
    """All of them; the key is variant, workload, system, rate, seed."""
    for variant in VARIANTS:
        latency, settings = changed(variant)
        for name, workload in WORKLOADS.items():
            for system in COMPARED:
                policy = SYSTEMS[system].of(workload)
                if policy["name"] != "bullet":
                    policy = policy | {"settings": policy["settings"] | settings}
                for rate in RATES[name]:
                    for seed in range(chosen.seeds):
                        made = config(workload, policy, rate, seed, chosen.out, latency=latency)
                        yield Run((variant, name, system, rate, seed), name, made)


def errors(
    made: Mapping[tuple[Any, ...], Outcome], variant: str, name: str, paper: tuple[Point, ...], seeds: int
) -> tuple[list[float], list[float]]:
    """ln(ours / paper) of knees and of TPOTs. A knee outside of the rates counts as at the edge."""
    knees, tpots = [], []
    for system in COMPARED:
        curve = {rate: [made[variant, name, system, rate, seed] for seed in range(seeds)] for rate in RATES[name]}
        found = knee(list(curve), [mean(one, "attainment") for one in curve.values()])
        ours = found.rate or found.tested[0]
        knees += [math.log(ours / one.value) for one in of(paper, name, system, KNEE)]
        tpots += [
            math.log(1e3 * mean(curve[one.rate], "tpot_s") / one.value)
            for one in of(paper, name, system, "tpot_ms")
            if one.rate in curve
        ]
    return knees, tpots


def main() -> None:
    """See the module."""
    chosen = options(__doc__)
    paper = points()
    made = outcomes(list(runs(chosen)), chosen.jobs)
    rows = []
    for variant in VARIANTS:
        cells = []
        for name in WORKLOADS:
            for values in errors(made, variant, name, paper, chosen.seeds):
                cells.append(f"{math.sqrt(sum(x * x for x in values) / len(values)):.2f}" if values else "")
        rows.append((variant, *cells))
    header = [f"{name}, {what}" for name in WORKLOADS for what in ("knees", "TPOT")]
    table("### RMS of ln(ours / paper) without a constant", ("constants", *header), rows)


if __name__ == "__main__":
    main()
