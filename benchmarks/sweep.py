"""How sweeps scale: two workers against one, and the 500-cell sweep. Prints Markdown.

    python benchmarks/sweep.py [--requests 300] [--json]
    python benchmarks/sweep.py --five-hundred [--requests 5000] [--out DIR] [--json]

The first runs 64 cells (four policies, sixteen rates) in one process and in two, three times each in turns, after a
round that starts the processes; compared are the medians. Required: 1.8 times as fast or more, where there are two
cores. The second runs benchmarks/sweep500.yaml in as many processes as there are cores, with fewer requests a cell
where --requests says so, and says how long it took and how many simulations its cells shared; --out keeps the results,
for `bulletsim plot` and `bulletsim report`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import cpu_name, table  # noqa: E402
from sim.fanout import Fanout  # noqa: E402
from sim.scenarios import DEVICE, MODEL, PAPER_SLOS  # noqa: E402
from sim.simulate import measure_together  # noqa: E402
from sim.sweep import run_sweep, unfinished  # noqa: E402
from sim.sweep_cells import Cell, cells  # noqa: E402
from sim.sweep_spec import PolicyEntry, SweepSpec, read_spec  # noqa: E402

ROUNDS = 3
REQUIRED = 1.8
FIVE_HUNDRED = ROOT / "benchmarks" / "sweep500.yaml"


def sixty_four(requests: int) -> list[Cell]:
    """Four policies at sixteen rates."""
    spec = SweepSpec(
        base={
            "trace": "workload:sharegpt",
            "requests": requests,
            "model": MODEL,
            "device": DEVICE,
            "instances": 2,
            "slo": PAPER_SLOS["sharegpt"],
        },
        policies=[PolicyEntry(name=name) for name in ("chunked", "bullet", "disaggregation", "static-split")],
        grid={"rate_per_gpu": [float(rate) for rate in range(4, 36, 2)]},
    )
    return cells(spec, "benchmark")


def seconds(found: Sequence[Cell], jobs: int, out: Path | None = None) -> float:
    """Of a sweep into an empty directory, by the clock; ``out`` is one to be kept."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = run_sweep(found, out or Path(folder) / "out", run=measure_together, fanout=Fanout(jobs=jobs))
        taken = time.perf_counter() - start
    if done.failures:
        raise RuntimeError(f"a cell failed: {done.failures[0].error}")
    return taken


def scaling(requests: int) -> dict[str, Any]:
    """Seconds in one process and in two."""
    found = sixty_four(requests)
    seconds(found[:2], 2)  # starts the processes, which stay
    taken: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for jobs, times in taken.items():
            times.append(seconds(found, jobs))
    ratio = statistics.median(taken[1]) / statistics.median(taken[2])
    return {"cells": len(found), "requests": requests, "seconds": taken, "ratio": ratio, "met": ratio >= REQUIRED}


def five_hundred(requests: int, out: Path | None) -> dict[str, Any]:
    """The 500 cells, on every core; ``out`` keeps them, for ``bulletsim plot`` and ``report``."""
    spec = read_spec(FIVE_HUNDRED)
    spec = spec.model_copy(update={"base": {**spec.base, "requests": requests}})
    found = cells(spec, FIVE_HUNDRED.name)
    jobs = os.cpu_count() or 1
    shared = len(unfinished({cell.key: cell for cell in found}, Path("nowhere")))
    taken = seconds(found, jobs, out)
    return {"cells": len(found), "simulations": shared, "requests": requests, "jobs": jobs, "seconds": taken}


def show(about: str, found: dict[str, Any]) -> None:
    """Print what was found as a table."""
    print(about)
    if "ratio" in found:
        rows = [
            (str(jobs), f"{min(times):.1f}", f"{statistics.median(times):.1f}", f"{max(times):.1f}")
            for jobs, times in found["seconds"].items()
        ]
        title = f"{found['cells']} cells of {found['requests']} requests, {ROUNDS} rounds"
        table(title, ("processes", "seconds, best", "median", "worst"), rows)
        print(f"\ntwice the processes: {found['ratio']:.2f} times as fast ({REQUIRED} asked)")
        return
    row = (str(found["cells"]), str(found["simulations"]), str(found["requests"]), f"{found['seconds']:.0f}")
    title = f"benchmarks/sweep500.yaml in {found['jobs']} processes"
    table(title, ("cells", "simulations", "requests each", "seconds"), [row])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or one JSON document. Status 0: a busy machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--five-hundred", action="store_true")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.out is not None and (not given.five_hundred or given.out.exists()):
        parser.error("--out is a directory to be made, and goes with --five-hundred")
    found = five_hundred(given.requests or 5000, given.out) if given.five_hundred else scaling(given.requests or 300)
    about = f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"
    if given.json:
        print(json.dumps({"machine": about, **found}, indent=2))
    else:
        show(about, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
