"""Capacity by search against the knee of a fine grid: how far apart, in how many simulations. Prints Markdown.

    python benchmarks/capacity.py [--requests 600] [--seeds 5] [--policy chunked ...] [--json]

For each policy `sim.capacity` searches for the highest rate that keeps the SLO of the workload, knowing
nothing beforehand. Then a grid is run to the end at every per cent of a factor of 4 about what it found, with the same
seeds and the same requests judged, and its knee is where the mean attainment over seeds falls below the target, as in
the tables of a sweep. The grid is what would be run without the search: at as fine a step, about a knee that nobody
knows, it spans as much. Exit status 1 where the two differ by more than 2 % or the search took more than a tenth of
the grid's simulations.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import table  # noqa: E402
from sim.capacity import Question, Search, typed  # noqa: E402
from sim.config import PolicySettings, RunConfig, SloSettings, WindowSettings  # noqa: E402
from sim.metrics import knee  # noqa: E402
from sim.scenarios import DEVICE, MODEL, PAPER_SLOS  # noqa: E402
from sim.simulate import measure, prepare  # noqa: E402
from sim.verdict import Cut  # noqa: E402

STEP = 1.01
SPAN = 4.0
MOST_APART = 0.02
MOST_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Rates in requests/s, simulations, and seconds of each way."""

    policy: str
    workload: str
    searched: float
    kept: float | None
    missed: float | None
    grid: float | None
    search_runs: int
    stopped: int
    grid_runs: int
    search_s: float
    grid_s: float

    @property
    def apart(self) -> float:
        return math.inf if self.grid is None else abs(self.searched / self.grid - 1)

    @property
    def met(self) -> bool:
        return self.apart <= MOST_APART and self.search_runs <= MOST_SHARE * self.grid_runs


def config(policy: str, workload: str, requests: int) -> RunConfig:
    """The fewest devices that the policy runs on, under the paper's limits."""
    return RunConfig(
        trace=f"workload:{workload}",
        requests=requests,
        policy=PolicySettings(name=policy),
        model=MODEL,
        device=DEVICE,
        instances=2 if policy == "disaggregation" else 1,
        slo=SloSettings(**PAPER_SLOS[workload]),
    )


def grid_rates(middle: float) -> list[float]:
    """Every per cent of a factor of SPAN, ``middle`` in the middle."""
    steps = math.ceil(math.log(SPAN) / math.log(STEP))
    return [typed(middle * STEP ** (place - steps / 2)) for place in range(steps + 1)]


def mean_attainment(run: RunConfig, rate: float, question: Question) -> float:
    """Over the seeds, every run to its end."""
    total = 0.0
    for seed in range(question.seeds):
        one = run.model_copy(update={"rate": rate, "seed": seed})
        prepared = prepare(one)
        arrivals = prepared.arrivals.apply(prepared.trace, seed).arrival_s
        assert arrivals is not None
        window = Cut(warmup=question.warmup, drain=question.drain).window(arrivals)
        settings = WindowSettings(warmup_s=window.warmup_s, drain_s=window.drain_s)
        attainment = measure(one.model_copy(update={"window": settings})).attainment
        assert attainment is not None
        total += attainment
    return total / question.seeds


def compare(policy: str, workload: str, requests: int, question: Question) -> Compared:
    """Both ways, one after the other."""
    run = config(policy, workload, requests)
    start = time.perf_counter()
    search = Search(question=question)
    found = search.capacity(run)
    between = time.perf_counter()
    rates = grid_rates(found.rate)
    expected = knee(rates, [mean_attainment(run, rate, question) for rate in rates], question.target).rate
    return Compared(
        policy=policy,
        workload=workload,
        searched=found.rate,
        kept=found.kept,
        missed=found.missed,
        grid=expected,
        search_runs=search.tested.simulations,
        stopped=search.tested.stopped,
        grid_runs=len(rates) * question.seeds,
        search_s=between - start,
        grid_s=time.perf_counter() - between,
    )


def show(found: Sequence[Compared], requests: int, question: Question) -> None:
    """Print one row a comparison."""
    header = (
        "policy, workload",
        "grid, requests/s",
        "search",
        "apart",
        "kept and missed with 95 %",
        "simulations: grid",
        "search",
        "share",
        "time, share",
        "within 2 % in a tenth",
    )
    rows = [
        (
            f"{one.policy}, {one.workload}",
            "-" if one.grid is None else f"{one.grid:.3f}",
            f"{one.searched:.3f}",
            f"{one.apart:.2%}",
            f"{_rate(one.kept)} and {_rate(one.missed)}",
            str(one.grid_runs),
            f"{one.search_runs} ({one.stopped} stopped early)",
            f"{one.search_runs / one.grid_runs:.1%}",
            f"{one.search_s / one.grid_s:.1%}",
            "yes" if one.met else "NO",
        )
        for one in found
    ]
    table(
        f"{MODEL} on {DEVICE} (disaggregation on two), {requests} requests a run, up to {question.seeds} seeds",
        header,
        rows,
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workload", choices=list(PAPER_SLOS), action="append")
    parser.add_argument("--policy", action="append")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    question = Question(seeds=given.seeds)
    found = [
        compare(policy, workload, given.requests, question)
        for workload in given.workload or list(PAPER_SLOS)
        for policy in given.policy or ["chunked", "disaggregation"]
    ]
    if given.json:
        print(json.dumps([asdict(one) | {"apart": one.apart, "met": one.met} for one in found], indent=2))
    else:
        show(found, given.requests, question)
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
