"""How large the page of a 500-cell sweep is, and how soon it opens. Prints Markdown.

    python benchmarks/report.py [--rounds 5] [--json]

Two sweeps of 500 cells, written as every sweep is but with metrics from a formula, since only their number matters
here: benchmarks/sweep500.yaml, whose cells make two panels of dense curves, and one of twenty panels (four traces on
five devices). The page is made, and opened in headless Chromium, each round in a new browser: the time is from the
request for the page until two frames after it was loaded. Distributions are on it, as with --distributions, with one
run in the place of all that would be served again. Required: less than 5 MB, and less than 2 s in the median
round. Exit status 1 where either is missed, 2 where there is no Chromium.
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

from benchmarks.chromium import WIDE, browsing, find_chromium  # noqa: E402
from benchmarks.paper_kernels import cpu_name, table  # noqa: E402
from sim.config import RunConfig  # noqa: E402
from sim.report.distributions import MOST_POINTS  # noqa: E402
from sim.report.reruns import to_serve_again  # noqa: E402
from sim.report.sweeps import sweep_page  # noqa: E402
from sim.results import row, write_results  # noqa: E402
from sim.rundir import Run  # noqa: E402
from sim.simulate import simulate  # noqa: E402
from sim.sweep_cells import Cell, cells  # noqa: E402
from sim.sweep_spec import SweepSpec, read_spec  # noqa: E402

MOST_BYTES, MOST_S = 5_000_000, 2.0
NO_BROWSER = 2
FIVE_HUNDRED = ROOT / "benchmarks" / "sweep500.yaml"
WORKLOADS, DEVICES = ("sharegpt", "code", "chat", "summary"), ("A100-80G", "H100", "H200", "RTX-4090", "L40S")
POLICIES = ("chunked", "bullet", "disaggregation", "static-split", "nanoflow")


def many_panels() -> SweepSpec:
    """Twenty panels of five policies at five rates."""
    slo = {"ttft_s": 1.0, "tpot_s": 0.1}
    return SweepSpec.model_validate(
        {
            "base": {"requests": 100, "model": "Llama-3.1-8B", "instances": 2, "slo": slo},
            "policies": list(POLICIES),
            "grid": {
                "trace": [f"workload:{name}" for name in WORKLOADS],
                "device": list(DEVICES),
                "rate_per_gpu": [2.0, 4.0, 6.0, 8.0, 10.0],
            },
        }
    )


def made_up(cell: Cell) -> dict[str, Any]:
    """A summary in the form of sim.metrics.Metrics.to_dict whose latencies rise with the load."""
    rate = (cell.config.rate or 1.0) / cell.config.gpus
    load = rate / (12 + len(cell.label) + 0.1 * cell.config.seed)

    def distribution(seconds: float) -> dict[str, float]:
        parts = {"mean": 1.1, "p50": 1.0, "p90": 1.9, "p95": 2.4, "p99": 3.7}
        return {"count": 1000} | {name: seconds * factor * (1 + load**3) for name, factor in parts.items()}

    names = {"ttft_s": 0.2, "tpot_s": 0.03, "itl_s": 0.03, "e2e_s": 6.0, "normalised_s": 0.04, "queueing_s": 0.05}
    attainment = max(0.0, min(1.0, 1.6 - 0.6 * load**2))
    return {
        "gpus": cell.config.gpus,
        "arrived": 1000,
        "states": {"finished": 1000, "rejected": 0, "running": 0, "waiting": 0},
        **{name: distribution(seconds) for name, seconds in names.items()},
        "makespan_s": 1000 / rate,
        "requests_per_s_per_gpu": min(rate, 30.0),
        "tokens_per_s_per_gpu": 200 * rate,
        "goodput_per_s_per_gpu": attainment * rate,
        "attainment": attainment,
        "ttft_attainment": attainment,
        "tpot_attainment": 1.0,
        "utilisation": min(1.0, load),
        "source_share": {"interpolated": 1.0},
        "preemptions": 0,
        "cached_tokens": 0,
    }


def write_sweep(directory: Path, spec: SweepSpec) -> int:
    """A sweep directory of made-up metrics; the number of its cells."""
    directory.mkdir(parents=True, exist_ok=True)
    found = cells(spec, "benchmark")
    write_results(directory, [row(cell, cell.key, made_up(cell)) for cell in found])
    return len(found)


def a_run() -> Run:
    """With as many requests as a curve has points, or more."""
    settings = {"trace": "workload:code", "rate": 400.0, "requests": 2 * MOST_POINTS, "model": "tiny"}
    slo = {"ttft_per_token_s": 0.001, "tpot_s": 0.1}
    config = RunConfig.model_validate({**settings, "policy": "chunked", "device": "A100-80G", "slo": slo})
    result = simulate(config)
    return Run(config=config, records=result.records, steps=result.steps, summary={})


def measured(spec: SweepSpec, program: str, rounds: int) -> dict[str, Any]:
    """Size of a sweep's page, the seconds that it takes to make it, and to open it in each round."""
    with tempfile.TemporaryDirectory() as folder:
        count = write_sweep(Path(folder) / "sweep", spec)
        reruns = dict.fromkeys((row["cell"] for row in to_serve_again(Path(folder) / "sweep")), a_run())
        began = time.perf_counter()
        text = sweep_page(Path(folder) / "sweep", reruns)
        made_s = time.perf_counter() - began
        file = Path(folder) / "report.html"
        file.write_text(text, encoding="utf-8")
        opened_s = []
        for _ in range(rounds):
            with browsing(program) as browser:
                browser.look(WIDE)
                opened_s.append(browser.open(file))
        size = file.stat().st_size
    met = size < MOST_BYTES and statistics.median(opened_s) < MOST_S
    return {"cells": count, "bytes": size, "made_s": made_s, "opened_s": opened_s, "met": met}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    program = find_chromium()
    if program is None:
        print("error: no Chromium on the path; install one, or name it in CHROMIUM", file=sys.stderr)
        return NO_BROWSER
    specs = {"two dense panels": read_spec(FIVE_HUNDRED), "twenty panels": many_panels()}
    found = {name: measured(spec, program, given.rounds) for name, spec in specs.items()}
    about = f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    if given.json:
        print(json.dumps({"machine": about, "sweeps": found}, indent=2))
    else:
        print(about)
        rows = [
            (
                name,
                str(one["cells"]),
                f"{one['bytes'] / 1e6:.2f}",
                f"{one['made_s']:.2f}",
                f"{statistics.median(one['opened_s']):.2f}",
                f"{max(one['opened_s']):.2f}",
            )
            for name, one in found.items()
        ]
        head = ("sweep", "cells", "MB", "seconds to make", "to open, median", "worst")
        table(f"pages of 500 cells, {given.rounds} rounds", head, rows)
    return 0 if all(one["met"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
