"""What the commands of all figures have in common: options, files, and the lengths of the samples that they served."""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.data import FOLDER
from benchmarks.paper.numbers import Number, print_numbers, write_numbers
from benchmarks.paper.runs import Outcome, Run, mean, outcomes
from benchmarks.paper.setting import SYSTEMS, WORKLOADS, System, Workload, config, sample
from benchmarks.paper_kernels import table
from sim.config import LatencySettings, checked
from sim.plots.style import Look, looks, save
from traces import open_trace

OUT = Path("out/paper")

IN_ORDER = {"sharing": "in-order"}
"""Where phases are launched on common SMs, as in two ablations: without masks, a GPU starts the thread blocks of its
streams in the order in which their kernels come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of every figure: where its files go, how many seeds, processes, and requests (None: the paper's)."""

    out: Path = OUT
    seeds: int = 1
    jobs: int | None = None
    requests: int | None = None

    def of(self, workload: Workload) -> int:
        """How many requests a run of a workload serves."""
        return self.requests or workload.requests


def options(doc: str | None, seeds: int = 1) -> Options:
    """From the command line; makes the folder."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of its PNG, PDF and CSV files")
    parser.add_argument("--seeds", type=int, default=seeds, help="samples and arrivals, means over them")
    parser.add_argument("--jobs", type=int, help="processes")
    parser.add_argument("--requests", type=int, help="in place of the paper's number, for a quick look")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return Options(out=chosen.out, seeds=chosen.seeds, jobs=chosen.jobs, requests=chosen.requests)


Key = tuple[str, str, float]
"""Workload, system and rate."""

Swept = Mapping[Key, Sequence[Outcome]]
"""Outcomes of all seeds."""


def sweep(
    rates: Mapping[str, Sequence[float]],
    systems: Mapping[str, System],
    chosen: Options,
    *,
    latency: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Swept:
    """Systems at the rates of each workload; ``latency`` and ``changes`` are settings that differ."""
    wanted = [(name, system, float(rate)) for name in rates for system in systems for rate in rates[name]]
    runs = []
    for name, system, rate in wanted:
        workload = WORKLOADS[name]
        policy = systems[system].of(workload)
        for seed in range(chosen.seeds):
            made = config(workload, policy, rate, seed, chosen.out, requests=chosen.of(workload), **changes)
            settings = made.latency.model_dump(exclude_none=True) | dict(latency or {})
            update = {"latency": checked(LatencySettings, settings, "latency")}
            runs.append(Run((name, system, rate, seed), name, made.model_copy(update=update)))
    done = outcomes(runs, chosen.jobs)
    return {key: [done[(*key, seed)] for seed in range(chosen.seeds)] for key in wanted}


def evaluated(*names: str) -> dict[str, System]:
    """Systems of the evaluation by name, all of them by default."""
    return {name: SYSTEMS[name] for name in names or SYSTEMS}


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """The look of each system, the same in every figure."""
    everything = looks([(name, system.policy) for name, system in SYSTEMS.items()])
    return {name: everything[name] for name in names}


def describe(workloads: Iterable[str], chosen: Options, requests: Mapping[str, int] | None = None) -> None:
    """Prints mean, P50 and P90 of the lengths served in the first seed's runs: the paper's samples are not public."""
    rows = []
    for name in workloads:
        workload = WORKLOADS[name]
        count = (requests or {}).get(name) or chosen.of(workload)
        source = sample(workload, 0, chosen.out, count)
        lengths = open_trace(source, 0, count)
        there = workload.file if (FOLDER / workload.file).exists() else f"{source}, a stand-in: no traces at hand"
        for what, values in (("prompt", lengths.prompt_tokens), ("answer", lengths.output_tokens)):
            middle, high = np.quantile(values, (0.5, 0.9))
            rows.append((name, what, f"{values.mean():.0f}", f"{middle:.0f}", f"{high:.0f}", len(lengths), there))
    table("Tokens of the sample served", ("workload", "", "mean", "P50", "P90", "requests", "from"), rows)


def finish(
    figure: str,
    chosen: Options,
    drawing: Figure,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Sequence[Number],
) -> None:
    """Writes FIGURE.png, .pdf, .csv (what is drawn) and .numbers.csv, and prints the numbers."""
    save(drawing, chosen.out / f"{figure}.png")
    with (chosen.out / f"{figure}.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header)
        for row in rows:
            out.writerow(f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row)
    write_numbers(chosen.out / f"{figure}.numbers.csv", numbers)
    print_numbers(f"{figure}: the paper's numbers and ours", numbers)


FIELDS = tuple(field.name for field in dataclasses.fields(Outcome) if field.name != "by_reading")


def rows_of(swept: Swept) -> list[tuple[object, ...]]:
    """A row a point, with every mean over seeds; the header is KEY_HEADER."""
    return [(*key, *(mean(seeds, name) for name in FIELDS)) for key, seeds in swept.items()]


KEY_HEADER = ("workload", "system", "request_rate_rps", *FIELDS)
