"""The paper's own points of figure 15, where the digitised file is at hand."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.data import FOLDER

FILE = FOLDER.parent / "paper" / "fig15_a100_llama31_8b.csv"

METRICS = {
    "ttft_s": "mean TTFT (s)",
    "tpot_ms": "mean TPOT (ms)",
    "throughput_rps": "throughput (req/s)",
    "slo_attainment": "SLO attainment",
}
"""Curves of the figure, by the file's name for them."""

KNEE = "rate_at_90pct_slo_rps"


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the file; ``rate`` is None where the value is one."""

    workload: str
    metric: str
    system: str
    rate: float | None
    value: float
    source: str


def points() -> tuple[Point, ...]:
    """All rows, none without the file."""
    if not FILE.exists():
        return ()
    with FILE.open(newline="") as file:
        return tuple(
            Point(
                row["workload"],
                row["metric"],
                row["system"],
                float(row["request_rate_rps"]) if row["request_rate_rps"] else None,
                float(row["value"]),
                row["source"],
            )
            for row in csv.DictReader(file)
        )


def of(rows: Iterable[Point], workload: str, system: str, metric: str) -> list[Point]:
    """One curve."""
    return [row for row in rows if (row.workload, row.system, row.metric) == (workload, system, metric)]
